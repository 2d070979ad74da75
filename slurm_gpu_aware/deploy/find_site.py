"""Site for setup: its files on this host, and its nodes in the profile."""

from __future__ import annotations

from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.conf_nodes import conf_nodes
from slurm_gpu_aware.deploy.install import OWN_FILTER, Site
from slurm_gpu_aware.deploy.render import NodeGpus, usable_model
from slurm_gpu_aware.errors import StoreError
from slurm_gpu_aware.model.profile import gpu_names, seen_only
from slurm_gpu_aware.slurm.conffile import SlurmConf, read_conf
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile

__all__ = ["find_site", "profiled_nodes"]


def find_site(config: Config, slurm_dir: Path, unit_dir: Path) -> tuple[Site, str]:
    """The site, and a note on its profile (empty: none). Raises SourceError."""
    conf_file = slurm_dir / "slurm.conf"
    conf = read_conf(conf_file) if conf_file.exists() else SlurmConf()
    nodes, note = profiled_nodes(config, conf)
    site = Site(
        config=config,
        nodes=nodes,
        slurm_dir=slurm_dir,
        conf=conf,
        conf_text=_text(conf_file),
        gres_text=_text(slurm_dir / "gres.conf") or "",
        filter_text=_text(slurm_dir / OWN_FILTER),
        unit_dir=unit_dir,
    )
    return site, note


def profiled_nodes(config: Config, conf: SlurmConf) -> tuple[tuple[NodeGpus, ...], str]:
    """Nodes of the profile (none without a store), and a note on it (empty: none)."""
    try:
        with open_store(config.store.path, readonly=True) as store:
            profile, left_out = seen_only(load_profile(store))
    except StoreError as exc:
        return (), f"no profile: {exc}."
    note = ""
    if left_out:
        note = (
            f"note: left out, because no sweep has seen them: {gpu_names(left_out)}. Sweep"
            " these nodes, or remove absent GPUs with 'gpu-aware-profile forget'."
        )
    known = conf_nodes(conf)
    nodes = []
    for name in sorted({node for node, _ in profile.gpus}):
        slots = sorted(slot for node, slot in profile.gpus if node == name)
        records = [profile.gpus[name, slot] for slot in slots]
        models = {usable_model(r.model) for r in records}
        there = known.get(name)
        nodes.append(
            NodeGpus(
                name=name,
                indices=tuple(slots),
                model=models.pop() if len(models) == 1 else None,
                numa=tuple(r.numa for r in records),
                sockets=there.sockets if there else 0,
                cores_per_socket=there.cores_per_socket if there else 0,
            )
        )
    return tuple(nodes), note


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
