"""Site of a rollout or a removal: its nodes in Slurm, its files on this host, its state."""

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import NODE_NAME, index_type
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.filter_conf import lua_value
from slurm_gpu_aware.deploy.indexing import SiteFiles, read_site
from slurm_gpu_aware.deploy.job_requests import all_jobs
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.gres import is_mig
from slurm_gpu_aware.slurm.records import HOLDING, SlurmNode
from slurm_gpu_aware.slurm.words import expand_hostlist, hostlist
from slurm_gpu_aware.store.files import REMOVAL_STATE

REASON = "gpu-aware setup --roll"  # Reason of nodes that a rollout drains.
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_INVALID = frozenset({"DOWN", "INVAL", "INVALID_REG"})
_AWAY = re.compile("DOWN|ERROR|FAIL|FUTURE|INVAL|MAINT|NOT_RESPONDING|POWER|REBOOT")
_ON_NODE = HOLDING | {"SIGNALING", "STAGE_OUT"}

POLL_S = 1.0
SETTLE_S = 30.0  # Wait for a silent node before it is skipped.
REPEAT_S = 60.0  # Interval between reports of an unchanged wait.
_LUA_MODELS = re.compile(r"^(\s*models\s*=\s*)\{[^}]*\}", re.MULTILINE)
_Node = Annotated[str, records.text(NODE_NAME, "a node name")]


class RolloutNodes:
    """Queries, changes and waits. Methods raise SourceError if Slurm refuses.

    ``say`` takes a line of progress; ``stopping``, asked often, ends the run at the next safe
    moment; ``register_s`` limits the wait for a node to register after a reconfigure.
    """

    def __init__(
        self,
        client: SlurmClient,
        say: Callable[[str], None],
        stopping: Callable[[], bool],
        register_s: float,
    ) -> None:
        self.client = client
        self.say = say
        self.stopping = stopping
        self._register_s = register_s
        self.in_hand: set[str] = set()
        """Nodes that this run or a killed one has drained."""

    def all(self) -> dict[str, SlurmNode]:
        """Name -> node."""
        return {node.name: node for node in self.client.nodes()}

    def jobs_on(self, name: str) -> tuple[str, ...]:
        """Ids of the jobs that hold resources on a node, also during the epilog."""
        jobs = all_jobs(self.client)
        return tuple(sorted(j.id for j in jobs if j.state in _ON_NODE and name in j.nodes))

    def is_free(self, view: SlurmNode) -> bool:
        """Whether a node is drained and has no job, so that its GPUs may change."""
        return bool(view.states & DRAINED) and not self.jobs_on(view.name)

    def ours(self, view: SlurmNode) -> bool:
        """Whether a rollout drained it. Slurm replaces the reason if it registers wrong GPUs."""
        if not view.states & (DRAINED | _INVALID):
            return False
        replaced = view.name in self.in_hand and "gres/" in view.reason
        return view.reason.startswith(REASON) or replaced

    def give_back(self, name: str) -> None:
        """Resume a node, unless it is drained for another reason."""
        view = self.all()[name]
        if view.states & DRAINED and self.ours(view):
            self.client.resume_node(name)
        elif view.states & DRAINED:
            self.say(f"{name}: stays drained: {view.reason}")

    # -- waits ---------------------------------------------------------------------------------

    def pause(self) -> None:
        """Wait for a moment."""
        time.sleep(POLL_S)

    def await_empty(self, name: str) -> tuple[str | None, float]:
        """Wait for the jobs of a node; (why the wait was given up or None, seconds)."""
        told: tuple[str, ...] | None = None
        told_at = started = time.monotonic()
        while True:
            view = self._look(name)
            jobs = None
            with suppress(SourceError):
                jobs = self.jobs_on(name)
            now = time.monotonic()
            given_up = self._given_up(view)
            responds = view is not None and "NOT_RESPONDING" not in view.states
            if given_up or (responds and jobs == ()):
                return given_up, round(now - started, 1)
            if jobs is None:
                jobs = told or ()
            if jobs != told or now - told_at >= REPEAT_S:
                listed = ", ".join(jobs[:6]) + (", ..." if len(jobs) > 6 else "")
                noun = "job" if len(jobs) == 1 else "jobs"
                self.say(
                    f"{name}: drained, waiting for {len(jobs)} {noun} ({listed}),"
                    f" {now - started:.0f} s so far"
                )
                told, told_at = jobs, now
            if self.stopping():
                return "interrupted", round(now - started, 1)
            time.sleep(POLL_S)

    def _given_up(self, view: SlurmNode | None) -> str | None:
        if view is None:
            return None
        if not view.states & DRAINED:
            return "it was resumed"
        if not self.ours(view):
            return f"it was drained for another reason ({view.reason})"
        return "it went down; it stays drained for the next run" if "DOWN" in view.states else None

    def await_registered(self, name: str, types: set[str], count: int) -> None:
        """Wait for the registration of a node as in the files. Raises SourceError on a timeout.

        ``types`` empty: any types except index types.
        """
        wrong: str | None = "Slurm does not answer"
        for last in _polls(self._register_s, POLL_S / 4):
            view = self._look(name)
            if view is not None:
                wrong = _registration_problem(view, types, count)
            if wrong is None:
                return
            if last:
                raise SourceError(
                    f"not registered as configured within {self._register_s:g} s: {wrong}"
                )

    def await_settled(self, name: str) -> SlurmNode | None:
        """Wait until the node answers and return it: after a reconfigure all nodes register."""
        view = None
        for last in _polls(SETTLE_S, POLL_S):
            view = self._look(name)
            silent = view is None or view.states & {"NOT_RESPONDING", "UNKNOWN"}
            if not silent or last or self.stopping():
                break
        return view

    def _look(self, name: str) -> SlurmNode | None:
        """The node; None: slurmctld does not answer, because a reconfigure restarts it."""
        with suppress(SourceError):
            return self.all().get(name)
        return None


def _polls(within_s: float, every_s: float) -> Iterator[bool]:
    """Yield every ``every_s`` seconds; True: the time is over."""
    end = time.monotonic() + within_s
    while True:
        yield time.monotonic() >= end
        time.sleep(every_s)


def unusable(view: SlurmNode) -> str | None:
    """Why a node cannot be moved now; None: it can."""
    if view.states & DRAINED:
        return f"drained for another reason ({view.reason or 'none is given'})"
    if any(map(_AWAY.search, view.states)):
        return f"its state is {'+'.join(sorted(view.states))}"
    if any(is_mig(kind) for kind, _ in view.gpus):
        return "its GPUs are partitioned (MIG)"
    return None


def has_index_types(view: SlurmNode, count: int) -> bool:
    """Whether Slurm itself has one type per GPU for a node of ``count`` GPUs."""
    return not {kind or "" for kind, _ in view.gpus}.isdisjoint(map(index_type, range(count)))


def _registration_problem(view: SlurmNode, types: set[str], count: int) -> str | None:
    """Difference between a registration and the files; ``types`` empty: plain. None: they agree."""
    if view.states & (_INVALID | {"NOT_RESPONDING", "UNKNOWN"}) or view.slurmd_start_s is None:
        reason = f", {view.reason}" if view.reason and not view.reason.startswith(REASON) else ""
        return f"its state is {'+'.join(sorted(view.states))}{reason}"
    have = {kind or "" for kind, _ in view.gpus}
    fits = have == types if types else not has_index_types(view, count)
    if fits and sum(n for _, n in view.gpus) == count:
        return None
    shown = ", ".join(f"gpu:{kind}:{n}" if kind else f"gpu:{n}" for kind, n in view.gpus)
    return f"Slurm has {shown or 'no GPUs'} for it"


class LocalSite:
    """The site's files on this host. Methods raise SourceError."""

    def __init__(self, site: Site, say: Callable[[str], None]) -> None:
        self._setup = site.config.setup
        self._dir = site.slurm_dir
        self._profile = {node.name: node for node in site.nodes}
        self._say = say

    def read(self) -> SiteFiles:
        """Read slurm.conf and gres.conf."""
        return read_site(self._dir / "slurm.conf", self._dir / "gres.conf", self._profile)

    def apply(self, changes: Mapping[Path, str]) -> None:
        """Replace files in this order, each atomically; then run ``setup.distribute``."""
        for path, text in changes.items():
            files.write(files.Change(path, text))
        if changes:
            self.distribute()

    def distribute(self) -> None:
        """Run ``setup.distribute``, if it is set."""
        command = self._setup.distribute
        if command:
            self._say(f"distributing: {' '.join(command)}")
            run_command(command, self._setup.distribute_timeout_s)

    def filter_models(self, models: frozenset[str]) -> None:
        """Rewrite ``models`` in the filter's configuration, if the filter is installed."""
        path = self._dir / files.LUA_CONF
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        listed = lua_value(sorted(models))
        changed = _LUA_MODELS.sub(lambda m: m[1] + listed, text, count=1)
        if changed != text:
            self._say(f"{path}: models = {listed}")
            files.write(files.Change(path, changed))
            files.reload_filter(self._dir, [path])

    def check_writable(self) -> None:
        """Raise SourceError if the files cannot be changed, before a node is drained."""
        found = self.read()
        for path in (name.resolve() for name in (*found.slurm.texts, *found.gres.texts)):
            target = path if path.exists() else path.parent
            if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
                raise SourceError(f"{path} cannot be written; run this as root on the controller")


@dataclass(frozen=True)
class RolloutState:
    """An unfinished run."""

    direction: Annotated[str, records.words("rollout", "undo")]
    scope: tuple[_Node, ...]  # Nodes.
    in_hand: _Node | None  # The node that was drained last.

    def save(self, path: Path) -> None:
        """Replace the state file. Raises SourceError."""
        files.write(files.Change(path, json.dumps(asdict(self))), backup=False)


def unfinished_run(path: Path) -> RolloutState | None:
    """The content of the state file; None: there is none, or it is invalid."""
    try:
        return records.read(json.loads(path.read_text(encoding="utf-8")), RolloutState)
    except (OSError, ValueError, RecursionError):
        return None


def nodes_in_scope(
    found: SiteFiles,
    client: SlurmClient,
    last: RolloutState | None,
    *,
    undo: bool,
    nodes: str | None,
    partition: str | None,
) -> list[str]:
    """Nodes of a rollout, in the order of slurm.conf: ``nodes`` or ``partition`` if given.

    Otherwise a run in the direction of ``last``, the unfinished run, resumes with its nodes. Raises
    RequestError for a node without GPUs, SourceError for an unknown partition.
    """
    chosen: Collection[str]
    if nodes is not None:
        chosen = expand_hostlist(nodes)
        strange = set(chosen) - set(found.nodes)
        if strange:
            raise RequestError(
                f"--nodes: {hostlist(strange)}: not a node with GPUs in slurm.conf; known:"
                f" {hostlist(found.nodes) or 'none'}"
            )
    elif partition is not None:
        known = {p.name: p.nodes for p in client.partitions()}
        if partition not in known:
            listed = ", ".join(sorted(known))
            raise SourceError(f"no partition {partition!r}; there are: {listed}")
        chosen = known[partition]
    elif last is not None and (last.direction == "undo") == undo:
        chosen = last.scope
    else:
        chosen = found.indexed_by_us() if undo else found.nodes
    return [name for name in found.nodes if name in set(chosen)]


def _removal_file(config: Config) -> Path:
    return config.store.path.with_name(REMOVAL_STATE)


def begin_removal(config: Config, waits: Sequence[str] = ()) -> None:
    """Note that a removal is under way, and what it waits for. Raises SourceError."""
    path = _removal_file(config)
    if path.parent.is_dir():  # the last run may have been followed by rm
        files.write(files.Change(path, json.dumps({"waits": list(waits)})), backup=False)


def forget_removal(config: Config) -> None:
    """The site keeps slurm-gpu-aware: it is set up again."""
    _removal_file(config).unlink(missing_ok=True)


def removal_waits(config: Config) -> list[str] | None:
    """What a removal waits for, as far as it is known; None: no removal is under way."""
    try:
        return [str(text) for text in json.loads(_removal_file(config).read_text("utf-8"))["waits"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return []
