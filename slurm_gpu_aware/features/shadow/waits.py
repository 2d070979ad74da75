"""Jobs that need whole nodes and wait for nodes that smaller jobs broke up without need. Pure."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

Start = tuple[str, float]
"""Job and its start, Unix s."""


class WholeNodeJob(NamedTuple):
    """A job that waits for whole nodes."""

    job_id: str
    nodes: int
    """Nodes that it needs."""
    eligible: Set[str]
    """Nodes that it may use."""


class Charge(NamedTuple):
    """A job that waits, and the start to which its wait is charged."""

    waiting_job: str
    start: Start


def charges(
    waiting: Sequence[WholeNodeJob], whole: Set[str], broken: Mapping[str, Sequence[Start]]
) -> list[Charge]:
    """Whose wait is charged to which start, now.

    ``waiting``: in the order of the queue. ``whole``: nodes of which no job holds a GPU.
    ``broken``: node -> the only jobs that hold GPUs of it, all of which broke it up without need.
    A job counts if the nodes of ``broken`` are all that it lacks. Each node serves one job, and
    the wait of a job is charged once, however many nodes it waits for.
    """
    left, freeable = set(whole), dict(broken)
    found: list[Charge] = []
    for job in waiting:
        ready = sorted(left & job.eligible)[: job.nodes]
        lacking = job.nodes - len(ready)
        able = sorted(freeable.keys() & job.eligible)[:lacking]
        if len(able) < lacking:
            continue
        left.difference_update(ready)
        if lacking:
            found.append(Charge(job.job_id, freeable[able[0]][0]))
        for name in able:
            del freeable[name]
    return found
