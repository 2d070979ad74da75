"""What make demo prints: tables, and what they mean."""

import math
import os
import shutil
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROJECT = os.environ.get("GPU_AWARE_PROJECT") or "gpuaware-demo"
WIDTH = 100
"""Columns of the output."""
ORDER = "backfill"
KINDS = {
    "slow": "{} jobs slower GPUs than were free for them",
    "links": "{} jobs GPUs with slower links than were free",
    "nodes": "{} jobs a part of a whole free node without need",
}
"""Kind of loss in the report of the shadow -> words."""


class DemoError(Exception):
    """A step of the demo failed; the text is for the user."""


@dataclass
class Place:
    """The GPUs of a job, and its predicted time divided by that on median GPUs of one node."""

    gpus: dict[str, set[int]]
    slowdown: float

    def __str__(self) -> str:
        return " ".join(f"{n}:{','.join(map(str, sorted(s)))}" for n, s in self.gpus.items())


@dataclass
class Job:
    """One job, or one task of an array."""

    job_id: str
    user: str
    app_class: str
    asked: str
    place: Place | None = None
    took_s: float = math.nan
    """From submission to end."""


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns; the last one is wrapped to the terminal's width, 100 columns at most."""
    head = [max(len(str(r[c])) for r in [headers, *rows]) for c in range(len(headers) - 1)]
    longest = max(len(str(r[-1])) for r in [headers, *rows])
    columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    width = max(30, columns - sum(head) - 2 * len(head))
    lines = []
    for row in [headers, ["-" * w for w in [*head, min(width, longest)]], *rows]:
        first, *more = textwrap.wrap(str(row[-1]), width) or [""]
        lead = "  ".join(str(v).ljust(w) for v, w in zip(row, head, strict=False))
        lines.append(f"{lead}  {first}".rstrip())
        lines += [" " * (sum(head) + 2 * len(head)) + text for text in more]
    return "\n".join(lines)


def report_watch(gpus: Sequence[dict[str, Any]]) -> None:
    """Print the GPUs that are not well."""
    bad = [gpu for gpu in gpus if gpu["state"] != "well"]
    rows = [(f"{g['node']}:{g['gpu']}", g["state"], g["why"]) for g in bad]
    print(table(["GPU", "state", "why"], rows))
    print(f"The other {len(gpus) - len(bad)} GPUs are well.")


def report_shadow(found: dict[str, Any]) -> None:
    """Print what Slurm's choices cost, with the worst example of each kind."""
    total = found["total"]
    print(f"{found['compared']} of {found['jobs']} jobs are compared. Slurm gave")
    for kind, words in KINDS.items():
        print(f"  {words.format(total[kind]['jobs'])}")
        for one in total[kind]["examples"][:1]:
            print(f"      such as job {one['job_id']}: {one['loss']}")
    for why, count in found["not_compared"].items():
        print(f"Not compared: {count}, {why}.")


def report_places(alone: Sequence[Job], placed: Sequence[Job]) -> None:
    """Print what each job got from Slurm alone and from us, and the means by class."""
    rows, means = [], dict[str, list[tuple[float, float]]]()
    for before, job in zip(alone, placed, strict=True):
        if before.place is None or job.place is None:
            raise DemoError(f"it is not known what jobs {before.job_id} and {job.job_id} got")
        pair = before.place.slowdown, job.place.slowdown
        means.setdefault(job.app_class, []).append(pair)
        shown = [str(before.place), slower(pair[0]), str(job.place), slower(pair[1])]
        rows.append((job.app_class, job.asked, *shown))
    for name in sorted(means):
        both = [slower(geometric(values)) for values in zip(*means[name], strict=True)]
        rows.append((name, "mean", "", both[0], "", both[1]))
    print(table(["class", "asked", "Slurm alone", "slower", "with us", "slower"], rows))
    print("\nslower: predicted time beside that on median GPUs of one node, by the slowest GPU.")
    print("Class A computes most and feels a slow GPU most; class C waits for memory.")
    print("Jobs run side by side, so one may get less good GPUs for another's sake.")


def report_times(alone: Sequence[Job], placed: Sequence[Job]) -> None:
    """Print what the order brought."""
    before, ours = (statistics.fmean(job.took_s for job in jobs) for jobs in (alone, placed))
    print(
        f'Order: shorter jobs go first behind the first that waits (order = "{ORDER}"). A job took'
    )
    print(
        f"{ours:.0f} s from submission to end on average, {before:.0f} s with Slurm alone "
        f"({100 * (ours / before - 1):+.0f}%)."
    )
    print("Jobs only sleep here, so none of this comes from better GPUs.\n")


def slower(slowdown: float) -> str:
    """``+7.0%``"""
    return f"{100 * (slowdown - 1):+.1f}%"


def geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def further(job: Job, keep: bool) -> None:
    print("\nLook further" + ("" if keep else " (KEEP=1 make demo leaves the cluster running)"))
    if PROJECT != "gpuaware":
        print(f"  export GPU_AWARE_PROJECT={PROJECT}")
    for command in (
        f"as {job.user} gpu-aware explain {job.job_id}",
        "as alice gpu-aware-profile show --class A",
        "as alice gpu-aware queue",
        "sh ctl gpu-aware doctor",
        "as alice sbatch --gres=gpu:2 --comment=class=A --wrap 'sleep 60'",
        "down",
    ):
        print(f"  docker/cluster {command}")
