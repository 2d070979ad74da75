"""GPUs while jobs run, without a kernel of ours: the agents' reports, or this host's own driver."""

import re
import time
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path

from gpu_aware_profile.devices.driver import in_time, open_driver
from gpu_aware_profile.devices.nvml import OF_PROGRAMS, NvmlDevice, reason_words, xid_words
from gpu_aware_profile.watch.judgement import Error, Running
from slurm_gpu_aware.agent_reports import last_report, spool_file
from slurm_gpu_aware.errors import DeviceError
from slurm_gpu_aware.model.profile import THROTTLED, Gpu

FRESH_S = 600.0
"""A report that is older says nothing of now."""
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
