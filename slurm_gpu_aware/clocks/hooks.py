"""Prolog and epilog: set clocks and power limits of a job's GPUs, and reset them.

They come in the job's Extra field (``freq=MHZ:W``, or ``freq=MHZ:W@0+3`` with the GPUs), the GPUs
otherwise in ``SLURM_JOB_GPUS``; no call to slurmctld is made.

A prolog notes them (one small file per GPU, with the site's own power limit), sets them, and
records what happened, so that nothing is left behind whenever it is cut off. The epilog resets what
is noted for its job; what it could not reset, the next hook does. Beside that they keep the
accounts of the job's GPUs (`accounts`), where the site has a folder for them, and record the job's
energy.

Neither ever fails a job: what goes wrong is one JSON line in the spool (and a line in syslog), and
the job runs at the default clock.
"""

from __future__ import annotations

import time

from slurm_gpu_aware.clocks.accounts import Account, Accounts, energy_record
from slurm_gpu_aware.clocks.driver import (
    Result,
    counter_mj,
    counters,
    limit_power,
    lock_clocks,
    nvml_indices,
    read_limits,
    reset_clocks,
)
from slurm_gpu_aware.clocks.job import (
    SHARED,
    Job,
    NodeGres,
    agreed_gpus,
    has_step,
    parse_extra,
    parse_gpus,
)
from slurm_gpu_aware.clocks.notes import LIMIT, Limits, Note, Notes, limits_to_note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slurm_gpu_aware.clocks.accounts import JobMap
    from slurm_gpu_aware.clocks.job import Record, Setting

SCHEMA = "gpu-aware-clock/1"

DRIVER_LIMIT_S = 10.0  # Time limit of all driver calls of a step.
MAKE_UP_LIMIT_S = 3.0  # Time limit of the driver calls for GPUs of ended jobs.
METER_LIMIT_S = 3.0  # Time limit of the driver calls that read energy.
LATE_S = 5.0  # A counter that is read so long after its hook ran tells nothing about the job.
HOOK_S = 35.0  # No hook waits so long for the agent.
AGAIN_S = 60.0
"""A GPU that could not be reset then is tried again by hooks of other jobs after this time."""
ALONE_S = 2.0
"""How long a hook waits for others to be done before it looks after what ended jobs left."""
TOGETHER_S = 5.0
"""How long a hook waits for one that does so, and then goes on with its own GPUs all the same."""


class Hook:
    """One run on a node, at a time in Unix seconds; ``records`` are what happened.

    ``accounts``: None where the site keeps none. ``heard_at``: when Slurm ran the hook, if the
    agent does its work (`inbox`); what has happened to an account since then is not undone.
    ``job_map``: None where the site keeps none.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        notes: Notes,
        at: float,
        accounts: Accounts | None = None,
        heard_at: float | None = None,
        job_map: JobMap | None = None,
    ) -> None:
        self._job = Job(env)
        self._notes = notes
        self._accounts = accounts
        self._map = job_map
        self._at = at
        self._heard_at = at if heard_at is None else heard_at
        self.records: list[Record] = []
        self.said: list[str] = []
        """What went wrong beside them, for the log."""

    def prolog(self) -> None:
        """Set what the job asks for, and open the accounts of its GPUs.

        What is left of jobs that have ended is reset first, also for a job that asks for no clock.
        A note of another job on one of its GPUs means that an epilog never ran: that GPU is reset,
        too, unless only the Extra field names it and that other job still runs here.
        """
        self.make_up()
        with self._notes.together(TOGETHER_S):
            noted = self._notes.all()
            try:
                asked, indices = self._wanted()
            except ValueError as exc:
                self._record("clock_failed", gpus=[], call="parse", error=str(exc))
                return
            if not self._outdated().isdisjoint(indices):
                return
            foreign = self._foreign(indices, noted)
            for index, job_id in foreign.items():
                error = f"job {job_id} runs on it"
                self._record("clock_failed", gpus=[index], call="lock", error=error)
            indices = [index for index in indices if index not in foreign]
            self._enter_in_map(indices)
            stale = {
                index: noted[index].method
                for index in indices
                if index in noted
                and (asked is None or noted[index].job_id != self._job.id)
                and noted[index].tried_at != self._at  # not twice by one hook
            }
            self._undo(stale, DRIVER_LIMIT_S)
            if asked is not None and indices and self._is_late(HOOK_S):
                late = {"call": "hook", "error": "the agent learned of the job too late"}
                self._record("clock_failed", gpus=indices, **_asked(asked), **late)
                return
            kept, changed = self._keeps_accounts(indices), list[Result]()
            if asked is not None and indices:
                # First, without a counter: they tell earlier hooks of this job.
                kept = kept and self._open_accounts(asked, indices, ())
                changed = self._set(asked, indices)
            if kept:
                meters = () if self._is_late(LATE_S) else counters(indices, changed, METER_LIMIT_S)
                self._open_accounts(asked, indices, meters)

    def epilog(self) -> None:
        """Close the accounts of this job, and reset what was set for it.

        Its notes are marked first, so that a clock which cannot be reset now, by this hook or
        because it is cut off, is reset by the next hook of any job on this node. Those that were
        marked before are tried again, too. No other clock is touched.
        """
        self.make_up()
        if self._accounts is not None and self._heard_at == self._at:
            self._accounts.withdraw(self._job.id)
        with self._notes.together(TOGETHER_S):
            self._take_from_map()
            closed = dict[int, Account]()
            if self._accounts is not None:  # first: from now on the agent leaves these GPUs alone
                closed = self._accounts.close(self._job.id, self._heard_at, self._at)
            outdated = self._outdated()
            own = {
                index: note
                for index, note in self._notes.all().items()
                if note.job_id == self._job.id
                and note.tried_at != self._at  # not twice
                and index not in outdated
            }
            for index, note in own.items():
                note.ended, note.tried_at = True, None
                self._write(index, note)
            began = time.monotonic()
            changed = self._undo({i: note.method for i, note in own.items()}, DRIVER_LIMIT_S)
            if closed:
                late = self._is_late(LATE_S) or time.monotonic() - began > LATE_S
                meters = None if late else counters(sorted(closed), changed, METER_LIMIT_S)
                self._record("energy", **energy_record(closed, meters, self._heard_at))

    def reset_all(self, every: bool) -> None:
        """Reset what a node that died had left locked; at the start of the node, before any job.

        ``every``: all GPUs of the node, whether noted or not (the notes themselves may be lost);
        this undoes clocks that the site set, too.
        """
        methods = {index: note.method for index, note in self._notes.all().items()}
        self._undo(methods, DRIVER_LIMIT_S, every=every)
        if self._accounts is not None:
            self._accounts.forget_all()
        if self._map is not None:
            self._map.clear()

    def _enter_in_map(self, indices: Sequence[int]) -> None:
        if self._map is None or not indices:
            return
        try:
            found = nvml_indices(indices, METER_LIMIT_S)
            if len(found) < len(indices):
                self.said.append(f"job map: {len(indices) - len(found)} GPUs do not answer")
            shared = NodeGres(self._job.slurm_conf, self._job.node).shared()
            self._map.add(self._job.id, found, shared=shared)
        except OSError as exc:
            self.said.append(f"job map {self._map.folder}: {exc.strerror}")

    def _take_from_map(self) -> None:
        """Unless a later run of the job has begun, whose prolog has entered it again."""
        if self._map is None:
            return
        opened = self._accounts.of_job(self._job.id).values() if self._accounts else ()
        if any(self._heard_at < account.at <= self._at for account in opened):
            return
        try:
            self._map.remove(self._job.id)
        except OSError as exc:
            self.said.append(f"job map {self._map.folder}: {exc.strerror}")

    def _keeps_accounts(self, indices: Sequence[int]) -> bool:
        """Whether accounts are kept, all GPUs of the job are known, and it shares none."""
        job = self._job
        if self._accounts is None or not indices:
            return False
        gres = NodeGres(job.slurm_conf, job.node)
        return not (gres.shared() or (parse_extra(job.extra) is None and gres.indexed()))

    def _open_accounts(
        self, asked: Setting | None, indices: Sequence[int], meters: Iterable[Result]
    ) -> bool:
        """Open accounts, or write them again with their counters; False: they cannot be written."""
        if self._accounts is None:
            return False
        try:
            self._accounts.open(self._job, indices, asked or (0, 0), self._heard_at, meters)
        except OSError as exc:
            why = f"{self._accounts.folder}: cannot be written: {exc.strerror}"
            self._record("energy", gpus=indices, energy_j=None, error=why)
            return False
        return True

    def _outdated(self) -> set[int]:
        """GPUs on which a hook of a later job, or run, has been at work since this one ran."""
        if self._accounts is None or self._heard_at == self._at:
            return set()
        opened = self._accounts.all().items()
        return {i for i, account in opened if self._heard_at < account.at <= self._at}

    def _is_late(self, after_s: float) -> bool:
        """Whether counters read now tell nothing about the job's start or end."""
        return not 0.0 <= self._at - self._heard_at < after_s

    def _wanted(self) -> tuple[Setting | None, list[int]]:
        """Setting (None: the default) and GPUs of the job. Raises ValueError for nonsense."""
        job = self._job
        asked, seen = parse_extra(job.extra), parse_gpus(job.gpus)
        if asked is None:
            return None, seen
        setting, gpus = asked
        gres = NodeGres(job.slurm_conf, job.node)
        if any(setting) and seen and gres.shared():
            raise ValueError(SHARED)
        return setting if any(setting) else None, agreed_gpus(seen, gpus, job.extra, gres)

    def _foreign(self, indices: Sequence[int], noted: Mapping[int, Note]) -> dict[int, str]:
        """GPU -> other job that runs here and holds it, where Slurm does not name the GPU."""
        seen = parse_gpus(self._job.gpus)
        of_job = {i: note.job_id for i, note in noted.items()}
        if self._accounts is not None:
            of_job = {i: account.job_id for i, account in self._accounts.all().items()} | of_job
        holders = {i: of_job[i] for i in indices if i in of_job and i not in seen}
        alive = {job_id for job_id in set(holders.values()) - {self._job.id} if has_step(job_id)}
        return {i: job_id for i, job_id in holders.items() if job_id in alive}

    def _set(self, asked: Setting, indices: Sequence[int]) -> list[Result]:
        """Set a power limit, then a clock; return the last change of each GPU.

        A GPU that refuses the limit gets no clock either.
        """
        mhz, limit_w = asked
        read = read_limits(indices, DRIVER_LIMIT_S) if limit_w else []
        noted = {i: note.limits_mw for i, note in self._notes.all().items()} if read else {}
        limits = limits_to_note(read, noted, limit_w)
        indices = [index for index in indices if not limit_w or index in limits]
        try:
            for index in indices:
                method = "" if mhz else LIMIT
                self._notes.write(
                    index, Note(self._job.id, method, limits_mw=limits.get(index, ()))
                )
        except OSError as exc:
            # Nothing would reset what is not noted. Notes that were written do no harm.
            why = f"{self._notes.folder}: cannot be written: {exc.strerror}"
            self._record("clock_failed", gpus=indices, call="note", error=why)
            return []
        limited = limit_power(limits, DRIVER_LIMIT_S) if limits else []
        refused = {result.index for result in limited if result.error}
        results = limited
        if mhz:
            results = lock_clocks([i for i in indices if i not in refused], mhz, DRIVER_LIMIT_S)
        last = {result.index: result for result in (*limited, *results)}
        for result in last.values():
            limits_mw = limits.get(result.index, ()) if result.index not in refused else ()
            if not result.error or (result.answered and limits_mw):
                # If that fails it stays noted, only not how it was set.
                note = Note(self._job.id, result.method or LIMIT, limits_mw=limits_mw)
                self._write(result.index, note)
            elif result.answered:
                self._notes.forget(result.index)  # surely not set; else the epilog resets it
        self._done(asked, [result for result in results if not result.error], limits)
        failed = {(r.index, r.error): r for r in (*read, *limited, *results) if r.error}
        self._failures(failed.values(), **_asked(asked))
        return list(last.values())

    def _done(self, asked: Setting, good: Sequence[Result], limits: Mapping[int, Limits]) -> None:
        """Record what was set, of GPUs that are set alike together."""
        of_gpu = {
            r.index: (r.mhz, r.method or LIMIT, limits[r.index][-1] // 1000 if limits else 0)
            for r in good
        }
        for kind in sorted(set(of_gpu.values())):
            mhz, method, limit_w = kind
            same = [r for r in good if of_gpu[r.index] == kind]
            what = {"mhz": mhz, "method": method} | ({"limit_w": limit_w} if limit_w else {})
            what["counter_mj"] = counter_mj(same)
            gpus = sorted(r.index for r in same)
            self._record("clock_set", gpus=gpus, **_asked(asked), **what)

    def make_up(self) -> None:
        """Reset what epilogs tried in vain, of any job; else a later hook tries again.

        No other hook may be at work: it could be locking a GPU that is about to be reset.
        """
        if not self._left_behind():
            return
        with self._notes.alone(ALONE_S) as alone:
            left = self._left_behind() if alone else {}
            for job_id in sorted({note.job_id for note in left.values()}):
                methods = {i: note.method for i, note in left.items() if note.job_id == job_id}
                self._undo(methods, MAKE_UP_LIMIT_S, job_id=job_id, restarts=0)
            for index, note in self._notes.all().items():
                if index in left:
                    note.ended, note.tried_at = True, self._at
                    self._write(index, note)

    def _left_behind(self) -> dict[int, Note]:
        """Notes of jobs that have ended, unless they were tried a short while ago."""
        return {
            index: note
            for index, note in self._notes.all().items()
            if note.ended and not (note.tried_at and 0.0 <= self._at - note.tried_at < AGAIN_S)
        }

    def _write(self, index: int, note: Note) -> None:
        """Write a note again, if that is possible."""
        try:
            self._notes.write(index, note)
        except OSError:
            pass

    def _undo(
        self, methods: Mapping[int, str], limit_s: float, *, every: bool = False, **of_job: object
    ) -> list[Result]:
        """Reset clocks and limits; ``of_job``: names another job than the hook's own in records."""
        if not methods and not every:
            return []
        before = self._notes.all()
        limits_mw = {i: before[i].limits_mw for i in methods if i in before}
        results = reset_clocks(methods, limit_s, every=every, limits_mw=limits_mw)
        good = sorted(result.index for result in results if not result.error)
        after = self._notes.all()
        for index in good:
            now = after.get(index)
            was = before.get(index, now)
            # Not one of a hook that has waited in vain for this one.
            if now is None or was is None or was.job_id == now.job_id:
                self._notes.forget(index)
        if good:
            self._record("clock_reset", gpus=good, **of_job)
        # A failed note stays, so that the next hook or the next boot tries again.
        self._failures(results, during="reset", **of_job)
        return results

    def _failures(self, results: Iterable[Result], **detail: object) -> None:
        by_cause: dict[tuple[str, str], list[int]] = {}
        for result in results:
            if result.error:
                by_cause.setdefault((result.call, result.error), []).append(result.index)
        for (call, error), gpus in by_cause.items():
            self._record("clock_failed", gpus=sorted(gpus), call=call, error=error, **detail)

    def _record(self, event: str, **detail: object) -> None:
        """Record what happened for the job, or for one that ``detail`` names."""
        job = self._job
        of_job = {"node": job.node, "job_id": job.id, "restarts": job.restarts}
        self.records.append({"schema": SCHEMA, "event": event, "at": self._at} | of_job | detail)


def _asked(asked: Setting) -> dict[str, object]:
    """A setting as records name it."""
    mhz, limit_w = asked
    return {"asked_mhz": mhz, **({"asked_limit_w": limit_w} if limit_w else {})}
