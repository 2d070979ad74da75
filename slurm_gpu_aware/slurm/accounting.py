"""What Slurm's accounting knows and lacks: by slurm.conf, in the rows of sacct, of clusters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from slurm_gpu_aware.bounds import quoted
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import words_of

if TYPE_CHECKING:
    from slurm_gpu_aware.slurm.sacct import SacctRow

_ALWAYS = frozenset(
    {"billing", "cpu", "energy", "mem", "node", "fs/disk", "pages", "vmem"}
    | {"gres/gpumem", "gres/gpuutil"}
)
"""TRES that Slurm adds itself."""
_LATER = "then restart slurmctld; it holds for jobs that start after that"
_NO_HISTORY = "tune, simulate --sacct and estimates of run times find no job with GPUs"
_COSTS: Mapping[tuple[str, ...], str] = {
    ("JobID",): "JobIDRaw stands for it, and tasks of arrays count as jobs that may move",
    ("TimelimitRaw", "Timelimit"): "these jobs count as without time limit",
    ("User",): "run times are not estimated from earlier runs of a user",
    ("JobName",): "estimates and class=auto do not know it, and probes of a sweep count as jobs",
    ("Account",): "estimates and class=auto do not know it",
    ("Eligible",): "waits count from the submission, with dependencies, --begin and holds",
    ("AllocTRES",): "the requested GPUs count as allocated",
    ("ReqTRES", "NNodes"): "the number of nodes is left open",
    ("NodeList",): "nodes of these jobs are not known, so their run time counts as their work",
    ("Priority",): "the order by priority is that of the submissions",
    ("Comment",): "all jobs have the default class",
}
"""Columns of which one suffices -> cost where a job with GPUs has none."""
_SOME = frozenset({"TimelimitRaw", "User", "NodeList"})
"""Columns that each job has; of the others it may be right that some jobs have none."""
_KEPT = {
    "Comment": "; if users write comments, AccountingStoreFlags=job_comment in slurm.conf keeps"
    " those of later jobs"
}
_MANY = 100  # Jobs without GPUs that make a begin without any worth a word.
UNKNOWN = frozenset({"", "Unknown", "None", "Partition_Limit", "None assigned", "(null)"})
"""Cells that tell nothing."""


class Gap(NamedTuple):
    """Something that the accounting does not have."""

    found: str
    cost: str
    cure: str  # With the line to add.

    def __str__(self) -> str:
        return f"{self.found}: {self.cost}; {self.cure}"


OFF = Gap(
    "accounting is off, because AccountingStorageType in slurm.conf is not slurmdbd",
    "sacct tells nothing, so tune and simulate --sacct have no history, run times are estimated"
    " from the ledger alone, and no energy is written into SystemComment",
    "set up slurmdbd, add AccountingStorageType=accounting_storage/slurmdbd and"
    " AccountingStorageTRES=gres/gpu to slurm.conf, then restart slurmctld",
)


def gaps_of(setting: Callable[[str], str | None]) -> Iterator[Gap]:
    """What the settings of slurm.conf keep out of the accounting; ``setting``: key -> value."""
    if "slurmdbd" not in (setting("AccountingStorageType") or "").lower():
        yield OFF
        return
    tres = words_of((setting("AccountingStorageTRES") or "").lower())
    if "gres/gpu" not in tres:
        own = ",".join([*(word for word in tres if word not in _ALWAYS), "gres/gpu"])
        cost = _NO_HISTORY
        if any(word.startswith("gres/gpu:") for word in tres):
            cost = "jobs on GPUs of another type, such as g0 of an indexed node, count as without"
        yield Gap(
            "AccountingStorageTRES in slurm.conf has no gres/gpu",
            cost,
            f"add AccountingStorageTRES={own}, {_LATER}",
        )
    flags = words_of(setting("AccountingStoreFlags"))
    if "job_comment" not in map(str.lower, flags):
        yield Gap(
            "AccountingStoreFlags in slurm.conf has no job_comment",
            "sacct shows no comment of a job, so tune and simulate --sacct give all jobs the"
            " default class",
            f"add AccountingStoreFlags={','.join([*flags, 'job_comment'])}, {_LATER}",
        )


def clusters(timeout_s: float) -> list[str]:
    """Names of the clusters that slurmdbd knows. Raises SourceError."""
    command = ["sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"]
    return run_command(command, timeout_s)[0].split()


def with_cure(complaint: str) -> str:
    """What sacct complains of; with cost and cure if accounting is off."""
    return f"{complaint}: {OFF.cost}; {OFF.cure}" if "is disabled" in complaint else complaint


class Missing:
    """Counts what the rows of a history lack."""

    def __init__(self) -> None:
        self._rows = self._jobs = self._with_gpus = self._usable = 0
        self._untyped = False
        self._bare: Counter[int] = Counter()
        """Day since 1970 -> jobs without GPUs that started on it."""
        self._first = math.inf
        """The first day with a job with GPUs."""
        self._users: set[str] = set()
        self._without: Counter[tuple[str, ...]] = Counter()
        self._absent: Counter[tuple[str, ...]] = Counter()

    def note(self, row: SacctRow | Exception) -> None:
        """Count a row; an exception is one that cannot be read. Raises one of ``sacct.BAD_ROW``."""
        self._rows += 1
        if isinstance(row, Exception) or row.is_step or not row.ran:
            return
        self._jobs += 1
        if len(self._users) < 2:
            self._users.add(row.text("User"))
        day = int((row.start_s or 0.0) // 86_400)
        if not row.gpus:
            self._bare[day] += 1
            return
        self._with_gpus += 1
        self._first = min(self._first, day)
        self._untyped |= "gres/gpu=" in (row.text("AllocTRES") or row.text("ReqTRES"))
        if row.on_mig:
            return
        self._usable += 1
        for columns in _COSTS:
            if all(row.text(name) in UNKNOWN for name in columns):
                self._without[columns] += 1
                self._absent[columns] += not any(name in row.cells for name in columns)

    def of_history(self) -> list[str]:
        """Sentences on jobs that the history does not have."""
        if not self._rows:
            return [
                "no job at all: accounting began later, or sacct shows only a user's own jobs"
                " (PrivateData=jobs, or no --allusers); run it as SlurmUser, root or operator"
            ]
        found = []
        if self._jobs and not self._with_gpus:
            found.append(
                "no job has GPUs in accounting: AccountingStorageTRES in slurm.conf has no"
                f" gres/gpu, or no job had any; {_NO_HISTORY}; add"
                f" AccountingStorageTRES=gres/gpu, {_LATER}"
            )
        elif self._with_gpus and not self._untyped:
            found.append(
                "GPUs are recorded by type only, so jobs on GPUs of other types may count as"
                f" without; add gres/gpu to AccountingStorageTRES in slurm.conf, {_LATER}"
            )
        before = sum(count for day, count in self._bare.items() if day < self._first)
        if self._with_gpus and before >= _MANY:
            days = self._first - min(self._bare)
            found.append(
                f"none of the {before} jobs in the first {days} days has GPUs: if"
                " AccountingStorageTRES got gres/gpu later, replay the days after that (--days)"
            )
        if self._jobs > 1 and len(self._users) == 1 and (user := min(self._users)):
            found.append(
                f"all {self._jobs} jobs are of user {quoted(user)}: if others have jobs, these are"
                " missing, because sacct shows only a user's own with PrivateData=jobs or without"
                " --allusers; run it as SlurmUser, root or operator"
            )
        return found

    def of_jobs(self) -> list[str]:
        """Sentences on what is not known of the jobs with GPUs, and what that costs."""
        found, absent = [], []
        for columns, cost in _COSTS.items():
            count, name = self._without[columns], columns[0]
            if not count or (count < self._usable and name not in _SOME):
                continue
            if self._absent[columns]:
                absent.append(name)
                found.append(f"no column {name}: {cost}")
            else:
                jobs = f"{name} is not known of {count} of {self._usable} jobs"
                found.append(f"{jobs}: {cost}{_KEPT.get(name, '')}")
        return [*found, f"add to sacct's --format: {','.join(absent)}"] if absent else found
