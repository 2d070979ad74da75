"""Energy of jobs: what the epilogs of all their nodes and runs recorded, added up.

Energy in Slurm's accounting: the SystemComment of ended jobs, written from a thread of its own.

slurmctld takes a SystemComment from no client, and no change of a job that has ended; slurmdbd
takes one from SlurmUser, by ``sacctmgr``. That may take as long as slurmdbd likes, so no round
waits for it, and what cannot be written is left out: the ledger has it.
"""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from statistics import median
from typing import Any, NamedTuple

from slurm_gpu_aware.bounds import MAX_GPU_W
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.declared import CHECKED, FITTED, EnergyConfig
from slurm_gpu_aware.features.power.declared import PowerConfig
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.store.ledger import Decision, Event

KINDS = ("started", "energy", "clock_failed", CHECKED, FITTED)
"""Kinds of the events that tell a job's energy, and what its clock saved."""
_KWH_J = 3.6e6
_Checked = tuple[Mapping[str, Any], Mapping[str, Any]]
"""What a job's clock was chosen by, and what its check found."""
log = logging.getLogger(__name__)
_SETTLE_S = 10.0
"""Slurm's accounting knows of a job's end by then, and the other nodes have recorded."""
_MOST = 10_000  # Jobs that wait; more are left out.
_TIMEOUT_S = 20.0
_PAUSE_S = 2.0
"""Before the ready jobs are written, so that many ends cost slurmdbd and us two commands."""
_AT_ONCE = 200
_COMPLAINT_S = 3600.0
_OURS = "gpu_energy"
_SAVED = "gpu_saved"


@dataclass(frozen=True)
class Saving:
    """What the clock of a job saved, and cost, by its model; the energy is as measured."""

    energy_j: float = 0.0
    error_j: float = 0.0  # By the model's held-out error.
    gpu_s: float = 0.0  # GPU time that the job took longer.


@dataclass(frozen=True)
class JobEnergy:
    """Energy of a job's GPUs over all its runs that have ended."""

    energy_j: float  # Of the nodes that know theirs.
    gpu_s: float  # GPU seconds of these nodes.
    runs: int
    unknown: tuple[str, ...] = ()  # Why ``energy_j`` is not all of it; empty: it is.

    @property
    def mean_w(self) -> float | None:
        """Mean power of a GPU; None: no time was measured."""
        return self.energy_j / self.gpu_s if self.gpu_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """JSON values; units J, s, W."""
        return {
            "energy_j": self.energy_j,
            "gpu_s": self.gpu_s,
            "mean_w_per_gpu": self.mean_w,
            "runs": self.runs,
            "unknown": list(self.unknown),
        }


def job_energy(events: Iterable[Event]) -> JobEnergy | None:
    """Energy of a job by its events; None: no node recorded any.

    A record that was written twice counts once. A node that a started run used, and that recorded
    nothing while others did, makes the sum incomplete. A record counts only for a run that was seen
    to start, and of a node of that run: nodes write what they like.
    """
    used: dict[tuple[int, str], tuple[float, float]] = {}
    why: dict[tuple[int, str], str] = {}
    events = list(events)
    nodes_of = _nodes_of(events)
    for event in events:
        run, gpus = _whole(event.detail.get("restarts")), event.detail.get("gpus")
        if event.kind == "energy" and isinstance(gpus, list):
            at = (run, str(event.detail.get("node")))
            if at[1] not in nodes_of.get(run, ()):
                continue
            joules, seconds = (_amount(event.detail.get(k)) for k in ("energy_j", "seconds"))
            if joules is None or seconds is None or joules > _most_j(seconds, len(gpus)):
                why[at] = f"{at[1]}: {event.detail.get('error') or 'it is not known'}"
            else:
                used[at] = (joules, seconds * len(gpus))
    runs = {run for run, _ in (*used, *why)}
    if not runs:
        return None
    for run in runs:
        for node in nodes_of.get(run, set()) - {node for r, node in (*used, *why) if r == run}:
            why[run, node] = f"{node}: its epilog recorded nothing"
    unknown = [text for at, text in sorted(why.items()) if at not in used]
    joules, gpu_s = (sum(one[i] for one in used.values()) for i in (0, 1))
    return JobEnergy(joules, gpu_s, len(runs), tuple(dict.fromkeys(unknown)))


def _nodes_of(events: Iterable[Event]) -> dict[int, set[str]]:
    """Run -> its nodes, of the runs whose start was seen."""
    nodes_of: dict[int, set[str]] = {}
    for event in events:
        # Of a job that had ended when it was seen, its nodes are known, and no GPUs.
        nodes = event.detail.get("gpus") or event.detail.get("nodes")
        if event.kind == "started" and isinstance(nodes, Mapping | list):
            nodes_of[_whole(event.detail.get("restarts"))] = set(map(str, nodes))
    return nodes_of


def _most_j(seconds: float, gpus: int) -> float:
    """Energy that so many GPUs cannot exceed; clocks of nodes are adjusted."""
    return MAX_GPU_W * gpus * (seconds + 1.0)


def _job_values(events: Iterable[Event]) -> dict[str, Any] | None:
    energy = job_energy(events)
    return None if energy is None else energy.to_json()


OF_EVENTS = {"energy": _job_values}
"""Value of ``gpu-aware explain --json`` -> what it is by the events of the job."""


def energy_rows(decisions: Iterable[Decision], events: Iterable[Event]) -> list[dict[str, Any]]:
    """Energy of ended jobs by user, account and class; empty: that of no job is known.

    ``by``, ``name``, ``jobs``, ``measured`` (jobs with a complete account: only these count),
    ``gpu_hours``, ``kwh``, ``mean_w`` per GPU; by clocks that save energy ``saved_kwh``,
    ``saved_error_kwh`` and ``lost_gpu_hours``.
    """
    events_of: dict[str, list[Event]] = {}
    for event in events:
        events_of.setdefault(event.job_id, []).append(event)
    groups: dict[tuple[str, str], list[tuple[JobEnergy, Saving] | None]] = {}
    last = {decision.job_id: decision for decision in decisions}
    for job_id, decision in last.items():
        own = events_of.get(job_id, [])
        energy = job_energy(own)
        whole = (
            None if energy is None or energy.unknown else (energy, _saving(decision, energy, own))
        )
        kind = str(decision.asked.get("class") or "none")
        account = decision.asked.get("account")
        named = [("account", str(account))] if account else []
        for group in (("user", decision.user), *named, ("class", kind), ("all", "")):
            groups.setdefault(group, []).append(whole)
    rows = [_row(*group, groups[group]) for group in sorted(groups, key=_order)]
    return rows if rows and rows[-1]["measured"] else []


def _saving(decision: Decision, energy: JobEnergy, events: Iterable[Event]) -> Saving:
    """What the clock of a job saved; nothing if a node could not set it, or it was taken back."""
    told = decision.why.get("energy")
    undone = (e.kind == "clock_failed" or e.detail.get("slow") is True for e in events)
    if not told or any(undone):
        return Saving()
    default_j, slower = energy.energy_j / (1.0 - told["saves"]), told["slower"]
    return Saving(
        default_j - energy.energy_j,
        default_j * (told["at_most"] - slower),
        energy.gpu_s * slower / (1.0 + slower),
    )


def checked_rows(decisions: Iterable[Decision], events: Iterable[Event]) -> list[dict[str, Any]]:
    """What models said of clocks that save energy, and what the jobs measured, by application.

    ``name`` (of the application as its user names it, else of the class), ``jobs`` that were
    checked, ``slow`` of them slower than allowed, ``fitted`` fits of the model to what these
    measured; medians of ``slower``, ``measured_slower``, ``saves`` and ``measured_saves`` (None: no
    job measured its power): users write what they like.
    """
    last = {decision.job_id: decision for decision in decisions}
    groups: dict[str, list[_Checked]] = {}
    fitted: Counter[str] = Counter()
    for event in events:
        decision = last.get(event.job_id)
        told = decision and decision.why.get("energy")
        if not decision or not told:
            continue
        app = decision.asked.get("model")
        kind = decision.asked.get("class") or "none"
        name = f"{decision.user}/{app}" if app else f"class {kind}"
        if event.kind == CHECKED and "slower" in event.detail:
            groups.setdefault(name, []).append((told, event.detail))
        fitted[name] += event.kind == FITTED and "says" in event.detail
    return [_checked_row(name, found, fitted[name]) for name, found in sorted(groups.items())]


def _checked_row(name: str, found: Sequence[_Checked], fitted: int) -> dict[str, Any]:
    saves = [one["saves"] for _, one in found if one["saves"] is not None]
    return {
        "name": name,
        "jobs": len(found),
        "slow": sum(one["slow"] for _, one in found),
        "fitted": fitted,
        "slower": median(told["slower"] for told, _ in found),
        "measured_slower": median(one["slower"] for _, one in found),
        "saves": median(told["saves"] for told, _ in found),
        "measured_saves": median(saves) if saves else None,
    }


def _order(group: tuple[str, str]) -> tuple[int, str]:
    return ("user", "account", "class", "all").index(group[0]), group[1]


def _row(by: str, name: str, found: Sequence[tuple[JobEnergy, Saving] | None]) -> dict[str, Any]:
    known = [one for one in found if one is not None]
    joules, gpu_s = sum(e.energy_j for e, _ in known), sum(e.gpu_s for e, _ in known)
    savings = [saving for _, saving in known]
    return {
        "by": by,
        "name": name,
        "jobs": len(found),
        "measured": len(known),
        "gpu_hours": gpu_s / 3600.0,
        "kwh": joules / _KWH_J,
        "mean_w": joules / gpu_s if gpu_s > 0 else None,
        "saved_kwh": sum(s.energy_j for s in savings) / _KWH_J,
        "saved_error_kwh": sum(s.error_j for s in savings) / _KWH_J,
        "lost_gpu_hours": sum(s.gpu_s for s in savings) / 3600.0,
    }


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _amount(value: object) -> float | None:
    """A finite number from 0 on; nodes write the records."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def comment_of(energy: JobEnergy, saving: Saving) -> str:
    """``gpu_energy=0.532000kWh,gpu_saved=0.061000kWh``; ``>=`` if some of it is not known.

    Nothing saved is not named, nor what was saved of an energy that is not known.
    """
    known = "=" if not energy.unknown else ">="
    saved = f",{_SAVED}={_kwh(saving.energy_j)}" if saving.energy_j and not energy.unknown else ""
    return f"{_OURS}{known}{_kwh(energy.energy_j)}{saved}"


def _kwh(joules: float) -> str:
    """To a joule or so for small jobs, so that their sum is right, too."""
    return f"{joules / _KWH_J:.6f}kWh"


class _Texts(NamedTuple):
    """What is written of a job; empty: nothing."""

    comment: str
    tres: str


class EnergyComments:
    """Jobs whose energy was recorded, until it stands in the accounting.

    From Slurm 25.11 on an operator may also set the energy in a job's AllocTRES (`sacctmgr`, option
    TRES); slurmdbd then sums up usage anew from the hour of the job's start on.
    """

    def __init__(
        self,
        events: Callable[[str], Sequence[Event]],
        decisions: Callable[[str], Sequence[Decision]],
        config: Config,
        run: Callable[..., tuple[str, str]] = run_command,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """``events``, ``decisions``: of a job, in the ledger; asked in the caller's thread."""
        self._events, self._decisions = events, decisions
        self._run, self._clock, self._pause_s = run, clock, pause_s
        self._comment = config.of(PowerConfig).system_comment
        self._tres = config.of(EnergyConfig).alloc_tres
        self._settled_at: dict[str, float] = {}
        self._ready: Queue[tuple[str, _Texts]] = Queue(_MOST)
        self._complained = -_COMPLAINT_S
        self._thread: threading.Thread | None = None

    def heard(self, job_id: str) -> None:
        """A node has recorded energy of a job."""
        if (self._comment or self._tres) and len(self._settled_at) < _MOST:
            self._settled_at[job_id] = self._clock() + _SETTLE_S

    def hand_over(self) -> None:
        """Give the thread the jobs whose records have settled; it starts with the first one."""
        now = self._clock()
        for job_id in [job_id for job_id, at in self._settled_at.items() if at <= now]:
            del self._settled_at[job_id]
            events = self._events(job_id)
            energy = job_energy(events)
            if energy is None:
                continue
            last = self._decisions(job_id)[-1:]
            saving = _saving(last[0], energy, events) if last else Saving()
            comment = comment_of(energy, saving) if self._comment else ""
            tres = f"energy={energy.energy_j:.0f}" if self._tres and not energy.unknown else ""
            with suppress(Full):
                self._ready.put_nowait((job_id, _Texts(comment, tres)))
        if self._thread is None and not self._ready.empty():
            self._thread = threading.Thread(target=self._work, name="energy", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            jobs = [self._ready.get()]
            time.sleep(self._pause_s)
            with suppress(Empty):
                while len(jobs) < _AT_ONCE:
                    jobs.append(self._ready.get_nowait())
            self._write(dict(jobs))

    def _write(self, texts: Mapping[str, _Texts]) -> None:
        """A text of another program (burst buffers have one) stays."""
        fields = "JobID,JobIDRaw,SystemComment"
        changes = []
        try:
            asked = ["sacct", "-n", "-X", "-P", "-j", ",".join(texts), "-o", fields]
            for line in self._run(asked, _TIMEOUT_S)[0].split("\n"):
                job_id, _, rest = line.partition("|")
                number, _, kept = rest.partition("|")
                # sacctmgr knows an array's task by Slurm's number only.
                if job_id not in texts or not (number.isascii() and number.isdecimal()):
                    continue
                comment, tres = texts[job_id]
                if comment and (not kept or kept.startswith(_OURS)):
                    change = f"set SystemComment={comment}"
                    changes.append(f"modify job where jobid={number} {change}\n")
                if tres:
                    changes.append(f"modify job where jobid={number} set TRES={tres}\n")
            if changes:
                self._run(["sacctmgr", "-i", "-Q"], _TIMEOUT_S, stdin="".join(changes))
        except SourceError as exc:
            if self._clock() - self._complained >= _COMPLAINT_S:
                self._complained = self._clock()
                some = ", ".join(list(texts)[:3]) + (" and others" if len(texts) > 3 else "")
                log.warning("energy of jobs %s is not in Slurm's accounting: %s", some, exc)
