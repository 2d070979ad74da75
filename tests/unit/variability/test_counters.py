"""Utilisation counters in the output of Nsight Compute and DCGM."""

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.variability.counters import read_dcgm, read_ncu

DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
FMA = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
TENSOR = "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"
LSU = "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"

LONG_HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Section Name","Metric Name","Metric Unit","Metric Value"'
)


METRICS = {"dram": DRAM, "fma": FMA, "tensor": TENSOR, "lsu": LSU}


def long_table(*metrics: str) -> list[str]:
    """Output of ``ncu --csv --metrics ...``: one row per kernel and metric.

    ``metrics``: number of the kernel, metric or unit of its duration, value.
    """
    rows = []
    for number, what, value in map(str.split, metrics):
        name, unit = (METRICS[what], "%") if what in METRICS else (TIME, what)
        rows.append(
            f'"{number}","4242","python3.11","g07","void gemm<float, 8>(int)","1","7",'
            f'"Command line profiler metrics","{name}","{unit}","{value}"'
        )
    return [
        "epoch 1, loss 0.5",
        "==PROF== Connected to process 4242 (/usr/bin/python3.11)",
        '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 8 passes',
        LONG_HEADER,
        *rows,
        "==PROF== Disconnected from process 4242",
    ]


def test_kernels_are_weighted_by_their_duration() -> None:
    first = ("0 dram 20", "0 fma 80.0", "0 lsu 99.0", "0 us 3.0")
    found = read_ncu(long_table(*first, "1 dram 60", "1 fma 10", "1 tensor 90", "1 ns 1,000"))
    assert found.dram == pytest.approx((3 * 20 + 60) / 4)
    assert found.peak_fu == pytest.approx((3 * 80 + 10) / 4)  # fma, not tensor; lsu does not count


def test_without_durations_kernels_count_alike() -> None:
    found = read_ncu(long_table("0 dram 20", "0 fma 80", "1 dram 60"))
    assert (found.dram, found.peak_fu) == (40.0, 40.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("9,00", 9.0), ("15,72", 15.72), ("1.38", 1.38), ("0", 0.0), ("100.000000", 100.0)],
)
def test_numbers_of_both_locales(text: str, value: float) -> None:
    assert read_ncu(long_table(f"0 dram {text}", "0 fma 1")).dram == value


@pytest.mark.parametrize(
    ("unit", "text", "weight"),
    [
        ("ns", "12,345", 12345.0),
        ("nsecond", "1,234,567.5", 1234567.5),
        ("us", "12.5", 12500.0),
        ("usecond", "12,5", 12500.0),
        ("ms", "2", 2e6),
        ("s", "1", 1e9),
        ("second", "1", 1e9),
    ],
)
def test_units_of_time(unit: str, text: str, weight: float) -> None:
    first = ("0 dram 100", "0 fma 0", f"0 {unit} {text}")
    found = read_ncu(long_table(*first, "1 dram 0", "1 ns 1,000"))
    assert found.dram == pytest.approx(100 * weight / (weight + 1000))


def test_the_wide_layout_says_the_same() -> None:
    found = read_ncu(
        [
            "==PROF== Connected to process 1",
            f'"ID","Process ID","Kernel Name","{TIME}","{DRAM}","{FMA}","{LSU}"',
            '"","","","us","%","%","%"',
            '"0","1","gemm","3.0","20","80","99"',
            '"1","1","copy","1.0","60","10","99"',
        ]
    )
    assert (found.dram, found.peak_fu) == (30.0, 62.5)


WIDE = [
    f'"ID","Process ID","Kernel Name","{TIME}","{DRAM}","{FMA}"',
    '"","","","us","%","%"',
    '"0","1","gemm","1.0","50","90"',
]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (long_table("0 dram 50", "0 fma 90"), long_table("0 dram 10", "0 fma 10")),
        (WIDE, [*WIDE[:2], '"0","1","copy","1.0","10","10"']),
        (WIDE, long_table("0 dram 10", "0 fma 10", "0 us 1")),
        (long_table("0 dram 10", "0 fma 10", "0 us 1"), WIDE),
    ],
)
def test_appended_runs_all_count(one: list[str], other: list[str]) -> None:
    """Kernels are numbered anew in every run."""
    found = read_ncu([*one, *other])
    assert (found.dram, found.peak_fu) == (30.0, 50.0)


def test_runs_with_different_metrics_complete_each_other() -> None:
    found = read_ncu([*long_table("0 dram 40"), *long_table("0 fma 80")])
    assert (found.dram, found.peak_fu) == (40.0, 80.0)


def test_processes_number_their_kernels_apart() -> None:
    lines = long_table("0 dram 50", "0 fma 90")
    second = [line.replace('"4242"', '"4243"').replace('"50"', '"10"') for line in lines[-3:-1]]
    found = read_ncu([*lines, *second])
    assert (found.dram, found.peak_fu) == (30.0, 90.0)


def test_values_that_could_not_be_measured_are_left_out() -> None:
    first = ("0 dram 20", "0 fma 80", "0 tensor n/a")
    found = read_ncu(long_table(*first, "1 dram N/A", "1 fma 40", "1 tensor 90"))
    assert (found.dram, found.peak_fu) == (20.0, 90.0)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "no Nsight Compute table"),
        (["Segmentation fault"], "no Nsight Compute table"),
        (long_table("0 fma 5"), "no value of dram__throughput"),
        (long_table("0 dram 5", "0 lsu 5"), "no functional unit"),
        (long_table("0 dram n/a", "0 fma 5"), "no value of dram__throughput"),
        (long_table("0 dram 5", "0 fma n/a"), "no functional unit"),
        (long_table("0 dram nan", "0 fma 5"), "'nan' is not a number"),
        (long_table("0 dram 940", "0 fma 5"), "940% is not possible"),
        (long_table("0 cycle 940"), "unknown unit 'cycle'"),
    ],
)
def test_wrong_tables_are_refused(lines: list[str], reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        read_ncu(lines)


DMON = """\
#Entity   SMACT        TENSO        DRAMA        FP64A        FP32A        FP16A
ID
GPU 0     0.000        0.000        0.010        0.000        0.000        0.000
GPU 0     0.912        0.521        0.400        0.000        0.100        0.020
GPU 1     0.905        0.479        0.300        N/A          0.120        0.020
#Entity   SMACT        TENSO        DRAMA        FP64A        FP32A        FP16A
ID
GPU 0     N/A          N/A          N/A          N/A          N/A          N/A
"""


def test_dcgm_averages_the_busy_samples() -> None:
    found = read_dcgm(DMON.splitlines())
    assert found.dram == pytest.approx(35.0)
    assert found.peak_fu == pytest.approx(50.0)


def test_dcgm_blank_values_are_no_measurements() -> None:
    text = "#Entity  DRAMA  FP32A\nID\nGPU 0  0.5  0.25\nGPU 0  140737488355328.0  0.75\n"
    found = read_dcgm(text.splitlines())
    assert (found.dram, found.peak_fu) == (50.0, 50.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no DCGM table"),
        ("Error: unable to connect", "no DCGM table"),
        ("#Entity SMACT TENSO\nID\nGPU 0 0.5 0.5", "collect field 1005"),
        ("#Entity SMACT DRAMA\nID\nGPU 0 0.0 0.5", "no GPU was busy in any sample"),
        ("#Entity SMACT DRAMA\nID\nGPU 0 0.5 0.5", "collect fields 1004"),
        ("#Entity DRAMA FP32A\nID\nGPU 0 0.5", "line 3: expected 2 values"),
        ("#Entity DRAMA FP32A\nID\nGPU 0 0.5 x", "line 3: 'x' is not a number"),
        ("#Entity DRAMA FP32A\nID\nGPU 0 50 20", "5e[+]03% is not possible"),
    ],
)
def test_wrong_dumps_are_refused(text: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        read_dcgm(text.splitlines())
