"""Rollout: moves nodes to one GRES type per GPU, or back, one by one, each while it has no job.

For each node: drain, wait until it is empty, write its lines, distribute, reconfigure, check its
registration, resume. The progress of a node follows from slurm.conf, which is written last, and
from the state and reason of the node. A killed run therefore resumes when it is started again. The
state file only has the scope and the node in hand.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.bounds import index_type
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.gpu_types import TypedJobs, return_types
from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.job_requests import all_jobs, features_named, jobs_text
from slurm_gpu_aware.deploy.reconfiguration import Reconfiguration
from slurm_gpu_aware.deploy.rollout_site import (
    REASON,
    LocalSite,
    RolloutNodes,
    RolloutState,
    has_index_types,
    unfinished_run,
    unusable,
)
from slurm_gpu_aware.deploy.site import feature_of
from slurm_gpu_aware.errors import SourceError, StoppedError
from slurm_gpu_aware.slurm.records import ENDED

Result = tuple[str, str]  # (`Outcome.result`, why).


@dataclass(frozen=True)
class Outcome:
    """Outcome of one node."""

    node: str
    result: str
    """``changed``, ``already``, ``skipped``, ``failed`` (moved back) or ``left`` (interrupted)."""
    why: str
    waited_s: float  # Wait until it was empty.


@dataclass
class Summary:
    """Outcome of a run."""

    direction: str  # ``rollout`` or ``undo``.
    nodes: list[Outcome] = field(default_factory=list)
    untyped_jobs: list[str] = field(default_factory=list)
    """Pending jobs that now ask for a feature instead of a type."""
    stranded_jobs: dict[str, str] = field(default_factory=dict)
    """Pending jobs that ask for a GPU type that no node has any more -> why they keep it."""
    typed_jobs: list[str] = field(default_factory=list)
    """Pending jobs that after an undo ask for a type again instead of a feature."""
    features_needed_by: dict[str, str] = field(default_factory=dict)
    """Jobs that still ask for the nodes' features after an undo -> why; the features stay."""
    interrupted: bool = False

    def count(self, result: str) -> int:
        """Nodes with this result."""
        return sum(o.result == result for o in self.nodes)


class ResumedError(SourceError):
    """The node is no longer drained."""


class NeededError(SourceError):
    """Jobs have come that need the node's GPU type."""


class Rollout:
    """One run over a scope of nodes; ``undo`` moves them back to the plain form.

    A node waits for pending jobs that need its GPU type; with ``strand`` it does not.
    """

    def __init__(
        self,
        nodes: RolloutNodes,
        site: LocalSite,
        state_file: Path,
        *,
        undo: bool,
        config: Config,
        strand: bool = False,
    ) -> None:
        self._nodes = nodes
        self._site = site
        self._state_file = state_file
        self._undo = undo
        self._config = config
        self._typed = TypedJobs(nodes.client, nodes.say, strand=strand)
        self._say = nodes.say
        self._reconfigure = Reconfiguration(nodes.client, nodes.say, nodes.stopping).run
        self._summary = Summary("undo" if undo else "rollout")
        self._waited_s = 0.0
        """Wait until the current node was empty."""

    def run(self, scope: Collection[str]) -> Summary:
        """Move all nodes of the scope; stop after the first that fails.

        Raises SourceError if Slurm or the files cannot be reached before the first change; the
        state file then has the scope of the next run.
        """
        last = unfinished_run(self._state_file)
        in_hand = last.in_hand if last else None
        self._nodes.in_hand = {in_hand} if in_hand else set()
        self._save(scope, in_hand)
        try:
            self._all(scope)
        except StoppedError as exc:
            self._say(str(exc))
            self._summary.interrupted = True
        return self._summary

    def _save(self, scope: Collection[str], in_hand: str | None) -> None:
        RolloutState(self._summary.direction, tuple(scope), in_hand).save(self._state_file)

    def _all(self, scope: Collection[str]) -> None:
        for name in sorted(self._take_back()):
            self._say(f"{name}: it was resumed before it was changed; starting again with it")
        for name, view in sorted(self._nodes.all().items()):
            drained = name not in scope and self._nodes.ours(view)
            if drained and not self._step(name, self._finish):
                return
        if not self._undo:
            self._prepare()
        while remaining := [n for n in scope if n not in {o.node for o in self._summary.nodes}]:
            if self._nodes.stopping():
                self._summary.interrupted = True
                return
            if not self._step(self._next(remaining), lambda name: self._move(name, scope)):
                return
        if self._undo:
            self._tidy()
        else:
            self._summary.stranded_jobs = self._typed.stranded(self._site.read().models())
        self._state_file.unlink(missing_ok=True)

    def _step(self, name: str, act: Callable[[str], Result | None]) -> bool:
        """Record the outcome of a node; return whether the run continues."""
        self._waited_s = 0.0
        try:
            result = act(name)
        except StoppedError as exc:  # during the change; the next run resumes with the node
            self._say(f"{name}: stays drained: {exc}")
            result = "left", f"still drained: {exc}"
        if result is None:
            return True
        self._summary.nodes.append(Outcome(name, *result, self._waited_s))
        self._summary.interrupted |= result[0] == "left"
        return result[0] not in ("left", "failed")

    # -- before and after the nodes ------------------------------------------------------------

    def _take_back(self, before: frozenset[str] | None = None) -> frozenset[str]:
        """Revert the files for nodes that were resumed before their change; return these nodes.

        ``before``: nodes that were indexed before the change; None: as the files say.
        """
        files = self._site.read()
        written = files.indexed_by_us()
        true = self._as_in_slurm(written if before is None else before, files)
        if true != written:
            self._site.apply(files.texts(true, features=True))
        return true ^ written

    def _as_in_slurm(
        self, indexed: Iterable[str], files: SiteFiles, but: str | None = None
    ) -> frozenset[str]:
        """``indexed``, with nodes in use as Slurm has them; ``but``: the node in hand.

        A reconfigure applies the files to all nodes, and a change of a node's GPUs kills its jobs.
        """
        result = set(indexed)
        views = self._nodes.all()
        for name, node in files.nodes.items():
            view = views.get(name)
            if name == but or view is None or not view.gpus or (node.indexed and not node.ours):
                continue
            differs = (name in result) != has_index_types(view, node.count)
            if differs and not self._nodes.is_free(view):
                result ^= {name}
        return frozenset(result)

    def _finish(self, name: str) -> Result | None:
        """Complete a node outside the scope that an earlier run left drained."""
        self._say(f"{name}: an earlier run left it drained")
        files = self._site.read()
        try:
            if name in files.nodes and not self._nodes.jobs_on(name):
                self._apply(files.indexed_by_us(), name)
        except ResumedError as exc:
            self._say(f"{name}: stays unchanged: {exc}")
            return None
        self._nodes.give_back(name)
        return "already", "resumed; an earlier run left it"

    def _prepare(self) -> None:
        """Add features to plain nodes, so that a request by model matches both forms."""
        files = self._site.read()
        changes = files.texts(self._as_in_slurm(files.indexed_by_us(), files), features=True)
        views = self._nodes.all()
        # A killed run may have written the features without a reconfigure.
        unknown = any(
            node.model is not None
            and name in views
            and feature_of(node.model) not in views[name].features
            for name, node in files.nodes.items()
        )
        if changes or unknown:
            self._say("adding the features of GPU models to slurm.conf")
            self._site.apply(changes)
            self._reconfigure()
        self._site.filter_models(files.models())
        self._untype(files.models())

    def _untype(self, models: frozenset[str]) -> None:
        if models:
            untyped = self._summary.untyped_jobs
            untyped += [job for job in self._typed.convert(models) if job not in untyped]

    def _needed(self, *names: str) -> set[str]:
        """Nodes of these without which pending jobs can no longer start."""
        if self._undo:
            return set()
        plain = [
            v for v in self._nodes.all().values() if v.name in names or not self._nodes.ours(v)
        ]
        return self._typed.needed(names, self._site.read().models(), plain)

    def _tidy(self) -> None:
        """After the last node is plain again: types for features in jobs, no features in files."""
        files = self._site.read()
        changes = {} if files.indexed_by_us() else files.texts((), features=False)
        if not changes:
            return
        self._site.filter_models(frozenset())
        returned = return_types(self._nodes.client, self._config, files.models())
        self._summary.typed_jobs = returned.changed
        if returned.changed:
            ask = "asks" if len(returned.changed) == 1 else "ask"
            self._say(
                f"{jobs_text(returned.changed)} {ask} for a GPU type again, not for a feature"
            )
        features = frozenset(feature_of(m) for m in files.models())
        jobs = (job for job in all_jobs(self._nodes.client) if job.state not in ENDED)
        needed = [job.id for job in jobs if features & features_named(job)]
        if needed:
            self._summary.features_needed_by = {
                job: returned.wrong.get(job, "it has started with the feature") for job in needed
            }
            return
        self._say("removing the features from slurm.conf")
        self._site.apply(changes)
        self._reconfigure()

    # -- one node ------------------------------------------------------------------------------

    def _next(self, remaining: Sequence[str]) -> str:
        """The next node: drained ones first, then idle ones; those that jobs need last."""
        views = self._nodes.all()
        needed = self._needed(*remaining)

        def key(name: str) -> tuple[bool, bool, int]:
            view = views.get(name)
            if view is None:
                return False, True, 0
            busy = 2 if "ALLOCATED" in view.states else 1 if "MIXED" in view.states else 0
            return name in needed, not self._nodes.ours(view), busy

        return min(remaining, key=key)

    def _move(self, name: str, scope: Collection[str]) -> Result | None:
        """Move a node; None: jobs need its type for now."""
        view = self._nodes.await_settled(name)
        node = self._site.read().nodes.get(name)
        if view is None or node is None:
            return "skipped", "Slurm has no such node with GPUs"
        ours = self._nodes.ours(view)
        if not ours and node.indexed != self._undo:
            return "already", ""
        problem = None if ours else unusable(view)
        if problem is None and not node.ours and not (ours and self._undo):
            problem = "setup did not index it" if self._undo else node.problem
        if problem is not None:
            self._say(f"{name}: skipped: {problem}")
            if ours:
                self._nodes.give_back(name)
            return "skipped", problem
        if self._needed(name):
            self._keep_plain(name)
            return None
        self._save(scope, name)
        self._nodes.in_hand.add(name)
        if not ours:
            self._nodes.client.drain_node(name, REASON)
        why, self._waited_s = self._nodes.await_empty(name)
        return self._change(name) if why is None else self._abandon(name, why)

    def _keep_plain(self, name: str) -> None:
        """Wait a moment with a node that jobs need; resume it if it is drained."""
        self._nodes.give_back(name)
        self._typed.say_needed(name)
        self._nodes.pause()

    def _abandon(self, name: str, why: str) -> Result:
        """Give up a node that is not changed yet."""
        if why != "interrupted":
            self._say(f"{name}: stays unchanged: {why}")
            return "skipped", why
        try:
            self._nodes.give_back(name)
        except SourceError as exc:
            self._say(f"{name}: stays drained, nothing was changed: {exc}")
            return "left", f"still drained: {exc}"
        self._say(f"{name}: resumed, nothing was changed")
        return "left", "resumed unchanged"

    def _change(self, name: str) -> Result | None:
        """Change an empty node; None: jobs have come that need its type."""
        files = self._site.read()
        before = files.indexed_by_us()
        plain, typed = before - {name}, before | {name}
        try:
            if not self._undo:
                self._untype(files.models())
            if self._needed(name):
                self._keep_plain(name)
                return None
            self._apply(plain if self._undo else typed, name)
        except NeededError:
            self._take_back(before)
            self._keep_plain(name)
            return None
        except ResumedError as exc:
            self._take_back(before)
            return self._abandon(name, str(exc))
        except SourceError as exc:
            return self._put_back(name, typed if self._undo else plain, exc)
        self._nodes.give_back(name)
        self._say(f"{name}: done, {'plain' if self._undo else 'one type per GPU'}")
        return "changed", ""

    def _put_back(self, name: str, former: frozenset[str], cause: SourceError) -> Result:
        """Move a node back after a failure; the run ends with the cause."""
        self._say(f"{name}: {cause}; moving it back")
        try:
            self._apply(former, name)
            self._nodes.give_back(name)
            return "failed", f"{cause}; it was moved back"
        except ResumedError as exc:
            why = f"{cause}; {exc}"
        except SourceError as exc:
            why = f"{cause}; moving it back failed, too: {exc}; it stays drained"
        self._say(f"{name}: {why}")
        return "failed", why

    def _apply(self, indexed: frozenset[str], name: str) -> None:
        """Write files with these nodes indexed; wait for the (empty, drained) node to register."""
        files = self._site.read()
        wanted = self._as_in_slurm(indexed, files, name)
        self._site.apply(files.texts(wanted, features=True))

        def still_ours() -> None:
            """Raise if the node may have jobs, or loses a type that jobs need."""
            view = self._nodes.all()[name]
            if not self._nodes.is_free(view):
                raise ResumedError("it was resumed meanwhile")
            loses_type = name in wanted and not has_index_types(view, files.nodes[name].count)
            if loses_type and self._needed(name):
                raise NeededError("jobs need its GPU type")

        self._reconfigure(still_ours, name)
        node = files.nodes[name]
        types = {index_type(i) for i in node.indices} if name in wanted else set()
        self._nodes.await_registered(name, types, node.count)
