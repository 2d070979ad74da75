"""Shadow daemon: ``gpu-aware selectd --shadow``. It reads Slurm, plans, and writes its store only.

Its client is a `SlurmReader`, which has no call that changes anything. A look reads all jobs, then
nodes and partitions. Each start since the last look is compared on the site just before it
(`moments`). Starts while the shadow does not run are stored as not seen.
"""

from __future__ import annotations

import gc
import logging
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType

from slurm_gpu_aware.admission.context import AdmissionContext, Known
from slurm_gpu_aware.admission.hints import class_of, given_class
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import AwareError, SourceError, StoreError
from slurm_gpu_aware.features.classes.store import saved_classes
from slurm_gpu_aware.features.models.store import read_models
from slurm_gpu_aware.features.power.declared import PowerConfig
from slurm_gpu_aware.features.shadow import store as table
from slurm_gpu_aware.features.shadow.compared import Compared, Comparer, indexed
from slurm_gpu_aware.features.shadow.losses import Sets, ShadowJob, charges
from slurm_gpu_aware.features.shadow.moments import (
    Key,
    Moment,
    as_asked,
    as_gated,
    asks_for_gpus,
    holds_gpus,
    in_order,
    key_of,
    records_by_id,
    whole_nodes,
)
from slurm_gpu_aware.files import hold_selector_lock
from slurm_gpu_aware.gate.gated_job import queue_order
from slurm_gpu_aware.selector.daemon import GC_OBJECTS
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.policy_options import PolicyInForce
from slurm_gpu_aware.selector.site_reader import SiteReader, SiteState
from slurm_gpu_aware.service import ALIVE, READY, notify
from slurm_gpu_aware.slurm.reader import SlurmReader
from slurm_gpu_aware.slurm.records import ENDED, HOLDING, SlurmJob
from slurm_gpu_aware.store.database import Store, open_store, publish
from slurm_gpu_aware.store.profiles import load_profile

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Least pause between two looks; it is `_SHARE` times as long as Slurm takes to answer."""
_SHARE = 19.0  # slurmctld works for the shadow for at most a twentieth of the time
_LONGEST_S = 60.0  # pause: systemd waits for a sign of life
_SIGNAL_S = 0.2
_KNOWLEDGE_S = 60.0  # age at which scores, links, models and classes are read again
_PRUNE_S = 3600.0
_PUBLISH_S = 60.0  # age at which the copy for readers is renewed, or `_SHARE` times what that takes
_COMPARE_S = 10.0  # time in which one look compares: a storm must not keep it from looking
_MOST_WAITING = 50  # waiting jobs that one look asks whether they need whole nodes
_WAITS = frozenset({"Resources", "Priority"})  # Reasons of jobs that wait for nodes.
NOT_RUNNING = "it started while the shadow did not run"
TOO_SHORT = "it ended before it was seen"
TOO_MANY = "more jobs started at once than a look compares"


def run(config: Config) -> int:
    """Look until SIGTERM or SIGINT; return the exit code: 0, or 1 if it cannot start."""
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
    gc.set_threshold(GC_OBJECTS, 20, 20)
    try:
        client = SlurmReader(config.selector.command_timeout_s)
        with hold_selector_lock(config.store.path), open_store(config.store.path) as store:
            return Daemon(Shadow(config, client, store)).loop()
    except AwareError as exc:
        log.error("%s", exc)
        return 1


class Daemon:
    """Looks again and again."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow, self._stopping = shadow, False

    def loop(self) -> int:
        """Look until a signal; a look that fails is tried again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        log.info("shadow started: it changes nothing in Slurm")
        notify(READY)
        complaint = ""
        while not self._stopping:
            try:
                self._shadow.look()
                complaint = ""
            except (SourceError, StoreError) as exc:
                if str(exc) != complaint:
                    log.warning("a look failed; the next one tries again: %s", exc)
                complaint = str(exc)
            except Exception:
                log.exception("a look failed; the next one tries again")
            notify(ALIVE)
            pause_s = min(_LONGEST_S, max(LOOK_S, _SHARE * self._shadow.read_s))
            until = time.monotonic() + pause_s
            while not self._stopping and (left_s := until - time.monotonic()) > 0:
                time.sleep(min(left_s, _SIGNAL_S))
        log.info("shadow stops")
        return 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True


class Shadow:
    """What was seen so far; `look` sees more."""

    def __init__(
        self,
        config: Config,
        client: SlurmReader,
        store: Store,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._client, self._store, self._clock = config, client, store, clock
        self._site = SiteReader(client, config, clock)
        self._policy = PolicyInForce(config)
        self._exact = config.placement.gpus == "exact"
        self._comparer = Comparer(self._policy.settings, self._policy.options, exact=self._exact)
        self._known = Known()
        self._waiting: dict[str, SlurmJob] = {}
        """Id -> record of a job that waited at the last look."""
        self._held: dict[Key, SlurmJob] = {}
        """Jobs that held resources at the last look, as they were when Slurm last showed them."""
        self._last: float | None = None
        """Time of the last look of this process."""
        self._before: float | None = table.last_look(store)
        """The last look of an earlier one."""
        self._open = {job.key: job.needless for job in table.open_jobs(store)}
        """Starts that were stored and have not ended -> nodes that they broke up without need."""
        self._watch: int | None = None
        self._known_at = self._pruned_at = self._publish_at = -math.inf
        self.read_s = 0.0
        """Time that Slurm took to answer at the last look."""

    def look(self) -> None:
        """Read Slurm, compare what has started since the last look, note what has ended.

        Raises SourceError and StoreError; the next look then sees the same starts.
        """
        began = time.monotonic()
        jobs = self._client.jobs()
        self._client.ask_ahead("nodes", "partitions", "reservations")
        seen = SiteState(
            jobs,
            {node.name: node for node in self._client.nodes()},
            {one.name: one for one in self._client.partitions()},
            self._client.reservations(),
            self._clock(),
        )
        self.read_s = time.monotonic() - began
        if self._last is None and self._site.slurm().private_jobs:
            log.warning("PrivateData hides jobs: only an operator sees those of all users")
        self._renew(seen.now)
        moment = self._moment(seen)
        fresh = [*self._starts(moment), *self._missed(moment)]
        charged = self._charged(moment)
        self._publish()
        with self._store.write():
            for job in fresh:
                table.add_job(self._store, job)
            ended = self._ends(moment)
            for key, end_s in ended.items():
                table.set_end(self._store, key, end_s)
            for start, waiting_job in charged:
                table.add_wait(self._store, start, waiting_job, self._since_last(seen.now))
            if self._watch is None:
                self._watch = table.begin_watch(self._store, seen.now)
            table.go_on(self._store, self._watch, seen.now)
            self._prune(seen.now)
        self._take(moment, fresh, ended)

    def _publish(self) -> None:
        """Renew the copy for readers; the first one comes before the first job is stored."""
        began = time.monotonic()
        if began < self._publish_at:
            return
        try:
            publish(self._store, mode=0o640 if self._site.slurm().private_jobs else 0o644)
        except (StoreError, OSError) as exc:
            log.warning("the store cannot be published for readers: %s", exc)
        ended = time.monotonic()
        self._publish_at = ended + max(_PUBLISH_S, _SHARE * (ended - began))

    def _take(self, moment: Moment, fresh: Sequence[ShadowJob], ended: Mapping[Key, float]) -> None:
        """Remember what this look has seen."""
        jobs, now = moment.seen.jobs, moment.seen.now
        self._waiting = {job.id: job for job in jobs if job.state == "PENDING"}
        before, self._held = self._held, {}
        for job in (job for job in jobs if job.state in HOLDING):
            key = key_of(job)
            if job.state != "COMPLETING":  # a job that is ending shows its GPUs no more
                if job.shares:
                    self._held[key] = job
            elif key in before:
                self._held[key] = before[key]
        for key in ended:
            self._open.pop(key, None)
        self._open |= {job.key: job.needless for job in fresh if job.ended_at is None}
        self._last = now

    @property
    def _all_read(self) -> bool:
        """Whether a job that is missing is gone; else its record may be one that is not legible."""
        return not self._client.unread

    def _since_last(self, now: float) -> float:
        return 0.0 if self._last is None else max(0.0, now - self._last)

    def _moment(self, seen: SiteState) -> Moment:
        """What has changed since the last look."""
        holding = {key_of(job): job for job in seen.jobs if job.state in HOLDING}
        ends = {key_of(job): job.end_s for job in seen.jobs if job.state in ENDED}
        started = in_order(
            job
            for key, job in holding.items()
            if key not in self._held and job.shares and job.state != "COMPLETING"
        )
        ended = [
            (job, min(ends.get(key, seen.now), seen.now))
            for key, job in self._held.items()
            if key not in holding and (key in ends or self._all_read)
        ]
        return Moment(seen, started, ended)

    def _starts(self, moment: Moment) -> list[ShadowJob]:
        """The jobs that have got whole GPUs since the last look."""
        found, until = list[ShadowJob](), time.monotonic() + _COMPARE_S
        context: AdmissionContext | None = None
        for job in moment.started:
            if not holds_gpus(job) or key_of(job) in self._open:
                continue
            if self._last is None:
                if self._before is not None and (job.start_s or 0.0) >= int(self._before):
                    found.append(self._row(job, Compared(Sets(), NOT_RUNNING)))
                continue
            outcome = Compared(Sets(), TOO_MANY)
            if time.monotonic() < until:
                context = context or self._now(moment.seen)
                outcome = self._compared(job, moment, context)
            found.append(self._row(job, outcome))
        return found

    def _now(self, seen: SiteState) -> AdmissionContext:
        """The site as it is now."""
        context = self._site.context_of(seen, (), self._comparer.profile, self._known)
        return indexed(context)

    def _compared(self, job: SlurmJob, moment: Moment, now: AdmissionContext) -> Compared:
        with contained("comparison", job.id):
            gated = as_gated(as_asked(job, records_by_id(self._waiting, job)))
            if (given := given_class(gated, self._config)) is not None:
                self._known.classes.note(given)
            at = job.start_s or now.now
            context = replace(now, cluster=moment.before(job, now.cluster), now=at)
            return self._comparer.compare(job, gated, context)
        return Compared(Sets(), "its comparison failed; the log says why")

    def _missed(self, moment: Moment) -> list[ShadowJob]:
        """Jobs with GPUs that have started and ended since the last look."""
        since = self._last if self._last is not None else self._before
        if since is None:
            return []
        why = TOO_SHORT if self._last is not None else NOT_RUNNING
        return [
            self._row(job, Compared(Sets(), why), job.end_s)
            for job in moment.seen.jobs
            if (job.state in ENDED or job.state == "COMPLETING")
            and (job.start_s or 0.0) >= int(since)
            and job.nodes
            and asks_for_gpus(job)
            and key_of(job) not in self._held
            and key_of(job) not in self._open
        ]

    def _row(self, job: SlurmJob, outcome: Compared, ended_at: float | None = None) -> ShadowJob:
        gated = as_gated(job)
        known = class_of(job, gated.original, self._config, self._known.classes).app_class
        return ShadowJob(
            job_id=job.id,
            user=_text(job.user),
            partition=_text(job.partitions[0]),
            app_class=known,
            started_at=job.start_s or 0.0,
            sets=outcome.sets,
            reason=_text(outcome.reason),
            power_w=outcome.power_w,
            saves=outcome.saves,
            ended_at=ended_at,
        )

    def _ends(self, moment: Moment) -> dict[Key, float]:
        """Open jobs that hold nothing any more -> their end."""
        holding = {key_of(job) for job in moment.seen.jobs if job.state in HOLDING}
        ends = {key_of(job): job.end_s for job in moment.seen.jobs if job.state in ENDED}
        # Of a job that Slurm has forgotten while the shadow did not run, the last look counts.
        last = self._last if self._last is not None else self._before
        gone = moment.seen.now if last is None else last
        return {
            key: ends.get(key, gone)
            for key in self._open
            if key not in holding and (key in ends or self._all_read)
        }

    def _charged(self, moment: Moment) -> list[tuple[Key, str]]:
        """(Start that broke up a node without need, job that waits for that node)."""
        if self._last is None or not any(self._open.values()):
            return []
        with contained("waits for whole nodes"):
            return self._charges(moment.seen)
        return []

    def _charges(self, seen: SiteState) -> list[tuple[Key, str]]:
        holders: dict[str, list[Key]] = {}
        for job in seen.jobs:
            for share in job.shares if job.state in HOLDING else ():
                if share.gpus:
                    holders.setdefault(share.node, []).append(key_of(job))
        broken = {
            name: keys
            for name, keys in holders.items()
            if all(name in self._open.get(key, ()) for key in keys)
        }
        whole = {name for name, node in seen.nodes.items() if node.gpus and not node.gpus_used}
        if not broken:
            return []
        waiting = [job for job in seen.jobs if job.state == "PENDING" and job.reason in _WAITS]
        first = [as_gated(job) for job in sorted(waiting, key=queue_order)[:_MOST_WAITING]]
        context = indexed(self._site.context_of(seen, first, self._comparer.profile, self._known))
        needs = [need for gated in first if (need := whole_nodes(gated, context)) is not None]
        return [(one.start, one.waiting_job) for one in charges(needs, whole, broken)]

    def _renew(self, now: float) -> None:
        """Read scores, links, models, classes and tune's policy again, now and then."""
        if now - self._known_at < _KNOWLEDGE_S:
            return
        self._known_at = now
        with contained("measurements"):
            profile = load_profile(self._store)
            models = read_models(self._store, self._config.of(PowerConfig).model_error)
            self._policy.refresh()
            given = self._policy.settings, self._policy.options, profile, models
            self._comparer = Comparer(*given, exact=self._exact)
            for saved in saved_classes(self._store):
                self._known.classes.note(saved)

    def _prune(self, now: float) -> None:
        if now - self._pruned_at < _PRUNE_S:
            return
        self._pruned_at = now
        days = self._config.store.ledger_days
        table.prune(self._store, now - 86_400.0 * days if days else -math.inf)


def _text(text: str) -> str:
    """A text that SQLite takes: what users write need not be UTF-8."""
    return text.encode("utf-8", "replace").decode()
