"""Job files and profiles in the JSON format published with Amaral et al., SC'17.

A job file is an object of jobs (id -> fields); run times come from a profile, in which the
application of a job is ``TYPE/SIZE`` (``bvlc_alexnet/4``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu_aware.placement.drb.utility import InterferenceProfile, Workload
from slurm_gpu_aware.selector.policy_options import read_interference
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, checked
from slurm_gpu_aware.text_file import read_object

__all__ = ["ProfileFile", "read_profile", "read_workload"]


@dataclass(frozen=True)
class ProfileFile:
    """Content of a profile file."""

    profile: InterferenceProfile
    across: Mapping[Workload, float]
    """Run time with the GPUs on two sockets, s; ``profile.solo`` has that inside one socket."""


def read_profile(path: Path) -> ProfileFile:
    """Read a profile with the times across sockets. Raises SourceError."""
    profile, _ = read_interference(path)
    across = {
        (f"{kind}/{size}", int(gpus)): float(times["inter-socket"])
        for kind, sizes in read_object(path)["solo"].items()
        for size, entry in sizes.items()
        for gpus, times in entry["num_gpus"].items()
        if times.get("inter-socket")
    }
    return ProfileFile(profile, across)


def read_workload(path: Path, profile: ProfileFile) -> Trace:
    """Read a job file; the run time of a job is that of the job alone inside a socket.

    Each job gets ``model`` = its application and the options ``minimal_utility`` and
    ``single_node`` (Caffe runs on one machine).
    """
    rows = read_object(path)
    return Trace.of(path.stem, (_job(key, row, profile.profile) for key, row in rows.items()))


def _job(key: str, row: Mapping[str, object], profile: InterferenceProfile) -> TraceJob:
    application, gpus = f"{row['type']}/{row['size']}", int(str(row["gpus"]))
    options = {"minimal_utility": float(str(row["minimal_utility"])), "single_node": True}
    job = TraceJob(
        job_id=key,
        submit_s=float(str(row["arrival"])),
        gpus=gpus,
        duration_s=profile.solo[application, gpus],
        model=application,
        nodes=1,
        options=options,
    )
    return checked(job)
