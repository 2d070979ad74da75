"""What became of the load's jobs: each is compared with what its form says."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from site_forms import Form, form_of

__all__ = ["Run", "Submission", "overlaps", "read_runs", "read_submissions", "wrong_runs"]

MODELS = {"a": "a100", "v": "v100"}
"""First letter of a node -> the model of its GPUs."""


@dataclass(frozen=True)
class Submission:
    """One call of sbatch, salloc or srun."""

    name: str
    form: Form
    phase: int
    job_id: str
    status: int
    said: str
    again: tuple[str, ...]
    """What plain Slurm said to earlier tries."""

    @property
    def label(self) -> str:
        """For messages."""
        return (
            f"{self.name} ({self.job_id}, {self.form.tool} {self.form.options}, step {self.phase})"
        )


@dataclass
class Run:
    """One start of a job, as its own lines tell it."""

    name: str
    job_id: str
    restarts: int
    begun_s: float = float("inf")
    ended_s: float = 0.0
    ended: bool = False
    gpus: set[tuple[str, int]] = field(default_factory=set)
    tasks: dict[tuple[str, str], int] = field(default_factory=dict)
    """(host, number of the task) -> GPUs that it sees."""


def read_submissions(lines: Iterable[str]) -> Iterator[Submission]:
    """The load's file ``submitted``."""
    for line in lines:
        entry = json.loads(line)
        yield Submission(
            entry["name"],
            form_of(entry["name"]),
            entry["phase"],
            entry.get("id", ""),
            entry["status"],
            entry["said"],
            tuple(entry["again"]),
        )


def read_runs(lines: Iterable[str]) -> list[Run]:
    """The load's file ``seen``: one run for each start of each job."""
    runs: dict[tuple[str, str, int], Run] = {}
    for line in lines:
        kind, name, job_id, restarts, host, at, task, devices = line.split()
        key = (name, job_id, int(restarts))
        run = runs.setdefault(key, Run(*key))
        run.begun_s = min(run.begun_s, float(at))
        run.ended_s = max(run.ended_s, float(at))
        run.ended |= kind in ("end", "last")
        slots = [int(word) for word in devices.split(",") if word.isdigit()]
        run.gpus |= {(host, slot) for slot in slots}
        if kind == "task":
            run.tasks[host, task] = len(slots)
    return list(runs.values())


def wrong_runs(submission: Submission, runs: Sequence[Run]) -> Iterator[str]:
    """What is not as the form says: number of runs, GPUs, their model, what each task sees."""
    form = submission.form
    whole = [run for run in runs if run.ended]
    if len(whole) != form.runs:
        yield f"{submission.label}: {len(whole)} complete runs, not {form.runs}"
    for run in whole:
        models = {MODELS.get(host[0], host) for host, _ in run.gpus}
        if len(run.gpus) != form.gpus:
            yield f"{submission.label}: {sorted(run.gpus)}, not {form.gpus} GPUs"
        if form.model and models != {form.model}:
            yield f"{submission.label}: {sorted(run.gpus)}, not {form.model}"
        hosts = Counter(host for host, _ in run.gpus)
        if form.nodes and len({host for host, _ in run.tasks}) != form.nodes:
            yield f"{submission.label}: tasks on {sorted(run.tasks)}, not on {form.nodes} nodes"
        for (host, task), seen in run.tasks.items():
            if seen != (form.per_task or hosts[host]):
                yield f"{submission.label}: task {task} on {host} sees {seen} GPUs"
        if len(run.tasks) < form.tasks:
            yield f"{submission.label}: {len(run.tasks)} tasks, not {form.tasks}"


def overlaps(runs: Iterable[Run]) -> Iterator[str]:
    """Pairs of runs that had one GPU at one time."""
    by_gpu: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        for gpu in run.gpus:
            by_gpu[gpu].append(run)
    for gpu, sharing in by_gpu.items():
        sharing.sort(key=lambda run: run.begun_s)
        last = sharing[0]
        for run in sharing[1:]:
            if run.begun_s < last.ended_s:
                yield f"{last.name} ({last.job_id}) and {run.name} ({run.job_id}) on {gpu}"
            last = max(last, run, key=lambda run: run.ended_s)


def bad_ends(sacct: Iterable[str]) -> Iterator[str]:
    """Jobs and steps without success in ``sacct -P -n -o jobid,jobname,state,exitcode``."""
    for line in sacct:
        job_id, name, state, code = line.split("|")
        if state != "COMPLETED" or not re.fullmatch(r"0:0", code):
            yield f"{name} ({job_id}): {state}, exit {code}"
