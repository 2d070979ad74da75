"""No job is called impossible by mistake: by jobs that a reading has counted twice, or by one
reading alone."""

from __future__ import annotations

from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.slurm.records import SlurmNode

ALL_CPUS = {"num_cpus": 16, "cpus_per_task": 16, "pn_min_cpus": 16}
ONE_GPU = "tres_per_node"
ALL_MEMORY = {"pn_min_memory": 0, "tres_req_str": "cpu=1,node=1,billing=1,gres/gpu=1"}


def one_gpu(job_id: str, record: str = "", **fields: object) -> dict[str, object]:
    """A job that asks for ``--gres=gpu:1``, and further options in its record."""
    comment = f"gpuaware/1;tn=gres/gpu:1{record};mc=1"
    return parked(job_id, admin_comment=comment, tres_per_node="gres/gpu:1", **fields)


def starting(slurm: SlurmFolder) -> RoundsBench:
    """On each of two nodes a placed job that Slurm starts after the jobs were read, before the
    nodes are: its CPUs and memory are counted as those of a job and as those of a placed one."""
    slurm.write([one_gpu("1", stuck=True), one_gpu("2", stuck=True)], ["n1", "n2"])
    bench = RoundsBench(slurm)
    bench.client.nodes, read = started(bench), bench.client.nodes  # type: ignore[method-assign]
    assert len(bench.rounds.run().placed) == 2
    assert read is not bench.client.nodes
    return bench


def started(bench: RoundsBench):  # type: ignore[no-untyped-def]
    """`nodes` of a Slurm that has started all placed jobs just now."""
    read = bench.client.nodes

    def nodes() -> list[SlurmNode]:
        with_jobs = []
        pins = [job.req_nodes for job in bench.client.jobs()]
        from dataclasses import replace

        for node in read():
            here = sum(node.name in pin for pin in pins)
            with_jobs.append(
                replace(
                    node,
                    cpus_used=node.cpus_used + here,
                    memory_used_mb=node.memory_used_mb + 500 * here,
                    gpus_used=node.gpus_used | frozenset(range(here)),
                )
            )
        return with_jobs

    return nodes
