"""Rollout: moves nodes to one GRES type per GPU, or back, one by one, each while it has no job.

For each node: drain, wait until it is empty, write its lines, distribute, reconfigure, check its
registration, resume. The progress of a node follows from slurm.conf, which is written last, and
from the state and reason of the node. A killed run therefore resumes when it is started again. The
state file only has the scope and the node in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from slurm_gpu_aware.deploy.indexing import SiteFiles
from slurm_gpu_aware.deploy.node_control import NodeControl
from slurm_gpu_aware.deploy.render import feature_of
from slurm_gpu_aware.deploy.rollout_node import (
    DRAINED,
    REASON,
    has_index_types,
    ours_now,
    unusable,
)
from slurm_gpu_aware.deploy.rollout_site import LocalSite
from slurm_gpu_aware.deploy.rollout_state import Outcome, RolloutState, StateFile, Summary
from slurm_gpu_aware.deploy.rollout_waits import Waits
from slurm_gpu_aware.errors import SourceError, StoppedError
from slurm_gpu_aware.names import index_type
from slurm_gpu_aware.slurm.records import SlurmNode

__all__ = ["Rollout"]


class ResumedError(SourceError):
    """The node is no longer drained."""


class Rollout:
    """One run over a scope of nodes.

    Parameters
    ----------
    control, site, state : Slurm, the files, the state file.
    waits : waits with progress and the request to stop at the next safe moment.
    undo : move nodes back to the plain form.
    """

    def __init__(
        self,
        control: NodeControl,
        site: LocalSite,
        state: StateFile,
        waits: Waits,
        *,
        undo: bool = False,
    ) -> None:
        self._control = control
        self._site = site
        self._state = state
        self._undo = undo
        self._waits = waits
        self._say = waits.say
        self._stopping = waits.stopping

    def run(self, scope: Collection[str]) -> Summary:
        """Move all nodes of the scope; stop after the first that fails.

        Raises SourceError if Slurm or the files cannot be reached before the first change; the
        state file then has the scope of the next run.
        """
        summary = Summary("undo" if self._undo else "rollout")
        last = self._state.load()
        in_hand = last.in_hand if last else None
        memory = RolloutState(summary.direction, tuple(scope), in_hand)
        self._state.save(memory)
        try:
            self._all(scope, in_hand, memory, summary)
        except StoppedError as exc:
            self._say(str(exc))
            summary.interrupted = True
        return summary

    def _all(
        self, scope: Collection[str], in_hand: str | None, memory: RolloutState, summary: Summary
    ) -> None:
        self._take_back()
        self._finish_others(scope, in_hand, summary)
        if not self._undo:
            self._prepare(summary)
        remaining = list(scope)
        while remaining:
            if self._stopping():
                summary.interrupted = True
                break
            node = self._next(remaining, in_hand)
            remaining.remove(node)
            outcome = self._one(node, in_hand, memory, summary)
            summary.nodes.append(outcome)
            if outcome.result == "left":
                summary.interrupted = True
            if outcome.result in ("left", "failed"):
                break
        if not summary.interrupted and not summary.count("failed"):
            if self._undo:
                self._tidy(summary)
            self._state.clear()

    # -- before and after the nodes ------------------------------------------------------------

    def _take_back(self) -> None:
        """Revert the files of a killed run for nodes that have been resumed since."""
        files = self._site.read()
        before = files.indexed_by_us()
        true = self._as_in_slurm(before, files, self._control.nodes())
        for name in sorted(before ^ true):
            self._say(f"{name}: it was resumed before it was changed; starting again with it")
        if before != true:
            self._write(files.texts(true, features=True))

    def _as_in_slurm(
        self,
        indexed: frozenset[str],
        files: SiteFiles,
        views: Mapping[str, SlurmNode],
        but: str | None = None,
    ) -> frozenset[str]:
        """``indexed``, with nodes in use as Slurm has them.

        A reconfigure applies the files to all nodes, and a change of a node's GPUs kills its jobs.
        ``views``: Slurm's records of the nodes. ``but``: the node in hand.
        """
        result = set(indexed)
        for name, node in files.nodes.items():
            view = views.get(name)
            if name == but or view is None or not view.gpus or (node.indexed and not node.ours):
                continue
            has = has_index_types(view, node.count)
            if (name in indexed) == has:
                continue
            if view.states & DRAINED and not self._control.jobs_on(name):
                continue
            (result.add if has else result.discard)(name)
        return frozenset(result)

    def _finish_others(self, scope: Collection[str], in_hand: str | None, summary: Summary) -> None:
        """Complete nodes outside the scope that an earlier run left drained."""
        for name, view in sorted(self._control.nodes().items()):
            if name in scope or not ours_now(view, in_hand):
                continue
            self._say(f"{name}: an earlier run left it drained")
            files = self._site.read()
            try:
                if name in files.nodes and not self._control.jobs_on(name):
                    self._apply(files.indexed_by_us(), name)
            except ResumedError as exc:
                self._say(f"{name}: stays unchanged: {exc}")
                continue
            except StoppedError as exc:
                summary.nodes.append(self._still_drained(name, exc))
                raise
            self._give_back(name, in_hand)
            summary.nodes.append(Outcome(name, "already", "resumed; an earlier run left it"))

    def _prepare(self, summary: Summary) -> None:
        """Add features to plain nodes, so that a request by model matches both forms."""
        files = self._site.read()
        views = self._control.nodes()
        indexed = self._as_in_slurm(files.indexed_by_us(), files, views)
        changes = files.texts(indexed, features=True)
        # A killed run may have written the features without a reconfigure.
        unknown = any(
            node.model is not None
            and node.name in views
            and feature_of(node.model) not in views[node.name].features
            for node in files.nodes.values()
        )
        if changes or unknown:
            self._say("adding the features of GPU models to slurm.conf")
            self._write(changes)
            self._reconfigure()
            self._waits.answer()
        models = _models(files)
        self._site.filter_models(models)
        self._untype(models, summary)

    def _untype(self, models: frozenset[str], summary: Summary) -> None:
        if not models:
            return
        changed, complaints = self._control.untype_pending(models)
        summary.untyped_jobs += [j for j in changed if j not in summary.untyped_jobs]
        if changed:
            self._say(f"jobs {', '.join(changed)} now ask for a feature instead of a GPU type")
        for job, why in complaints.items():
            self._say(f"job {job} waits for a plain node: {why}")

    def _tidy(self, summary: Summary) -> None:
        """After the last node is plain again: remove the features from the files."""
        files = self._site.read()
        if files.indexed_by_us():
            return
        changes = files.texts((), features=False)
        if not changes:
            return
        models = _models(files)
        self._site.filter_models(frozenset())
        needed = self._control.jobs_with_feature(frozenset(feature_of(m) for m in models))
        if needed:
            summary.features_needed_by = needed
            self._say(
                f"nodes keep their features: jobs {', '.join(needed[:10])} ask for them; run"
                " 'gpu-aware setup --undo' again after these jobs"
            )
            return
        self._say("removing the features from slurm.conf")
        self._write(changes)
        self._reconfigure()
        self._waits.answer()

    # -- one node ------------------------------------------------------------------------------

    def _next(self, remaining: Collection[str], in_hand: str | None) -> str:
        """The next node: first the one in hand, then idle nodes, then partly used ones."""
        views = self._control.nodes()
        order = list(remaining)

        def key(name: str) -> tuple[bool, int, int]:
            view = views.get(name)
            if view is None:
                return True, 0, order.index(name)
            busy = 2 if "ALLOCATED" in view.states else 1 if "MIXED" in view.states else 0
            return not ours_now(view, in_hand), busy, order.index(name)

        return min(order, key=key)

    def _one(
        self, name: str, in_hand: str | None, memory: RolloutState, summary: Summary
    ) -> Outcome:
        view = self._waits.settled(name)
        files = self._site.read()
        node = files.nodes.get(name)
        if view is None or node is None:
            return Outcome(name, "skipped", "Slurm has no such node with GPUs")
        ours = ours_now(view, in_hand)
        if not ours and node.indexed != self._undo:
            return Outcome(name, "already")
        problem = unusable(view, ours)
        if problem is None and not node.ours and not (ours and self._undo):
            problem = "setup did not index it" if self._undo else node.problem
        if problem is not None:
            self._say(f"{name}: skipped: {problem}")
            if ours:
                self._give_back(name, in_hand)
            return Outcome(name, "skipped", problem)
        self._state.save(RolloutState(memory.direction, memory.scope, name))
        if not ours:
            self._control.drain(name, REASON)
        started = self._waits.now()
        why = self._waits.empty(name)
        waited = round(self._waits.now() - started, 1)
        if why is not None:
            return self._abandon(name, why, waited)
        return self._change(name, waited, summary)

    def _abandon(self, name: str, why: str, waited: float) -> Outcome:
        """Give up a node that is not changed yet."""
        if why != "interrupted":
            self._say(f"{name}: stays unchanged: {why}")
            return Outcome(name, "skipped", why, waited)
        try:
            self._give_back(name, name)
        except SourceError as exc:
            self._say(f"{name}: stays drained, nothing was changed: {exc}")
            return Outcome(name, "left", f"still drained: {exc}", waited)
        self._say(f"{name}: resumed, nothing was changed")
        return Outcome(name, "left", "resumed unchanged", waited)

    def _change(self, name: str, waited: float, summary: Summary) -> Outcome:
        files = self._site.read()
        before = files.indexed_by_us()
        wanted = before - {name} if self._undo else before | {name}
        try:
            if not self._undo:
                self._untype(_models(files), summary)
            self._apply(wanted, name)
        except ResumedError as exc:
            files = self._site.read()
            former = self._as_in_slurm(before, files, self._control.nodes())
            self._write(files.texts(former, features=True))
            return self._abandon(name, str(exc), waited)
        except StoppedError as exc:
            return self._still_drained(name, exc, waited)
        except SourceError as exc:
            return self._put_back(name, exc, waited)
        self._give_back(name, name)
        form = "plain" if self._undo else "one type per GPU"
        self._say(f"{name}: done, {form}")
        return Outcome(name, "changed", "", waited)

    def _still_drained(self, name: str, why: StoppedError, waited: float = 0.0) -> Outcome:
        """The outcome of an interruption during the change; the next run resumes with the node."""
        self._say(f"{name}: stays drained: {why}")
        return Outcome(name, "left", f"still drained: {why}", waited)

    def _put_back(self, name: str, cause: SourceError, waited: float) -> Outcome:
        """Move a node back after a failure; the run ends with the cause."""
        self._say(f"{name}: {cause}; moving it back")
        before = self._site.read().indexed_by_us()
        former = before | {name} if self._undo else before - {name}
        try:
            self._apply(former, name)
            self._give_back(name, name)
        except ResumedError as exc:
            why = f"{cause}; {exc}"
            self._say(f"{name}: stays as it is: {why}")
            return Outcome(name, "failed", why, waited)
        except StoppedError as exc:
            return self._still_drained(name, exc, waited)
        except SourceError as exc:
            why = f"{cause}; moving it back failed, too: {exc}; it stays drained"
            self._say(f"{name}: {why}")
            return Outcome(name, "failed", why, waited)
        return Outcome(name, "failed", f"{cause}; it was moved back", waited)

    def _apply(self, indexed: Iterable[str], name: str) -> None:
        """Write files with these nodes indexed; wait for the (empty, drained) node to register."""
        files = self._site.read()
        wanted = self._as_in_slurm(frozenset(indexed), files, self._control.nodes(), name)
        self._write(files.texts(wanted, features=True))

        def still_ours() -> None:
            """Raise ResumedError if the node may have jobs: it must not be reconfigured."""
            if not self._control.nodes()[name].states & DRAINED or self._control.jobs_on(name):
                raise ResumedError("it was resumed meanwhile")

        self._reconfigure(still_ours, name)
        node = files.nodes[name]
        types = {index_type(i) for i in node.indices} if name in wanted else set()
        self._waits.registration(name, types, node.count)

    def _reconfigure(
        self, ready: Callable[[], None] = lambda: None, node: str | None = None
    ) -> None:
        self._control.reconfigure(ready, node, self._say, self._stopping)

    def _write(self, changes: Mapping[Path, str]) -> None:
        for path, text in changes.items():  # slurm.conf is last: it records the progress
            self._site.write(path, text)
        if changes:
            self._site.distribute()

    def _give_back(self, name: str, in_hand: str | None) -> None:
        """Resume a node, unless it is drained for another reason."""
        view = self._control.nodes()[name]
        if not view.states & DRAINED:
            return
        if not ours_now(view, in_hand):
            self._say(f"{name}: stays drained: {view.reason}")
            return
        self._control.resume(name)


def _models(files: SiteFiles) -> frozenset[str]:
    """Models that are, or become, features of their nodes."""
    return frozenset(n.model for n in files.nodes.values() if n.model is not None)
