"""Requests of users in all forms, as Slurm and the filter show them, on two kinds of nodes."""

from dataclasses import replace

from hypothesis import strategies as st
from make import NOW, SLURM_WITH_CORES, context_of, slurm_job, two_sockets

from slurm_gpu_aware.admission.holds import Hold
from slurm_gpu_aware.admission.left import left_request
from slurm_gpu_aware.filter_rules import SOCKETS_PER_NODE
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import (
    NodeShare,
    SlurmReservation,
)

NAMES = ("n1", "n2", "n3", "n4")


def left_of(job, original, context):
    """The request of the same job, if it is left to Slurm. Raises CannotPlanError."""
    return left_request(GatedJob(job, original, None, JobPhase.WAITING), context, "place=off", "B")


@st.composite
def asked_requests(draw):
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
    return slurm_job(**job), OriginalRequest(**fields)


@st.composite
def idle_nodes(draw):
    """The nodes of a site, without any job."""
    plain = draw(st.sampled_from([0, 0, 1, 2]))
    small = draw(st.booleans())
    return [
        two_sockets(
            name,
            memory_mb=32000 if small and name == "n4" else 64000,
            **({} if i >= plain else {"gpus": (("v100", 4),), "gpu_sockets": (None,)}),
        )
        for i, name in enumerate(NAMES)
    ]


@st.composite
def in_use(draw, nodes):
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


def site_of(nodes, jobs=(), holds=(), reservations=()):
    """What the selector knows of a site with these nodes, jobs, and placed jobs."""
    return context_of(nodes, None, reservations, jobs=jobs, holds=holds, slurm=SLURM_WITH_CORES)


def reserved(*names):
    """A maintenance of these nodes that begins soon."""
    flags = frozenset({"MAINT"})
    return SlurmReservation("m", NOW + 60.0, NOW + 9e4, frozenset(names), flags=flags)
