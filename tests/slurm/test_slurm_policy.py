"""Policy ``slurm`` against slurmctld: the same nodes and GPUs, in random states."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cluster import Cluster as Site
from make import job_request

from slurm_gpu_aware.model.cluster import Cluster, Sockets
from slurm_gpu_aware.model.hardware_graph import HardwareGraph
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policies.slurm import Slurm, SlurmOptions

DRIVER = Path(__file__).with_name("slurm_choices_driver.py")
STATES = 1000 if os.environ.get("GPU_AWARE_REQUESTS") == "all" else 120
SEED = 37
RELEASES = {"trixie": "24.11", "sid": "26.05"}

Given = Mapping[str, tuple[int, ...]] | None
"""Node -> its GPUs; None: the job does not start."""


def test_slurm_gives_what_the_policy_gives(cluster: Site, suite: str) -> None:
    """Requests of all forms, on nodes with links of several kinds, beside running jobs."""
    cluster.sh("ctl", "cat > /root/slurm_choices_driver.py", stdin=DRIVER.read_text())
    command = ["python3", "/root/slurm_choices_driver.py", str(STATES), str(SEED)]
    lines = cluster.sh("ctl", command, timeout=500).splitlines()
    differ, started = compared(lines, RELEASES[suite])
    assert not differ, f"{len(differ)} of {STATES}\n" + "\n".join(differ[:20])
    assert started > STATES / 3  # requests that fit, too


def compared(lines: Sequence[str], release: str) -> tuple[list[str], int]:
    """Differences in words, and the number of jobs that Slurm started."""
    nodes = json.loads(lines[0])
    differ, started = [], 0
    for place, text in enumerate(lines[1:]):
        line = json.loads(text)
        given = line["given"]
        seen = given and {name: tuple(share["gpus"]) for name, share in given.items()}
        started += given is not None
        told = by_policy(line["asked"], cluster_with_links(nodes, line["before"]), nodes, release)
        if told != seen:
            differ.append(
                f"{place}: {line['asked']}: Slurm {seen}, policy {told}; {line['before']}"
            )
    return differ, started


def cluster_with_links(nodes: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Cluster:
    """The snapshot of the nodes while these jobs run."""
    rows, width = nodes["nodes"], max(node["gpus"] for node in nodes["nodes"])
    names = [node["name"] for node in rows]
    exists = np.array([[slot < node["gpus"] for slot in range(width)] for node in rows])
    gpu = np.full(exists.shape, -1)
    free = np.array([[node["cores"] * node["threads"]] * 2 for node in rows])
    all_cpus, busy = free.copy(), [set[int]() for _ in rows]
    open_to_all = exists.copy()
    for n, node in enumerate(rows):
        if node["bound"]:
            gpu[n, : node["gpus"]] = [slot * 2 // node["gpus"] for slot in range(node["gpus"])]
    for job in before:
        for name, share in job.items():
            n = names.index(name)
            open_to_all[n, share["gpus"]] = False
            busy[n] |= {cpu // rows[n]["threads"] for cpu in share["cpus"]}
    for n, cores in enumerate(busy):
        for core in cores:
            free[n, core // rows[n]["cores"]] -= rows[n]["threads"]
    sockets = Sockets(
        gpu=gpu,
        cpus=all_cpus,
        free_cpus=free,
        per_core=np.array([node["threads"] for node in rows]),
        quiet=np.ones(len(rows), dtype=np.bool_),
    )
    return Cluster.build(
        names,
        exists,
        free=open_to_all,
        sockets=sockets,
        graphs=tuple(map(graph_of, rows)),
        free_cpus=free.sum(axis=1),
        cpus=all_cpus.sum(axis=1),
    )


def graph_of(node: Mapping[str, Any]) -> HardwareGraph | None:
    """The links of a node; None: Slurm knows of none."""
    if node["links"] is None or not (node["bound"] or node["typed"]):
        return None
    links = [(a, b, f"NV{count}", None) for a, b, count in node["links"]]
    return HardwareGraph.from_links(links, n=node["gpus"])


def by_policy(
    asked: Mapping[str, Any], cluster: Cluster, nodes: Mapping[str, Any], release: str
) -> Given:
    """What the policy gives."""
    request, options = request_of(asked, cluster, nodes["partitions"][asked["partition"]])
    found = Slurm(SlurmOptions(release=release, **options)).place(request, cluster)
    if found is None:
        return None
    return {cluster.nodes[n]: slots for n, slots in found.gpus}


def request_of(
    asked: Mapping[str, Any], cluster: Cluster, partition: Sequence[str]
) -> tuple[Request, dict[str, Any]]:
    """The request and the policy's options."""
    form, gpus = asked["form"], asked["gpus"]
    nodes, tasks = asked.get("nodes"), asked.get("tasks", 0)
    total = gpus
    if form in ("gres", "gpus_per_node"):
        total = gpus * (nodes or 1)
    elif form == "per_task":
        total = gpus * tasks
    of_tasks = (tasks or nodes or 1) * asked.get("cpus_per_task", 1)
    request = job_request(
        "1",
        total,
        min_nodes=nodes or 1,
        max_nodes=asked.get("most", nodes),
        gpus_per_node=gpus if form in ("gres", "gpus_per_node") else None,
        cpus=of_tasks,
        cpus_per_gpu=asked.get("cpus_per_gpu", 0),
        required=tuple(sorted(map(cluster.nodes.index, asked.get("required", ())))),
        whole=asked.get("exclusive", False),
        bound=asked.get("bound", False),
        eligible=np.array([name in partition for name in cluster.nodes]),
    )
    return request, {"tasks": tasks, "per_task": form == "per_task"}
