"""Sweep: the probe on every GPU node of a cluster, run by Slurm.

Each node has one ``srun`` (exclusive, for undisturbed timings), a bounded number at a time. Threads
wait for the probes and cancel them; only the caller's thread ingests reports, because the store has
one writer. A node that fails, hangs or stays busy is reported and skipped.
"""

from __future__ import annotations

import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.names import PROBE_JOB
from slurm_gpu_aware.slurm.commands import clean_environment, run_command
from slurm_gpu_aware.slurm.values import parse_duration
from slurm_gpu_aware.store.report import ProbeReport, parse_report
from slurm_gpu_aware.text_file import parse_json

__all__ = ["Outcome", "Sweep", "Target", "gpu_nodes", "parse_sinfo"]

_SOCKETS = re.compile(r"\([^)]*\)")
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
_MAX_REPORT = 4 << 20
_CHECK_S = 0.1  # between two looks of a thread at whether the sweep was stopped
_BUSY_S = 5.0  # between two questions which probes wait for their nodes
_STOPPED = "the sweep was stopped"
_END_S = 5.0  # for srun to end after its job was cancelled


class Target(NamedTuple):
    """A GPU node and one of its partitions."""

    node: str
    partition: str
    gpus: int


@dataclass(frozen=True)
class Outcome:
    """Outcome of a node."""

    node: str
    state: str
    """``done``, ``failed``, ``timeout``, or ``skipped`` (not tried)."""
    reason: str = ""
    gpus: int = 0
    timings: int = 0
    faults: int = 0
    """Failed calls in a finished probe."""
    took_s: float = 0.0


def gpu_nodes(probe_s: float, timeout_s: float = 30.0) -> tuple[list[Target], list[Outcome]]:
    """Ask Slurm for its GPU nodes: (nodes to probe, the others with the reason).

    ``probe_s``: time limit of a probe.

    Raises SourceError if ``sinfo`` fails.
    """
    text, _ = run_command(["sinfo", "-a", "-N", "-h", "-o", "%N|%P|%T|%G|%l"], timeout_s)
    return parse_sinfo(text, probe_s)


def parse_sinfo(text: str, probe_s: float) -> tuple[list[Target], list[Outcome]]:
    """Parse lines ``node|partition|state|gres|time limit``, one per node and partition.

    sinfo prints the partitions of a node in any order. Taken is one that allows the probe's time,
    for else its job never starts; of these the default one, or the first by name.
    """
    targets: dict[str, Target] = {}
    taken: dict[str, tuple[bool, bool, str]] = {}
    skipped: dict[str, Outcome] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        node, partition, state, gres, limit = fields
        gpus = _gpu_count(gres)
        if not gpus:
            continue
        match = _STATE.match(state)
        word, flags = match.groups() if match else ("unknown", "")
        if word not in _USABLE or "*" in flags:
            reason = "does not respond" if "*" in flags else f"is {word}"
            skipped[node] = Outcome(node, "skipped", f"node {reason}", gpus)
            continue
        too_short = parse_duration(limit.upper()) < probe_s
        rank = (too_short, not partition.endswith("*"), partition)
        if rank <= taken.get(node, rank):
            taken[node] = rank
            targets[node] = Target(node, partition.rstrip("*"), gpus)
    return list(targets.values()), list(skipped.values())


def _gpu_count(gres: str) -> int:
    """Sum of ``gpu``, ``gpu:N`` and ``gpu:TYPE:N`` in a node's GRES."""
    items = [item.split(":") for item in _SOCKETS.sub("", gres).split(",")]
    return sum(
        int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 1
        for words in items
        if words[0] == "gpu"
    )


@dataclass
class Sweep:
    """Runs the probes. Raises ValueError or TypeError for a wrong number."""

    sweep_id: str
    ingest: Callable[[ProbeReport], None]
    """Called in the caller's thread, once per good report."""
    command: str = "gpu-aware-profile"
    """Path of ``gpu-aware-profile`` on the nodes."""
    arguments: Sequence[str] = ()
    """Further arguments of ``node``."""
    concurrency: int = 8
    """Nodes at a time."""
    probe_s: float = 900.0
    """Time limit of one probe."""
    queue_s: float = 300.0
    """A node that is not free within this time is skipped."""
    srun_options: Sequence[str] = ()
    """For example ``--account=x``."""
    grace_s: float = 30.0
    """Time beyond the two limits for Slurm to start and end a job."""
    busy: Callable[[list[str]], None] = lambda nodes: None
    """Called in the caller's thread with the nodes that probes wait for, when they change."""
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.probe_s <= 0 or self.queue_s <= 0:
            raise ValueError("concurrency and time limits must be more than 0")
        self.limit_s = self.queue_s + self.probe_s + self.grace_s

    def job_name(self, node: str) -> str:
        """Name of a probe's job, for cancelling it."""
        return f"{PROBE_JOB}{self.sweep_id}.{node}"

    def argv(self, target: Target) -> list[str]:
        """The ``srun`` of a node. ``place=off``: the filter ignores the job.

        ``--exclusive`` alone gives the node's GPUs to the job, but not to its step.
        """
        minutes = math.ceil(self.probe_s / 60)
        return [
            *["srun", "-w", target.node, "-N1", "-n1", "-p", target.partition],
            *["--exclusive", f"--gres=gpu:{target.gpus}"],
            *["--comment=place=off", f"--job-name={self.job_name(target.node)}", "--quiet"],
            *[f"--time={minutes}", f"--immediate={math.ceil(self.queue_s)}"],
            *["--input=none", "--cpu-bind=none", *self.srun_options],
            *[self.command, "node", "--json", *self.arguments],
        ]

    def run(self, targets: Sequence[Target]) -> Iterator[Outcome]:
        """Probe the nodes; yield the outcome of each as it ends.

        If the caller stops iterating, and on an error, all running probes are cancelled.
        """
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait  # slow to import

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
                    if outcome.reason != _STOPPED:
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

    @property
    def stopped(self) -> bool:
        """Whether the sweep was stopped, or has ended."""
        return self._stopped.is_set()

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
        return outcome

    def _probe(self, target: Target) -> tuple[Outcome, ProbeReport | None]:
        started = time.monotonic()
        state = "failed"
        try:
            report = _report_of(*self._srun(target), target.node)
            counts = len(report.gpus), len(report.runs), len(report.faults)
            return Outcome(target.node, "done", "", *counts, time.monotonic() - started), report
        except subprocess.TimeoutExpired:
            state = "timeout"
            reason = f"no report within {self.limit_s:g} s; its job was cancelled"
        except SourceError as exc:
            reason = str(exc)
        except OSError as exc:
            reason = f"srun cannot be run: {exc.strerror}"
        took_s = time.monotonic() - started
        return Outcome(target.node, state, reason, target.gpus, took_s=took_s), None

    def _srun(self, target: Target) -> tuple[int, str, str]:
        ends = time.monotonic() + self.limit_s
        if self.stopped:
            raise SourceError(_STOPPED)
        # In its own session: Ctrl-C reaches this process only, which cancels the jobs.
        with subprocess.Popen(
            self.argv(target),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=clean_environment(),
            start_new_session=True,
        ) as process:
            while True:
                try:
                    out, err = process.communicate(timeout=_CHECK_S)
                except subprocess.TimeoutExpired:
                    if self.stopped or time.monotonic() > ends:
                        self._cancel(target.node, process)
                        break
                else:
                    return process.returncode, out, err
        if self.stopped:
            raise SourceError(_STOPPED)
        raise subprocess.TimeoutExpired("srun", self.limit_s)

    def _cancel(self, node: str, process: subprocess.Popen[str]) -> None:
        """Cancel the job by its name, then end ``srun`` in any case."""
        with suppress(SourceError):
            run_command(["scancel", "--me", f"--name={self.job_name(node)}"], 20.0)
        # srun cancels its job on SIGTERM; scancel finds none if srun has not submitted it yet.
        for end in (process.terminate, process.kill):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_END_S)
                return
            end()
        process.wait()


def _report_of(code: int, stdout: str, stderr: str, node: str) -> ProbeReport:
    """The report in the last line; task prologs may print before it. Raises SourceError."""
    report = None
    last = stdout.strip().rpartition("\n")[2]
    if last.lstrip().startswith("{"):
        if len(last) > _MAX_REPORT:
            raise SourceError(f"the report has {len(last)} characters")
        report = parse_report(parse_json(last, "the report"))
        if report.node != node:
            raise SourceError(f"the report is of node {report.node!r}")
    if report is not None and code == 0:
        return report
    if report is not None and report.faults:
        raise SourceError(f"{report.faults[0].call}: {report.faults[0].error}")
    if code == 0:
        raise SourceError("the probe printed no report")
    said = stderr.strip().rpartition("\n")[2]
    raise SourceError(said.removeprefix("srun: ")[:200] or f"srun ended with {code}")
