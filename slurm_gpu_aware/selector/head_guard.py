"""Guard of the head: short reservations of what is kept for the first job that waits.

Some jobs cannot wait at the gate (`selector.passers`). Slurm starts none at its submission while a
job of higher priority waits, but soon after, as soon as GPUs are free. So while such a job is
pending or soon due, there is a reservation on each node of the head. A core keeps jobs of whole
nodes off. Against others it holds the head's number of GPUs, also those that running jobs still
use, and as many cores. Before the next round has made it, Slurm may give such a job what is free;
those that the filter sees begin some seconds later while a job waits (`HeadGuard.keep`). Slurm
26.05 refuses to reserve GPUs and cores that are in use (`_shares`).

Jobs without GPUs start at their submission. While nothing but such jobs holds up the head
(`Waiting.held_up`), its GPUs and CPUs are held, so that no more of them come.

A job that waits at no gate and has a higher priority than the head starts before it: nodes that it
needs are not held against it (`passers.outside`).

- When a job has been released to a node, its reservation gives way, but for a core if the job
  leaves one. Slurm then tries jobs in their order; before, it would start there what the
  reservation has kept off.
- Another share of a node is held before the former one goes: Slurm starts jobs within milliseconds.
- Each ends with the gate's lease: a dead selector leaves none behind.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.filter_rules import HEAD, guards_head
from slurm_gpu_aware.gate.licence_gate import defer_until
from slurm_gpu_aware.planning.plan import Guarded
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmReservation
from slurm_gpu_aware.slurm.updates import NewReservation

log = logging.getLogger(__name__)

_NAMES = f"{HEAD}_", f"{HEAD}__"  # of a node's reservation, and of one that takes its place
_MOST = 64  # nodes with a reservation; 5 ms each
_BUSY = "Requested nodes are busy"
_AGAIN_S = 10.0  # pause of a node for which Slurm refused a reservation, as of one that ends there


class _Share(NamedTuple):
    gpus: int
    cpus: int


class _Held(NamedTuple):
    share: _Share | None  # None: the whole node.
    end_s: float
    name: str


@dataclass
class HeadGuard:
    """The reservations that there are."""

    client: SlurmClient
    enabled: bool = True
    timer: Callable[[], float] = time.monotonic
    waiting_file: Path | None = None
    cores: Set[str] = frozenset()
    """Nodes of which jobs that start leave a core (`planning.guard.cores_left`)."""
    _told: bool | None = True
    """Whether that file says that a job waits; None: it cannot be written."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _doubled: set[str] = field(default_factory=set)
    """Names of those beside one that is known, as a selector left them that ended meanwhile."""
    _refused: dict[str, float] = field(default_factory=dict)
    """Node -> when Slurm refused one, in seconds of the timer."""
    _busy: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Node -> (how many of its `_shares` Slurm refused as they are in use, when the last one)."""

    def take_over(self, reservations: Iterable[SlurmReservation]) -> None:
        """Note those that Slurm has, also of an earlier selector."""
        before, self._held = self._held, {}
        for one in reservations:
            for node in one.nodes if guards_head(one.name) else ():
                share, known = _share_of(one), before.get(node)
                if known is not None and known.name == one.name:
                    share = known.share  # Slurm shows the CPUs of whole cores, and GPUs only if any
                held = _Held(share, one.end_s, one.name)
                if (other := self._held.get(node)) is not None:
                    if node in before and other.name == before[node].name:
                        held, other = other, held
                    self._doubled.add(other.name)
                self._held[node] = held

    def open(self, nodes: Iterable[str]) -> None:
        """Give nodes free to which jobs have been released, but a core where they leave one."""
        held = {node: self._held[node].end_s for node in nodes if node in self._held}
        for node, end_s in held.items():
            if node not in self.cores or self._hold_one(node, [_Share(0, 1)], end_s):
                self.drop([node])

    def drop(self, nodes: Iterable[str]) -> None:
        """Remove the reservations of nodes."""
        for node in [node for node in nodes if node in self._held]:
            if self._delete(self._held[node].name):
                del self._held[node]

    def _delete(self, name: str) -> bool:
        try:
            self.client.delete_reservation(name)
        except SourceError as exc:
            log.warning("reservation %s is not removed: %s", name, exc)
            return False
        return True

    def keep(self, kept: Mapping[str, Guarded], until_s: float, *, waits: bool = False) -> None:
        """Hold what a round keeps for the head, until a time.

        ``kept``: by node. ``until_s``: end of the gate's lease, Unix seconds. ``waits``: whether a
        job waits, so that the filter defers those that Slurm starts at their submission.
        """
        self._tell(until_s if waits else 0.0)
        now = self.timer()
        busy = self._busy.items()
        self._busy = {i: one for i, one in busy if i in kept and now - one[1] < _AGAIN_S}
        tried = {node: self._busy.get(node, (0, now))[0] for node in kept}
        shares = {node: _shares(guarded, tried[node]) for node, guarded in kept.items()}
        wanted = {node: left for node, left in shares.items() if left}
        self.drop([node for node in self._held if node not in wanted])
        self._doubled = {name for name in self._doubled if not self._delete(name)}
        self._refused = {node: at for node, at in self._refused.items() if now - at < _AGAIN_S}
        accepted = [node for node in wanted if self.enabled and node not in self._refused]
        for node in accepted[:_MOST]:
            if not (why := self._hold_one(node, wanted[node], until_s)):
                continue
            self._refused[node] = now
            if node in self._held and _exceeds(self._held[node].share, wanted[node][0]):
                self.drop([node])
            log.info("%s, for which the first job waits, is not guarded: %s", node, why)

    def _hold_one(self, node: str, shares: Sequence[_Share | None], until_s: float) -> str:
        """Hold the first of some shares that Slurm reserves; return why it refuses them, or ""."""
        for share in shares:
            try:
                self._hold(node, share, until_s)
                return ""
            except SourceError as exc:
                last = share is shares[-1] and (share is None or not share.gpus)
                if _BUSY not in str(exc) or last:
                    return str(exc)
                self._busy[node] = self._busy.get(node, (0, 0.0))[0] + 1, self.timer()
        return ""  # no GPU is free there

    def _tell(self, until_s: float) -> None:
        if self.waiting_file is None or not (self.enabled and (until_s or self._told)):
            return
        try:
            defer_until(self.waiting_file, until_s)
            self._told = until_s > 0.0
        except OSError as exc:
            if self._told is not None:
                log.warning("Slurm starts jobs of whole nodes before GPUs are guarded: %s", exc)
            self._told = None

    def _hold(self, node: str, share: _Share | None, until_s: float) -> None:
        """Make a reservation, or put its end off. Raises SourceError."""
        held = self._held.get(node)
        if held is not None and held.share == share:
            if held.end_s < until_s and self.client.move_reservation(held.name, until_s):
                self._held[node] = held._replace(end_s=until_s)
            return
        name, flags = _NAMES[0] + node, {"IGNORE_JOBS", "PURGE_COMP"}
        if held is not None:
            name = _NAMES[held.name == name] + node
            flags.add("OVERLAP")
        wanted = NewReservation(
            name,
            until_s,
            nodes=node,
            # With CPUs: else Slurm takes more cores, and refuses a node without free ones.
            tres="" if share is None else _tres(share),
            flags=frozenset(flags),
        )
        self.client.create_reservation(wanted)
        self._held[node] = _Held(share, until_s, name)
        if held is not None and not self._delete(held.name):
            self._doubled.add(held.name)


def _shares(guarded: Guarded, tried: int) -> Sequence[_Share | None]:
    """What to hold of a node, the first that Slurm reserves. Slurm 26.05 refuses GPUs and cores
    that are in use, as it did ``tried`` shares: then only the free GPUs, or the whole node, also
    where a core is enough."""
    gpus, free, every, cpus = guarded
    if cpus is None:
        return [None]
    if not gpus and cpus != 1:
        return [_Share(0, cpus)] if cpus else []
    shares: list[_Share | None] = [_Share(gpus, max(gpus, cpus))]
    if every or not gpus or cpus > free:
        shares.append(None)
    elif free:
        shares += [_Share(free, max(free, cpus)), None]
    return shares[min(tried, len(shares) - 1) :] if shares[-1] is None else shares[tried:]


def _tres(share: _Share) -> str:
    return f"gres/gpu={share.gpus},cpu={share.cpus}" if share.gpus else f"cpu={share.cpus}"


def _exceeds(held: _Share | None, wanted: _Share | None) -> bool:
    """Whether it keeps more of a node than the head needs; None: the whole node."""
    if held is None or wanted is None:
        return wanted is not None
    return held.gpus > wanted.gpus or held.cpus > wanted.cpus


def _share_of(reservation: SlurmReservation) -> _Share | None:
    """What it holds of its node; None: all, which Slurm shows without a number of GPUs."""
    return None if reservation.gpus is None else _Share(reservation.gpus, reservation.cpus or 0)
