"""Requests of users in all forms, as Slurm and the filter show them, on two kinds of nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.free_cores import with_sockets
from slurm_gpu_aware.admission.left import left_request
from slurm_gpu_aware.admission.preemption import PreemptionRules
from slurm_gpu_aware.admission.snapshot import Hold, SiteProfile, build_cluster
from slurm_gpu_aware.admission.translate import to_request
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.filter_rules import SOCKETS_PER_NODE
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import (
    NodeCores,
    NodeShare,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmReservation,
)

SLURM = SlurmConfig((24, 11), "c", counts_memory=True, counts_cpus=True, counts_cores=True)
NOW = 1000.0
NAMES = ("n1", "n2", "n3", "n4")


def slurm_job(number=7, **fields):
    """A job as Slurm shows it."""
    usual = {"name": "job", "user": "alice", "state": "PENDING", "reason": "Licenses"}
    usual |= {"partitions": ("gpu",), "priority": 1, "submit_s": 1.0, "eligible_s": 1.0}
    usual |= {"start_s": None, "end_s": math.inf, "time_limit_s": 600.0, "restarts": 0}
    return SlurmJob(id=str(number), raw_id=number, **{**usual, **fields})


def request_of(job, original, context):
    """The planner's request of a waiting job. Raises CannotPlanError."""
    return to_request(GatedJob(job, original, None, JobPhase.WAITING), context)


def left_of(job, original, context):
    """The request of the same job, if it is left to Slurm. Raises CannotPlanError."""
    return left_request(GatedJob(job, original, None, JobPhase.WAITING), context, "place=off", "B")


def node(name, *, typed=True, memory_mb=64000, **fields):
    """A node of 16 CPUs on two sockets, with two GPUs each."""
    return SlurmNode(
        name=name,
        features=frozenset(),
        gpus=tuple((f"g{i}", 1) for i in range(4)) if typed else (("v100", 4),),
        gpu_sockets=((0,), (0,), (1,), (1,)) if typed else (None,),
        cpus=16,
        memory_mb=memory_mb,
        cores=NodeCores(2, 8, 1, 1),
        **{"states": frozenset({"IDLE"}), "gpus_used": frozenset(), **fields},
    )


@st.composite
def asked(draw):
    """(job, original request): GPU form, nodes, tasks, CPUs, memory and further options."""
    form = draw(st.sampled_from(["gres", "gpus", "per-node", "per-task", "per-socket"]))
    nodes = draw(st.sampled_from([None, (1, 1), (2, 2), (2, 4), (4, 4)]))
    tasks = draw(st.sampled_from([None, 1, 2, 4, 16]))
    count = draw(st.integers(1, 5))
    per_task = draw(st.sampled_from([None, 2, 3, 8, 16, 17]))
    fields = {
        "nodes": nodes,
        "num_tasks": tasks if form != "per-task" else tasks or 2,
        "cpus_per_task": per_task,
        "ntasks_per_node": draw(st.sampled_from([None, None, 1, 2])),
        "exclusive": draw(st.integers(0, 5)) == 0,
        "req_nodes": draw(st.sampled_from([None, None, None, "n2", "n1,n2"])),
        "exc_nodes": draw(st.sampled_from([None, None, None, "n1"])),
    }
    job = {"unsupported": (), "enforce_binding": draw(st.sampled_from([None, None, None, True]))}
    if form in ("gres", "per-node"):
        fields["tres_per_node"] = f"gres/gpu:{count}"
    elif form == "gpus":
        fields["tres_per_job"] = f"gres/gpu:{count * (nodes or (1,))[0]}"
    elif form == "per-task":
        fields["tres_per_task"] = f"gres/gpu={min(count, 2)}"
    else:
        fields |= {"tres_per_socket": f"gres/gpu:{min(count, 3)}", "sockets_per_node": 2}
        job["unsupported"] = (SOCKETS_PER_NODE,)
    if draw(st.integers(0, 3)) == 0:
        fields["cpus_per_tres"] = f"gres/gpu:{draw(st.sampled_from([1, 3, 4, 16]))}"
    memory = draw(st.sampled_from(["all", "node", "cpu", "gpu"]))
    if memory == "gpu":
        fields["mem_per_tres"] = f"gres/gpu:{draw(st.sampled_from([700, 16000, 64000]))}"
        job["memory_mb_per_cpu"] = 500
    else:
        fields["memory"] = True
        amounts = {"all": [0], "node": [2000, 32000, 64000, 65000], "cpu": [300, 4000, 64000]}
        name = "memory_mb_per_cpu" if memory == "cpu" else "memory_mb_per_node"
        job[name] = draw(st.sampled_from(amounts[memory]))
    job["cpus"] = (fields["num_tasks"] or (nodes or (1,))[0]) * (per_task or 1)
    job["tasks"] = fields["num_tasks"] or 1
    least, most = nodes or (1, None)
    job |= {"min_nodes": least, "max_nodes": most, "exclusive": fields["exclusive"]}
    for name in ("node", "job", "task", "socket"):
        job[f"tres_per_{name}"] = fields.get(f"tres_per_{name}")
    job["req_nodes"] = tuple(filter(None, (fields["req_nodes"] or "").split(",")))
    job["req_tres"] = {"mem": job.get("memory_mb_per_node") or 500 * job["cpus"]}
    return slurm_job(**job, time_limit_s=600.0), OriginalRequest(**fields)


@st.composite
def sites(draw):
    """The nodes of a site, without any job."""
    plain = draw(st.sampled_from([0, 0, 1, 2]))
    small = draw(st.booleans())
    return [
        node(name, typed=i >= plain, memory_mb=32000 if small and name == "n4" else 64000)
        for i, name in enumerate(NAMES)
    ]


@st.composite
def busy(draw, nodes):
    """(nodes in use, jobs, holds) as one reading may show them: counted twice, or not known.

    What runs, what is placed and not started, and what the nodes say need not agree.
    """
    shown, jobs, holds = [], [], []
    for number, one in enumerate(nodes):
        used = draw(st.sets(st.integers(0, 3), max_size=4))
        shown.append(
            replace(
                one,
                gpus_used=frozenset(used),
                cpus_used=draw(st.integers(0, 16)),
                memory_used_mb=draw(st.sampled_from([0, 500, 32000])),
            )
        )
        if used and draw(st.booleans()):
            cpus = draw(st.integers(1, 8))
            share = NodeShare(one.name, cpus, 500, tuple(used), cores=tuple(range(cpus)))
            where = {"nodes": (one.name,), "shares": (share,), "start_s": 1.0, "end_s": 5000.0}
            jobs.append(slurm_job(100 + number, state="RUNNING", **where))
        if draw(st.booleans()):
            slots = tuple(sorted(draw(st.sets(st.integers(0, 3), min_size=1, max_size=2))))
            amounts = draw(st.integers(1, 16)), draw(st.sampled_from([500, 64000]))
            fills = draw(st.booleans())
            named = f"{200 + number}", (one.name,), slots if draw(st.booleans()) else ()
            holds.append(Hold(*named, len(slots), *amounts, 5000.0, fills_sockets=fills))
    return shown, jobs, holds


def context_of(nodes, jobs=(), holds=(), reservations=()):
    """What the selector knows of a site with these nodes, jobs, and placed jobs."""
    by_name = {one.name: one for one in nodes}
    profile = SiteProfile(Config(), {"node": 1.0, "cluster": 1.5})
    cluster = build_cluster(nodes, jobs, SLURM, profile, holds=holds, now=NOW)
    return AdmissionContext(
        Config(),
        SLURM,
        by_name,
        {"gpu": SlurmPartition("gpu", frozenset(by_name), up=True)},
        reservations,
        with_sockets(cluster, by_name, jobs, holds, NOW),
        NOW,
        PreemptionRules(SLURM),
    )


def reserved(*names):
    """A maintenance of these nodes that begins soon."""
    flags = frozenset({"MAINT"})
    return SlurmReservation("m", NOW + 60.0, NOW + 9e4, frozenset(names), flags=flags)
