"""Output of nvbandwidth and nccl-tests: which bandwidth of which GPUs is stored, what is refused.

The texts have the layout of output.cpp and json_output.cpp of nvbandwidth 0.8, and of util.cu of
nccl-tests 2.19 (2021: common.cu).
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import click.testing
import pytest
from store_samples import ingest, report

from gpu_aware_profile.imports.formats.reader import ReadOptions, Source
from gpu_aware_profile.imports.formats.registry import FORMATS
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import Collective, PairBandwidth
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import newest_bandwidths, newest_collectives

Call = Callable[..., click.testing.Result]
Said = Callable[..., str]


@pytest.fixture
def store_path(store_path: Path) -> Path:
    """A store with two nodes; the CUDA order of n1 is not Slurm's."""
    with open_store(store_path) as store:
        for node in ("n1", "n2"):
            ingest(store, report(node, times=dict.fromkeys(range(3), 100.0)))
    return store_path


AT = ("--taken-at", "5000")
PAIRS = "node,a,b,ab_gbps,ba_gbps,both_gbps\n"
DEVICES = [f"NVIDIA H100 80GB HBM3 (00000000:{bus:02x}:00)" for bus in (2, 0, 1)]
READ = [[0, 11.0, 12.0], [13.0, 0, 14.0], [15.0, 16.0, 0]]
TOTAL = [[0, 40.0, 41.0], [40.5, 0, 42.0], [41.5, 42.5, 0]]
HALF = [[0, 20.0, 20.0], [20.0, 0, 21.0], [20.0, 21.0, 0]]


def stored_pairs(path: Path) -> dict[tuple[str, int, int], PairBandwidth]:
    """(node, GPU, GPU) -> what was measured."""
    with open_store(path) as store:
        return {(pair.node, pair.a, pair.b): pair for pair in newest_bandwidths(store)}


def rings(path: Path) -> list[Collective]:
    with open_store(path) as store:
        return newest_collectives(store, "all_reduce")


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
def test_a_read_goes_from_column_to_row(store_path: Path, imported: Said, text: str) -> None:
    """CUDA's GPUs 0, 1, 2 are Slurm's 2, 0, 1 here."""
    said = imported("-", *AT, text=text)
    assert said.endswith(f"imported bandwidths of 3 pairs of GPUs into {store_path}\n")
    assert list(stored_pairs(store_path).values()) == [
        PairBandwidth("n1", 0, 1, 5000.0, ab_gbps=16.0, ba_gbps=14.0, both_gbps=42.5),
        PairBandwidth("n1", 0, 2, 5000.0, ab_gbps=11.0, ba_gbps=13.0, both_gbps=40.5),
        PairBandwidth("n1", 1, 2, 5000.0, ab_gbps=12.0, ba_gbps=15.0, both_gbps=41.5),
    ]


def test_a_write_goes_from_row_to_column_and_the_fastest_test_counts(
    store_path: Path, imported: Said
) -> None:
    text = nvbandwidth_text().replace("device_memcpy_write_sm.\nWaived:", "")
    write = [[0, 10.0, 10.0], [10.0, 0, 10.0], [17.0, 10.0, 0]]
    text += f"Running device_to_device_memcpy_write_ce.\nGPU(row) GPU(column)\n{matrix_text(write)}"
    imported("-", text=text)
    found = stored_pairs(store_path)
    assert (found["n1", 1, 2].ab_gbps, found["n1", 1, 2].ba_gbps) == (17.0, 15.0)  # CUDA's 2 to 0
    assert found["n1", 0, 1].ab_gbps == 16.0


def test_a_node_with_bits_for_bytes_is_refused(
    store_path: Path, imported: Said, refused: Said
) -> None:
    imported("-", text=nvbandwidth_text())
    rows = f"{PAIRS}n2,0,1,112,112,\nn2,0,2,110,112,\nn2,1,2,110,112,\n"
    said = refused("-", text=rows)
    assert (
        "NV2 links of n2 have 8.22 times the bandwidth of the median node with v100"
        " (are bits and bytes mixed up?)"
    ) in said
    assert {node for node, *_ in stored_pairs(store_path)} == {"n1"}
    imported("-", "--accept-outliers", text=rows)


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
        f"{start}# nThread 1 nGpus {len(gpus)} minBytes 8 maxBytes 1073741824 step: 2(factor)"
        " warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0\n"
        "#\n# Using devices\n"
        f"{ranks}#\n#                                  out-of-place          in-place\n"
        f"#       size         count      type   redop    root {columns} {columns}\n"
        "#        (B)    (elements)                              (us)  (GB/s)  (GB/s)\n"
        f"{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 193.6\n#\n"
    )


def test_the_largest_message_counts(store_path: Path, imported: Said) -> None:
    second = nccl("all_gather", (("n2.site", "0000:00:00"), ("n2.site", "0000:01:00")))
    said = imported("-", *AT, text="+ srun all_reduce_perf\n" + nccl() + second)
    assert "imported bandwidths of 2 collectives" in said
    with open_store(store_path) as store:
        assert newest_collectives(store, "all_reduce") == [
            Collective("n1", (0, 2), "all_reduce", 5000.0, 231.0, 1 << 30)
        ]
        assert newest_collectives(store, "all_gather")[0].node == "n2"


OLD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters:"
    " 20 validation: 1 \n#\n# Using devices\n"
    "#   Rank  0 Pid  26837 on         n1 device  0 [0x02] Tesla V100-SXM2-16GB\n"
    "#   Rank  1 Pid  26837 on         n1 device  1 [0x00] Tesla V100-SXM2-16GB\n#\n"
    "#       size         count    type   redop     time   algbw   busbw  error     time"
    "   algbw   busbw  error\n"
    "   134217728      33554432   float     sum   1234.5   40.00   40.00  5e-07   1234.5"
    "   41.00   42.00  5e-07\n# Out of bounds values : 0 OK\n"
)
"""Of 2021: without operation and root, with the bus alone, an error instead of a count."""


def test_output_of_2021(store_path: Path, refused: Said, imported: Said) -> None:
    assert "does not name the operation; give it with --value all_reduce" in refused("-", text=OLD)
    imported("-", "--value", "all_reduce", text=OLD)
    assert rings(store_path)[0].gbps == 41.0
    assert "--value takes all_reduce, " in refused("-", "--value", "x", text=OLD)


def counted_text(matrix: Sequence[Sequence[float]] = READ) -> str:
    """As nvbandwidth 0.10 prints it: without a list of devices."""
    return (
        "nvbandwidth Version: v0.10.0\n\nRunning device_to_device_memcpy_read_ce.\n"
        f"memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n{matrix_text(matrix)}"
    )


BAD_PAIRS = {
    "n1,0,0,1,1,1": "a and b are the same GPU, n1:0",
    "n1,0,1,,,": "no bandwidth",
    "n1,0,1,-1,,": "ab_gbps is -1: expected 1e-06 to 1e+06",
    "n1,0,1,,1e9,": "ba_gbps is 1e+09: expected 1e-06 to 1e+06",
    "n1,0,7,1,1,1": "no sweep has seen GPU 7 of node n1",
    "n;1,0,1,1,1,1": "'n;1' is not a node name",
}
FAILED = "the program says that the run failed"
NO_NODE = "does not name its node; give it with --node"
NO_VALUE = "device_to_device_memcpy_read_ce has a value that is not a bandwidth"
NOT_READY = "[CUDA_ERROR_SYSTEM_NOT_READY] system not yet initialized in expression cuInit(0)"
STOPPED = "test 1: device_to_device_memcpy_write_sm failed"
THREE = nccl(gpus=tuple(("n1", f"0000:0{n}:00") for n in range(3)))
REFUSED = [
    *((f"line 2: {why}", f"{PAIRS}{row}\n") for row, why in BAD_PAIRS.items()),
    ("only times are of a class; leave --class out", nvbandwidth_text(), "--class", "A"),
    ("no sweep has seen a GPU", nvbandwidth_text("n9")),
    (
        "pair 1: no sweep has seen a GPU with the PCI address 0000:77:00",
        nvbandwidth_text().replace(":02:00)", ":77:00)"),
    ),
    *(
        (NO_NODE, json.dumps({"nvbandwidth": {"GPU Device list": listed}}))
        for listed in (5, True, {"0": 1}, "0: x (0000:01:00)")
    ),
    (NO_NODE, counted_text()),
    *(
        (NO_VALUE, nvbandwidth_text().replace("11.00", value))
        for value in ("nan", "-11.00", "11,00", "1.1e")
    ),
    (
        "nvbandwidth failed: '[CUDA_ERROR_SYSTEM_NOT_READY]",
        f"nvbandwidth Version: v0.8\n\n{NOT_READY}\n",
        *("--node", "n1"),
    ),
    (
        "nvbandwidth failed: 'no GPU'",
        nvbandwidth_json().replace('"testcases"', '"error": "no GPU", "testcases"'),
    ),
    (
        "test 1: device_to_device_memcpy_read_ce failed",
        nvbandwidth_json().replace("Passed", "Error", 1),
    ),
    *(
        (STOPPED, nvbandwidth_text().replace("Waived:", error))
        for error in (
            "Error: CUDA_ERROR_ILLEGAL_ADDRESS",
            "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression x in y() : m.cpp:9",
            "[cudaErrorMemoryAllocation] out of memory in expression x in y() : m.cpp:9",
            "NVML_ERROR: [Unknown Error] in expression x in y() : m.cpp:9",
            "ASSERT in expression x in y() : m.cpp:9",
        )
    ),
    *(
        (FAILED, text, "--value", "all_reduce")
        for text in (
            nccl().replace(" : 0 OK", " : 2 FAILED"),
            nccl().replace("   50.00       0", "   50.00 8388608", 1),
            OLD.replace(" : 0 OK", " : 2 FAILED"),
            nccl() + "n1: Test NCCL failure common.cu:958 'unhandled cuda error'\n",
        )
    ),
    # As if another program wrote into the line: the GPUs of the run are then not known.
    *(
        ("lines with ranks are missing", THREE.replace(f"[0000:0{n}:00]", "[0000:0NCCL WARN"))
        for n in range(3)
    ),
]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_refused_by_name(refused: Said, case: tuple[str, ...]) -> None:
    why, text, *options = case
    assert why in refused("-", *options, text=text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nccl(wrong="7"), "the program says that the run failed: '7, 0 wrong values'"),
        (nccl(busbw=0.0).replace("1.00       0", "0.00       0"), "gbps is 0"),
        (nccl().partition("#       size")[0], "no line with a result"),
        (nccl().partition("# Out of bounds")[0], "no verdict: the run was cut off"),
        (nccl(gpus=(("n1", "0000:00:00"),) * 2), "is not two or more different GPUs"),
        (nccl(gpus=(("n1", "0000:00:00"), ("n1", "0000:09:00"))), "no sweep has seen a GPU"),
    ],
)
def test_a_run_without_a_place_is_refused(refused: Said, text: str, why: str) -> None:
    said = refused("-", text=text)
    assert why in said
    assert "line " in said


def test_a_slow_collective_is_refused(store_path: Path, imported: Said, refused: Said) -> None:
    imported("-", text=nccl())
    other = nccl(gpus=(("n2", "0000:02:00"), ("n2", "0000:00:00")), busbw=23.0)
    said = refused("-", text=other)
    assert "all_reduce over GPUs 0 2 of n2 have 0.102 times the bandwidth" in said


@pytest.mark.parametrize(
    ("name", "text"), [("nvbandwidth", nvbandwidth_text()), ("nccl-tests", nccl())]
)
def test_an_output_that_is_cut_off_gives_no_other_value(name: str, text: str) -> None:
    """A file system that is full or a job that is killed cuts in the middle of a number, too."""

    def values(text: str) -> set[str]:
        table = FORMATS[name].read(Source("n1.txt", text), ReadOptions()).table
        return {value for row in table.rows for value in row.cells.values()}

    whole = values(text)
    assert len(whole) > 4
    for end in range(text.index("Running" if name == "nvbandwidth" else "# Using"), len(text)):
        with suppress(SourceError):
            assert values(text[:end]) <= {*whole, ""}, text[end - 60 : end]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (nccl("sendrecv"), "sendrecv (1)"),
        (nccl(gpus=(("n1", "0000:00:00"), ("n2", "0000:00:00"))), "a run on several nodes (1)"),
        (nccl().replace("Group  0 Pid   4712", "Group  1 Pid   4712"), "several groups of ranks"),
        (nccl(gpus=(("n1", "0000:00:00"),)), "a run on one GPU (1)"),
        (nvbandwidth_text().replace("device_to_device", "multinode"), "across nodes (3)"),
    ],
)
def test_what_the_store_has_no_place_for_is_left_out(imported: Said, text: str, what: str) -> None:
    said = imported("-", text=text)
    assert what in said
    assert "imported bandwidths of 0 " in said


def prefixed(text: str, prefix: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


PREFIXES = (
    *("0: ", " 0: ", "[1,0]<stdout>:", "[prterun-n1-42@1,0]<stdout>: "),
    *("[0] ", "n1: ", "n1 | ", "n1:   "),
    *("Thu Nov 27 06:49:28 2026<stdout>:", "Thu Nov 27 06:49:28 2026[1,0]<stdout>:"),
    *("[node-1@1,0][n1:4711]<stdout>: ", "2026-11-27T06:49:28.123Z ", "[2026-11-27 06:49:28] "),
    "Nov 27 06:49:28 ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("text", [nccl(), nvbandwidth_text(), nvbandwidth_json()])
def test_prefixes_of_launchers_are_skipped(
    store_path: Path, imported: Said, prefix: str, text: str
) -> None:
    imported("-", text="srun: job 7 queued\n" + prefixed(text, prefix))
    found = len(stored_pairs(store_path)), len(rings(store_path))
    assert found == ((0, 1) if text == nccl() else (3, 0))


def test_tasks_whose_lines_are_mixed_are_told_apart(store_path: Path, imported: Said) -> None:
    both = zip(
        prefixed(nvbandwidth_text("n1"), "0: ").splitlines(),
        prefixed(nvbandwidth_text("n2").replace("11.00", "10.00"), "1: ").splitlines(),
        strict=True,
    )
    imported("-", text="\n".join(line for pair in both for line in pair))
    found = stored_pairs(store_path)
    assert (found["n1", 0, 2].ab_gbps, found["n2", 0, 2].ab_gbps) == (11.0, 10.0)


def test_several_runs_in_one_text_are_told_apart(
    store_path: Path, imported: Said, refused: Said
) -> None:
    slow = nvbandwidth_text("n1.cluster.site").replace("11.00", "10.00")
    imported("-", text=slow + "\n" + nvbandwidth_text("n2"))
    found = stored_pairs(store_path)
    assert (found["n1", 0, 2].ab_gbps, found["n2", 0, 2].ab_gbps) == (10.0, 11.0)
    for text in (slow + nvbandwidth_text("n2"), nccl() + nccl().replace(" n1 ", " n2 ")):
        said = refused("-", "--node", "n1", text=text)
        assert "--node is for a file of one node; it has n1, n2" in said
    unnamed = nvbandwidth_text().replace("Device ", "GPU ") * 2
    assert "2 runs that do not all name their node" in refused("-", "--node", "n1", text=unnamed)
    assert "several JSON objects" in refused("-", text=f"{nvbandwidth_json()}\n" * 2)
    mixed = refused("-", text=nvbandwidth_text() + nccl())
    assert "it holds nvbandwidth and nccl-tests; name one with --format" in mixed


def test_one_direction_of_two_at_once_is_left_out(imported: Said) -> None:
    """nvbandwidth 0.5 prints no total of both directions."""
    text = nvbandwidth_text().replace(" Total ", " ")
    assert text != nvbandwidth_text()
    assert "one direction of two at once, as before 0.6 (1)" in imported("-", text=text)


def test_without_addresses_all_gpus_of_the_node_are_counted(
    store_path: Path, run_import: Call, imported: Said
) -> None:
    part = run_import("-", "--node", "n1", text=counted_text([[0, 1.0], [1.0, 0]]))
    assert "has 2 GPUs, node n1 has 3: which ones is not known" in part.stderr
    imported("-", "--node", "n1", text=counted_text())
    found = {(a, b): (p.ab_gbps, p.ba_gbps) for (_, a, b), p in stored_pairs(store_path).items()}
    assert found == {(0, 1): (13.0, 11.0), (0, 2): (15.0, 12.0), (1, 2): (16.0, 14.0)}


def test_a_new_node_without_addresses_has_as_many_gpus_as_the_output(
    store_path: Path, run_import: Call, refused: Said, imported: Said
) -> None:
    text = counted_text()
    assert "or give --new-gpus" in refused("-", "--node", "n9", text=text)
    said = imported("-", "--node", "n9", "--new-nodes", text=text)
    assert "until a sweep, GPUs 0 to 2 of n9 are those of the file" in said
    imported("-", "--node", "n9", text=text)
    part = run_import("-", "--node", "n9", "--new-nodes", text=counted_text([[0, 1.0], [1.0, 0]]))
    assert "has 2 GPUs, node n9 has 3: which ones is not known" in part.stderr
    imported("-", "--new-nodes", text=nvbandwidth_text("n9"))
    imported("-", "--node", "n9", text=text)


@pytest.mark.parametrize(("other", "kept"), [(False, 3), (True, 0)])
def test_a_sweep_with_other_indices_drops_bandwidths_by_count(
    store_path: Path, imported: Said, other: bool, kept: int
) -> None:
    imported("-", "--node", "n9", "--new-nodes", text=counted_text())
    swept = report("n9", times=dict.fromkeys(range(3), 100.0))
    if other:  # Slurm counts the other way round
        for gpu in swept["gpus"]:
            gpu["pci"] = f"00000000:0{9 - gpu['index']}:00.0"
    with open_store(store_path) as store:
        ingest(store, swept)
        assert len(newest_bandwidths(store, "n9")) == kept


def test_buses_that_gpus_share_are_refused_unless_all_took_part(
    store_path: Path, run_import: Call, imported: Said
) -> None:
    swept = report("n1")
    for gpu in swept["gpus"]:
        gpu["pci"] = f"{gpu['index']:08X}:00:00.0"
    with open_store(store_path) as store:
        ingest(store, swept)
    part = OLD.replace("[0x02]", "[0x00]")
    done = run_import("-", "--value", "all_reduce", text=part)
    assert "prints the PCI bus alone (00), which 4 GPUs of n1 share" in done.stderr
    ranks = "".join(f"#   Rank {n} Pid 1 on n1 device {n} [0x00] A100\n" for n in (2, 3))
    imported("-", "--value", "all_reduce", text=part.replace("#       size", f"{ranks}# size"))
    assert rings(store_path)[0].gpus == (0, 1, 2, 3)


def test_new_nodes_take_the_devices_of_the_file(
    store_path: Path, run_import: Call, refused: Said, imported: Said
) -> None:
    done = run_import("-", text=nvbandwidth_text("n9"))
    assert "sweep n9 first, import what 'gpu-aware-profile node --json' prints" in done.stderr
    said = imported("-", "--new-nodes", *AT, text=nvbandwidth_text("n9"))
    assert "until a sweep, GPUs 0 to 2 of n9 are those of the file" in said
    more = nccl(gpus=(("n9", "0000:02:00"), ("n9", "0000:00:00")))
    imported("-", text=more)
    other = nccl(gpus=(("n9", "0000:02:00"), ("n9", "0000:07:00")))
    assert "sweep n9 again" in refused("-", "--new-gpus", text=other)
    with open_store(store_path) as store:
        assert newest_bandwidths(store, "n9")[0][:5] == ("n9", 0, 1, 5000.0, 16.0)
        assert newest_collectives(store, "all_reduce", "n9")[0].gpus == (0, 2)
        ingest(store, report("n9"))
        assert len(newest_bandwidths(store, "n9")) == 3
        assert len(newest_collectives(store, "all_reduce", "n9")) == 1


def test_a_sweep_that_finds_other_gpus_drops_what_was_imported(
    store_path: Path, imported: Said
) -> None:
    gpus = (("n9", "0000:03:00"), ("n9", "0000:02:00"))
    imported("-", "--new-gpus", text=nccl(gpus=gpus))
    with open_store(store_path) as store:
        ingest(store, report("n9"))
        assert newest_collectives(store, "all_reduce", "n9") == []


def test_of_several_runs_on_the_same_gpus_the_best_counts(store_path: Path, imported: Said) -> None:
    slow = nvbandwidth_text().replace("11.00", "10.00").replace("12.00", "12.50")
    assert "imported bandwidths of 3 pairs" in imported("-", text=nvbandwidth_text() + slow)
    half = nccl(busbw=120.0)
    small = nccl(busbw=999.0).replace(f"{1 << 30:12d}", f"{1 << 26:12d}")
    assert "imported bandwidths of 1 collective " in imported(
        "-", text=half + nccl() + half + small
    )
    found = stored_pairs(store_path)
    assert (found["n1", 0, 2].ab_gbps, found["n1", 1, 2].ab_gbps) == (11.0, 12.5)
    assert rings(store_path)[0].gbps == 231.0
