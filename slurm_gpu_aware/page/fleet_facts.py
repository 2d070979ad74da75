"""Facts of the fleet: racks, nodes and GPUs with their use, scores and health."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from slurm_gpu_aware.bounds import is_node_name
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.profile import Gpu, GpuRecord, GpuScore, Profile
from slurm_gpu_aware.model.profile import Link as HardwareLink
from slurm_gpu_aware.page.blocks import BUSY, DRAINED, FREE, UNKNOWN, Mark
from slurm_gpu_aware.page.sections import Source
from slurm_gpu_aware.slurm.records import HOLDING, SlurmJob, SlurmNode, SlurmSwitch
from slurm_gpu_aware.slurm.topology import places
from slurm_gpu_aware.slurm.words import by_number
from slurm_gpu_aware.store.profiles import alarms, load_profile
from slurm_gpu_aware.store.watch_state import FILE, ILL, GpuState, WatchState, read_state
from slurm_gpu_aware.time_text import duration

MOST_NODES, MOST_RACKS = 100, 200
"""Nodes of a page of a rack, and racks. Beyond these, groups of nodes take their place."""
_SLOW = 1.0
_WATCHES_S = 3 * 86_400.0  # What watch found longer ago is no fact any more: it has been stopped.
CLOSED = frozenset({"DRAIN", "DOWN", "FAIL", "MAINT", "NOT_RESPONDING", "POWERED_DOWN", "ERROR"})
"""States of a node that takes no jobs."""


@dataclass(frozen=True)
class GpuFacts:
    """One GPU."""

    mark: Mark
    scores: Mapping[str, GpuScore] = field(default_factory=dict)  # Class -> score.
    jobs: Sequence[str] = ()
    slow: Sequence[str] = ()  # Why it counts as slow.
    ill: Sequence[str] = ()  # What its newest probe, or watch, found wrong.
    record: GpuRecord | None = None

    @property
    def worst(self) -> float | None:
        """Its highest score; None: not measured."""
        return max((score.raw for score in self.scores.values()), default=None)


@dataclass(frozen=True)
class NodeFacts:
    """One node."""

    name: str
    rack: str
    gpus: Sequence[GpuFacts]
    states: str | None = None  # Slurm's words; None: Slurm does not know it, or does not answer.
    reason: str = ""
    taken_at: float | None = None  # Newest measurement, Unix time.
    faults: Sequence[str] = ()  # Faults of the node itself.
    graph: HardwareGraph | None = None

    @property
    def path(self) -> str:
        """Its page."""
        return f"nodes/{self.name}.html"


@dataclass(frozen=True)
class Rack:
    """Nodes that are shown on one page."""

    number: int
    name: str
    nodes: Sequence[NodeFacts]

    @property
    def path(self) -> str:
        """Its page."""
        return f"racks/{self.number}.html"


@dataclass(frozen=True)
class Fleet:
    """All of it."""

    racks: Sequence[Rack]
    racks_from: str  # Where the racks come from, a sentence without a full stop.
    classes: Sequence[str]
    now: float
    explained: Mapping[str, str]  # Job -> path of its page.
    watched: str  # When watch last passed, or why that is not known.

    @property
    def nodes(self) -> list[NodeFacts]:
        """All nodes."""
        return [node for rack in self.racks for node in rack.nodes]


def read_fleet(source: Source) -> Fleet:
    """Read the store, and what watch found. Raises StoreError."""
    watch, watched = WatchState(), "never"
    try:
        watch = read_state(source.config.store.path.with_name(FILE)) or watch
    except SourceError as exc:
        watched = f"not known: {exc}"
    if watch.at:
        watched = f"{duration(source.now - watch.at)} ago"
    profile, scores = load_profile(source.store), source.scores
    known = {(alarm.node, alarm.slot, alarm.app_class): alarm for alarm in alarms(source.store)}
    slow: dict[Gpu, list[str]] = {}
    for (node, slot, name), alarm in known.items():
        text = f"class {name}: score {alarm.now:.3f}, before {alarm.before:.3f}"
        slow.setdefault((node, slot), []).append(text)
    for one in scores:
        if one.outlier and one.raw > _SLOW and (one.node, one.slot, one.app_class) not in known:
            text = f"class {one.app_class}: {one.raw - 1:.1%} slower than the median, an outlier"
            slow.setdefault((one.node, one.slot), []).append(text)
    bad = watch.bad() if source.now - watch.at < _WATCHES_S else ()
    nodes = fleet_nodes(source.nodes or (), source.jobs, profile, scores, slow, bad)
    racks, how = grouped(nodes, source.switches)
    classes = list(dict.fromkeys(score.app_class for score in scores))
    return Fleet(racks, how, classes, source.now, source.explained, watched)


def fleet_nodes(
    nodes: Iterable[SlurmNode],
    jobs: Iterable[SlurmJob],
    profile: Profile,
    scores: Iterable[GpuScore],
    slow: Mapping[Gpu, Sequence[str]],
    bad: Iterable[GpuState] = (),
) -> list[NodeFacts]:
    """The nodes with GPUs that Slurm or the store knows, by name; ``bad``: what watch found."""
    watched = {(one.node, one.gpu): one for one in bad}
    by_gpu: dict[Gpu, dict[str, GpuScore]] = {}
    for score in scores:
        by_gpu.setdefault((score.node, score.slot), {})[score.app_class] = score
    slots_of: dict[str, set[int]] = {}
    for owner, slot in profile.gpus:
        slots_of.setdefault(owner, set()).add(slot)
    in_slurm = {node.name: node for node in nodes if node.gpus}
    holders = _holders(jobs)
    found = []
    for name in sorted({*slots_of, *in_slurm}, key=by_number):
        if not is_node_name(name):
            continue
        node = in_slurm.get(name)
        count = sum(number for _, number in node.gpus) if node is not None else 0
        slots = sorted(slots_of.get(name, set()) | set(range(count)))
        faults = profile.faults.get(name, ())
        gpus = []
        for slot in slots:
            gpu = (name, slot)
            ill = [f"{fault.call}: {fault.error}" for fault in faults if fault.slot == slot]
            record = profile.gpus.get(gpu)
            if record is not None and record.ecc_uncorrected:
                ill.append(f"{record.ecc_uncorrected} uncorrected memory errors")
            if gpu in profile.unseen:
                ill.append("no probe has seen it")
            why = list(slow.get(gpu, ()))
            if (seen := watched.get(gpu)) is not None:
                (ill if seen.state == ILL else why).append(f"watch: {seen.why}")
            mark = Mark(slot, _use(node, slot), bool(why), bool(ill))
            own = by_gpu.get(gpu, {})
            gpus.append(GpuFacts(mark, own, holders.get(gpu, ()), why, ill, record))
        found.append(
            NodeFacts(
                name,
                "",
                gpus,
                "+".join(sorted(node.states)) if node is not None else None,
                node.reason if node is not None else "",
                profile.taken_at.get(name),
                [f"{fault.call}: {fault.error}" for fault in faults if fault.slot is None],
                _graph(name, slots, profile),
            )
        )
    return found


def _graph(node: str, slots: Sequence[int], profile: Profile) -> HardwareGraph | None:
    """The links of a node, with the GPUs of a socket beside each other; None: not known."""
    links = profile.links.get(node)
    if not links or not slots:
        return None
    records = (profile.gpus.get((node, slot)) for slot in range(1 + max(slots)))
    sockets = [(record.numa or 0) if record is not None else 0 for record in records]
    return _graph_of(links, tuple(sockets))


@lru_cache(maxsize=256)  # nodes are alike
def _graph_of(links: tuple[HardwareLink, ...], sockets: tuple[int, ...]) -> HardwareGraph | None:
    try:
        return HardwareGraph.from_links(links, n=len(sockets), groups=sockets)
    except ValueError:  # of a GPU that the store no longer has
        return None


def _holders(jobs: Iterable[SlurmJob]) -> dict[Gpu, list[str]]:
    """GPU -> jobs that hold it, or a part of it."""
    found: dict[Gpu, list[str]] = {}
    for job in jobs:
        if job.state in HOLDING:
            for share in job.shares:
                for slot in share.slots:
                    found.setdefault((share.node, slot), []).append(job.id)
    return found


def _use(node: SlurmNode | None, slot: int) -> str:
    if node is None:
        return UNKNOWN
    if slot in node.taken:
        return BUSY
    closed = slot in node.gpus_drained or bool(node.states & CLOSED)
    return DRAINED if closed else FREE


def grouped(nodes: Sequence[NodeFacts], switches: Sequence[SlurmSwitch]) -> tuple[list[Rack], str]:
    """Racks of at most `MOST_NODES` nodes, at most `MOST_RACKS`; and where they come from."""
    where, how = places((node.name for node in nodes), switches)
    by_rack: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        by_rack.setdefault(where[node.name].rack, []).append(node)
    if len(by_rack) > MOST_RACKS:
        size = max(MOST_NODES, -(-len(nodes) // MOST_RACKS))
        how = f"there are more than {MOST_RACKS} racks, so these are groups in the order of names"
        by_rack = {}
        for k in range(0, len(nodes), size):
            part = nodes[k : k + size]
            by_rack[f"{part[0].name} to {part[-1].name}"] = list(part)
    racks: list[Rack] = []
    for name in sorted(by_rack, key=by_number):
        own = by_rack[name]
        for k in range(0, len(own), MOST_NODES):
            part = own[k : k + MOST_NODES]
            some = f"{name}, {part[0].name} to {part[-1].name}" if len(own) > MOST_NODES else name
            racks.append(Rack(len(racks) + 1, some, part))
    return racks, how
