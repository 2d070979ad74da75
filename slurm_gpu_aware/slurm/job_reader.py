"""All job records of ``scontrol -o show job -d``, again and again: which ones are to be believed.

What one record says is `parse`'s; here records are told apart, also those that a user's text looks
like, and what did not change since the last reading is not parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_gpu_aware.slurm.parse import job_from_record
from slurm_gpu_aware.slurm.records import SlurmJob

__all__ = ["JobReader", "JobTexts", "parse_jobs"]

_STEADY = frozenset({"CANCELLED", "COMPLETED", "FAILED", "PENDING", "TIMEOUT"})
"""States in which the run time stands still; of others it may change."""
_RUN_TIME = re.compile(r" RunTime=([0-9:-]+)(?= )")


@dataclass
class JobTexts:
    """Outcome of `parse_jobs`."""

    jobs: list[SlurmJob] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    """Record numbers that must be read in another way, or not believed."""
    digests: dict[int, int] = field(default_factory=dict)
    """Hash of all text of a doubtful record: the same as long as Slurm says the same of it."""


class JobReader:
    """Reads the answer to ``scontrol -o show job -d`` (times by ``SLURM_TIME_FORMAT=%s``).

    It stands for many readings: a record that reads as it did the last time is not parsed again,
    and of one that runs only ``RunTime`` changes, which nobody looks at.
    """

    def __init__(self) -> None:
        self._known: dict[str, SlurmJob | None] = {}
        """Text of each record of the last reading -> the job; None: it breaks a rule.

        Of those that run and those that break a rule the text without the run time."""

    def read(self, text: str) -> JobTexts:
        """Parse an answer."""
        result = JobTexts()
        records: dict[int, str] = {}
        repeated: dict[int, list[str]] = {}
        for number, record in _segments(text):
            if number in records:
                repeated.setdefault(number, [records[number]]).append(record)
            records[number] = record
        signatures: set[tuple[str, ...]] = set()
        before, self._known = self._known, {}
        follows_doubtful = False
        for number, record in records.items():
            job = None if number in repeated else self._job(record, before, signatures)
            if job is None or follows_doubtful:
                # What stands behind a broken record may be the rest of it.
                result.doubtful.append(number)
                same = repeated.get(number, [record])
                result.digests[number] = hash(tuple([_without_run_time(one) for one in same]))
            else:
                result.jobs.append(job)
            follows_doubtful = job is None
        return result

    def _job(
        self,
        record: str,
        before: Mapping[str, SlurmJob | None],
        signatures: set[tuple[str, ...]],
    ) -> SlurmJob | None:
        job = before.get(record)
        key = record
        if job is None:
            key = _without_run_time(record)
            job = before[key] if key in before else job_from_record(f"JobId={record}", signatures)
            if job is not None and job.state in _STEADY:
                key = record
        self._known[key] = job
        return job


def parse_jobs(text: str) -> JobTexts:
    """Parse one answer to ``scontrol -o show job -d``."""
    return JobReader().read(text)


def _without_run_time(record: str) -> str:
    match = _RUN_TIME.search(record)
    return record if match is None else record[: match.start(1)] + record[match.end(1) :]


def _segments(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each record, what begins with its number; numbers may repeat."""
    number = 0
    record: str | None = None
    for part in f"\n{text}".split("\nJobId=")[1:]:
        end = part.find(" ")
        word = part[:end] if end > 0 else ""
        if len(word) <= 10 and word.isascii() and word.isdigit():
            if record is not None:
                yield number, record.rstrip("\n") if record[-1] == "\n" else record
            number, record = int(word), part
        elif record is not None:  # what a user typed
            record += f"\nJobId={part}"
    if record is not None:
        yield number, record.rstrip("\n")
