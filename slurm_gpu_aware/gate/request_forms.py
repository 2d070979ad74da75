"""Request forms: how each is rewritten when a job is placed, and how it is restored.

A form without a row is left to Slurm. Each row was tried on real Slurm: the job starts, and
``srun`` inside it works in all its forms (`docs/internals/slurm.md`).

========================  =======================================================================
asked                     written to Slurm, with the gate closed
========================  =======================================================================
``--gres``,               ``TresPerNode`` typed, ``ReqNodeList``, ``NumNodes``
``--gpus-per-node``
``--gpus``                the same, ``TresPerJob`` cleared
``--gpus-per-task``       the same, the GPU part of ``TresPerTask`` taken out; ``TresBind`` stays
``--gpus-per-socket``     the same, ``TresPerSocket`` cleared
``--gres=shard:N``        the same, with shards of one GPU (``gres/shard:g2:N``)
all of them, a direct     ``TresPerJob`` typed, each GPU once per node, instead of ``TresPerNode``:
``srun``                  the step of ``srun`` repeats a typed TresPerNode beside its own request,
                          which is refused. A step inside ``salloc`` asks as inside a batch job.
                          Slurm before 25.11 does not tell the two apart: on one node this row holds
                          for both, on several nodes they are left to Slurm
+ ``--ntasks-per-gpu=T``  ``TasksPerNode``, ``NumTasks`` and ``MinCPUsNode``: Slurm counts the tasks
                          of the first GRES type only, and 24.11 counts those of one GPU per node
                          at each update
+ ``--cpus-per-gpu=C``    ``CpusPerTres`` cleared; ``NumCPUs`` = C x GPUs, or with a task count
                          ``CPUsPerTask`` = C x GPUs / tasks
``--gpus``,               ``MinCPUsNode``, so that CPUs and tasks are spread as evenly as the GPUs
``--gpus-per-task``,      (at least ``--mincpus``)
``--cpus-per-gpu`` on
several nodes
the same by               ``CPUsPerTask`` and ``NumCPUs``: where Slurm itself applies its default
``DefCpuPerGPU=C``, or    to several types, the job waits for ever (reason Resources);
beside it                 ``CPUsPerTask`` of 2 or more disables the default. One GPU per node:
                          nothing, the default works
+ ``--mem-per-gpu``       stays (clearing it breaks srun's environment)
``--exclusive``,          ``ReqNodeList``, ``NumNodes`` only: Slurm chooses the GPUs
plain nodes
========================  =======================================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.slurm.gres import (
    GpuItem,
    bound_slots,
    gpu_item,
    same_tres,
    shards_of,
    typed_gres,
    typed_shards,
)
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.updates import TRES_FIELDS
from slurm_gpu_aware.slurm.words import check_node_names, expand_hostlist, hostlist

Fields = tuple[tuple[str, str], ...]

_SHOWN = {
    "ReqNodeList": "req_nodes",
    "ExcNodeList": "exc_nodes",
    "ReservationName": "holding_pool",
    **TRES_FIELDS,
    "CpusPerTres": "cpus_per_tres",
    "TresFreq": "tres_freq",
    "AdminComment": "admin_comment",
    "Extra": "extra",
}
"""Updated field -> field of `SlurmJob`; Slurm computes others anew, so they cannot be compared."""
_FIELDS = {
    "node": "TresPerNode",
    "job": "TresPerJob",
    "task": "TresPerTask",
    "socket": "TresPerSocket",
}
"""Kind of a form -> field of the request."""
_NUMBERS = {
    "NumTasks": ("num_tasks", "tasks"),
    "NumCPUs": ("min_cpus", "cpus"),
    "CPUsPerTask": ("cpus_per_task", "cpus_per_task"),
    "MinCPUsNode": ("min_cpus_node", "min_cpus_node"),
}
"""Updated field -> fields of `OriginalRequest` and of `SlurmJob`."""
_AS_SHOWN = ("NumCPUs", "MinCPUsNode")
"""Those of them that rounds read in the job, not in the record, unless it is bound."""
_NO_MAXIMUM = 0
"""As Slurm keeps a request without a maximum: it takes as many nodes as any other one allows."""
_MOST_NODES = 500_000  # Slurm's own bound.


@dataclass(frozen=True)
class Form:
    """The option that asks for GPUs, and how many."""

    kind: str  # ``node``, ``job``, ``task`` or ``socket``.
    item: GpuItem
    sockets: int = 1  # Sockets per node that give GPUs (kind ``socket``).
    shards: int = 0  # Shards of the one GPU that it stands for; 0: whole GPUs.

    @property
    def on_node(self) -> int | None:
        """GPUs on each node, if the request says so."""
        return self.item.count * self.sockets if self.kind in ("node", "socket") else None


@dataclass(frozen=True)
class Binding:
    """Nodes, GPUs and clock that are fixed in a placed job."""

    nodes: tuple[str, ...]
    slots: tuple[int, ...] | None
    """GPU indices, the same on each node; None: Slurm chooses the GPUs."""
    clock_mhz: int | None = None
    cpus_per_gpu: int | None = None
    """CPUs with each GPU if ``DefCpuPerGPU`` applies to the job; None: it does not."""
    gpus: int | None = None
    """GPUs in total, if the job may get another number than it asks for (`gate.resizing`)."""
    direct: bool = False
    """A direct ``srun`` may have made the job: its step repeats what stands in TresPerNode."""
    power_limit_w: int | None = None  # Power limit of each GPU, W; None: the site's own.


def form_of(original: OriginalRequest) -> Form | None:
    """The form of a request; None: unsupported."""
    if shards := shards_of(original.tres_per_node):
        return Form("node", GpuItem(1, None, ()), shards=shards)
    tres = ((kind, getattr(original, _SHOWN[field])) for kind, field in _FIELDS.items())
    forms = [Form(kind, item) for kind, text in tres if (item := gpu_item(text)) is not None]
    if len(forms) != 1 or forms[0].item.count < 1:
        return None
    if forms[0].kind == "task" and original.ntasks_per_tres is not None:
        return None  # Slurm's commands refuse the two together
    if forms[0].kind != "socket":
        return forms[0]
    return replace(forms[0], sockets=sockets) if (sockets := original.sockets_per_node) else None


def placed_fields(original: OriginalRequest, binding: Binding) -> Fields:
    """Fields that bind a job, without licences and AdminComment.

    Raises ValueError if the form is unsupported or a name cannot be a node's.
    """
    form = form_of(original)
    if form is None:
        raise ValueError("this form of request is unsupported")
    nodes = check_node_names(binding.nodes)
    fields = [("ReqNodeList", ",".join(nodes))]
    if original.nodes != (len(nodes), len(nodes)):
        fields.append(("NumNodes", f"{len(nodes)}-{len(nodes)}"))
    if binding.slots is not None:
        typed = typed_gres(binding.slots, len(nodes) if binding.direct else 1)
        if form.shards:
            typed = typed_shards(binding.slots[0], form.shards)
        fields += _typed_fields(form, "TresPerJob" if binding.direct else "TresPerNode", typed)
        fields += _counts(original, form, len(binding.slots), len(nodes), binding.cpus_per_gpu)
    if binding.clock_mhz is not None:
        fields.append(("TresFreq", f"gpu:{binding.clock_mhz}"))
    return tuple(fields)


def _typed_fields(form: Form, into: str, typed: str) -> list[tuple[str, str]]:
    """The GPUs by type in the field ``into``, and not in the field of the form."""
    asked, others = _FIELDS[form.kind], form.item.others
    if asked == into:
        return [(into, ",".join([typed, *others]))]
    return [(asked, ",".join(others)), (into, typed)]


def _counts(
    original: OriginalRequest, form: Form, gpus: int, nodes: int, default_cpus: int | None
) -> list[tuple[str, str]]:
    """CPUs and tasks that follow ``gpus`` on each of ``nodes`` nodes."""
    fields: list[tuple[str, str]] = []
    per_gpu = gpu_item(original.cpus_per_tres)
    if per_gpu is not None:
        fields.append(("CpusPerTres", ""))
    if original.ntasks_per_tres is not None:
        on_node = original.ntasks_per_tres * gpus
        fields += [("TasksPerNode", str(on_node)), ("NumTasks", str(on_node * nodes))]
    if default_cpus is not None and (gpus > 1 or per_gpu is not None):
        cpus = default_cpus * gpus * nodes
        task = cpus_of_a_task(original, cpus, nodes)
        if task is None:
            raise ValueError("its CPUs cannot be written beside DefCpuPerGPU")
        fields += [("CPUsPerTask", str(task)), ("NumCPUs", str(cpus))]
    elif per_gpu is not None:
        total = per_gpu.count * gpus * nodes
        tasks = tasks_of(original, nodes)
        if tasks is None:
            fields.append(("NumCPUs", str(total)))
        else:
            fields.append(("CPUsPerTask", str(max(1, total // tasks))))
    share = _cpus_on_each(original, form, gpus, nodes, default_cpus)
    if share is not None:
        fields.append(("MinCPUsNode", str(max(share, original.min_cpus_node or 1))))
    return fields


def cpus_of_a_task(original: OriginalRequest, cpus: int, nodes: int) -> int | None:
    """CPUs per task that make ``cpus`` in all; None: no number of 2 or more does.

    Without a task count Slurm starts one task per node. ``CPUsPerTask=1`` does not disable
    ``DefCpuPerGPU``.
    """
    task, rest = divmod(cpus, tasks_of(original, nodes) or nodes)
    return task if rest == 0 and task > 1 else None


def _cpus_on_each(
    original: OriginalRequest, form: Form, gpus: int, nodes: int, default_cpus: int | None
) -> int | None:
    """CPUs that each node must give if CPUs follow GPUs; None: no bound.

    Without it Slurm spreads CPUs, and so tasks, unevenly (3 + 1) over even GPUs of several nodes.
    """
    tasks = tasks_of(original, nodes)
    per_gpu = gpu_item(original.cpus_per_tres)
    if original.ntasks_per_tres is not None:
        of_tasks = original.ntasks_per_tres * (original.cpus_per_task or 1)
        return gpus * max(of_tasks, per_gpu.count if per_gpu else 0, default_cpus or 0)
    if nodes == 1:
        return None
    if per_gpu is not None:
        return per_gpu.count * gpus
    if form.kind in ("job", "task") and tasks is not None and tasks % nodes == 0:
        return max(1, tasks // nodes * (original.cpus_per_task or 1))
    return None


def tasks_of(original: OriginalRequest, nodes: int) -> int | None:
    """Task count of the request on ``nodes`` nodes; None: not given."""
    form = form_of(original)
    if original.ntasks_per_tres is not None and form is not None and form.kind != "task":
        return original.ntasks_per_tres * gpus_per_node(original, nodes) * nodes
    if original.num_tasks is not None:
        return original.num_tasks
    if original.ntasks_per_node is not None:
        return original.ntasks_per_node * nodes
    return None


def gpus_per_node(original: OriginalRequest, nodes: int) -> int:
    """GPUs of a request on each of ``nodes`` nodes."""
    form = form_of(original)
    if form is None:
        return 0
    if form.on_node is not None:
        return form.on_node
    copies = 1 if form.kind == "job" else tasks_of(original, nodes) or nodes
    return -(-form.item.count * copies // nodes)


def kept_tasks(original: OriginalRequest) -> Fields:
    """What an update of an unbound job must repeat, or Slurm 24.11 counts its tasks anew."""
    tasks = tasks_of(original, (original.nodes or (1, None))[0])
    if original.ntasks_per_tres is None or tasks is None:
        return ()
    return (("NumTasks", str(tasks)),)


def restored_fields(job: SlurmJob, original: OriginalRequest, *, marked: bool) -> Fields:
    """Fields that differ from the original request, without the licences.

    ``marked``: the marker says that the job was bound; Slurm may have restored it in part.
    """
    fields: list[tuple[str, str]] = []
    bound = marked or is_bound(job, original)
    if set(job.req_nodes) != set(_names(original.req_nodes)):
        fields.append(("ReqNodeList", ",".join(_names(original.req_nodes))))
    least, most = original.nodes or (1, None)
    if bound and least != most:
        fields.append(_node_range(original))
    for name in (*_FIELDS.values(), "CpusPerTres"):
        now, then = getattr(job, _SHOWN[name]), getattr(original, _SHOWN[name])
        # Without --cpus-per-gpu Slurm itself writes DefCpuPerGPU there again and again.
        default = name == "CpusPerTres" or (name == "TresPerTask" and _only_cpus(now))
        if not (default and not then) and not same_tres(now, then):
            fields.append((name, then or ""))
    if original.ntasks_per_tres is not None and job.ntasks_per_node != original.ntasks_per_node:
        fields.append(("TasksPerNode", str(original.ntasks_per_node or 0)))
        fields += kept_tasks(original)
    elif bound and original.resizable == "gpus" and job.tasks != (original.num_tasks or job.tasks):
        fields.append(("NumTasks", str(original.num_tasks)))
    if (original.cpus_per_tres is not None and job.cpus_per_tres is None) or (
        bound and original.cpus_per_task is None and (job.cpus_per_task or 1) > 1
    ):
        fields.append(("CPUsPerTask", str(original.cpus_per_task or 1)))
    if bound and original.min_cpus is not None and job.cpus != original.min_cpus:
        fields.append(("NumCPUs", str(original.min_cpus)))
    least_cpus = max(original.cpus_per_task or 1, original.min_cpus_node or 1)
    if bound and job.min_cpus_node > least_cpus:
        fields.append(("MinCPUsNode", str(least_cpus)))
    if (job.tres_freq or "") != (original.tres_freq or ""):
        fields.append(("TresFreq", original.tres_freq or ""))
    return tuple(fields)


def excluded(original: OriginalRequest, nodes: Sequence[str]) -> Fields:
    """Fields that keep a job off these nodes, too; raises ValueError for a name that is none."""
    names = {*_names(original.exc_nodes), *check_node_names(nodes)}
    return (("ExcNodeList", hostlist(names)),) if nodes else ()


def own_excluded(original: OriginalRequest) -> tuple[str, ...]:
    """Names of the nodes that a job's user has excluded."""
    return tuple(sorted(_names(original.exc_nodes)))


def excluded_again(job: SlurmJob, original: OriginalRequest) -> Fields:
    """Field that takes back what `excluded` has added."""
    own = _names(original.exc_nodes)
    return () if set(job.exc_nodes) == set(own) else (("ExcNodeList", hostlist(own)),)


def _node_range(request: OriginalRequest) -> tuple[str, str]:
    least, most = request.nodes or (1, None)
    top = _NO_MAXIMUM if most is None else max(least, min(most, _MOST_NODES))
    return "NumNodes", f"{least}-{top}"


def changed_fields(
    job: SlurmJob, before: OriginalRequest, after: OriginalRequest, *, bound: bool
) -> Fields:
    """Fields that give a job a changed request, without the licences.

    ``bound``: it shows its binding, and none of the changes that concern the binding.
    """
    fields = dict(restored_fields(job, after, marked=bound))
    if after.tres_bind != before.tres_bind:  # Slurm may have refused it when all else was set
        fields["TresBind"] = after.tres_bind or ""
    # After an update that it refused half-way Slurm shows the least nodes of before.
    shown = (job.min_nodes, job.max_nodes), before.nodes
    if after.nodes is not None and shown != (after.nodes, after.nodes):
        fields |= [_node_range(after)]
    for name, (asked, seen) in _NUMBERS.items():
        number = getattr(after, asked)
        same = number is None or number == (getattr(job, seen) or 1)
        if not same and (bound or name not in _AS_SHOWN):
            fields[name] = str(number)
    return tuple((fields | dict(kept_tasks(after))).items())


def is_bound(job: SlurmJob, original: OriginalRequest) -> bool:
    """Whether a job's nodes or GPUs differ from the original request."""
    return (
        set(job.req_nodes) != set(_names(original.req_nodes))
        or not same_tres(job.tres_per_node, original.tres_per_node)
        or bound_slots(job) is not None
    )


def differences(job: SlurmJob, fields: Fields) -> list[str]:
    """Fields of an update that a job does not show when it is read back."""
    wrong = []
    for name, wanted in fields:
        if name not in _SHOWN:
            continue
        seen = getattr(job, _SHOWN[name]) or ""
        if name in ("ReqNodeList", "ExcNodeList"):
            same = set(seen) == set(_names(wanted))
            seen = ",".join(seen)
        elif name.startswith("TresPer") or name == "CpusPerTres":
            same = same_tres(seen, wanted)
        else:
            same = seen == wanted
        if not same:
            wrong.append(f"{name}={seen} instead of {wanted}")
    return wrong


def _only_cpus(tres: str | None) -> bool:
    """Whether TresPerTask is only ``cpu=N``, which Slurm writes there for ``-c N``."""
    return tres is not None and all(item.startswith("cpu") for item in tres.split(","))


def _names(text: str | None) -> tuple[str, ...]:
    return expand_hostlist(text) if text else ()
