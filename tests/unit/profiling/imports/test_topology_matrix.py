"""Links of a node from ``nvidia-smi topo -m`` before any sweep, then a placement."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import click.testing
import pytest
from commands import gpu_aware, gpu_aware_profile, succeeded
from store_samples import ingest, profile_of, report

from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import newest_bandwidths, newest_collectives

Call = Callable[..., click.testing.Result]
Said = Callable[..., str]

LISTED = "".join(
    f"GPU {i}: NVIDIA A100-PCIE-40GB (UUID: GPU-5c1e6b3a-0000-0000-0000-00000000000{i})\n"
    for i in range(4)
)
TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tSYS\tNV12\tSYS\tPIX\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tSYS\t X \tSYS\tNV12\tSYS\t32-63\t1\t\tN/A\n"
    "GPU2\tNV12\tSYS\t X \tSYS\tPIX\t0-31,64-95\t0\t\tN/A\n"
    "GPU3\tSYS\tNV12\tSYS\t X \tSYS\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\tPIX\tSYS\t X \t\t\t\t\n\n"
    "Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
PAIR = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
GB200 = (
    "\tGPU0\tGPU1\tibp3s0\trocep1s0f0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV18\tNODE\tSYS\t0-71\t0,2-17\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tNODE\t72-143\t1,18-33\t\tN/A\n"
    "ibp3s0\tNODE\tSYS\t X \tSYS\n"
)


def many(count: int) -> str:
    """A matrix of ``count`` GPUs."""
    names = [f"GPU{i}" for i in range(count)]
    rows = ["\t".join([row, *(" X " if row == n else "SYS" for n in names)]) for row in names]
    return "\n".join(["\t" + "\t".join(names), *rows, ""])


NCCL = """# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid  20011 on         n1 device  0 [0000:18:00] NVIDIA GeForce RTX 5090
#  Rank  1 Group  0 Pid  20011 on         n1 device  1 [0000:3b:00] NVIDIA GeForce RTX 5090
#
#       size    count  type redop root    time  algbw  busbw #wrong    time  algbw  busbw #wrong
   268435456 67108864 float   sum   -1  5700.8  47.09  47.09      0  5702.5  47.07  47.07      0
# Out of bounds values : 0 OK
"""


@pytest.fixture
def run_import(store_path: Path) -> Call:
    return lambda text, *args: gpu_aware_profile("import", "-", *args, text=text)


def test_a_matrix_gives_a_placement(store_path: Path, imported: Said, refused: Said) -> None:
    said = refused(LISTED + TOPO, "--node", "n1")
    assert "no sweep has seen n1; give --new-nodes to add it" in said
    said = imported(LISTED + TOPO, "--node", "n1", "--new-nodes")
    assert "until a sweep, GPUs 0 to 3 of n1 are those of the file" in said
    assert "left out 1 measurement for which the store has no place: path of a NIC" in said
    profile = profile_of(store_path)
    assert {(x.a, x.b): (x.link_class, x.gbps) for x in profile.links["n1"]} == {
        **dict.fromkeys(((0, 1), (0, 3), (1, 2), (2, 3)), ("SYS", 8.0)),
        **dict.fromkeys(((0, 2), (1, 3)), ("NV12", 300.0)),
    }
    gpu = profile.gpus["n1", 1]
    assert (gpu.model, gpu.numa, gpu.cpus) == ("a100", 1, "32-63")
    placed = succeeded(gpu_aware("place", "--gpus", "2", "--bw", "high", "--json"))
    place = json.loads(placed.stdout)["answers"][0]["place"]
    assert place in ({"n1": [0, 2]}, {"n1": [1, 3]})


EVEN = ",".join(map(str, range(0, 256, 2)))
TWO_SOCKETS = [(0, "0-31,64-95"), (1, "32-63")] * 2
SIX = ["SYS", "NV12", "SYS", "SYS", "NV12", "SYS"]


@pytest.mark.parametrize(
    ("text", "gpus", "links"),
    [
        (TOPO.replace("\n", "\r\n"), TWO_SOCKETS, SIX),
        (TOPO.replace("NIC0", "mlx5_0"), TWO_SOCKETS, SIX),
        (TOPO + "GPU0 fell off the bus\n", TWO_SOCKETS, SIX),
        (re.sub(r"\t+", "   ", TOPO), TWO_SOCKETS, SIX),
        (GB200, [(0, "0-71"), (1, "72-143")], ["NV18"]),
        (
            PAIR.replace("0-7\nGPU1", f"{EVEN}\nGPU1").replace("X \t0-7", "X \tN/A\tN/A"),
            [(None, EVEN), (None, None)],
            ["PHB"],
        ),
        (PAIR.replace("PHB", "SOC"), [(None, "0-7")] * 2, ["SYS"]),
    ],
)
def test_other_forms_of_the_matrix(
    store_path: Path,
    imported: Said,
    text: str,
    gpus: list[tuple[int | None, str | None]],
    links: list[str],
) -> None:
    """NUMA nodes of memory on a GPU, CPUs that alternate or none, the old word of a socket."""
    imported(text, "--node", "n1", "--new-nodes")
    profile = profile_of(store_path)
    assert [(gpu.numa, gpu.cpus) for gpu in profile.gpus.values()] == gpus
    assert [link.link_class for link in profile.links["n1"]] == links


def test_the_note_holds_for_a_second_import_and_for_one_gpu(run_import: Call) -> None:
    for _ in range(2):
        done = run_import(PAIR, "--node", "n1", "--new-nodes")
        assert (done.exit_code, "new" in done.stderr) == (0, False)
        assert "until a sweep, GPUs 0 to 1 of n1 are those" in done.stderr
    one = run_import("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n", "--node", "n2", "--new-nodes")
    assert "until a sweep, GPU 0 of n2 is that of the file in" in one.stderr


def test_other_boards_on_a_known_node_are_refused(imported: Said, refused: Said) -> None:
    imported(LISTED + TOPO, "--node", "n1", "--new-nodes")
    other = LISTED.replace("000002)", "000009)") + TOPO
    said = refused(other, "--node", "n1", "--new-nodes")
    assert "n1 is known with 4 GPUs, the matrix has 4, 3 of them the same; " in said
    fewer = refused(PAIR, "--node", "n1", "--new-nodes")
    assert "n1 is known with 4 GPUs, the matrix has 2, 2 of them the same; " in fewer


def test_a_name_that_is_cut_at_a_dot_is_said(store_path: Path) -> None:
    Path("gpu.a1.txt").write_text(PAIR)
    args = ("import", "--new-nodes", "gpu.a1.txt")
    done = succeeded(gpu_aware_profile(*args))
    assert "gpu.a1.txt: taken for node gpu; if that is wrong, give --node" in done.stderr
    assert "taken for node" not in succeeded(gpu_aware_profile(*args, "--node", "gpu.a1")).stderr


def test_a_uuid_is_on_one_node(store_path: Path, imported: Said, refused: Said) -> None:
    imported(LISTED + TOPO, "--node", "n1", "--new-nodes")
    imported(LISTED + TOPO, "--node", "n1", "--new-nodes")
    said = refused(LISTED + TOPO, "--node", "n2", "--new-nodes")
    assert "000000000000' is GPU 0 of n2 and GPU 0 of n1, but a UUID belongs" in said
    assert "'gpu-aware-profile forget n1' if it has moved" in said
    assert {node for node, _ in profile_of(store_path).gpus} == {"n1"}


def test_links_have_the_bandwidth_of_their_generation(store_path: Path, imported: Said) -> None:
    text = LISTED.replace("A100-PCIE-40GB", "B200") + TOPO
    imported(text, "--node", "n1", "--new-nodes")
    assert profile_of(store_path).links["n1"][1].gbps == 600.0


def test_nccl_tests_and_the_matrix_in_both_orders(
    store_path: Path, refused: Said, imported: Said
) -> None:
    imported(NCCL, "--new-nodes")
    imported(PAIR, "--node", "n1")
    imported(PAIR, "--node", "n2", "--new-nodes")
    second = NCCL.replace("  n1 ", "  n2 ")
    assert "no sweep has seen" in refused(second)
    imported(second, "--new-nodes")
    profile = profile_of(store_path)
    with open_store(store_path) as store:
        assert {one.node: one.gpus for one in newest_collectives(store, "all_reduce")} == {
            "n1": (0, 1),
            "n2": (0, 1),
        }
    for node in ("n1", "n2"):
        assert profile.links[node][0].link_class == "PHB"
        addresses = [profile.gpus[node, i].pci for i in (0, 1)]
        assert addresses == ["00000000:18:00.0", "00000000:3B:00.0"]


def test_bandwidths_without_addresses_after_a_matrix(
    store_path: Path, run_import: Call, imported: Said
) -> None:
    text = (
        "nvbandwidth Version: v0.10.0\n\nRunning device_to_device_memcpy_read_ce.\n"
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1\n 0       N/A     19.00\n 1     18.00       N/A\n\nSUM x 1\n"
    )
    imported(PAIR, "--node", "n1", "--new-nodes")
    imported(text, "--node", "n1")
    with open_store(store_path) as store:
        assert [pair[:3] for pair in newest_bandwidths(store)] == [("n1", 0, 1)]
    imported(TOPO, "--node", "n2", "--new-nodes")
    part = run_import(text, "--node", "n2", "--new-nodes")
    assert "has 2 GPUs, node n2 has 4: which ones is not known" in part.stderr
    part = run_import(NCCL.replace("  n1 ", "  n2 "), "--new-nodes")
    assert "if this output has all its 4 GPUs" in part.stderr


def test_a_matrix_is_of_no_class(run_import: Call) -> None:
    done = run_import(PAIR, "--node", "n1", "--class", "A")
    assert "a report or matrix of a node is of no class; leave --class out" in done.stderr


def test_collectives_of_some_gpus_of_a_matrix_are_refused(imported: Said, refused: Said) -> None:
    imported(TOPO, "--node", "n1", "--new-nodes")
    refused(NCCL, "--new-nodes")


def test_what_a_sweep_has_read_stays(store_path: Path, refused: Said) -> None:
    with open_store(store_path) as store:
        ingest(store, report("n1"))
    before = profile_of(store_path).links
    said = refused(PAIR, "--node", "n1", "--new-nodes")
    assert "a sweep has read n1 and its links; there is nothing to import" in said
    assert profile_of(store_path).links == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TOPO * 2, "2 matrices; write each run to a file of its own"),
        (TOPO.replace("GPU2\tNV12", "GPU2\tNV4"), "GPU0 to GPU2 is 'NV12', GPU2 to GPU0 'NV4'"),
        (
            TOPO.replace("NV12", "NVX"),
            "row GPU0, column GPU2: unknown link class 'NVX'; known: NV1..NV99, XGMI1..XGMI99, PIX",
        ),
        (PAIR.replace("PHB", "P" * 999), f"unknown link class '{'P' * 59}...; known"),
        (many(65), "65 GPUs; a node may have up to 64"),
        (many(200), "200 GPUs; a node may have up to 64"),
        (PAIR.replace("0-7", "0-7 x"), "cpus of GPU0: '0-7 x' is not a list of numbers"),
        (PAIR.replace("0-7", "0-7\t0-"), "numa of GPU0: '0-' is not a list of numbers"),
        (
            LISTED.replace("000003)", "000001)") + TOPO,
            "'GPU-5c1e6b3a-0000-0000-0000-000000000001' is GPU 1 of n1 and GPU 3 of n1, but a UUID"
            " belongs to one GPU\n",
        ),
        (TOPO.replace("GPU3\tSYS", "GPU5\tSYS"), "row GPU5 has no column"),
        (TOPO.replace("NIC0\tPIX", "GPU1\tPIX"), "row GPU1 occurs twice"),
        (TOPO.replace("GPU3\tNIC0", "GPU3,\tNIC0"), "column 'GPU3,' is neither a GPU nor a NIC"),
        (TOPO.replace("NV12\tSYS\t X ", "NV12\tSYS\tSYS"), "no whole row of GPU2"),
        (LISTED.split("\n")[0] + "\n" + TOPO, "1 GPUs by name, 4 in the matrix"),
        ("".join(f"{n}: {x}\n" for n in "01" for x in TOPO.split("\n")), "output of 2 tasks"),
        ("n1: GPU0 GPU1\n", "none of the formats"),  # blanks were squeezed
    ],
)
def test_damaged_matrices_are_refused(refused: Said, text: str, reason: str) -> None:
    assert reason in refused(text, "--node", "n1", "--new-nodes")


def test_the_matrices_of_all_nodes_in_one_file(
    store_path: Path, run_import: Call, imported: Said
) -> None:
    """As pdsh writes them, lines of the nodes mixed."""
    text = "".join(f"{node}: {line}\n" for line in TOPO.split("\n") for node in ("n1", "n2"))
    imported(text, "--new-nodes")
    assert sorted(profile_of(store_path).links) == ["n1", "n2"]
    refused = run_import(text, "--new-nodes", "--node", "n3")
    assert "--node is for a file of one node; it has n1, n2" in refused.stderr


@pytest.mark.parametrize(
    ("prefix", "args", "node"),
    [
        ("gpu-01: ", (), "gpu-01"),
        ("gpu-01.site.org: ", (), "gpu-01"),
        ("gpu-01: ", ("--node", "n9"), "n9"),
        ("0: ", (), None),
        ("gpu-1  | ", (), None),
    ],
)
def test_a_host_before_each_line_names_the_node(
    store_path: Path, run_import: Call, prefix: str, args: tuple[str, ...], node: str | None
) -> None:
    text = "".join(f"{prefix}{line}\n" for line in (LISTED + TOPO).split("\n"))
    done = run_import(text, "--new-nodes", *args)
    assert (done.exit_code == 0) == (node is not None), done.stderr
    if node is None:
        assert "it does not name its node; give it with --node NAME" in done.stderr
        return
    profile = profile_of(store_path)
    assert (list(profile.links), profile.gpus[node, 2].model) == ([node], "a100")
