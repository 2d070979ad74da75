"""What was seen of a cell, without what may differ: job numbers, times, node names, GPU indices."""

import collections
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Seen", "Step", "differences", "id_of", "seen_of"]

STEPS = ("batch", "direct", "plain", "one", "gres", "gpus", "per-task")
GPU_LISTS = frozenset(
    {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"}
)
# Numbers of jobs and processes, names of nodes, times, ports; Extra carries our clock.
VOLATILE = re.compile(
    r"SLURM_(JOB_?(ID|SLUID)|(JOB_|STEP_)?NODELIST|NODENAME|TOPOLOGY_ADDR|JOB_(START|END)_TIME|TASK_PID"
    r"|SRUN_COMM_(HOST|PORT)|LAUNCH_NODE_IPADDR|STEP_LAUNCHER_PORT|SUBMIT_(DIR|HOST)|JOB_EXTRA"
    r"|STEPMGR|STEP_ID|STEPID|LOCALID|NODEID|GTIDS|PROCID|SCRIPT_CONTEXT|NODE_ALIASES)$"
)
# What salloc and srun say while they wait, and what our filter adds; srun of 26.05 may end
# with a complaint about the socket that it is just closing.
WAITING = re.compile(
    r"^(salloc|srun): (Pending|Granted|Relinquishing|Nodes|job \S+ (queued|has been)|Waiting|"
    r"Force Terminated|Revoking|Licenses currently|Step created|Job \S+ step creation|"
    r"Job allocation \S+ has been revoked|error: _attempt_accept: .* Bad file descriptor$)"
)
OURS = re.compile(r"(?:sbatch|salloc|srun): (?:error: |lua: )*(gpu-aware: .*)")
LEFT = "gpu-aware: this job is left to Slurm, which chooses its GPUs: "
RECORD = ("NumTasks", "CPUs/Task", "TimeLimit", "TimeMin", "Features", "OverSubscribe", "Network")


@dataclass(frozen=True)
class Step:
    """What one ``srun``, or the batch script, did and saw."""

    status: int
    said: str
    tasks: tuple[tuple[tuple[str, str], ...], ...]
    """Environment of each task, in the order of task numbers."""
    gpus: tuple[int, ...]
    """Distinct GPUs that its tasks see, on each node; sorted."""

    @property
    def short(self) -> str:
        """For the document: tasks x GPUs that each sees."""
        if self.status != 0 and not self.tasks:
            return "refused" if self.status != 124 else "hangs"
        each = [dict(task).get("CUDA_VISIBLE_DEVICES", "0") for task in self.tasks]
        parts = [f"{count}x{gpus}" for gpus, count in sorted(collections.Counter(each).items())]
        return "+".join(parts) + (f" exit {self.status}" if self.status else "")


@dataclass(frozen=True)
class Seen:
    """One cell in one pass."""

    verdict: str
    """``ran``, ``refused``, ``waits`` or ``does not end``."""
    said: str
    reason: str = ""
    """Why it waits, in Slurm's word."""
    status: str = ""
    """Exit status of the command, and of the job."""
    shares: tuple[tuple[int, int, int], ...] = ()
    """(CPUs, memory in MB, GPUs) of each node; sorted."""
    allocated: str = ""
    record: tuple[tuple[str, str], ...] = ()
    steps: Mapping[str, Step] = field(default_factory=dict)
    left: str | None = None
    """Why our filter left the job to Slurm; None: it did not."""
    ours: str = ""
    """Other output of our filter."""
    placed: str = ""
    """Of a job that ran: ``gpus``: the selector chose its GPUs, ``nodes``: its nodes only,
    ``slurm``: it left the job to Slurm, ``parked``: no choice; empty: it was never parked."""


def seen_of(raw: Mapping[str, Any]) -> Seen:
    """Read what the driver brought back for one cell."""
    files: Mapping[str, str] = raw["files"]
    ours = OURS.findall(files["said"])
    left = next((text[len(LEFT) :] for text in ours if text.startswith(LEFT)), None)
    said = _said(files["said"])
    common: dict[str, Any] = {
        "said": said,
        "left": left,
        "ours": "; ".join(text for text in ours if not text.startswith(LEFT)),
    }
    if raw["verdict"] != "ended":
        return Seen(raw["verdict"], reason=raw.get("reason") or "", **common)
    if "record" not in files:
        end = _words(raw.get("end", ""))
        status = f"{raw['status']} {end.get('JobState', '')} {end.get('Reason', '')}".strip()
        return Seen("refused", status=status, **common)
    return _ran(raw, files, common)


def _ran(raw: Mapping[str, Any], files: Mapping[str, str], common: dict[str, Any]) -> Seen:
    line = files["record"]
    words, end = _words(line), _words(raw.get("end", ""))
    shares = []
    for nodes, cpus, memory, gres in re.findall(
        r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", line
    ):
        gpus = sum(len(_numbers(text)) for text in re.findall(r"IDX:([\d,-]+)", gres))
        shares += [(len(_numbers(cpus)), int(memory), gpus)] * len(_nodes(nodes))
    allocated = sorted(
        item for item in words.get("AllocTRES", "").split(",") if not item.startswith("gres/gpu:")
    )
    return Seen(
        "ran",
        status=f"{raw['status']} {end.get('JobState')} {end.get('ExitCode')}",
        shares=tuple(sorted(shares)),
        allocated=",".join(allocated),
        record=_record(words),
        placed=_placed(raw["ledger"]),
        steps={name: step for name in STEPS if (step := _step(name, files)) is not None},
        **common,
    )


def _record(words: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Fields of Slurm's record that must be the same.

    With ``--time-min`` a job that the backfill scheduler starts has a shorter time limit than one
    that the main scheduler starts, with us or without; the limit must lie between the two.
    """
    known = {key: words[key] for key in RECORD if key in words}
    least, limit = known.get("TimeMin", "N/A"), known.get("TimeLimit", "")
    if least != "N/A" and least <= limit <= "00:30:00":
        known["TimeLimit"] = "from TimeMin to the limit"
    return tuple(known.items())


def id_of(record: str) -> str:
    """The job's id in the ledger: ``7``, or ``7_3`` of a task."""
    words = _words(record)
    if words.get("ArrayTaskId", "").isdigit():
        return f"{words['ArrayJobId']}_{words['ArrayTaskId']}"
    return words["JobId"]


def _placed(ledger: Mapping[str, Any]) -> str:
    """What became of a job by its decisions and events in the ledger."""
    details = [detail for _, detail in ledger["events"]]
    if any("left_to_slurm" in detail for detail in details):
        return "slurm"
    if ledger["decisions"]:
        return "gpus" if ledger["decisions"][-1]["exact"] else "nodes"
    return "parked" if any(kind == "parked" for kind, _ in ledger["events"]) else ""


def _step(name: str, files: Mapping[str, str]) -> Step | None:
    prefix = f"task.{name}."
    found = sorted(
        (int(file[len(prefix) :]), text) for file, text in files.items() if file.startswith(prefix)
    )
    status = files.get(f"status.{name}")
    if status is None and not found:
        return None
    visible: dict[str, set[str]] = {}
    tasks = []
    for _, text in found:
        values = dict(line.partition("=")[::2] for line in text.splitlines() if "=" in line)
        indices = values.get("CUDA_VISIBLE_DEVICES", "")
        visible.setdefault(values.pop("HOST"), set()).update(filter(None, indices.split(",")))
        tasks.append(
            tuple(
                (key, str(len([i for i in value.split(",") if i])) if key in GPU_LISTS else value)
                for key, value in sorted(values.items())
                if not VOLATILE.match(key)
            )
        )
    return Step(
        int(status or 0),
        _said(files.get(f"said.{name}", "")),
        tuple(tasks),
        tuple(sorted(len(indices) for indices in visible.values())),
    )


def differences(plain: Seen, ours: Seen) -> list[str]:
    """How two passes of a cell differ, in words; empty: they do not."""
    found = []
    for name in ("verdict", "said", "reason", "status", "shares", "allocated"):
        one, other = getattr(plain, name), getattr(ours, name)
        if one != other:
            found.append(f"{name}: {one} | {other}")
    found += _changed("", dict(plain.record), dict(ours.record))
    for name in STEPS:
        one, other = plain.steps.get(name), ours.steps.get(name)
        if one is None or other is None:
            if one is not other and plain.verdict == ours.verdict == "ran":
                found.append(f"{name}: {one and one.short} | {other and other.short}")
            continue
        for part in ("status", "said", "gpus"):
            if getattr(one, part) != getattr(other, part):
                found.append(f"{name} {part}: {getattr(one, part)} | {getattr(other, part)}")
        if len(one.tasks) != len(other.tasks):
            found.append(f"{name} tasks: {len(one.tasks)} | {len(other.tasks)}")
        for i, (before, after) in enumerate(zip(one.tasks, other.tasks, strict=False)):
            found += _changed(f"{name}.{i} ", dict(before), dict(after))
    return found


def _changed(prefix: str, one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return [
        f"{prefix}{key}: {one.get(key)} | {other.get(key)}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def _said(text: str) -> str:
    """What a command said, without times, numbers of jobs, node names and our own sentences."""
    lines = []
    for line in text.splitlines():
        if OURS.search(line) or WAITING.match(line):
            continue
        line = re.sub(r"^\[\d{4}-\d\d-\d\dT[\d:.]+\] ", "", line)
        line = re.sub(r"\b(job|StepId=|JobId=|step|allocation) ?\d+(\.\d+)?", r"\1 J", line)
        line = re.sub(r"\bn\d\b|\bn\[[\d,-]+\]", "NODE", line)
        lines.append(re.sub(r"task(s)? [\d,-]+", "task T", line))
    return "\n".join(sorted(lines))


def _words(line: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for word in line.split():
        key, _, value = word.partition("=")
        words.setdefault(key, value)
    return words


def _nodes(text: str) -> list[str]:
    """``n[1-2,4]`` into its names."""
    match = re.fullmatch(r"([a-z]+)\[([\d,-]+)\]", text)
    return [f"{match[1]}{i}" for i in _numbers(match[2])] if match else text.split(",")


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
