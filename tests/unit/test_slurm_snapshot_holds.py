"""What is promised to placed jobs that have not started is not promised twice."""

from slurm_gpu_aware.slurm.records import SlurmConfig, SlurmNode
from slurm_gpu_aware.slurm.snapshot import Hold, build_cluster

SLURM = SlurmConfig(version=(24, 11, 5), cluster="c", counts_memory=True, counts_cpus=True)


def plain_node(name: str) -> SlurmNode:
    return SlurmNode(
        name=name,
        states=frozenset({"IDLE"}),
        features=frozenset(),
        gpus=(("v100", 4),),
        gpus_used=frozenset(),
        cpus=16,
        memory_mb=64000,
    )


def hold(job_id: str, gpus: int) -> Hold:
    return Hold(job_id, ("n1",), (), gpus, cpus_per_node=1, memory_mb_per_node=500, end_s=100.0)


def test_holds_on_a_plain_node_add_up():
    cluster = build_cluster(
        [plain_node("n1"), plain_node("n2")],
        [],
        None,
        SLURM,
        classes=["A"],
        penalties={"node": 1.0, "cluster": 1.5},
        holds=[hold("1", 2), hold("2", 1)],
    )
    assert cluster.free.sum(axis=1).tolist() == [1, 4]
    taken = [g for job in cluster.running for _, slots in job.gpus for g in slots]
    assert len(taken) == len(set(taken)) == 3
