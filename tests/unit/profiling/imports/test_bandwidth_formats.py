"""Output of nvbandwidth and nccl-tests: which bandwidth of which GPUs is stored, what is refused.

The texts have the layout of output.cpp and json_output.cpp of nvbandwidth 0.8, and of util.cu of
nccl-tests 2.19 (2021: common.cu).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_samples import ingest, report

from gpu_aware_profile.cli import cli
from gpu_aware_profile.imports.formats.reader import ReadOptions, Source
from gpu_aware_profile.imports.formats.registry import FORMATS
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.interconnect import Collective, PairBandwidth
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.interconnect import newest_bandwidths, newest_collectives

Call = Callable[..., click.testing.Result]


@pytest.fixture
def store_path(store_path: Path) -> Path:
    """A store with two nodes; the CUDA order of n1 is not Slurm's."""
    with open_store(store_path) as store:
        for node in ("n1", "n2"):
            ingest(store, report(node, times=dict.fromkeys(range(3), 100.0)))
    return store_path


@pytest.fixture
def run_import(store_path: Path) -> Call:
    def call(*args: str, text: str | None = None) -> click.testing.Result:
        return click.testing.CliRunner().invoke(
            cli, ["import", *args, "--taken-at", "5000"], input=text
        )

    return call


DEVICES = [f"NVIDIA H100 80GB HBM3 (00000000:{bus:02x}:00)" for bus in (2, 0, 1)]
READ = [[0, 11.0, 12.0], [13.0, 0, 14.0], [15.0, 16.0, 0]]
TOTAL = [[0, 40.0, 41.0], [40.5, 0, 42.0], [41.5, 42.5, 0]]
HALF = [[0, 20.0, 20.0], [20.0, 0, 21.0], [20.0, 21.0, 0]]


def matrix_text(matrix: Sequence[Sequence[float]]) -> str:
    lines = ["  " + "".join(f"{column:10d}" for column in range(len(matrix[0])))]
    for number, row in enumerate(matrix):
        cells = (f"{value:10.2f}" if value else f"{'N/A':>10}" for value in row)
        lines.append(f"{number:2d}{''.join(cells)}")
    return "\n".join([*lines, "", "SUM x 1.00", ""])


def nvbandwidth_text(host: str = "n1") -> str:
    devices = "\n".join(f"Device {n}: {device}" for n, device in enumerate(DEVICES))
    return f"""nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12070
CUDA Driver Version: 12070
Driver Version: 565.02

{host}
{devices}

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
{matrix_text([[55.0, 55.0, 55.0]])}
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
{matrix_text(READ)}
Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
{matrix_text(HALF)}
memcpy CE GPU(row) <-> GPU(column) Read2 bandwidth (GB/s)
{matrix_text(HALF)}
memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
{matrix_text(TOTAL)}
Running device_to_device_latency_sm.
Device to Device Latency SM GPU(row) <-> GPU(column) (ns)
{matrix_text(HALF)}
Running device_to_device_memcpy_write_sm.
Waived:
NOTE: The reported results may not reflect the full capabilities of the platform.
"""


def nvbandwidth_json() -> str:
    """In JSON the three matrices of a bidirectional test are one."""
    cells = [[str(v) if v else "N/A" for v in row] for row in [*HALF, *HALF, *TOTAL]]
    tests = [
        {
            "name": "device_to_device_memcpy_read_ce",
            "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
            "bandwidth_matrix": [[str(v) if v else "N/A" for v in row] for row in READ],
            "status": "Passed",
        },
        {
            "name": "device_to_device_bidirectional_memcpy_read_ce",
            "bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
            "bandwidth_matrix": cells,
            "status": "Passed",
        },
        {"name": "device_to_device_memcpy_write_ce", "status": "Waived"},
    ]
    listed = [f"{n}: {device}: (n1)" for n, device in enumerate(DEVICES)]
    return json.dumps({"nvbandwidth": {"GPU Device list": listed, "testcases": tests}})


@pytest.mark.parametrize("text", [nvbandwidth_text(), nvbandwidth_json()])
def test_a_read_goes_from_column_to_row(store_path: Path, run_import: Call, text: str) -> None:
    """CUDA's GPUs 0, 1, 2 are Slurm's 2, 0, 1 here."""
    done = run_import("-", text=text)
    assert done.exit_code == 0, done.stderr
    assert done.stderr == f"imported bandwidths of 3 pairs of GPUs into {store_path}\n"
    with open_store(store_path) as store:
        assert newest_bandwidths(store) == [
            PairBandwidth("n1", 0, 1, 5000.0, ab_gbps=16.0, ba_gbps=14.0, both_gbps=42.5),
            PairBandwidth("n1", 0, 2, 5000.0, ab_gbps=11.0, ba_gbps=13.0, both_gbps=40.5),
            PairBandwidth("n1", 1, 2, 5000.0, ab_gbps=12.0, ba_gbps=15.0, both_gbps=41.5),
        ]


def test_a_write_goes_from_row_to_column_and_the_fastest_test_counts(
    store_path: Path, run_import: Call
) -> None:
    text = nvbandwidth_text().replace("device_memcpy_write_sm.\nWaived:", "")
    write = [[0, 10.0, 10.0], [10.0, 0, 10.0], [17.0, 10.0, 0]]
    text += f"Running device_to_device_memcpy_write_ce.\nGPU(row) GPU(column)\n{matrix_text(write)}"
    assert run_import("-", text=text).exit_code == 0
    with open_store(store_path) as store:
        of_pair = {(p.a, p.b): p for p in newest_bandwidths(store)}
    assert of_pair[1, 2].ab_gbps == 17.0  # CUDA's 2 to 0
    assert of_pair[1, 2].ba_gbps == 15.0
    assert of_pair[0, 1].ab_gbps == 16.0


def test_an_unknown_gpu_or_a_missing_list_is_refused(store_path: Path, run_import: Call) -> None:
    unknown = run_import("-", text=nvbandwidth_text().replace(":02:00)", ":77:00)"))
    assert unknown.exit_code == 1
    assert "pair 1: no sweep has seen a GPU with the PCI address 0000:77:00" in unknown.stderr
    assert "no sweep has seen a GPU" in run_import("-", text=nvbandwidth_text("n9")).stderr
    bare = run_import("-", text=nvbandwidth_text().replace("Device ", "GPU "))
    assert "no list of devices with their PCI addresses" in bare.stderr
    single = run_import("-", text=nvbandwidth_text().replace("device_to_device", "multinode"))
    assert "no bandwidth between two GPUs" in single.stderr
    assert (
        "only times are of a class; leave --class out"
        in run_import("-", "--class", "A", text=nvbandwidth_text()).stderr
    )


@pytest.mark.parametrize("listed", [5, True, {"0": 1}, "0: x (0000:01:00)"])
def test_a_list_of_devices_that_is_none_is_refused(run_import: Call, listed: object) -> None:
    text = json.dumps({"nvbandwidth": {"GPU Device list": listed}})
    done = run_import("-", text=text)
    assert done.exit_code == 1
    assert "no list of devices" in done.output


def test_a_node_with_bits_for_bytes_is_refused(store_path: Path, run_import: Call) -> None:
    assert run_import("-", text=nvbandwidth_text()).exit_code == 0
    rows = "n2,0,1,112,112,\nn2,0,2,110,112,\nn2,1,2,110,112,\n"
    header = "node,a,b,ab_gbps,ba_gbps,both_gbps\n"
    done = run_import("-", text=header + rows)
    assert done.exit_code == 1
    assert (
        "NV2 links of n2 have 8.22 times the bandwidth of the median node with v100"
        " (are bits and bytes mixed up?)"
    ) in done.stderr
    with open_store(store_path) as store:
        assert {pair.node for pair in newest_bandwidths(store)} == {"n1"}
    assert run_import("-", "--accept-outliers", text=header + rows).exit_code == 0


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("n1,0,0,1,1,1", "a and b are the same GPU, n1:0"),
        ("n1,0,1,,,", "no bandwidth"),
        ("n1,0,1,-1,,", "ab_gbps is -1: not a bandwidth in GB/s"),
        ("n1,0,1,,1e9,", "ba_gbps is 1e+09: not a bandwidth"),
        ("n1,0,7,1,1,1", "no sweep has seen GPU 7 of node n1"),
        ("n;1,0,1,1,1,1", "'n;1' is not a node name"),
    ],
)
def test_bad_pairs(run_import: Call, row: str, why: str) -> None:
    done = run_import("-", text=f"node,a,b,ab_gbps,ba_gbps,both_gbps\n{row}\n")
    assert done.exit_code == 1
    assert f"line 2: {why}" in done.stderr


def nccl(
    operation: str | None = "all_reduce",
    gpus: Sequence[tuple[str, str]] = (("n1", "0000:02:00"), ("n1", "0000:00:00")),
    busbw: float = 230.5,
    wrong: str = "0",
) -> str:
    """As util.cu prints it."""
    start = "# nccl-tests version 2.19.6 nccl-headers=22803 nccl-library=22803\n"
    if operation is not None:
        start += f"# Collective test starting: {operation}_perf\n"
    ranks = "".join(
        f"#  Rank {n:2d} Group  0 Pid {4711 + n:6d} on {host:>10s} device {n:2d} [{pci}]"
        " NVIDIA H100 80GB HBM3\n"
        for n, (host, pci) in enumerate(gpus)
    )
    rows = "".join(
        f"{size:12d}  {size // 4:12d}  {'float':>8s}  {'sum':>6s}  {'-1':>6s}"
        f"  {1.0:7.2f}  {bw:6.2f}  {bw:6.2f}  {wrong:>6s}"
        f"  {1.0:7.2f}  {bw:6.2f}  {bw + 1:6.2f}  {'0':>6s}\n"
        for size, bw in ((1 << 20, 50.0), (1 << 30, busbw), (1 << 25, 300.0))
    )
    columns = "time algbw busbw #wrong"
    return (
        f"{start}# nThread 1 nGpus 8 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 1"
        " iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0\n#\n# Using devices\n"
        f"{ranks}#\n#                                  out-of-place          in-place\n"
        f"#       size         count      type   redop    root {columns} {columns}\n"
        "#        (B)    (elements)                              (us)  (GB/s)  (GB/s)\n"
        f"{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 193.6\n#\n"
    )


def test_the_largest_message_counts(store_path: Path, run_import: Call) -> None:
    second = nccl("all_gather", (("n2.site", "0000:00:00"), ("n2.site", "0000:01:00")))
    done = run_import("-", text="+ srun all_reduce_perf\n" + nccl() + second)
    assert done.exit_code == 0, done.stderr
    assert "imported bandwidths of 2 collectives" in done.stderr
    with open_store(store_path) as store:
        assert newest_collectives(store, "all_reduce") == [
            Collective("n1", (0, 2), "all_reduce", 5000.0, 231.0, 1 << 30)
        ]
        assert newest_collectives(store, "all_gather")[0].node == "n2"


def test_output_of_2021(store_path: Path, run_import: Call) -> None:
    """Without operation and root, with the bus alone, and with an error instead of a count."""
    old = (
        "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters:"
        " 20 validation: 1 \n#\n# Using devices\n"
        "#   Rank  0 Pid  26837 on         n1 device  0 [0x02] Tesla V100-SXM2-16GB\n"
        "#   Rank  1 Pid  26837 on         n1 device  1 [0x00] Tesla V100-SXM2-16GB\n#\n"
        "#       size         count    type   redop     time   algbw   busbw  error     time"
        "   algbw   busbw  error\n"
        "   134217728      33554432   float     sum   1234.5   40.00   40.00  5e-07   1234.5"
        "   41.00   42.00  5e-07\n"
    )
    assert (
        "does not name the operation; give it with --value all_reduce"
        in run_import("-", text=old).stderr
    )
    done = run_import("-", "--value", "all_reduce", text=old)
    assert done.exit_code == 0, done.stderr
    with open_store(store_path) as store:
        assert newest_collectives(store, "all_reduce")[0].gbps == 41.0
    assert "--value takes all_reduce, " in run_import("-", "--value", "x", text=old).stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nccl(gpus=(("n1", "0000:00:00"), ("n2", "0000:00:00"))), "nodes: 2, groups of ranks: 1;"),
        (
            nccl().replace("Group  0 Pid   4712", "Group  1 Pid   4712"),
            "nodes: 1, groups of ranks: 2;",
        ),
        (nccl(wrong="7"), "the result is wrong (7, 0 wrong values)"),
        (nccl(busbw=0.0).replace("1.00       0", "0.00       0"), "gbps is 0"),
        (nccl().partition("#       size")[0], "no line with a result"),
        (nccl(gpus=(("n1", "0000:00:00"),)), "is not two or more different GPUs"),
        (nccl(gpus=(("n1", "0000:00:00"), ("n1", "0000:09:00"))), "no sweep has seen a GPU"),
        (nccl("sendrecv"), "operation 'sendrecv' is not one of all_reduce"),
    ],
)
def test_a_run_without_a_place_is_refused(run_import: Call, text: str, why: str) -> None:
    done = run_import("-", text=text)
    assert done.exit_code == 1
    assert why in done.stderr
    assert "line " in done.stderr


def test_a_slow_collective_is_refused(store_path: Path, run_import: Call) -> None:
    assert run_import("-", text=nccl()).exit_code == 0
    other = nccl(gpus=(("n2", "0000:02:00"), ("n2", "0000:00:00")), busbw=23.0)
    done = run_import("-", text=other)
    assert done.exit_code == 1
    assert "all_reduce over GPUs 0 2 of n2 have 0.102 times the bandwidth" in done.stderr


@given(
    st.sampled_from([nvbandwidth_text(), nvbandwidth_json(), nccl()]),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30), st.text(max_size=12)), max_size=6),
)
def test_no_damage_breaks_a_reader(text: str, damages: list[tuple[int, int, str]]) -> None:
    """Each damaged text is a table or one sentence."""
    for at, length, put in damages:
        text = text[:at] + put + text[at + length :]
    for reader in FORMATS.values():
        source = Source("stdin", text)
        try:
            if reader.matches(source):
                table = reader.read(source, ReadOptions("n1", None)).table
                assert all(set(row.cells) == set(table.columns) for row in table.rows)
        except SourceError as exc:
            if len(str(exc)) > 2000:
                raise
