"""One pass: measure what is idle, judge all GPUs, write the state, act."""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median

from msgspec import structs

from gpu_aware_profile import store_writer
from gpu_aware_profile.sweeps.sweep_plan import new_id
from gpu_aware_profile.watch import actions
from gpu_aware_profile.watch.draining import AGAIN, Budget, DrainPlan, Node
from gpu_aware_profile.watch.hardware import facts_of_site, seen_by, unread, without_throttle
from gpu_aware_profile.watch.judgement import (
    LONGEST,
    Evidence,
    Running,
    judge,
    known_names,
    seen_before,
)
from gpu_aware_profile.watch.measuring import (
    Measured,
    Measuring,
    Wanted,
    of_this_host,
    reported,
    this_host,
)
from gpu_aware_profile.watch.slow_gpus import History, verdicts
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.model.hardware_graph import board_of
from slurm_gpu_aware.model.profile import Gpu, gpu_names
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.ingest import ingest_report
from slurm_gpu_aware.store.profiles import probed_at, timed_at, timing_runs
from slurm_gpu_aware.store.watch_state import (
    Reading,
    WatchState,
    read_state,
    valid_gpus,
    write_state,
)

_NOT_MEASURED = ("failed", "timeout")
_SWEEPS = 20  # Newest measurements that count: three of now, and the level before them.


@dataclass(frozen=True)
class Acting:
    """What a pass may do; by default it only reports."""

    on_change: Sequence[str] = ()  # Command of the site, as arguments.
    drain: Budget | None = None  # None: no node is drained or resumed.
    extra: bool = False


@dataclass(frozen=True)
class Site:
    """What a pass works on."""

    store: Path
    state: Path
    config: Config
    wanted: Wanted
    acting: Acting = Acting()
    local: str = ""  # Name of this host, which alone is watched, without Slurm; empty: the cluster.
    sweep: bool = True  # Whether GPUs are measured; if not, only what is known is judged anew.


@dataclass
class Passed:
    """Outcome of a pass."""

    state: WatchState
    done: DrainPlan = field(default_factory=DrainPlan)
    said: list[str] = field(default_factory=list)  # What failed or is missing, a sentence each.


class Pass:
    """One pass; :meth:`stop` ends its probes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._measuring = Measuring(new_id(), site.wanted)
        self._said: list[str] = []

    def stop(self) -> None:
        """End all probes; for signal handlers."""
        self._measuring.stop()

    def run(self) -> Passed:
        """Do all of it. Raises SourceError and StoreError."""
        site = self._site
        before = read_state(site.state) or WatchState()
        nodes = [] if site.local else actions.read_nodes()
        running, busy = self._running(nodes)
        with store_writer.writable_store(site.store, site.config) as store:
            measured = Measured()
            if site.acting.drain is not None:
                before = self._after_a_kill(before, nodes)
            if site.sweep:
                latest = probed_at(store) if site.wanted.hardware else timed_at(store)
                measured = self._measured(before, nodes, latest, busy)
            seen = seen_before(before.gpus)
            probed: dict[Gpu, Reading] = {}
            for report in measured.reports:
                try:
                    ingest_report(store, report)
                except (SourceError, StoreError) as exc:
                    self._said.append(f"{report.node}: not stored: {exc}")
                probed |= without_throttle(seen_by(report, seen), busy)
            if measured.reports:
                store_writer.recompute_scores(store, site.config.site.classes)
            gone = {report.node for report in measured.reports}
            here = {site.local} if site.local else {node.name for node in nodes}
            seen = {g: s for g, s in seen.items() if g[0] in here - gone} | probed
            timed = _histories(store, here)
        evidence = Evidence(
            time.time(),
            seen,
            probed.keys() - busy,
            verdicts(timed, known_names(before.gpus)),
            running,
        )
        self._said += measured.notes + _failures(measured)
        state = _state(before, evidence)
        on_trial = tuple(sorted({*before.on_trial, *measured.not_drained}))
        return self._acted(structs.replace(state, on_trial=on_trial))

    def _running(self, nodes: Sequence[Node]) -> tuple[Mapping[Gpu, Running], frozenset[Gpu]]:
        """(readings without a kernel of ours, GPUs of this host with processes)."""
        if self._site.local:
            return of_this_host(self._site.local)
        spool = Path(read_clock_conf().spool)
        names = [node.name for node in nodes]
        found = reported(spool, names, time.time(), actions.jobs_on)
        if not found:
            self._said.append(f"GPUs are not watched while jobs run: {spool} has no fresh reports")
        return found, frozenset()

    def _measured(
        self,
        before: WatchState,
        nodes: Sequence[Node],
        latest: dict[str, float],
        busy: frozenset[Gpu],
    ) -> Measured:
        site, wanted = self._site, self._site.wanted
        if site.local:
            arguments = wanted.probe_arguments
            if busy and not wanted.hardware:
                arguments = ["--no-timings"]
                self._said.append(f"not timed, as jobs use the GPUs: {gpu_names(sorted(busy))}")
            return Measured([this_host(site.local, arguments, wanted.time_limit_s)])
        found = self._measuring.idle(latest, time.time())
        if site.acting.drain is not None:
            counts = Counter(one.node for one in before.gpus)
            ours = [node for node in actions.read_nodes() if node.ours]
            chosen = [n for n in ours if not wanted.nodes or n.name in wanted.nodes]
            trial = self._measuring.drained(
                chosen,
                dict(counts),
                lambda names: write_state(
                    site.state, structs.replace(before, on_trial=(*before.on_trial, *names))
                ),
            )
            found.reports += trial.reports
            found.outcomes += trial.outcomes
            found.notes += trial.notes
            found.not_drained += trial.not_drained
        return found

    def _after_a_kill(self, before: WatchState, nodes: Sequence[Node]) -> WatchState:
        """Drain nodes again that an earlier pass had on trial when it was cut off.

        Returns the state with those that may not be drained yet.
        """
        left = set(before.on_trial)
        try:
            left |= actions.on_trial() & before.drained.keys()
            left &= {node.name for node in nodes if not node.drained}
            for name in sorted(left):
                actions.drain(name, AGAIN)
            actions.unreserve()
        except SourceError as exc:
            self._said.append(f"a trial that was cut off is not ended: {exc}")
        else:
            left = set()
        return structs.replace(before, on_trial=tuple(sorted(left)))

    def _acted(self, state: WatchState) -> Passed:
        """Write the state, act, and write what was done."""
        site, acting = self._site, self._site.acting
        write_state(site.state, state)
        done = DrainPlan()
        if acting.drain is not None:
            try:
                state, done, failed = actions.drain_and_resume(state, acting.drain, time.time())
                self._said += failed
            except SourceError as exc:
                self._said.append(f"no node is drained or resumed: {exc}")
        if acting.extra:
            try:
                self._said += actions.put_extra(actions.node_extras(state.gpus))
            except SourceError as exc:
                self._said.append(f"no score is written into Extra: {exc}")
        if acting.on_change:
            state, failure = actions.tell(state, acting.on_change)
            if failure:
                self._said.append(f"--on-change failed, the next pass tries again: {failure}")
        write_state(site.state, state)
        return Passed(state, done, [*state.notes, *self._said])


def _state(before: WatchState, evidence: Evidence) -> WatchState:
    notes = facts_of_site(evidence.seen)
    notes += [f"{what} cannot be read: {gpu_names(g)}" for what, g in unread(evidence.seen).items()]
    gpus, dropped = valid_gpus(judge(before.gpus, evidence))
    notes += dropped
    return WatchState(
        at=evidence.now, gpus=gpus, drained=before.drained, notes=[text[:LONGEST] for text in notes]
    )


def _failures(measured: Measured) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in measured.outcomes:
        if one.state in _NOT_MEASURED:
            reasons.setdefault(one.reason, []).append(one.node)
    return [f"{hostlist(nodes)}: not measured: {reason}" for reason, nodes in reasons.items()]


def _histories(store: Store, nodes: Collection[str] | None) -> list[History]:
    """Of each GPU and class the median times of the newest sweeps with its newest benchmark.

    ``nodes``: those that Slurm still has; None: all. Raises StoreError.
    """
    found = []
    for (node, slot, app_class), rows in groupby(timing_runs(store), key=lambda row: row[:3]):
        if nodes is not None and node not in nodes:
            continue
        own = list(rows)
        source, model, name = own[-1].source, own[-1].model, own[-1].name
        times = [
            (at, median(row.value_ms for row in runs))
            for (at, of), runs in groupby(own, key=lambda row: (row.taken_at, row.source))
            if of == source
        ]
        group = f"{model or name}/{board_of(name)}/{source}"
        found.append(History(node, slot, app_class, group, times[-_SWEEPS:]))
    return found
