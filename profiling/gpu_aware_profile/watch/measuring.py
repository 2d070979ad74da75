"""Measurement of a pass: idle nodes through Slurm, drained nodes on trial, or this host alone.

GPUs while jobs run, without a kernel of ours: the agents' reports, or this host's own driver.
"""

import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu_aware_profile.child import Child
from gpu_aware_profile.devices.driver import in_time, open_driver
from gpu_aware_profile.devices.nvml import OF_PROGRAMS, NvmlDevice, reason_words, xid_words
from gpu_aware_profile.sweeps.sweep import BACKGROUND, Sweep
from gpu_aware_profile.sweeps.sweep_plan import Outcome, Target, fresh_plan
from gpu_aware_profile.watch import actions
from gpu_aware_profile.watch.draining import Node
from gpu_aware_profile.watch.judgement import Error, Running
from slurm_gpu_aware.agent_reports import last_report, spool_file
from slurm_gpu_aware.errors import DeviceError, SourceError
from slurm_gpu_aware.model.profile import THROTTLED, Gpu
from slurm_gpu_aware.store.report import ProbeReport, parse_report
from slurm_gpu_aware.text_file import parse_json

_HOUR_S = 3600.0
_WAIT_S = 30.0
"""An idle node may take some seconds to start a job; one that is taken meanwhile is skipped."""
_GRACE_S = 60.0
_MOST_OUT = 4 << 20


@dataclass
class Measured:
    """Reports of a pass."""

    reports: list[ProbeReport] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_drained: list[str] = field(default_factory=list)
    """Nodes that were on trial, and that Slurm did not drain again."""


@dataclass(frozen=True)
class Wanted:
    """How nodes are measured."""

    command: str
    arguments: Sequence[str]  # Further arguments of ``node``.
    srun_options: Sequence[str]
    nodes: Sequence[str] = ()  # Only these; empty: all.
    older_than_h: float = 20.0  # A node is measured again after so many hours.
    jobs: int = 8  # Nodes at a time.
    time_limit_s: float = 3600.0
    hardware: bool = False  # Read the hardware only, which takes seconds; measure no times.

    @property
    def probe_arguments(self) -> list[str]:
        """Arguments of ``node``."""
        return ["--no-timings"] if self.hardware else list(self.arguments)


class Measuring:
    """Measures nodes through Slurm; :meth:`stop` ends it."""

    def __init__(self, pass_id: str, wanted: Wanted) -> None:
        self._id = pass_id
        self._wanted = wanted
        self._running: list[Sweep] = []
        self._stopped = False

    def stop(self) -> None:
        """End all probes; for signal handlers."""
        self._stopped = True
        for sweep in self._running:
            sweep.stop()

    def idle(self, measured_at: dict[str, float], now: float) -> Measured:
        """Measure the nodes that are idle and whose last times are old. Raises SourceError."""
        wanted = self._wanted
        given = {"time_limit": wanted.time_limit_s, "idle_only": True}
        given["older_than"] = wanted.older_than_h * _HOUR_S / 86_400.0
        plan = fresh_plan(wanted.nodes, given, measured_at, now)
        found = self._sweep(plan.targets, BACKGROUND)
        found.outcomes += [one for one in plan.outcomes if one.state == "failed"]
        return found

    def drained(
        self, nodes: Sequence[Node], gpus: dict[str, int], remember: Callable[[list[str]], None]
    ) -> Measured:
        """Measure nodes that watch drained: reserved for us, resumed, and drained again.

        ``gpus``: node -> its number of GPUs. ``remember``: gets the nodes before they are resumed.
        A pass that is killed meanwhile leaves a reservation that ends by itself, and in which
        no job of another user starts; the next pass drains the nodes.
        """
        chosen = [node for node in nodes if gpus.get(node.name) and node.state == "drained"]
        if not chosen or self._stopped:
            return Measured()
        limit_s = min(self._wanted.time_limit_s, 1800.0)
        try:
            actions.unreserve()
            actions.reserve([node.name for node in chosen], 2 * limit_s)
        except SourceError as exc:
            return Measured(notes=[f"drained nodes are not measured again: {exc}"])
        notes: list[str] = []
        failed: list[str] = []
        try:
            remember([node.name for node in chosen])
            with _on_trial(chosen, notes, failed) as ready:
                targets = [Target(node.name, node.partitions[0], gpus[node.name]) for node in ready]
                found = self._sweep(targets, (f"--reservation={actions.TRIAL}",))
        finally:
            try:
                actions.unreserve()
            except SourceError as exc:
                notes.append(f"reservation {actions.TRIAL}: {exc}")
        return replace(found, notes=[*found.notes, *notes], not_drained=failed)

    def _sweep(self, targets: Sequence[Target], options: Sequence[str]) -> Measured:
        found = Measured()
        if not targets or self._stopped:
            return found
        wanted = self._wanted
        sweep = Sweep(
            self._id,
            found.reports.append,
            command=wanted.command,
            arguments=wanted.probe_arguments,
            concurrency=wanted.jobs,
            probe_s=wanted.time_limit_s,
            queue_s=_WAIT_S,
            srun_options=[*options, *wanted.srun_options],
        )
        self._running.append(sweep)
        found.outcomes += sweep.run(targets)
        return found


@contextmanager
def _on_trial(nodes: Sequence[Node], notes: list[str], failed: list[str]) -> Iterator[list[Node]]:
    """Nodes that take our jobs within the block, and are drained for the same reason after it.

    ``failed`` gets those that are not drained again.
    """
    ready = []
    try:
        for node in nodes:
            try:
                actions.resume(node.name)
                ready.append(node)
            except SourceError as exc:
                notes.append(f"{node.name}: {exc}")
        yield ready
    finally:
        for node in ready:
            try:
                actions.drain(node.name, node.reason)
            except SourceError as exc:
                notes.append(f"{node.name}: not drained again: {exc}")
                failed.append(node.name)


def this_host(node: str, arguments: Sequence[str], limit_s: float) -> ProbeReport:
    """Probe this host without Slurm. Raises SourceError."""
    argv = [sys.executable, "-m", "gpu_aware_profile.cli", "node", "--json"]
    out = bytearray()
    with Child([*argv, f"--node-name={node}", *arguments], None, limit_s + _GRACE_S) as child:
        for name, piece in child.pieces():
            out += piece if name == "out" else b""
            if len(out) > _MOST_OUT:
                raise SourceError(f"the probe printed more than {_MOST_OUT >> 20} MiB")
        code, said = child.code, child.errors.strip().rpartition("\n")[2]
    last = out.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise SourceError(f"the probe ended with {code}: {said[:200]}")
    raw: Any = parse_json(last, "the report")
    return parse_report(raw)


FRESH_S = 600.0  # A report that is older says nothing of now.
_JOB = re.compile(r"/job_([0-9]{1,10})(?:/|$)")
_MOST_CGROUP = 4096


def reported(
    spool: Path, nodes: Collection[str], now: float, jobs_on: Callable[[str], str]
) -> dict[Gpu, Running]:
    """What the agents of the nodes read last.

    ``jobs_on``: asked for the jobs of a node with a GPU that throttles, if its agent does not know
    them; once per node, as it may be slow. A node without a fresh report has no entry.
    """
    found: dict[Gpu, Running] = {}
    ask = cache(jobs_on)
    for node in sorted(nodes):
        report = last_report(spool_file(spool, node))
        if report is None or not -FRESH_S <= now - report.at <= FRESH_S:
            continue
        for gpu, one in report.throttle.items():
            reasons = reason_words(one.mask)
            job = str(one.job or "")
            if reasons & THROTTLED and not job:
                job = ask(node)
            found[node, gpu] = Running(
                report.at, reasons, one.mhz or None, report.power_w.get(gpu), job
            )
        for xid in report.xids:
            if xid.xid in OF_PROGRAMS:
                continue
            job = str(xid.job or "") or (ask(node) if now - xid.at <= FRESH_S else "")
            error = Error(xid.at, f"{xid_words(xid.xid)}{f' under job {job}' if job else ''}")
            lost = Running(report.at, frozenset())  # it may not be read any more
            reading = found.get((node, xid.gpu), lost)
            found[node, xid.gpu] = reading._replace(errors=(*reading.errors, error))
    return found


def of_this_host(node: str) -> tuple[dict[Gpu, Running], frozenset[Gpu]]:
    """(readings of the GPUs of this host, those that have processes). Raises DeviceError."""
    found: dict[Gpu, Running] = {}
    busy = set()
    with open_driver() as driver:
        for index, device in driver.devices():
            if not isinstance(device, NvmlDevice):
                continue
            try:
                sample = in_time("sample", device.sample)
                pids = in_time("processes", device.processes)
            except DeviceError:  # the probe names it
                continue
            jobs = sorted({job for pid in pids if (job := job_of(pid))}, key=int)
            mhz = None if sample.sm_mhz is None else int(sample.sm_mhz)
            found[node, index] = Running(
                time.time(), sample.throttle, mhz, sample.power_w, ",".join(jobs[:3])
            )
            if pids:
                busy.add((node, index))
    return found, frozenset(busy)


def job_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Slurm's job of a process, by its cgroup; empty: none, or it has ended."""
    try:
        with (proc / str(pid) / "cgroup").open(encoding="utf-8", errors="replace") as stream:
            match = _JOB.search(stream.read(_MOST_CGROUP))
    except OSError:
        return ""
    return match[1] if match else ""
