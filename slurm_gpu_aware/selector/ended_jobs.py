"""Jobs whose end an earlier round has read: a site has thousands of them, of no use to a round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from slurm_gpu_aware.slurm.records import ENDED, SlurmJob


class EndedJobs:
    """The jobs that had ended in the last round."""

    def __init__(self) -> None:
        self._known: Mapping[int, SlurmJob] = {}

    def left_out(self, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
        """The jobs without those that had ended; a record that has changed since is another job."""
        return [job for job in jobs if self._known.get(job.raw_id) is not job]

    def note(self, jobs: Iterable[SlurmJob], tracked: Collection[str]) -> None:
        """Note which jobs have ended, after a round's tracker has seen them.

        ``tracked``: placed jobs whose end is still to be recorded. Tasks of arrays stay, as they
        tell that their array is split (`records.split_arrays`).
        """
        self._known = {
            job.raw_id: job
            for job in jobs
            if job.state in ENDED and job.array_id is None and job.id not in tracked
        }
