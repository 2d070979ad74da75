"""Sweep: the probe on every GPU node of a cluster, run by Slurm, and what it printed there.

Each node has one ``srun`` (exclusive, for undisturbed timings), a bounded number at a time. Threads
wait for the probes and cancel them; only the caller's thread ingests reports, because the store has
one writer. A node that fails, hangs, stays busy or is given to another job is reported and skipped.
"""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpu_aware_profile.child import Child, LateError
from gpu_aware_profile.sweeps.sweep_plan import Outcome, Target
from slurm_gpu_aware.bounds import PROBE_JOB, PROBE_TIME_LIMIT
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.model.profile import profile_sentences
from slurm_gpu_aware.slurm.commands import clean_environment, run_command
from slurm_gpu_aware.store.report import ProbeReport, parse_report
from slurm_gpu_aware.text_file import parse_json
from slurm_gpu_aware.time_text import duration

STOPPED = "the sweep was stopped"
_MOST_OUT = 8 << 20
_ENDING = (0, signal.SIGTERM, signal.SIGKILL)
"""When its job was cancelled it ends by itself. On SIGTERM it cancels the job: ``scancel`` finds
none if it has not submitted it yet."""
_TAKEN = re.compile(r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)")
"""slurmstepd prints this when Slurm takes the node from a job."""
_PREEMPTED = "Slurm gave the node to another job"
_MAX_REPORT = 4 << 20
_MOST_SKEW_S = 3600.0
"""A node whose clock differs more would have measurements that are always, or never, the newest."""
BACKGROUND = ("--nice=1000000",)
"""Options of srun for probes that start only where nothing else wants to."""

_BUSY_S = 5.0  # between two questions which probes wait for their nodes


class Ended(NamedTuple):
    """How an ``srun`` ended."""

    code: int
    out: str
    err: str  # Its last 64 KiB.

    @property
    def reason(self) -> str:
        """What it said last."""
        said = self.err.strip().rpartition("\n")[2]
        return said.removeprefix("srun: ")[:200] or f"srun ended with {self.code}"


def srun_argv(
    nodes: Sequence[str],
    partition: str,
    gpus: int,
    job_name: str,
    run_s: float,
    queue_s: float,
    *options: str,
) -> list[str]:
    """An exclusive job on these nodes. ``place=off``: the filter ignores it.

    ``gpus``: of each node; ``--exclusive`` alone gives them to the job, but not to its step.
    ``run_s``, ``queue_s``: limits of its time, and of that in the queue. ``options``: further ones,
    and the command.
    """
    return [
        *["srun", "-w", ",".join(nodes), f"-N{len(nodes)}", "-p", partition],
        *["--exclusive", f"--gres=gpu:{gpus}", "--comment=place=off", f"--job-name={job_name}"],
        *["--quiet", f"--time={math.ceil(run_s / 60)}", f"--immediate={math.ceil(queue_s)}"],
        *["--cpu-bind=none", *options],
    ]


def run_srun(
    argv: Sequence[str],
    job_name: str,
    limit_s: float,
    stopped: threading.Event,
    reply: Callable[[bytearray], str] | None = None,
) -> Ended:
    """Run ``srun``; cancel its job and end it if it takes too long or ``stopped`` is set.

    ``reply``: called with the output so far; what it returns first goes to all tasks, as their
    whole input.

    Raises SourceError if it cannot be run, was stopped, or prints more than 8 MiB, LateError.
    """
    out = bytearray()
    if stopped.is_set():
        raise SourceError(STOPPED)
    given = b"" if reply is None else None
    environment = clean_environment()
    with Child(argv, environment, limit_s, stopped, given=given, signals=_ENDING) as child:
        try:
            for name, piece in child.pieces():
                out += piece if name == "out" else b""
                if len(out) > _MOST_OUT:
                    raise SourceError(f"the probe printed more than {_MOST_OUT >> 20} MiB")
                if reply is not None and (text := reply(out)):
                    child.write(text)
                    child.close_input()
                    reply = None
        except SourceError:
            with suppress(SourceError):
                run_command(["scancel", "--me", f"--name={job_name}"], 20.0)
            if stopped.is_set():
                raise SourceError(STOPPED) from None
            raise
        return Ended(child.code or 0, out.decode("utf-8", "replace"), child.errors)


def read_probe(ended: Ended, target: Target, now: float) -> tuple[Outcome, ProbeReport | None]:
    """The outcome of a node, and what to store. Raises SourceError for a report that is wrong.

    A probe that was ended early prints what it measured until then: that is stored, but the node
    is not done. ``now``: Unix time.
    """
    node = target.node
    taken = _TAKEN.search(ended.err) is not None
    try:
        report = _report(ended.out, target, now)
    except SourceError:
        if not taken:
            raise
        report = None  # ended while it printed
    if report is not None and (ended.code == 0 or report.gpus):
        counts = len(report.gpus), len(report.runs), len(report.faults)
        state, reason = "done", ""
        if taken:
            state, reason = "preempted", f"{_PREEMPTED} before all was measured"
        elif ended.code != 0:
            state, reason = "failed", f"ended with {ended.code} before all was measured"
        elif any(fault.call == PROBE_TIME_LIMIT for fault in report.faults):
            state, reason = "timeout", "its time was over before all was measured"
        said = [f"{f.call}: {f.error}"[:200] for f in report.faults]
        said += profile_sentences({(node, slot): gpu for slot, gpu in report.gpus.items()})
        causes = tuple(dict.fromkeys(said))
        unlocked = any(_of_clock(fault.call) for fault in report.faults)
        outcome = Outcome(node, state, reason, *counts, causes=causes, unlocked=unlocked)
        return outcome, report
    if taken:
        return Outcome(node, "preempted", _PREEMPTED), None
    if report is not None and report.faults:
        raise SourceError(f"{report.faults[0].call}: {report.faults[0].error}")
    if ended.code == 0:
        raise SourceError("the probe printed no report")
    raise SourceError(ended.reason)


def _of_clock(call: str) -> bool:
    """Whether a call is one that sets clocks or power limits, its note, or the driver's own."""
    driver = "Get" not in call and ("Clock" in call or "PowerManagementLimit" in call)
    return driver or call in ("note", "lock", "limit", "clocks")


def _report(text: str, target: Target, now: float) -> ProbeReport | None:
    """The report in the last line; task prologs may print before it. Raises SourceError."""
    last = text.strip().rpartition("\n")[2]
    if not last.lstrip().startswith("{"):
        return None
    if len(last) > _MAX_REPORT:
        raise SourceError(f"the report has {len(last)} characters")
    report = parse_report(parse_json(last, "the report"))
    if report.node != target.node:
        raise SourceError(f"the report is of node {report.node!r}")
    if len(report.gpus) > target.gpus:
        raise SourceError(f"the report has {len(report.gpus)} GPUs, Slurm has {target.gpus} there")
    skew_s = report.taken_at - now
    if abs(skew_s) > _MOST_SKEW_S:
        where = "ahead of" if skew_s > 0 else "behind"
        raise SourceError(f"the clock of the node is {duration(abs(skew_s))} {where} that of here")
    return report


@dataclass
class Sweep:
    """Runs the probes. Raises ValueError or TypeError for a wrong number."""

    sweep_id: str
    ingest: Callable[[ProbeReport], None]
    """Called in the caller's thread, once per good report, of a part of a node, too."""
    command: str = "gpu-aware-profile"  # Path of ``gpu-aware-profile`` on the nodes.
    arguments: Sequence[str] = ()  # Further arguments of ``node``.
    concurrency: int = 8  # Nodes at a time.
    probe_s: float = 7200.0  # Time limit of one probe.
    queue_s: float = 300.0  # A node that is not free within this time is skipped.
    srun_options: Sequence[str] = ()  # For example ``--account=x``.
    grace_s: float = 30.0  # Time beyond the two limits for Slurm to start and end a job.
    budget_s: float = math.inf  # No probe begins later than this after the start of :meth:`run`.
    busy: Callable[[list[str]], None] = lambda nodes: None
    """Called in the caller's thread with the nodes that probes wait for, when they change."""
    ingested: int = 0  # Reports that were stored.
    _stopped: threading.Event = field(default_factory=threading.Event)
    _until: float = math.inf

    def __post_init__(self) -> None:
        if self.concurrency < 1 or min(self.probe_s, self.queue_s, self.budget_s) <= 0:
            raise ValueError("concurrency and time limits must be more than 0")

    def job_name(self, node: str) -> str:
        """Name of a probe's job, for cancelling it."""
        return f"{PROBE_JOB}{self.sweep_id}.{node}"

    def argv(self, target: Target, queue_s: float) -> list[str]:
        """The ``srun`` of a node. ``queue_s``: limit of its time in the queue."""
        name, node = self.job_name(target.node), [target.node]
        where = (node, target.partition, target.gpus, name, self.probe_s, queue_s)
        command = (self.command, "node", "--json", *self.arguments)
        return srun_argv(*where, "-n1", "--input=none", *self.srun_options, *command)

    def run(self, targets: Sequence[Target]) -> Iterator[Outcome]:
        """Probe the nodes; yield the outcome of each as it ends.

        If the caller stops iterating, and on an error, all running probes are cancelled.
        """
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait  # slow to import

        self._until = time.monotonic() + self.budget_s
        pool = ThreadPoolExecutor(max_workers=self.concurrency)
        futures = {pool.submit(self._probe, target) for target in targets}
        shown: list[str] = []
        try:
            while futures and not self._stopped.is_set():
                ended, futures = wait(futures, _BUSY_S, FIRST_COMPLETED)
                for future in ended:
                    outcome, report = future.result()
                    if report is not None:
                        outcome = self._ingested(outcome, report)
                    if outcome.reason != STOPPED:
                        yield outcome
                if not ended and (busy := self._waited_for()) != shown:
                    shown = busy
                    self.busy(busy)
        finally:
            self.stop()
            pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Cancel all probes; :meth:`run` then ends. For signal handlers: it does not wait."""
        self._stopped.set()

    def _waited_for(self) -> list[str]:
        """Nodes that are not free for their probes yet; empty if Slurm does not answer."""
        prefix = self.job_name("")
        try:
            names, _ = run_command(["squeue", "--me", "-h", "-t", "PENDING", "-o", "%j"], 20.0)
        except SourceError:
            return []
        return sorted(n.removeprefix(prefix) for n in names.split() if n.startswith(prefix))

    def _ingested(self, outcome: Outcome, report: ProbeReport) -> Outcome:
        try:
            self.ingest(report)
        except (SourceError, StoreError) as exc:  # a locked or full store fails this node only
            return Outcome(outcome.node, "failed", str(exc), took_s=outcome.took_s)
        self.ingested += 1
        return outcome

    def _probe(self, target: Target) -> tuple[Outcome, ProbeReport | None]:
        started = time.monotonic()
        queue_s = min(self.queue_s, self._until - started)
        if queue_s <= 0:
            reason = f"not begun within the budget of {self.budget_s:g} s"
            return Outcome(target.node, "skipped", reason, target.gpus), None
        limit_s = queue_s + self.probe_s + self.grace_s
        state = "failed"
        try:
            argv, name = self.argv(target, queue_s), self.job_name(target.node)
            ended = run_srun(argv, name, limit_s, self._stopped)
            outcome, report = read_probe(ended, target, time.time())
            return replace(outcome, took_s=time.monotonic() - started), report
        except LateError:
            state = "timeout"
            reason = f"no report within {limit_s:g} s; its job was cancelled"
        except SourceError as exc:
            reason = str(exc)
        took_s = time.monotonic() - started
        return Outcome(target.node, state, reason, target.gpus, took_s=took_s), None
