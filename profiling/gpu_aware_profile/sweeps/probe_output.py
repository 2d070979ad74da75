"""What the ``srun`` of a probe printed: the report, and why there is none or only a part."""

from __future__ import annotations

import re

from gpu_aware_profile.sweeps.gpu_nodes import Outcome, Target
from gpu_aware_profile.sweeps.srun import Ended
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.names import PROBE_TIME_LIMIT
from slurm_gpu_aware.store.report import ProbeReport, parse_report
from slurm_gpu_aware.text_file import parse_json
from slurm_gpu_aware.time_text import duration

_TAKEN = re.compile(r"CANCELLED AT \S+ DUE TO (?:PREEMPTION|JOB REQUEUE)")
"""slurmstepd prints this when Slurm takes the node from a job."""
_PREEMPTED = "Slurm gave the node to another job"
_MAX_REPORT = 4 << 20
_MOST_SKEW_S = 3600.0
"""A node whose clock differs more would have measurements that are always, or never, the newest."""


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
        causes = tuple(dict.fromkeys(f"{f.call}: {f.error}"[:200] for f in report.faults))
        unlocked = any(_of_clock(fault.call) for fault in report.faults)
        outcome = Outcome(node, state, reason, *counts, causes=causes, unlocked=unlocked)
        return outcome, report
    if taken:
        return Outcome(node, "preempted", _PREEMPTED), None
    if report is not None and report.faults:
        raise SourceError(f"{report.faults[0].call}: {report.faults[0].error}")
    if ended.code == 0:
        raise SourceError("the probe printed no report")
    said = ended.err.strip().rpartition("\n")[2]
    raise SourceError(said.removeprefix("srun: ")[:200] or f"srun ended with {ended.code}")


def _of_clock(call: str) -> bool:
    """Whether a call is one of a lock of clocks, its note, or the driver's own."""
    return call in ("note", "lock", "clocks") or ("Clock" in call and "Get" not in call)


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
