"""Nodes of a sweep: which it probes, and in which order; and its progress on disk, for resuming it.

GPU nodes are those that ``sinfo`` lists. A sweep has a folder with ``scope.json`` and one empty
file per node that is done. Root may write them where others can write, too (``--store``): it
follows no link and uses no folder of others.
"""

import errno
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from slurm_gpu_aware import records
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.files import open_folder
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import parse_duration
from slurm_gpu_aware.time_text import duration

_SOCKETS = re.compile(r"\([^)]*\)")
_STATE = re.compile(r"([a-z_]+)([^a-z_]*)")
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "blocked"})
_DAY_S = 86_400.0
_SCOPE = "scope.json"
_FRESH = ".scope.new"
_DONE = ".done"
_KEPT = 20  # Unfinished sweeps; an older one cannot be resumed.


class Target(NamedTuple):
    """A GPU node and one of its partitions."""

    node: str
    partition: str
    gpus: int
    idle: bool = True
    """Whether a job could start on all of the node now; a sleeping node is not idle."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a node."""

    node: str
    state: str  # ``done``, ``failed``, ``timeout``, ``preempted``, or ``skipped`` (not tried).
    reason: str = ""
    gpus: int = 0
    timings: int = 0
    faults: int = 0  # Failed calls in a finished probe.
    took_s: float = 0.0
    causes: tuple[str, ...] = ()  # ``call: error`` of the failed calls, each once.
    unlocked: bool = False  # Whether a clock could not be locked or reset.


def gpu_nodes(probe_s: float) -> tuple[list[Target], list[Outcome]]:
    """Ask Slurm for its GPU nodes: (nodes to probe, the others with the reason).

    ``probe_s``: time limit of a probe.

    Raises SourceError if ``sinfo`` fails.
    """
    text, _ = run_command(["sinfo", "-a", "-N", "-h", "-o", "%N|%P|%T|%G|%l"], 30.0)
    return parse_sinfo(text, probe_s)


def parse_sinfo(text: str, probe_s: float) -> tuple[list[Target], list[Outcome]]:
    """Parse lines ``node|partition|state|gres|time limit``, one per node and partition.

    sinfo prints the partitions of a node in any order. Taken is one that allows the probe's time,
    for else its job never starts; of these the default one, or the first by name. A node without
    such a partition has failed, with the time limit to ask for as its reason.
    """
    targets: dict[str, Target] = {}
    taken: dict[str, tuple[bool, str]] = {}
    others: dict[str, Outcome] = {}
    longest: dict[str, float] = {}
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 5:
            continue
        node, partition, state, gres, limit = fields
        gpus = _gpu_count(gres)
        if not gpus:
            continue
        match = _STATE.match(state)
        word, flags = match.groups() if match else ("unknown", "")
        if word not in _USABLE or "*" in flags:
            reason = "does not respond" if "*" in flags else f"is {word}"
            others[node] = Outcome(node, "skipped", f"node {reason}", gpus)
            continue
        allowed_s = parse_duration(limit.upper())
        most_s = longest[node] = max(allowed_s, longest.get(node, 0.0))
        if most_s < probe_s:
            reason = f"its partitions allow {duration(most_s)}: --time-limit={most_s:g}"
            others[node] = Outcome(node, "failed", reason, gpus)
        rank = (not partition.endswith("*"), partition)
        if allowed_s >= probe_s and rank <= taken.get(node, rank):
            taken[node] = rank
            targets[node] = Target(node, partition.rstrip("*"), gpus, state == "idle")
    return list(targets.values()), [one for one in others.values() if one.node not in targets]


def _gpu_count(gres: str) -> int:
    """Sum of ``gpu``, ``gpu:N`` and ``gpu:TYPE:N`` in a node's GRES."""
    items = [item.split(":") for item in _SOCKETS.sub("", gres).split(",")]
    return sum(
        int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 1
        for words in items
        if words[0] == "gpu"
    )


@dataclass(frozen=True)
class Plan:
    """Nodes of a sweep."""

    whole: tuple[str, ...]  # All nodes without which it is not complete.
    targets: tuple[Target, ...]  # Nodes to probe now, longest ago first.
    outcomes: tuple[Outcome, ...]  # Of nodes that cannot be probed now.
    recent: int = 0  # Nodes that are left out because they were probed recently.


def fresh_plan(
    nodes: Sequence[str], given: Mapping[str, Any], probed_at: Mapping[str, float], now: float
) -> Plan:
    """Plan of a new sweep.

    ``nodes``: only these; empty: all. ``given``: options of the command. ``probed_at``: node ->
    Unix time of its last probe. Raises SourceError.

    Nodes that are not idle, if only idle ones are wanted, are no part of the sweep: the next one
    takes them.
    """
    targets, skipped = _known(given["time_limit"])
    known = [t.node for t in targets] + [o.node for o in skipped]
    _check(nodes, known, "this cluster; GPU nodes")
    wanted = frozenset(nodes or known)
    until = math.inf if given["older_than"] is None else now - _DAY_S * given["older_than"]
    old = {node for node in wanted if probed_at.get(node, -math.inf) <= until}
    chosen = [target for target in targets if target.node in old]
    outcomes = [outcome for outcome in skipped if outcome.node in old]
    whole = [node for node in known if node in old]
    if given["idle_only"]:
        chosen, busy = _idle(chosen)
        outcomes += busy
        whole = [target.node for target in chosen]
    chosen.sort(key=lambda target: probed_at.get(target.node, -math.inf))
    return Plan(tuple(whole), tuple(chosen), tuple(outcomes), len(wanted) - len(old))


def resumed_plan(
    sweep_id: str,
    names: Sequence[str],
    done: frozenset[str],
    nodes: Sequence[str],
    given: Mapping[str, Any],
) -> Plan:
    """Plan of the rest of a sweep.

    ``names``: all of its nodes. ``done``: those that are done. ``nodes``: only these now; empty:
    all. Raises SourceError.
    """
    targets, skipped = _known(given["time_limit"])
    _check(nodes, names, f"sweep {sweep_id}; its nodes")
    known = {t.node for t in targets} | {o.node for o in skipped}
    wanted = [name for name in nodes or names if name not in done]
    outcomes = [
        Outcome(name, "skipped", "Slurm has no such GPU node")
        for name in wanted
        if name not in known
    ]
    outcomes += [outcome for outcome in skipped if outcome.node in wanted]
    chosen = [target for target in targets if target.node in wanted]
    if given["idle_only"]:
        chosen, busy = _idle(chosen)
        outcomes += busy
    # With a node that Slurm no longer has the sweep would never be complete.
    whole = tuple(name for name in names if name in known)
    return Plan(whole, tuple(chosen), tuple(outcomes))


def _known(probe_s: float) -> tuple[list[Target], list[Outcome]]:
    targets, skipped = gpu_nodes(probe_s)
    if not targets and not skipped:
        raise SourceError("Slurm knows no node with GPUs; check GresTypes and Gres= in slurm.conf")
    return targets, skipped


def _check(nodes: Sequence[str], known: Sequence[str], of: str) -> None:
    for name in nodes:
        if name not in known:
            listed = ", ".join(known[:20]) or "none"
            raise SourceError(f"{name!r} is not a GPU node of {of}: {listed}")


def _idle(targets: Sequence[Target]) -> tuple[list[Target], list[Outcome]]:
    """The idle ones, and the others as skipped."""
    busy = [Outcome(t.node, "skipped", "node is not idle", t.gpus) for t in targets if not t.idle]
    return [target for target in targets if target.idle], busy


def new_id() -> str:
    """An id of a sweep, or of the jobs of a measurement, that no other process of this host has."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}.{os.getpid()}"


class _Scope(Struct):
    """What ``scope.json`` holds."""

    nodes: tuple[str, ...]
    options: dict[str, bool | int | float | str | list[str] | None]


@dataclass
class SweepProgress:
    """Progress of one sweep."""

    root: Path
    sweep_id: str

    @property
    def folder(self) -> Path:
        """Folder of this sweep; absent before :meth:`begin` and after :meth:`finish`."""
        return self.root / self.sweep_id

    def scope(self) -> tuple[tuple[str, ...], dict[str, Any]]:
        """All nodes of the sweep, reachable or not, and its options by the command's parameters.

        The options name programs to run, so a file of another user (root excepted) is refused.
        Raises SourceError, also if the file is missing or damaged.
        """
        file = self.folder / _SCOPE
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with self._opened() as (_, folder):
                stream = open(os.open(_SCOPE, flags, dir_fd=folder), encoding="utf-8")  # noqa: SIM115
            with stream:
                if os.fstat(stream.fileno()).st_uid not in {0, os.geteuid()}:
                    raise SourceError(f"{file}: another user began this sweep, and must resume it")
                scope = records.read(json.load(stream), _Scope)
            return scope.nodes, scope.options
        except (OSError, ValueError, RecursionError):
            raise SourceError(
                f"{file}: cannot be read, so the sweep cannot be resumed; remove {self.folder} and"
                " begin a new one"
            ) from None

    def done(self) -> set[str]:
        """Nodes that are done."""
        return {file.name.removesuffix(_DONE) for file in self.folder.glob(f"*{_DONE}")}

    def begin(self, nodes: Sequence[str], options: Mapping[str, Any]) -> None:
        """Make the folder and write the scope; delete the notes of old sweeps. Raises SourceError.

        As root, the owner of the store's folder becomes the owner and may resume the sweep.
        """
        others = [name for name in self.unfinished() if name != self.sweep_id]
        try:
            for name in others[: -_KEPT + 1]:
                SweepProgress(self.root, name).finish()
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._opened() as (root, folder):
                with suppress(FileNotFoundError):
                    os.unlink(_FRESH, dir_fd=folder)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with open(os.open(_FRESH, flags, 0o644, dir_fd=folder), "w") as stream:
                    stream.write(json.dumps({"nodes": nodes, "options": options}))
                    if os.geteuid() == 0:
                        owner = self.root.parent.stat()
                        for handle in (root, folder):
                            os.fchown(handle, owner.st_uid, owner.st_gid)
                os.rename(_FRESH, _SCOPE, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as exc:
            with suppress(OSError), self._opened() as (root, folder):
                os.unlink(_FRESH, dir_fd=folder)
                os.rmdir(self.sweep_id, dir_fd=root)  # unless it is resumed
            raise SourceError(f"{self.folder}: cannot be made: {exc.strerror}") from None

    def note(self, node: str) -> None:
        """Record a node as done, after the ingest of its report. Raises SourceError."""
        name = f"{node}{_DONE}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with FileFault(self.folder / name, "made"), self._opened() as (_, folder):
            os.close(os.open(name, flags, 0o644, dir_fd=folder))

    def finish(self) -> None:
        """Delete the folder of a complete sweep, unless another process has. Raises OSError."""
        with suppress(FileNotFoundError), self._opened() as (root, folder):
            for name in os.listdir(folder):
                if name.endswith(_DONE) or name in (_SCOPE, _FRESH):
                    os.unlink(name, dir_fd=folder)
            os.rmdir(self.sweep_id, dir_fd=root)

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, int]]:
        """File descriptors of `root` and `folder`. Raises OSError, also for a folder of others."""
        root = open_folder(self.root)
        try:
            folder = open_folder(self.sweep_id, root)
            try:
                trusted = {0, os.geteuid(), self.root.parent.stat().st_uid}
                if not trusted >= {os.fstat(root).st_uid, os.fstat(folder).st_uid}:
                    raise PermissionError(errno.EPERM, "it belongs to another user")
                yield root, folder
            finally:
                os.close(folder)
        finally:
            os.close(root)

    def unfinished(self) -> list[str]:
        """Ids of sweeps that can be resumed, oldest first."""
        begun: list[tuple[float, str]] = []
        for file in self.root.glob(f"*/{_SCOPE}"):
            with suppress(FileNotFoundError):  # another sweep has just ended
                begun.append((file.parent.stat().st_mtime, file.parent.name))
        return [name for _, name in sorted(begun)]
