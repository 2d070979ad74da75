"""Orders for the clock agents: one file NODE.orders per node, in a folder of SlurmUser.

A file (`node_orders`) has an order for each running job whose clock the selector has chosen. The
sequence number rises with every change, also over restarts; a file is renewed before it expires. An
agent that sees no valid file goes back to the clock of the job's start, unless an expired one
says a lower clock.

Ordered clocks: orders for the clock agents, what they answered, and which of them obey.

Clocks of running jobs: what was set, what is ordered, and what a job may draw until it is set.

An order counts as carried out when a record or report of the agent names its number. Until then
a job may run at the old clock or at the new one, and counts with the higher of both. A clock that a
GPU refuses, and an agent that does not answer, end the changes of that job.
"""

import logging
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_gpu_aware.agent_reports import AgentReport
from slurm_gpu_aware.bounds import is_node_name
from slurm_gpu_aware.files import ReplacedFile, open_plain
from slurm_gpu_aware.node_orders import MOST_BYTES, Order, OrderError, Orders, parse_orders

log = logging.getLogger(__name__)

VALID_S = 600.0  # Time for which an order holds if the selector is away.
_LEFT_S = 400.0  # a file is renewed when less of its time is left
ANSWER_S = 60.0  # Time in which an agent has to answer an order.
Clock = int | None  # SM clock, MHz; None: the default clock, which is the highest.
_HEARD_S = 150.0  # Age at which a report says nothing any more; agents report once a minute.


@dataclass
class ClockOrders:
    """The files of all nodes."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)
    """Node -> why its file could not be written the last time."""
    _files: dict[str, Orders] = field(default_factory=dict)
    """Node -> its file; number 0: it is damaged."""

    def load(self) -> None:
        """Read what a previous selector has ordered; a damaged file is written anew."""
        self._files = {}
        try:
            paths = sorted(self.folder.glob("*.orders"))
        except OSError:
            return
        for path in paths:
            node = path.name.removesuffix(".orders")
            try:
                self._files[node] = parse_orders(_read(path))
            except (OSError, OrderError) as exc:
                log.warning("%s is written anew: %s", path, exc)
                if is_node_name(node):
                    self._files[node] = Orders(0, math.inf, ())

    def ordered(self) -> Mapping[str, tuple[int, tuple[Order, ...]]]:
        """Node -> sequence number and orders of its file."""
        return {node: (file.seq, file.orders) for node, file in self._files.items()}

    def newest(self, node: object) -> int:
        """Sequence number of a node's file; 0: it has none."""
        file = self._files.get(node) if isinstance(node, str) else None
        return 0 if file is None else file.seq

    def write(self, wanted: Mapping[str, Sequence[Order]], now: float) -> dict[str, int]:
        """Write what has changed or is about to expire; return node -> its sequence number.

        ``wanted``: node -> all its orders; the file of any other node becomes empty. A node whose
        file cannot be written is left out.
        """
        written = {}
        nodes = wanted.keys() | self._files.keys()
        self.failed = {node: why for node, why in self.failed.items() if node in nodes}
        for node in sorted(nodes):
            orders = tuple(sorted(wanted.get(node, ())))
            known = self._files.get(node)
            same = known is not None and known.orders == orders
            left_s = -math.inf if known is None else known.valid_until - now
            # A file of a clock that was ahead is written anew: agents refuse it.
            valid = left_s <= VALID_S + 1.0 and (left_s > _LEFT_S or not orders)
            if known is not None and same and valid and node not in self.failed:
                written[node] = known.seq
                continue
            last = 0 if known is None else known.seq
            seq = last if same and last else max(last + 1, int(now))
            file = Orders(seq, now + VALID_S, orders)
            if self._put(node, file):
                self._files[node] = file
                written[node] = file.seq
        return written

    def _put(self, node: str, file: Orders) -> bool:
        path = self.folder / f"{node}.orders"
        try:
            self.folder.mkdir(mode=0o755, exist_ok=True)
            with ReplacedFile(path) as stream:
                stream.write(str(file))
                os.fchmod(stream.fileno(), 0o644)
        except OSError as exc:
            why = f"{path}: cannot be written: {exc.strerror}"
            if self.failed.get(node) != why:
                log.warning("%s", why)
            self.failed[node] = why
            return False
        self.failed.pop(node, None)
        return True


def _read(path: Path) -> bytes:
    stream, _ = open_plain(path)
    with stream:
        return stream.read(MOST_BYTES + 1)


def higher(clocks: Iterable[Clock]) -> Clock:
    """The highest of some clocks."""
    found = list(clocks)
    return None if not found or None in found else max(mhz for mhz in found if mhz is not None)


@dataclass
class _Ordered:
    clock: Clock
    seq: int
    at: float


@dataclass
class _Job:
    on: dict[str, Clock]
    """Node -> highest clock that it may have there, but for the order without an answer."""
    ordered: dict[str, _Ordered] = field(default_factory=dict)  # Node -> order without an answer.
    refused: str = ""  # Why its clock is not changed any more.


class JobClocks:
    """Clocks of the running jobs of ours."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def start(self, job_id: str, clock: Clock, nodes: Iterable[str]) -> None:
        """Add a job whose prologs set this clock, in place of what was known of it."""
        self._jobs[job_id] = _Job(dict.fromkeys(nodes, clock))

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all other jobs."""
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in job_ids}

    def heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Take a record of a node; only ``clock_set`` and ``clock_failed`` say something here."""
        job, node = self._jobs.get(job_id), detail.get("node")
        if job is None or not isinstance(node, str) or node not in job.on:
            return  # a node says nothing of jobs of other nodes
        seq, mhz = detail.get("seq"), detail.get("mhz")
        order = job.ordered.get(node)
        answers = order is not None and isinstance(seq, int) and seq >= order.seq
        if kind == "clock_set":
            job.on[node] = mhz if isinstance(mhz, int) and mhz > 0 else None
            if answers:
                del job.ordered[node]
        elif kind == "clock_failed" and detail.get("during") != "reset":
            why = str(detail.get("error") or detail.get("call") or "no reason was recorded")
            job.refused = job.refused or why  # the first one is the cause of the others
            if seq is None:
                job.on[node] = None  # the prolog could not lock it
            job.ordered.pop(node, None)

    def carried_out(self, node: str, seq: int) -> None:
        """Take a report of an agent: it has carried out the orders up to this number."""
        for job in self._jobs.values():
            order = job.ordered.get(node)
            if order is not None and order.seq <= seq:
                job.on[node] = order.clock
                del job.ordered[node]

    def order(self, job_id: str, node: str, clock: Clock, seq: int, at: float) -> None:
        """Note an order that was written for a node; the same one again changes nothing."""
        job = self._jobs[job_id]
        known = job.ordered.get(node)
        if known is not None and known.clock != clock:  # it may have been carried out
            job.on[node] = higher([job.on.get(node), known.clock])
        elif known is not None or job.on.get(node) == clock:
            return
        job.ordered[node] = _Ordered(clock, seq, at)

    def silent(self, now: float) -> dict[str, str]:
        """Job -> node whose agent has not answered in time; these jobs keep their clocks."""
        found = {}
        for job_id, job in self._jobs.items():
            late = [n for n, order in job.ordered.items() if now - order.at > ANSWER_S]
            if late and not job.refused:
                job.refused = f"the clock agent of {late[0]} does not answer"
                found[job_id] = late[0]
        return found

    def present(self, job_id: str) -> Clock:
        """The highest clock that a job may have on one of its nodes now."""
        job = self._jobs[job_id]
        orders = [order.clock for order in job.ordered.values()]
        return higher([*job.on.values(), *orders])

    def wanted(self, job_id: str) -> Clock:
        """The clock that is ordered, or else the present one."""
        orders = list(self._jobs[job_id].ordered.values())
        return orders[-1].clock if orders else self.present(job_id)

    def nodes(self, job_id: str) -> Collection[str]:
        """Nodes of a job."""
        return self._jobs[job_id].on.keys()

    def refused(self, job_id: str) -> str:
        """Why the clock of a job is not changed any more; empty: it may be."""
        return self._jobs[job_id].refused

    @property
    def awaited(self) -> bool:
        """Whether some order has no answer yet."""
        return any(job.ordered and not job.refused for job in self._jobs.values())


@dataclass(frozen=True)
class WantedClock:
    """The clock that a running job should have."""

    job_id: str
    number: int  # Slurm's number of the job.
    clock: Clock
    gpus: Mapping[str, tuple[int, ...]]  # Node -> Slurm's indices, ascending.
    power_limit_w: int | None = None
    """Power limit of each GPU, W; 0: the site's own; None: that of the job's start."""


class OrderedClocks:
    """Clocks of the running jobs of ours, and the way to change them.

    ``now``: Unix s; the clocks of nodes may differ from ours.
    """

    def __init__(self, folder: Path | None) -> None:
        """``folder``: that of the orders for clock agents; None: clocks of running jobs stay."""
        self.jobs = JobClocks()
        self._reports: Mapping[str, AgentReport] = {}
        """Node -> the newest report of its agent."""
        self._orders = None if folder is None else ClockOrders(folder)
        self._loaded = False

    @property
    def change(self) -> bool:
        """Whether clocks of running jobs can be changed."""
        return self._orders is not None

    def load(self, names: Mapping[int | None, str], now: float) -> None:
        """Take up once what a previous selector has ordered. ``names``: Slurm's number -> job."""
        if self._orders is None or self._loaded:
            return
        self._loaded = True
        self._orders.load()
        for node, (seq, orders) in self._orders.ordered().items():
            for order in orders:
                if (job_id := names.get(order.job)) is not None:
                    self.jobs.order(job_id, node, order.mhz or None, seq, now)

    def heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Take a record of a node: a clock that was set or refused."""
        if self._was_ordered(detail.get("node"), detail.get("seq")):
            self.jobs.heard(job_id, kind, detail)

    def reported(self, agents: Mapping[str, AgentReport]) -> None:
        """Take the newest reports of the clock agents."""
        self._reports = agents
        for node, report in agents.items():
            if self._was_ordered(node, report.seq):
                self.jobs.carried_out(node, report.seq)

    def _was_ordered(self, node: object, seq: object) -> bool:
        """Whether orders of this number were written; a node that names others says nothing."""
        newest = 0 if self._orders is None else self._orders.newest(node)
        return not isinstance(seq, int) or seq <= newest

    def can_change(self, job_id: str, now: float) -> bool:
        """Whether the agents of all nodes of a job obey orders, and none has refused one."""
        return (
            self._orders is not None
            and not self.jobs.refused(job_id)
            and self._orders.failed.keys().isdisjoint(nodes := self.jobs.nodes(job_id))
            and not any(self.why_not(node, now) for node in nodes)
        )

    def why_not(self, node: str, now: float) -> str:
        """Why the agent of a node does not obey orders now; empty: it does."""
        report = self._reports.get(node)
        if report is None or abs(now - report.at) > _HEARD_S:
            return f"its clock agent has said nothing for {_HEARD_S:.0f} s"
        return report.trouble

    def measured_w(self, nodes: Collection[str], width: int, now: float) -> list[float]:
        """Power of each GPU that the reports name, W. ``width``: most GPUs of a node."""
        return [
            power_w
            for node, report in self._reports.items()
            if node in nodes and abs(now - report.at) <= _HEARD_S
            for gpu, power_w in report.power_w.items()
            if gpu < width
        ]

    def order(self, wanted: Iterable[WantedClock], now: float) -> None:
        """Write the orders for all jobs whose clock may be chosen."""
        if self._orders is None:
            return
        orders: dict[str, list[Order]] = {}
        clocks: list[tuple[str, str, Clock]] = []
        for one in wanted:
            for node, slots in one.gpus.items():
                order = Order(one.number, one.clock or 0, slots, one.power_limit_w)
                orders.setdefault(node, []).append(order)
                clocks.append((one.job_id, node, one.clock))
        written = self._orders.write(orders, now)
        for job_id, node, clock in clocks:
            if node in written:
                self.jobs.order(job_id, node, clock, written[node], now)

    def troubles(self, nodes: Collection[str], now: float) -> dict[str, str]:
        """Node -> why its agent obeys no orders, or has none: of ``nodes`` those that say so
        themselves, of those for which there are orders the silent ones, too."""
        told = {n: one.trouble for n, one in self._reports.items() if one.trouble and n in nodes}
        if self._orders is None:
            return told
        asked = [node for node, (_, some) in self._orders.ordered().items() if some]
        silent = {n: why for n in asked if n not in told and (why := self.why_not(n, now))}
        return told | silent | self._orders.failed
