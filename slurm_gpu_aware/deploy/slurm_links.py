"""Check of doctor: nodes on which Slurm's own choice of GPUs misses NVLinks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, ok, warning
from slurm_gpu_aware.deploy.site_scripts import read_script
from slurm_gpu_aware.model.hardware_graph import direct_links
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.names import slot_of
from slurm_gpu_aware.slurm.words import hostlist

_KNOWN = re.compile(r"^[^#\n]*\b(?:autodetect\s*=\s*(?:nvml|full)\b|links\s*=)", re.I | re.M)
"""Lines of gres.conf by which slurmctld gets to know links."""
_PAGE = "docs/internals/slurm-links.md"


def slurm_links(g: DoctorContext) -> Iterator[Check]:
    """Where slurmctld knows links, ``--gres=gpu:2`` gets the pair with the fewest of them."""
    conf = g.folder / "gres.conf"
    text = read_script(conf)
    if text is not None and not _KNOWN.search(text):
        yield ok("links", f"{conf} names no links: Slurm gives the lowest indices")
        return
    uneven = nodes_with_unequal_pairs(g.profile)
    by_slurm = g.config.placement.gpus == "nodes"
    plain = [n.name for n in g.nodes if by_slurm or any(slot_of(k) is None for k, _ in n.gpus)]
    left = sorted(uneven & set(plain))
    if left:
        cure = f"let us choose the GPUs (setup --roll), or let users ask by --gpus; {_PAGE}"
        found = f"Slurm gives --gres=gpu:2 pairs with fewer NVLinks than others on {hostlist(left)}"
        yield warning("links", found, cure)
        return
    exact = sorted(uneven & {n.name for n in g.nodes})
    if exact:
        yield ok(
            "links", f"exact GPUs on {hostlist(exact)}; Slurm would give pairs with few NVLinks"
        )
        return
    yield ok("links", "on no node does Slurm's choice among links matter")


def nodes_with_unequal_pairs(profile: Profile) -> frozenset[str]:
    """Nodes of which some GPUs beside the same CPUs have more NVLinks to each other than others."""
    groups: dict[str, dict[str | None, list[int]]] = {}
    for (node, slot), record in profile.gpus.items():
        groups.setdefault(node, {}).setdefault(record.cpus, []).append(slot)
    return frozenset(
        node
        for node, beside in groups.items()
        if _unequal(
            {(k.a, k.b): k.link_class for k in profile.links.get(node, ())}, list(beside.values())
        )
    )


def _unequal(words: Mapping[tuple[int, int], str], groups: Sequence[Sequence[int]]) -> bool:
    """Whether NVLinks of pairs differ within a group. slurmd counts no links of other makers."""
    for slots in groups:
        pairs = [words.get(pair, "SYS") for pair in combinations(sorted(slots), 2)]
        if len({direct_links(word) if word.startswith("NV") else 0 for word in pairs}) > 1:
            return True
    return False
