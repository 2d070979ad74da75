"""Selector daemon: the main loop of ``gpu-aware selectd``.

A round starts on an event (a submission, a job's end), at the latest every ``selector.round_s``.
Heartbeat and start monitor have threads of their own. A lock beside the store admits one daemon per
host at a time; of several hosts one works, the others stand by (`heartbeat`). SIGTERM ends it after
the present round. After SIGKILL, or a takeover, work continues from the state of Slurm and the
ledger.
"""

import contextlib
import gc
import logging
import signal
import time
from collections.abc import Set
from pathlib import Path
from types import FrameType
from typing import Any

from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import AwareError, SourceError
from slurm_gpu_aware.files import hold_selector_lock
from slurm_gpu_aware.selector.events import Events
from slurm_gpu_aware.selector.heartbeat import CALL_S, WAIT_S, Heartbeat, Standby
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.selector.round_state import CounterFile, Outcome
from slurm_gpu_aware.selector.waiting_jobs import folded
from slurm_gpu_aware.service import ALIVE, READY, notify
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.store.ledger import RoundRecord

log = logging.getLogger(__name__)

_SIGNAL_S = 0.2  # a signal ends a pause after this time at most
_SETTLE_S = 0.01  # pause after a submission: the filter reports a job before it exists
_REPEATS_S = (0.02, 0.08, 0.25)  # pauses before further rounds that look for a submitted job
_EVENTS = ("submit", "end", "woken")
_BURST_S = 0.2  # least pause between two rounds of submissions; a job's end ends it
_FULL_S = 0.4  # the same while no GPU is free, and after jobs' ends while none waits for a round
_FREED_S = 5.0  # time after a job's end until Slurm's scheduler shows that a limit is free
_LIMIT_S = 1.0  # pause between two of these rounds
_PUBLISH_S = 0.5  # least pause before a round that starts only to publish
_SHORT_S = 0.25  # a round of less CPU time costs mostly our time, not slurmctld's
_POLL_S = 0.25  # least pause between two rounds while jobs wait and no file tells of a job's end
_FAILED_S = 2.0  # pause after a round that failed
_RECORD_S = 5.0  # least time between two recorded rounds that place nothing
_PRUNE_S = 3600.0
GC_OBJECTS = 50_000
"""Threshold of the garbage collector: a round makes many objects and hardly any cycles."""


def run(config: Config | Path | str | None = None, once: bool = False) -> int:
    """Run the selector until SIGTERM or SIGINT; with ``once`` a single round.

    Returns the exit code: 0, or 1 if another selector runs or the round failed.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
    gc.set_threshold(GC_OBJECTS, 20, 20)
    settings = config if isinstance(config, Config) else load_config(config)
    try:
        client = open_client(settings.selector.command_timeout_s)
        with hold_selector_lock(settings.store.path):
            looks = open_client(min(CALL_S, settings.selector.command_timeout_s))
            selector = Selector(settings, client, Standby(looks, settings))
            try:
                return selector.once() if once else selector.loop()
            finally:
                selector.close()
    except AwareError as exc:
        log.error("%s", exc)
        return 1


class Selector:
    """The daemon: heartbeat, events, rounds, ledger."""

    def __init__(self, config: Config, client: SlurmClient, standby: Standby | None = None) -> None:
        self._config, self._client = config, client
        client.parking_licence = config.gate.licence
        self._standby = standby if standby is not None else Standby(client, config)
        files = {"submit": config.events.submit_file}
        if config.events.jobcomp_file is not None:
            files["end"] = config.events.jobcomp_file
        self._sees_job_ends = "end" in files
        self._events = Events(files)
        conf = read_clock_conf()
        self._folders = Path(conf.orders) if conf.orders else None, Path(conf.spool)
        self._start_fresh()
        if conf.complaint is not None:
            log.warning("%s", conf.complaint)
        self._counters = CounterFile(config.store.path, client.counts)
        self._stopping = False

    def _start_fresh(self) -> None:
        """Forget all jobs: until now another selector worked, if any."""
        self._ledger = LedgerWriter(self._config.store.path, self._config.store.published)
        pool = HoldingPool(self._client)
        self._heartbeat = Heartbeat(self._client, self._config, pool)
        self._rounds = Rounds(
            self._client,
            self._config,
            self._ledger,
            gate_held_until=lambda: self._heartbeat.held_until,
            wake=self._events.wake,
            check_holder=self._heartbeat.check,
            pool=pool,
            orders=self._folders[0],
            spool=self._folders[1],
        )
        self._heartbeat.refusals = refusals = self._rounds.tracker.refusals
        refusals.ended = lambda: self._client.ended
        self._repeats: tuple[float, ...] = ()
        self._failed = False
        self._recorded = -float("inf")
        self._pruned = -float("inf")
        self._freed = -float("inf")
        self._finished = -float("inf")
        self._cost_s = 0.0
        self._last_waiting: object = None
        self._outcome = Outcome()

    def loop(self) -> int:
        """Run rounds until a signal asks to stop; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        notify(READY)
        with contextlib.suppress(OSError):  # a file that exists can be watched
            self._config.events.submit_file.touch(0o644)
        while self._await_gate():
            self._work()
            if self._heartbeat.other is not None:
                log.warning("the selector of host %s works now", self._heartbeat.other.host)
                self._stop_work()
                self._start_fresh()
        if self._heartbeat.held_until:
            lease_s = self._config.gate.lease_s
            log.info("selector stops; the gate stays closed for at most %d s", lease_s)
        return 0

    def _work(self) -> None:
        """Run rounds until a signal, or until another selector has taken the gate."""
        self._rounds.load()
        log.info("selector started")
        trigger = "start"
        self._rounds.start_monitor.start()
        self._rounds.lives.each(lambda one: one.start())
        while not self._stopping:
            notify(ALIVE)
            self._round(trigger)
            if self._heartbeat.other is not None:
                return
            trigger = self._next(self._events.wait(self._wait_s()))

    def once(self) -> int:
        """One heartbeat, one round, one poll of the released jobs."""
        if not self._standby.may_work():
            log.error("the selector of another host works")
            return 1
        self._heartbeat.beat(claim=True)
        self._rounds.load()
        self._round("once")
        if self._failed:
            return 1
        self._rounds.start_monitor.poll()
        return 0

    def close(self) -> None:
        """Stop the heartbeat, close the store."""
        self._stop_work()
        self._events.close()

    def _stop_work(self) -> None:
        self._rounds.start_monitor.stop()
        self._rounds.lives.each(lambda one: one.stop())
        self._heartbeat.stop()
        works = self._heartbeat.other is None
        self._ledger.close(publish=works)
        if works:
            self._counters.write(force=True)
        else:
            self._counters.remove()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True  # no lock: the handler runs inside whatever it interrupts
        self._events.wake()

    def _await_gate(self) -> bool:
        """Take the gate; wait as long as it takes for slurmctld, and while another selector works.

        Returns False if a signal came first.
        """
        warned = prepared = claimed = False
        while not self._stopping:
            notify(ALIVE)
            try:
                if self._standby.may_work():
                    # Right after a takeover a call may hang: the first one has a short limit.
                    quick = None if claimed else self._standby.client
                    claimed = True
                    self._heartbeat.start(quick)
                    return True
                claimed = False
                if not prepared:
                    self._rounds.prepare()
                    prepared = True
                warned = False
            except SourceError as exc:
                if not warned:
                    log.warning("waiting for Slurm: %s", exc)
                warned = True
            self._rest(WAIT_S)
        return False

    def _wait_s(self) -> float:
        if self._failed:
            return _FAILED_S
        outcome = self._outcome
        waits = [self._config.selector.round_s]
        if outcome.waiting and not self._sees_job_ends:
            waits.append(max(_POLL_S, 9 * self._cost_s))
        freed = outcome.blocked and time.monotonic() - self._freed < _FREED_S
        if outcome.untried or outcome.doubtful or outcome.unpooled or freed:
            waits.append(max(_LIMIT_S, 3 * self._cost_s))
        if self._rounds.lives.any(lambda one: one.awaits):
            waits.append(max(_LIMIT_S, 3 * self._cost_s))
        if self._repeats:
            waits.append(max(self._repeats[0], self._cost_s))
        # Its time may have come during the round. The next one looks, and sets another time.
        grows_s = self._rounds.site.wake_s - time.time()
        waits.append(max(_LIMIT_S, 3 * self._cost_s, grows_s))
        publish_s = self._ledger.publish_in_s
        if publish_s is not None:
            waits.append(max(_PUBLISH_S, publish_s))
        return min(waits)

    def _next(self, happened: Set[str]) -> str:
        """Rest before a round that events start; return what starts it.

        A job that is ready while the epilog runs starts on its GPU without a pause, so the end of a
        job ends the longer pause after a submission.
        """
        began = time.monotonic()
        while happened and not self._stopping:
            settled_s = began + _SETTLE_S - time.monotonic() if "submit" in happened else 0.0
            left_s = max(settled_s, self._rest_s(happened))
            if left_s <= 0:
                break
            happened |= self._events.wait(min(left_s, _SIGNAL_S))
        happened |= self._events.drain()
        if "end" in happened:
            self._freed = time.monotonic()
        return next((kind for kind in _EVENTS if kind in happened), "timer")

    def _rest(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while not self._stopping and (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _SIGNAL_S))

    def _rest_s(self, happened: Set[str]) -> float:
        """Rest of the pause between two rounds, so that slurmctld can work in a storm of events.

        Rounds take a fifth of the time; half of it if they are short, or GPUs were freed. What
        counts is their CPU time: on a busy machine they take long, and cost slurmctld no more.
        """
        since = time.monotonic() - self._finished
        if self._failed:
            return _FAILED_S - since
        cost_s = pause_s = self._cost_s
        if happened == {"submit"}:
            pause_s = 4 * cost_s if cost_s >= _SHORT_S else cost_s
            pause_s = max(pause_s, _FULL_S if self._outcome.full else _BURST_S)
        elif happened == {"end"} and self._outcome.served and not self._repeats:
            pause_s = max(pause_s, _FULL_S)
        return min(self._config.selector.round_s, pause_s) - since

    def _round(self, trigger: str) -> None:
        """Run one round and record it; after a failure the daemon goes on."""
        self._repeats = _REPEATS_S if trigger == "submit" else self._repeats[1:]
        known = self._rounds.site.ids.keys()
        started, before_s = time.time(), time.process_time()
        self._failed = True
        try:
            self._rounds.lives.each(lambda one: one.before_round())
            self._outcome = self._rounds.run()
            if not self._rounds.site.ids.keys() <= known:
                self._repeats = self._repeats[-1:]  # another one may have come right after it
            self._failed = False
        except SourceError as exc:
            if self._heartbeat.other is None:
                log.warning("round failed; the next one tries again: %s", exc)
            return
        except Exception:
            log.exception("round failed; the next one tries again")
            return
        finally:
            self._finished = time.monotonic()
            self._cost_s = time.process_time() - before_s
            with contained("counters"):
                self._counters.round_done(None if self._failed else self._outcome)
                self._counters.write()
        self._heartbeat.round_done()
        try:
            self._record(trigger, started)
        except Exception:
            log.exception("the round cannot be written to the ledger; the selector goes on")

    def _record(self, trigger: str, started: float) -> None:
        while not self._heartbeat.events.empty():
            kind, detail, at = self._heartbeat.events.get()
            self._ledger.event("", kind, detail, at)
        outcome, site, values = self._outcome, self._rounds.site, dict[str, Any]()
        site.news = False
        self._rounds.lives.each(lambda one: values.update(one.after_round()))
        again = time.monotonic() - self._recorded >= _RECORD_S
        shown = [(w["job_id"], w["reason"]) for w in outcome.waiting]
        if outcome.placed or (again and shown != self._last_waiting) or site.news:
            self._recorded = time.monotonic()
            self._last_waiting = shown
            record = RoundRecord(
                started_at=started,
                took_ms=1000.0 * outcome.took_s,
                queued=outcome.queued,
                placed=len(outcome.placed),
                waiting=len(outcome.waiting),
                trigger=trigger,
                detail={"waiting": folded(outcome.waiting)},
                **values,
            )
            self._ledger.round(record)
        if outcome.planned is not None:
            self._ledger.snapshot(started, outcome.planned)
        if time.monotonic() - self._pruned > _PRUNE_S:
            self._pruned = time.monotonic()
            days, now = self._config.store.ledger_days, time.time()
            if days:
                self._ledger.prune(now - 86400.0 * days)
        self._ledger.publish(beside=True)
