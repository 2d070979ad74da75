"""Agent of a node (``gpu-aware clockd``): moves clocks and power limits of running jobs as ordered.

It touches only GPUs that the ordered job holds by the prolog's accounts. Notes of a change are
written before it, so whatever is left when the agent dies, the job's epilog resets. Without valid
orders each job gets back what its prolog set; once orders have expired, unless they were lower:
no selector watches over the power of the site then.
"""

import math
import os
import pwd
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from slurm_gpu_aware.clock_conf import ClockConf, conf_path
from slurm_gpu_aware.clocks.accounts import Account, Accounts, JobMap
from slurm_gpu_aware.clocks.driver import (
    OneChild,
    Result,
    counter_mj,
    limit_power,
    lock_clocks,
    read_limits,
    read_states,
    reset_clocks,
)
from slurm_gpu_aware.clocks.hooks import SCHEMA
from slurm_gpu_aware.clocks.inbox import Inbox, Target, hear, kept_low, read_trusted, target_of
from slurm_gpu_aware.clocks.job import SHARED, NodeGres, Record
from slurm_gpu_aware.clocks.notes import LIMIT, NO_JOB, Limits, Note, Notes, limits_to_note
from slurm_gpu_aware.clocks.records import spool, syslog, to_json
from slurm_gpu_aware.clocks.xids import Xids
from slurm_gpu_aware.node_orders import OrderError, Orders, parse_orders

LONGEST_S = 3600.0  # Orders that claim to be valid for longer are refused.
DRIVER_LIMIT_S = 3.0  # Less than hooks wait for us (`hooks.TOGETHER_S`).
WAIT_S = 0.5  # How long a turn waits for hooks at work; then it leaves the rest to the next turn.
AGAIN_S = 60.0  # A clock that a GPU refused is tried again after this time.
GRACE_S = 10.0
"""An order for GPUs that its job does not hold (yet) waits so long: its prolog may be at work."""
REPORT_S = 60.0
"""Power and throttling are reported this often, and whenever new orders have been carried out."""
XID_S = 86_400.0  # An XID error is reported for this time.
MOST_XIDS = 100
_SEQ = "orders"
"""File among the accounts: number of the last orders, and until when they were valid at first."""


class Agent:
    """The agent of a node; :meth:`turn` does what is to be done now.

    ``top``: the folder from which on orders and clock.conf must be out of others' reach.
    """

    def __init__(
        self, conf: ClockConf, node: str, clock: Callable[[], float] = time.time, top: str = "/"
    ) -> None:
        self._conf, self._node, self._clock, self._top = conf, node, clock, top
        self._notes = Notes(conf.locks)
        self._accounts = Accounts(conf.accounts)
        self._inbox = Inbox(conf.accounts)
        self._map = JobMap(conf.job_map) if conf.job_map else None
        self._sure: dict[int, tuple[Target, float]] = {}
        """Orders that this process has carried out, and when the GPU's account was opened.

        What an earlier process did is not known.
        """
        self._failed: dict[tuple[int, Target], float] = {}
        self._early: dict[str, float] = {}
        """Job that does not hold the GPUs of its order -> since when; inf: told."""
        self._obeyed: set[str] = set()
        """Jobs whose orders could be carried out; when one ends, its order is no fault."""
        self._records: list[Record] = []
        self._seq = 0
        """Of the orders that were carried out last."""
        self._listener: Xids | None = None
        self._xids: dict[tuple[int, int], tuple[float, int]] = {}
        """(GPU, XID) -> when it was seen last, and the job then; the newest last."""
        self._reported: tuple[int, str] | None = None
        self._reported_at = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While hooks leave their work to this process (`inbox`), which must block SIGUSR1."""
        from slurm_gpu_aware.clocks import nvml  # noqa: F401  # so that no child imports it

        with Xids() as self._listener, OneChild(), self._inbox.heard():
            yield
        self._listener = None

    def hear(self) -> None:
        """Do what hooks have left to us."""
        self._note_xids()  # before an epilog closes the account of the job that caused one
        said: list[str] = []
        records: list[Record] = []
        try:
            given = self._inbox, self._notes, self._accounts, self._clock
            records = hear(*given, complain=said.append, job_map=self._map)
        except OSError as exc:
            said.append(f"{self._accounts.folder}: {exc.strerror}")
        if not (records or said):
            return
        syslog([*map(to_json, records), *said])
        with suppress(OSError):  # then syslog alone has them
            spool(self._conf.spool, records, self._notes, slurm_user=self._conf.slurm_user)

    def _note_xids(self) -> None:
        """Keep the errors that the driver has reported, with the jobs that hold the GPUs."""
        for gpu, xid in self._listener.newest() if self._listener is not None else ():
            self._xids.pop((gpu, xid), None)
            self._xids[gpu, xid] = (self._clock(), self._jobs().get(gpu, 0))
            self._reported = None  # the next turn tells it

    def _jobs(self) -> dict[int, int]:
        """GPU -> job that holds it."""
        return {
            index: int(account.job_id)
            for index, account in self._accounts.all().items()
            if account.job_id.isdecimal()
        }

    def turn(self, *, stopping: bool = False) -> None:
        """Carry out the orders that are valid now; ``stopping``: none are any more."""
        self.hear()
        orders, trouble = None, "the agent has stopped" if stopping else ""
        expired = False
        if not stopping:
            try:
                orders = self._read()
            except _ExpiredError as exc:
                trouble, orders, expired = str(exc), exc.orders, True
            except OrderError as exc:
                trouble = str(exc)
        done = self._carry_out(orders, expired=expired)
        if orders is not None and done and not expired:
            self._seq = orders.seq
        now = self._clock()
        late = not 0 <= now - self._reported_at < REPORT_S
        if late or (self._seq, trouble) != self._reported:
            self._report(trouble, now)
        records, self._records = self._records, []
        try:
            spool(self._conf.spool, records, self._notes, slurm_user=self._conf.slurm_user)
        except OSError:
            self._reported = None  # the next turn tells it again

    def _read(self) -> Orders | None:
        """The valid orders; None: there are none. Raises OrderError on any doubt."""
        conf = self._conf
        if not conf.orders:
            return None
        if conf.slurm_user and read_trusted(conf_path(), frozenset({0}), self._top) is None:
            raise OrderError(f"{conf_path()}: is not there any more")
        path = os.path.join(conf.orders, f"{self._node}.orders")
        text = read_trusted(path, frozenset({0, _user(conf.slurm_user)}), self._top)
        if text is None:
            return None
        now, orders = self._clock(), parse_orders(text)
        if orders.valid_until > now + LONGEST_S:
            raise OrderError(f"valid for more than {LONGEST_S:.0f} s")
        last, until, *_ = *self._accounts.numbers(_SEQ), 0, 0
        # Orders written before the last ones have expired by ``until``, unless the controller's
        # clock was set back, and a time that is too far ahead is of a wrong clock of this node.
        if orders.seq < last and now < until <= now + LONGEST_S:
            raise OrderError(f"orders {orders.seq} are older than {last}")
        if orders.orders and orders.valid_until <= now:  # none for any job hold for ever
            known = orders.orders if orders.seq == last else ()
            raise _ExpiredError(Orders(orders.seq, orders.valid_until, known))
        if orders.seq != last:
            try:
                self._accounts.keep(_SEQ, f"{orders.seq} {orders.valid_until:.0f}")
            except OSError as exc:
                raise OrderError(f"{self._accounts.folder}: {exc.strerror}") from None
        return orders

    def _carry_out(self, orders: Orders | None, *, expired: bool) -> bool:
        """Make the changes that are due, lower clocks first; False: hooks keep us from one."""
        accounts = self._accounts.all()
        if expired and orders is not None:
            wanted = kept_low(orders, accounts)
        else:
            wanted = self._wanted(orders, accounts)
        done = all(since == math.inf for since in self._early.values())
        self._sure = {
            i: (target, opened)
            for i, (target, opened) in self._sure.items()
            if wanted.get(i) == target and accounts[i].at == opened
        }
        now = self._clock()
        self._failed = {key: at for key, at in self._failed.items() if 0 <= now - at < AGAIN_S}
        changes: dict[tuple[bool, Target], list[int]] = {}
        for index, account in accounts.items():
            ordered = wanted.get(index)
            goal = ordered or (account.job_id, *account.asked)
            as_left = account.set is None and goal[1:] == account.asked
            if not as_left and index not in self._sure and (index, goal) not in self._failed:
                changes.setdefault((ordered is not None, goal), []).append(index)
        for is_order, goal in sorted(changes, key=lambda d: (d[1][1] == 0, d[1][1], d)):
            seq = orders.seq if orders is not None and is_order else None
            done &= self._change(goal, changes[is_order, goal], seq)
        return done

    def _wanted(self, orders: Orders | None, accounts: Mapping[int, Account]) -> dict[int, Target]:
        """GPU -> what is ordered, of the orders whose job holds each of their GPUs."""
        wanted: dict[int, Target] = {}
        early: dict[str, float] = {}
        obeyed: set[str] = set()
        now = self._clock()
        for order in orders.orders if orders is not None else ():
            job_id = str(order.job)
            foreign = [
                index
                for index in order.gpus
                if index not in accounts or accounts[index].job_id != job_id
            ]
            if not foreign:
                wanted |= {i: target_of(order, accounts[i]) for i in order.gpus}
            if not foreign or job_id in self._obeyed:
                obeyed.add(job_id)
                continue
            since = early[job_id] = self._early.get(job_id, now)
            if orders is not None and now - since >= GRACE_S:
                early[job_id] = math.inf
                why = f"the job does not hold GPU {foreign[0]} of this node"
                if NodeGres(os.environ.get("SLURM_CONF", ""), self._node).shared():
                    why = SHARED  # so the prolog has opened no account
                detail = {"gpus": foreign, "call": "order", "error": why, "seq": orders.seq}
                self._tell("clock_failed", job_id, **detail)
        self._early, self._obeyed = early, obeyed
        return wanted

    def _change(self, goal: Target, indices: Sequence[int], seq: int | None) -> bool:
        """Give GPUs of one job a setting; False: hooks are at work. ``seq`` None: not ordered."""
        job_id, mhz, limit_w = goal
        self.hear()  # its epilog, above all
        with self._notes.alone(WAIT_S) as alone:
            if not alone or self._inbox.has_ended(job_id):
                return False
            held = self._accounts.of_job(job_id)  # an epilog may have closed them since
            indices = [index for index in indices if index in held]
            before = self._notes.all()
            methods = {i: before[i].method if i in before else "" for i in indices}
            limits = {i: before[i].limits_mw for i in indices if i in before}
            read = read_limits(indices, DRIVER_LIMIT_S) if limit_w else []
            limits |= limits_to_note(read, limits, limit_w)
            failed = [result for result in read if result.limit_mw is None]
            indices = [i for i in indices if all(result.index != i for result in failed)]
            try:
                for index in indices:
                    held[index].set = (mhz, limit_w)
                    self._accounts.put(index, held[index].line())
                    method = "" if mhz and methods[index] == LIMIT else methods[index]
                    self._notes.write(index, Note(job_id, method, limits_mw=limits.get(index, ())))
            except OSError as exc:
                why = f"cannot be noted: {exc.strerror}"
                failed += [Result(i, call="note", error=why) for i in indices]
                self._told(failed, goal, seq)
                return True
            results = self._drive(goal, {i: methods[i] for i in indices}, limits)
            for result in results:
                if not result.error:
                    account = held[result.index]
                    own = limits.get(result.index, ())
                    self._settle(goal, result, account, own, ordered=seq is not None)
        self._told([*failed, *results], goal, seq)
        return True

    def _drive(
        self, goal: Target, methods: Mapping[int, str], limits: Mapping[int, Limits]
    ) -> list[Result]:
        """Set limits, then clocks, of GPUs that are noted; a refused limit changes no clock."""
        _, mhz, limit_w = goal
        changed = {i: limits[i] for i in methods if limits.get(i)}
        done = limit_power(changed, DRIVER_LIMIT_S, undo=not limit_w) if changed else []
        failed = [result for result in done if result.error]
        methods = {i: way for i, way in methods.items() if all(r.index != i for r in failed)}
        if mhz and methods:
            return [*failed, *lock_clocks(list(methods), mhz, DRIVER_LIMIT_S)]
        return [*failed, *(reset_clocks(methods, DRIVER_LIMIT_S) if methods else ())]

    def _settle(
        self, goal: Target, result: Result, account: Account, limits_mw: Limits, *, ordered: bool
    ) -> None:
        """Note what has been done; what cannot be noted is done once more by the next agent."""
        job_id, mhz, limit_w = goal
        if not mhz and not limit_w:
            self._notes.forget(result.index)
        try:
            if mhz or limit_w:
                # Others of ours are not in force any more.
                own = (limits_mw[0], limits_mw[-1]) if limit_w else ()
                self._notes.write(result.index, Note(job_id, result.method or LIMIT, limits_mw=own))
            if not ordered:
                account.set = None
                self._accounts.put(result.index, account.line())
        except OSError:
            pass
        if ordered:
            self._sure[result.index] = (goal, account.at)

    def _told(self, results: Sequence[Result], goal: Target, seq: int | None) -> None:
        """Record what was done, and what failed: its note stays, so that the epilog resets it."""
        for mhz in sorted({result.mhz for result in results if not result.error}):
            same = [result for result in results if not result.error and result.mhz == mhz]
            detail = {"gpus": sorted(result.index for result in same), "asked_mhz": goal[1]}
            detail |= {"limit_w": goal[2]} if goal[2] else {}
            detail |= {"mhz": mhz, "seq": seq, "counter_mj": counter_mj(same)}
            self._tell("clock_set", goal[0], **detail)
        for result in results:
            if result.error:
                self._failed[result.index, goal] = self._clock()
                why = {"call": result.call, "error": result.error}
                detail = {"gpus": [result.index], "asked_mhz": goal[1], "seq": seq}
                self._tell("clock_failed", goal[0], **detail, **why)

    def _report(self, trouble: str, now: float) -> None:
        """Tell which orders were carried out, the clocks that they set, power, and throttling."""
        self._reported, self._reported_at = (self._seq, trouble), now
        states = read_states(DRIVER_LIMIT_S)
        watts = {s.index: round(s.power_mw / 1e3, 1) for s in states if s.power_mw is not None}
        read = {s.index: s for s in states if s.throttle is not None}
        jobs = self._jobs()
        recent = [(key, one) for key, one in self._xids.items() if 0 <= now - one[0] <= XID_S]
        self._xids = dict(recent[-MOST_XIDS:])
        clocks = {index: goal[1] for index, (goal, _) in sorted(self._sure.items())}
        self._tell(
            "agent",
            NO_JOB,
            seq=self._seq,
            error=trouble[:200],
            gpus=sorted(watts),
            power_w=[watts[index] for index in sorted(watts)],
            clock_gpus=list(clocks),
            clock_mhz=list(clocks.values()),
            read_gpus=sorted(read),
            read_throttle=[read[index].throttle for index in sorted(read)],
            read_mhz=[read[index].sm_mhz or 0 for index in sorted(read)],
            read_jobs=[jobs.get(index, 0) for index in sorted(read)],
            xids=[[*key, *one] for key, one in self._xids.items()],
        )

    def _tell(self, event: str, job_id: str, **detail: object) -> None:
        head = {"schema": SCHEMA, "event": event, "at": self._clock(), "node": self._node}
        self._records.append({**head, "job_id": job_id, **detail})


class _ExpiredError(OrderError):
    """Orders that were valid once; none of them if this node never obeyed them."""

    def __init__(self, orders: Orders) -> None:
        super().__init__(f"orders {orders.seq} have expired")
        self.orders = orders


def _user(name: str) -> int:
    """User id of SlurmUser, by name or number; that of root for none. Raises OrderError."""
    if not name or (name.isascii() and name.isdecimal() and len(name) < 10):
        return int(name or 0)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise OrderError(f"clock.conf: slurm_user {name[:40]!r} is no user") from None
