"""Job files in the JSON format published with Amaral et al., SC'17.

An object of jobs (id -> fields); run times come from a profile (``placement.drb.profile_file``), in
which a job's application is ``TYPE/SIZE`` (``bvlc_alexnet/4``). What cannot be used is reported,
never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_gpu_aware.bounds import MAX_GPUS, MAX_TIME_S, quoted
from slurm_gpu_aware.placement.drb.interference import InterferenceProfile
from slurm_gpu_aware.placement.drb.profile_file import ProfileFile, parse_profile
from slurm_gpu_aware.simulator.trace import BadRow, Trace, TraceJob, checked
from slurm_gpu_aware.text_file import read_object

__all__ = ["ProfileFile", "read_profile", "read_workload"]


def read_workload(source: Path | str, profile: ProfileFile, *, text: str | None = None) -> Trace:
    """Read a job file, or ``text`` if it is given (then ``source`` is only its name).

    The run time of a job comes from the profile (alone, inside a socket).

    Each job gets ``model`` = its application and the options ``minimal_utility`` and
    ``single_node`` (Caffe runs on one machine).
    ``BadRow.line`` is the job's place in the file, from 1.

    Raises
    ------
    SourceError
        The file cannot be read or is no JSON object.
    """
    jobs: list[TraceJob] = []
    bad: list[BadRow] = []
    for place, (key, row) in enumerate(read_object(source, text).items(), 1):
        try:
            jobs.append(_job(key, row, profile.profile))
        except ValueError as exc:
            bad.append(BadRow(place, f"job {key}: {exc}"))
    return Trace.of(Path(source).stem, jobs, bad)


def read_profile(path: Path | str) -> ProfileFile:
    """Read a profile file. Raises SourceError."""
    return parse_profile(read_object(path), path)


def _job(key: str, row: object, profile: InterferenceProfile) -> TraceJob:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, not {quoted(row)}")
    gpus = row.get("gpus")
    if type(gpus) is not int:
        raise ValueError(f"gpus is {quoted(gpus)}, expected a whole number")
    arrival = _number(row, "arrival")
    utility = _number(row, "minimal_utility")
    if utility > 1:
        raise ValueError(f"minimal_utility is {utility:g}, expected 0 to 1")
    if not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus is {quoted(gpus)}, expected 1 to {MAX_GPUS}")
    application = f"{row.get('type')}/{row.get('size')}"
    duration = profile.solo.get((application, gpus))
    if duration is None:
        raise ValueError(f"no solo run time of {application} on {gpus} GPUs in the profile")
    job = TraceJob(
        job_id=key,
        submit_s=arrival,
        gpus=gpus,
        duration_s=duration,
        model=application,
        nodes=1,
        options={
            "minimal_utility": utility,
            "single_node": True,
        },
    )
    return checked(job)


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_TIME_S:  # type: ignore[operator]
        raise ValueError(f"{name} is {quoted(value)}, expected a number from 0 to {MAX_TIME_S:g}")
    return float(value)  # type: ignore[arg-type]
