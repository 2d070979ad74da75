"""Runs that measure locality penalties: their plan, and one ``srun`` each with a rank per GPU.

All runs have the same number of GPUs. The reference is inside a node; at each level of the network
pairs of nodes are taken that share a group of this level and of no tighter one. `level_step` is
what a rank does.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from gpu_aware_profile.child import LateError, objects
from gpu_aware_profile.levels.level_step import BATCHES, UNIQUE_ID
from gpu_aware_profile.sweeps.sweep import run_srun, srun_argv
from slurm_gpu_aware.bounds import PROBE_JOB, check_time_ms
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS, LevelTime

REFERENCE = "node"
_WIDEST = "cluster"
T = TypeVar("T")
_GRACE_S = 30.0  # For Slurm to start and end a job, beyond the two limits.
_MOST_LINE = 1 << 14


class PlanNode(NamedTuple):
    """A node that may take part."""

    name: str
    gpus: int
    model: str  # GPU model; empty: not known.
    partition: str
    fabric: str = ""  # Jobs on several nodes must not leave it (`slurm.topology.Fabric`).


class LevelRun(NamedTuple):
    """One job of the measurement."""

    level: str  # Tightest level that holds its GPUs.
    nodes: tuple[PlanNode, ...]  # One, or two that get half of the GPUs each.
    gpus: int

    @property
    def gpus_per_node(self) -> int:
        """Ranks on each node."""
        return self.gpus // len(self.nodes)


def level_plan(
    nodes: Sequence[PlanNode],
    groups: Mapping[str, Mapping[str, str]],
    pairs: int,
    gpus: int | None = None,
) -> list[LevelRun]:
    """Runs per model: the nodes of the pairs first, then up to ``pairs`` pairs of each level.

    ``groups``: level -> node -> group (`slurm.topology.network_groups`). ``gpus``: of each run,
    even; None: as many as the smallest node of the model has. Models without a pair are left out.

    Raises ValueError if ``gpus`` is odd, below 2, or more than a node has.
    """
    if gpus is not None and (gpus < 2 or gpus % 2):
        raise ValueError(f"a run is divided over two nodes, so it has an even number, not {gpus}")
    of_model: dict[str, list[PlanNode]] = {}
    for node in nodes:
        of_model.setdefault(node.model, []).append(node)
    plan = []
    for model, own in sorted(of_model.items()):
        least = min(node.gpus for node in own)
        if gpus is not None and gpus > least:
            raise ValueError(f"a node with {model or 'GPUs'} has {least} GPUs, fewer than {gpus}")
        count = gpus or least // 2 * 2
        found = _pairs_by_level(own, groups, pairs)
        if count < 2 or not any(found.values()):
            continue
        taken = dict.fromkeys(node for level in found.values() for pair in level for node in pair)
        plan += [LevelRun(REFERENCE, (node,), count) for node in list(taken)[: 2 * pairs]]
        plan += [LevelRun(level, pair, count) for level in found for pair in found[level]]
    return plan


def _pairs_by_level(
    nodes: Sequence[PlanNode], groups: Mapping[str, Mapping[str, str]], most: int
) -> dict[str, list[tuple[PlanNode, PlanNode]]]:
    """Level -> pairs, tightest level first."""
    levels = [name for name in NETWORK_LEVELS if name in groups]
    found = {}
    for i, level in enumerate([*levels, _WIDEST]):
        buckets: dict[tuple[str, ...], dict[str, list[PlanNode]]] = {}
        for node in nodes:
            outer = "" if level == _WIDEST else groups[level].get(node.name)
            # The group of the next tighter level; a node without one is a group of its own.
            inner = groups[levels[i - 1]].get(node.name) if i else None
            if outer is not None:
                bucket = buckets.setdefault((node.partition, node.fabric, outer), {})
                bucket.setdefault(inner or f"/{node.name}", []).append(node)
        pairs = _alternately(_pairs(bucket.values()) for bucket in buckets.values())
        found[level] = list(islice(pairs, most))
    return found


def _pairs(parts: Collection[Sequence[PlanNode]]) -> Iterator[tuple[PlanNode, PlanNode]]:
    """Pairs of nodes of different parts, each node once."""
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    first: PlanNode | None = None
    for node in _alternately(iter(part) for part in parts):
        if first is None:
            first = node
        elif part_of[first] != part_of[node]:
            yield first, node
            first = None


def _alternately(iterators: Iterable[Iterator[T]]) -> Iterator[T]:
    """First of each, then second of each, ..."""
    waiting = list(iterators)
    while waiting:
        going_on = []
        for one in waiting:
            for value in islice(one, 1):
                going_on.append(one)
                yield value
        waiting = going_on


def gpu_indices(on_node: int, wanted: int) -> list[int]:
    """GPUs of a node for a run: evenly spread, so that they need the whole node."""
    return [i * on_node // wanted for i in range(wanted)]


@dataclass(frozen=True)
class LevelOutcome:
    """Outcome of a run."""

    run: LevelRun
    times: tuple[LevelTime, ...] = ()
    reasons: tuple[str, ...] = ()  # Why the run, or a class in it, has no times.


@dataclass(frozen=True)
class LevelRuns:
    """Runs the jobs. All of them exclusive, and not placed by us."""

    stamp: str  # Part of the jobs' names.
    messages: Mapping[str, int]  # Class -> bytes of the message.
    command: str = "gpu-aware-profile"  # Path of ``gpu-aware-profile`` on the nodes.
    run_s: float = 300.0  # Time limit of one run.
    queue_s: float = 300.0  # A run that does not start within this time is left out.
    srun_options: Sequence[str] = ()
    stopped: threading.Event = field(default_factory=threading.Event)

    def argv(self, run: LevelRun, number: int) -> list[str]:
        """The ``srun`` of a run."""
        on_node = min(node.gpus for node in run.nodes)
        gpus = ",".join(map(str, gpu_indices(on_node, run.gpus_per_node)))
        return srun_argv(
            [node.name for node in run.nodes],
            run.nodes[0].partition,
            on_node,
            self._job_name(number),
            self.run_s,
            self.queue_s,
            *[f"--ntasks-per-node={run.gpus_per_node}", f"-n{run.gpus}", "--kill-on-bad-exit=1"],
            *[*self.srun_options, self.command, "level-step"],
            *[f"--level={run.level}", f"--gpus={gpus}"],
            *[f"--message={name}={size}" for name, size in self.messages.items()],
        )

    def run(self, plan: Sequence[LevelRun]) -> Iterator[LevelOutcome]:
        """Run the plan; yield the outcome of each run as it ends. Ends when ``stopped`` is set."""
        for number, run in enumerate(plan):
            if self.stopped.is_set():
                return
            try:
                outcome = self._outcome(run, number)
            except SourceError as exc:
                outcome = LevelOutcome(run, reasons=(str(exc),))
            if not self.stopped.is_set():
                yield outcome

    def _job_name(self, number: int) -> str:
        return f"{PROBE_JOB}levels.{self.stamp}.{number}"

    def _outcome(self, run: LevelRun, number: int) -> LevelOutcome:
        limit_s = self.queue_s + self.run_s + _GRACE_S
        argv, name = self.argv(run, number), self._job_name(number)
        try:
            ended = run_srun(argv, name, limit_s, self.stopped, GroupId())
        except LateError:
            reason = f"no end within {limit_s:g} s; its job was cancelled"
            return LevelOutcome(run, reasons=(reason,))
        times, reasons = _times(run, ended.out, self.messages)
        if ended.code != 0:
            reasons = [ended.reason, *reasons]
        return LevelOutcome(run, tuple(times), tuple(dict.fromkeys(reasons)))


def comparable(times: Sequence[LevelTime]) -> list[LevelTime]:
    """Times of the classes and models that were measured inside a node and at another level."""
    levels: dict[tuple[str, str], set[str]] = {}
    for time in times:
        levels.setdefault((time.app_class, time.model), set()).add(time.level)
    whole = {key for key, found in levels.items() if REFERENCE in found and len(found) > 1}
    return [time for time in times if (time.app_class, time.model) in whole]


def _answers(output: str) -> Iterator[dict[str, Any]]:
    """What ranks printed; task prologs print other lines."""
    lines = output.splitlines()
    return objects(line for line in lines if line.startswith("{") and len(line) <= _MOST_LINE)


class GroupId:
    """Reply of a run: the id of the group for all ranks, once rank 0 has printed it."""

    def __init__(self) -> None:
        self._read = 0

    def __call__(self, output: bytearray) -> str:
        """Look at the whole lines that are new in ``output``; empty: the id is not there yet."""
        end = output.rfind(b"\n") + 1
        new, self._read = bytes(output[self._read : end]), end
        for value in _answers(new.decode(errors="replace")):
            unique_id = value.get("id")
            if isinstance(unique_id, str) and UNIQUE_ID.match(unique_id):
                return f"{unique_id}\n"
        return ""


def _times(
    run: LevelRun, output: str, classes: Mapping[str, int]
) -> tuple[list[LevelTime], list[str]]:
    """Times of the classes that all ranks have measured, and the reasons for the others.

    A step ends with its last rank, so the largest time of the ranks counts.
    """
    of_class: dict[str, dict[int, list[float]]] = {name: {} for name in classes}
    reasons = []
    for answer in _answers(output):
        name, rank = answer.get("class"), answer.get("rank")
        if not isinstance(name, str) or name not in of_class or type(rank) is not int:
            continue
        if "error" in answer:
            reasons.append(f"class {name}: {str(answer['error'])[:200]}")
        elif 0 <= rank < run.gpus:
            try:
                of_class[name][rank] = _checked(answer.get("times_ms"))
            except (TypeError, ValueError) as exc:
                reasons.append(f"class {name}: {exc}")
    times = []
    for name, ranks in of_class.items():
        if len(ranks) == run.gpus:
            batches = zip(*ranks.values(), strict=True)
            model = run.nodes[0].model
            times += [LevelTime(name, run.level, max(batch), model) for batch in batches]
        elif not any(reason.startswith(f"class {name}:") for reason in reasons):
            reasons.append(f"class {name}: {len(ranks)} of {run.gpus} ranks gave a time")
    return times, reasons


def _checked(times: object) -> list[float]:
    if not isinstance(times, list) or len(times) != BATCHES:
        raise TypeError(f"a rank did not give {BATCHES} times")
    if not all(isinstance(ms, int | float) and not isinstance(ms, bool) for ms in times):
        raise TypeError("a rank gave something else than times")
    return [float(check_time_ms(ms)) for ms in times]  # no float holds 10^400
