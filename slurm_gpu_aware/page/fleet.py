"""Section on the fleet: pages of all racks, of a rack, and of a node."""

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_gpu_aware.page.blocks import (
    USES,
    Block,
    Key,
    Link,
    Marks,
    Page,
    Pairs,
    Sentences,
    Shares,
    Side,
    Table,
)
from slurm_gpu_aware.page.drawing import node_drawings
from slurm_gpu_aware.page.fleet_facts import CLOSED, Fleet, GpuFacts, NodeFacts, Rack, read_fleet
from slurm_gpu_aware.page.sections import Section
from slurm_gpu_aware.time_text import duration, stamp

MOST_SLOW = 20
_MOST_CLASSES = 6  # Drawings of a node.
_SCORE = "Score: time of a GPU over that of the median GPU of its model; 1.1 is 10% slower."
_MOST_JOBS = 8  # Jobs that are named at a GPU.


def fleet_blocks(fleet: Fleet) -> list[Block]:
    """The racks and the slowest GPUs."""
    nodes = fleet.nodes
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if not gpus:
        return [Sentences(["Neither Slurm nor the store knows a node with GPUs."])]
    times = [node.taken_at for node in nodes if node.taken_at is not None]
    newest = f"{duration(fleet.now - max(times))} ago" if times else "never"
    oldest = f"; oldest node {duration(fleet.now - min(times))} ago" if len(times) > 1 else ""
    closed = sum(bool(set((node.states or "").split("+")) & CLOSED) for node in nodes)
    entries: list[tuple[str, object]] = [
        ("nodes", f"{len(nodes)}; that take no jobs: {closed}" if closed else len(nodes)),
        ("GPUs", f"{len(gpus)}: {_shares(gpus)}"),
        ("slow", _number((gpu.mark.slow for gpu in gpus), known=_measured(gpus))),
        ("ill", _number((gpu.mark.ill for gpu in gpus), known=bool(times))),
        ("not measured", _number(not gpu.scores for gpu in gpus)),
        ("measured", newest + oldest),
        ("watched", fleet.watched),
    ]
    blocks: list[Block] = [Pairs(entries, "GPUs")]
    rows = [_rack_row(fleet, rack) for rack in fleet.racks]
    headers = ["rack", "nodes", "GPUs", "use", "slow", "ill", "worst score"]
    right = ["nodes", "GPUs", "slow", "ill", "worst score"]
    about = f"{fleet.racks_from[0].upper()}{fleet.racks_from[1:]}. {_SCORE}"
    blocks += [Key(), Table(headers, rows, right, "Racks", about), _slowest(fleet)]
    return blocks


def _number(found: Iterable[bool], *, known: bool = True) -> str:
    return str(sum(found) or ("none" if known else "not known"))


def _measured(gpus: Iterable[GpuFacts]) -> bool:
    return any(gpu.scores for gpu in gpus)


def _shares(gpus: Iterable[GpuFacts]) -> Shares:
    uses = Counter(gpu.mark.use for gpu in gpus)
    return Shares([(use, uses[use]) for use in USES])


def _rack_row(fleet: Fleet, rack: Rack) -> list[object]:
    gpus = [gpu for node in rack.nodes for gpu in node.gpus]
    slow, ill = sum(gpu.mark.slow for gpu in gpus), sum(gpu.mark.ill for gpu in gpus)
    worst = max((gpu.worst for gpu in gpus if gpu.worst is not None), default=None)
    return [
        Link(rack.name, rack.path),
        len(rack.nodes),
        len(gpus),
        _shares(gpus),
        slow or None,
        ill or None,
        None if worst is None else f"{worst:.3f}",
    ]


def _slowest(fleet: Fleet) -> Block:
    """GPUs that count as slow or ill, then those with the highest scores."""
    title = "Slowest and ill GPUs"
    named = [(node, gpu) for node in fleet.nodes for gpu in node.gpus]
    found = [(n, gpu) for n, gpu in named if gpu.mark.health or (gpu.worst or 0.0) > 1.0]
    if not found:
        said = "No GPU is slower than the median of its model, or ill."
        if not _measured(gpu for _, gpu in named):
            said = "No GPU is known to be ill; how fast they are is not measured."
        return Sentences([said], title)
    found.sort(key=lambda one: (not one[1].mark.health, -(one[1].worst or 0.0)))
    rows = [
        (
            Link(f"{node.name}:{gpu.mark.slot}", node.path),
            gpu.mark.use,
            None if gpu.worst is None else f"{gpu.worst:.3f}",
            "; ".join([*gpu.ill, *gpu.slow]) or _slower(gpu),
        )
        for node, gpu in found[:MOST_SLOW]
    ]
    more = sum(bool(gpu.mark.health) for _, gpu in named) - MOST_SLOW
    told = f"... and {more} more slow or ill ones, on the pages of the racks" if more > 0 else ""
    headers = ["GPU", "use", "score", "what is known"]
    return Table(headers, rows, ["score"], title, told)


def _slower(gpu: GpuFacts) -> str:
    worst = max(gpu.scores.values(), key=lambda score: score.raw)
    return f"class {worst.app_class}: {worst.raw - 1:.1%} slower than the median"


def fleet_pages(fleet: Fleet) -> Iterable[Page]:
    """A page of each rack and of each node."""
    top = Link("Fleet", "index.html")
    for rack in fleet.racks:
        headers = ["node", "state", "GPUs", *(f"worst {name}" for name in fleet.classes), "reason"]
        rows = [_node_row(fleet, node) for node in rack.nodes]
        table = Table(headers, rows, headers[3:-1])
        yield Page(rack.path, f"Rack {rack.name}", [Key(), table], "index", [top])
        above = [top, Link(f"Rack {rack.name}", rack.path)]
        for node in rack.nodes:
            yield Page(node.path, node.name, node_blocks(fleet, node), "index", above)


def _node_row(fleet: Fleet, node: NodeFacts) -> list[object]:
    worst = [
        max((gpu.scores[name].raw for gpu in node.gpus if name in gpu.scores), default=None)
        for name in fleet.classes
    ]
    return [
        Link(node.name, node.path),
        node.states,
        Marks([gpu.mark for gpu in node.gpus]),
        *(None if score is None else f"{score:.3f}" for score in worst),
        node.reason,
    ]


def node_blocks(fleet: Fleet, node: NodeFacts) -> list[Block]:
    """A node with its links, drawn for each class, and its GPUs."""
    measured = "never" if node.taken_at is None else stamp(node.taken_at)
    models = sorted({gpu.record.model for gpu in node.gpus if gpu.record and gpu.record.model})
    entries: list[tuple[str, object]] = [
        ("state", node.states or "not known"),
        ("reason", node.reason),
        ("model", ", ".join(models)),
        ("measured", measured),
        ("faults", "; ".join(node.faults)),
    ]
    blocks: list[Block] = [Pairs([(name, value) for name, value in entries if value])]
    names = [name for name in fleet.classes if any(name in gpu.scores for gpu in node.gpus)]
    drawn = names[:_MOST_CLASSES]
    drawings = node_drawings(
        [f"Class {name}" for name in drawn] or ["Not measured"],
        [[(gpu.mark, _score(gpu, name)) for gpu in node.gpus] for name in drawn or [""]],
        node.graph,
    )
    blocks.append(
        Side(drawings, "Links and scores") if node.gpus else Sentences(["It has no GPU."])
    )
    if node.graph is None and len(node.gpus) > 1:
        note = "The links are not known: 'gpu-aware-profile sweep' reads them."
        blocks.append(Sentences([note], note=True))
    headers = ["GPU", "use", "job", *(f"score {name}" for name in names), "what is known"]
    rows = [_gpu_row(fleet, gpu, names) for gpu in node.gpus]
    blocks.append(Table(headers, rows, headers[3:-1], "GPUs", _SCORE))
    return blocks


def _score(gpu: GpuFacts, name: str) -> str:
    return f"{gpu.scores[name].raw:.3f}" if name in gpu.scores else "-"


def _gpu_row(fleet: Fleet, gpu: GpuFacts, names: Sequence[str]) -> list[object]:
    job: object = ", ".join(gpu.jobs[:_MOST_JOBS])
    if len(gpu.jobs) == 1 and gpu.jobs[0] in fleet.explained:
        job = Link(gpu.jobs[0], fleet.explained[gpu.jobs[0]])
    scores = [_score(gpu, name) for name in names]
    return [gpu.mark.slot, gpu.mark.use, job, *scores, "; ".join([*gpu.ill, *gpu.slow])]


FLEET = Section("index", "Fleet", read_fleet, fleet_blocks, fleet_pages)
