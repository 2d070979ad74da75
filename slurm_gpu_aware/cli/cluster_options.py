"""Cluster of options: the store's profiled nodes, with GPUs in use."""

import re
from collections.abc import Collection, Iterable
from dataclasses import replace

from slurm_gpu_aware.admission.profile_arrays import profiled_cluster
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, NODE_NAME, quoted
from slurm_gpu_aware.cli.output import paragraph, say, some
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import RequestError, SourceError
from slurm_gpu_aware.features.power.power_limit import parse_until
from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.penalties import NETWORK_LEVELS
from slurm_gpu_aware.model.profile import Profile, gpu_names, seen_only
from slurm_gpu_aware.store.database import open_for_reading
from slurm_gpu_aware.store.profiles import load_profile

_BUSY = re.compile(rf"({NODE_NAME}):([0-9]{{1,4}}(?:,[0-9]{{1,4}})*)(?:@(.+))?\Z")


def stored_cluster(config: Config) -> tuple[Cluster, Profile]:
    """The profiled nodes, all idle, with the network levels that the configuration uses.

    GPUs that no sweep has seen are left out with a message. Raises RequestError if none is left.
    """
    with open_for_reading(config.store) as store:
        profile, left_out = seen_only(load_profile(store))
    if left_out:
        say(paragraph(f"Left out, because no sweep has seen them: {gpu_names(left_out)}."))
    if not profile.gpus:
        raise RequestError(
            "the store has no GPUs; run 'gpu-aware-profile sweep', or give --machine"
        )
    for node, slot in profile.gpus:
        if slot >= MAX_GPUS_PER_NODE:
            gpu, most = f"{node}:{slot}", MAX_GPUS_PER_NODE - 1
            raise RequestError(
                f"the store has GPU {gpu}, but the largest index is {most}: remove it with"
                f" 'gpu-aware-profile forget {gpu}'"
            )
    penalties = config.placement.penalties_with(profile.level_ratios)
    network = _network_groups(config, penalties.general)
    return profiled_cluster(profile, penalties, network), profile


def _network_groups(config: Config, used: Collection[str]) -> dict[str, dict[str, str]]:
    """Level -> node -> group of Slurm's network; empty if ``used`` needs none, or none is known."""
    wanted = [name for name in NETWORK_LEVELS if name in used]
    if not wanted:
        return {}
    from slurm_gpu_aware.slurm.client import open_client
    from slurm_gpu_aware.slurm.topology import network_groups

    try:
        client = open_client(config.selector.command_timeout_s)
        groups = network_groups(client.topology(), NETWORK_LEVELS)
    except SourceError as exc:
        say(paragraph(f"The levels of the network are left out: {exc}."))
        return {}
    if lacking := [name for name in wanted if name not in groups]:
        say(f"Slurm's topology has no level {', '.join(lacking)}; placement ignores it.")
    return groups


def mark_busy(cluster: Cluster, busy: Iterable[str], now: float) -> Cluster:
    """The cluster with the GPUs ``n1:0,3`` in use, or ``n1:0,3@90m``: by a job that ends then.

    Raises RequestError for unknown GPUs and times. ``now``: Unix time.
    """
    taken, running = cluster.copy(), []
    for text in busy:
        if (match := _BUSY.match(text)) is None:
            raise RequestError(
                f"{quoted(text)} does not name GPUs; expected NODE:0,3 or NODE:0,3@END"
            )
        name, slots = match[1], [int(s) for s in match[2].split(",")]
        if name not in cluster.nodes:
            raise RequestError(f"no node {name!r}; known: {some(cluster.nodes, 10)}")
        row = cluster.nodes.index(name)
        there = [s for s in range(cluster.shape[1]) if cluster.exists[row, s]]
        if wrong := [s for s in slots if s not in there]:
            raise RequestError(f"{name} has no GPU {wrong[0]}; it has {', '.join(map(str, there))}")
        held = tuple(s for s in dict.fromkeys(slots) if taken.free[row, s])
        taken.take(row, held)
        if match[3] is not None and held:
            running.append(RunningJob(text, ((row, held),), _end(match[3], now), start_s=now))
    return replace(taken, running=tuple(running))


def _end(text: str, now: float) -> float:
    try:
        return parse_until(text, now)
    except ValueError as exc:
        raise RequestError(f"--busy: {exc}") from None
