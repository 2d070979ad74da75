"""Patterns read from NCCL's debug output and from Nsight Systems."""

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.job_hints import PATTERN
from slurm_gpu_aware.topology.communication_log import read_communication


def log(*texts, rank=0):
    return [f"n1:4242{rank}:4300 [{rank}] NCCL INFO {text}" for text in texts]


SETUP = log(
    "NCCL version 2.21.5+cuda12.4",
    "ncclCommInitRank comm 0x55d0c9b8 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b0 commId 0x8f - "
    "Init START",
    "Channel 00/02 :    0   1   2   3",
    "Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1",
    "Ring 00 : 3 -> 0 -> 1",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
)
OLD = log("Connected all rings", "Connected all trees")


def tuned(call, size, algo):
    return log(f"{call}: {size} Bytes -> Algo {algo} proto SIMPLE channel{{Lo..Hi}}={{0..1}}")


def call(kind, count, *, root=0, ranks=4, rank=0, comm="0x55d0c9b8", kind_of_data=7):
    return log(
        f"{kind}: opCount 1f sendbuff 0x7f00 recvbuff 0x7f01 count {count} datatype {kind_of_data} "
        f"op 0 root {root} comm {comm} [nranks={ranks}] stream 0x55",
        rank=rank,
    )


@pytest.mark.parametrize(
    ("lines", "pattern", "source"),
    [
        (SETUP, "ring+tree", "connections"),
        (SETUP[:-1], "ring+tree", "connections"),
        (SETUP + OLD, "ring+tree", "connections"),
        (SETUP + OLD[:1], "ring", "connections"),
        (SETUP + log("Connected NVLS tree"), "tree", "connections"),
        (log("Channel 00/02 :    0   1   2   3"), "ring", "connections"),
        (SETUP + tuned("AllReduce", 10**9, "RING"), "ring", "algorithms"),
        (SETUP + tuned("AllReduce", 10**9, "TREE"), "tree", "algorithms"),
        (SETUP + tuned("AllReduce", 10**9, "NVLS"), "ring", "algorithms"),
        (log("1048576 Bytes -> Algo 0 proto 0 time 33.1"), "tree", "algorithms"),
        (tuned("AllReduce", 95, "RING") + tuned("AllReduce", 5, "TREE"), "ring", "algorithms"),
        (tuned("AllReduce", 8, "RING") + tuned("AllReduce", 2, "TREE"), "ring+tree", "algorithms"),
        (SETUP + call("AllReduce", 1000), "ring+tree", "calls"),
        (SETUP + call("AllGather", 1000), "ring", "calls"),
        (SETUP + call("AlltoAll", 1000), "all-to-all", "calls"),
        (tuned("AllReduce", 10**6, "RING") + call("AllReduce", 10**9), "ring", "algorithms"),
    ],
)  # fmt: skip
def test_the_pattern_is_what_ran_or_else_what_was_connected(lines, pattern, source):
    found = read_communication(lines)
    assert (found.pattern, found.source) == (pattern, source)
    assert found.pattern in PATTERN.words


def sends(peers, count=1000, rank=0):
    return [line for peer in peers for line in call("Send", count, root=peer, rank=rank)]


def test_sends_to_many_are_all_to_all_and_those_of_a_pipeline_a_ring():
    assert read_communication(sends([1, 2, 3])).pattern == "all-to-all"
    pipeline = sends([1]) + sends([0, 2], rank=1) + sends([1, 3], rank=2)
    assert read_communication(pipeline).pattern == "ring"
    assert read_communication(call("Recv", 10, root=1) + sends([1])).traffic == {"ring": 1.0}


def test_little_of_a_pattern_does_not_count():
    rest = tuned("AllReduce", 10**6, "RING")
    assert read_communication(rest + sends([1, 2, 3], count=1000)).pattern == "ring"
    found = read_communication(rest + sends([1, 2, 3], count=10**5))
    assert found.pattern == "all-to-all"
    assert found.traffic["all-to-all"] == pytest.approx(1.2 / 2.2)


def test_connections_for_sends_show_who_sends_to_whom():
    """Index 1 is for sends; index 0 is for rings and trees."""
    others = [f"Channel 00/1 : 0[0] -> {peer}[{peer}] via P2P/IPC" for peer in (1, 2, 3)]
    assert read_communication(log(*others)).pattern == "all-to-all"
    net = [f"Channel 01/1 : 0[0] -> {peer}[1c0] [send] via NET/IB/0" for peer in (8, 9, 10)]
    assert read_communication(log(*net)).pattern == "all-to-all"
    collective = [line.replace("00/1", "00/0") for line in others]
    assert read_communication(log(*collective)).pattern == "none"


def test_sizes_of_data_types_weigh_and_ranks_are_named():
    halves = call("AllReduce", 100, kind_of_data=6, ranks=8)
    found = read_communication(halves + sends([1, 2, 3], count=10))
    assert found.traffic["all-to-all"] == pytest.approx(120 / 320)
    assert found.ranks == 8
    assert read_communication(SETUP).ranks == 4


def test_one_gpu_has_no_pattern():
    lines = log("ncclCommInitRank comm 0x1 rank 0 nranks 1 cudaDev 0 - Init COMPLETE")
    assert read_communication(lines).pattern == "none"


HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


def kernels(*rows):
    return [
        "Processing [app.sqlite] with [cuda_gpu_kern_sum.py]...",
        HEADER,
        "60.0,6000000,10,6,6,6,6,0,void gemm_kernel<float, 128>(float const*)",
        *(f'4.0,{time},10,4,4,4,4,0,"{name}"' for name, time in rows),
    ]


RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([(RING, 900)], "ring"),
        ([("ncclKernel_AllReduce_TREE_LL_Sum_float(ncclWorkElem)", 900)], "tree"),
        ([(RING, 900), (RING.replace("RING", "TREE"), 900)], "ring+tree"),
        ([(RING, 900), ("ncclDevKernel_SendRecv(ncclDevKernelArgs)", 900)], "all-to-all"),
        ([(RING, 990), ("ncclDevKernel_SendRecv(ncclDevKernelArgs)", 10)], "ring"),
        ([("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", 1)], "ring"),
        ([], "none"),
    ],
)
def test_kernels_of_nsight_systems(rows, pattern):
    found = read_communication(kernels(*rows))
    assert (found.pattern, found.source) == (pattern, "kernels")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["NCCL INFO without its head", "Connected all rings"],
        ["step 1, loss 2.0", HEADER.replace("Name", "Kernel")],
    ],
)
def test_a_file_without_either_is_refused(lines):
    with pytest.raises(SourceError, match="run the application with NCCL_DEBUG=INFO"):
        read_communication(lines)


def test_damaged_and_hostile_lines_are_skipped():
    junk = [
        *log("Channel 00/02 : 0 1; rm -rf /", "Ring 00 : 1 -> 2", "Trees [x] 1/2/3"),
        *log(f"AllReduce: {'9' * 40} Bytes -> Algo RING proto LL", "8 Bytes -> Algo STAR proto LL"),
        *(line + "9" * 5000 for line in tuned("AllReduce", 1, "TREE")),
        *log("AllReduce: opCount " + "a " * 1900),
        '1,"2',
        "\x00\x1b[31m",
    ]
    assert read_communication(junk).pattern == "none"
    assert read_communication(junk + tuned("AllReduce", 5, "RING")).pattern == "ring"


def test_many_peers_are_bounded(monkeypatch):
    monkeypatch.setattr("slurm_gpu_aware.topology.communication_log._MOST_PEERS", 5)
    lines = [line for rank in range(4) for line in sends([1, 2, 3, 4], rank=rank)]
    assert read_communication(lines).pattern == "all-to-all"
