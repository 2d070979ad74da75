"""Run cells on the cluster, once with us and once without."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import Cluster
from requests_cells import LANES, RESERVED, WIDE, Cell
from requests_seen import id_of
from test_way_of_a_job import expect_kinds, ledger_of

__all__ = ["lanes", "run_pass"]

USER = "alice"
OUT = f"/shared/home/{USER}/matrix"
DRIVER = Path(__file__).with_name("requests_driver.py")
CLOCK = Path(__file__).parents[1] / "idle_clock.py"
LIBRARY = "/tmp/requests"
"""Where the driver finds it."""


@contextmanager
def lanes(cluster: Cluster) -> Iterator[None]:
    """Partitions of two nodes each beside the cluster's own; the selector learns of them."""
    for name, nodes in LANES:
        partition = [f"partitionname={name}", f"nodes={','.join(nodes)}", "maxtime=INFINITE"]
        cluster.sh("ctl", ["scontrol", "create", *partition, "defaulttime=60", "state=UP"])
    try:
        yield
    finally:
        for name, _ in LANES:
            cluster.sh("ctl", ["scontrol", "delete", f"partitionname={name}"], check=False)


def run_pass(cluster: Cluster, chosen: Sequence[Cell], bound_s: float) -> dict[str, Any]:
    """Submit cells in the mode that the cluster is in; cell name -> what the driver saw."""
    beside = [[c for c in chosen if c.phase == name] for name, _ in LANES]
    found = _drive(cluster, beside, bound_s)
    found |= _drive(cluster, [[c for c in chosen if c.phase == WIDE]], bound_s)
    inside = [[c for c in chosen if c.phase == f"{RESERVED} {name}"] for name, _ in LANES]
    if any(inside):
        with _reservation(cluster):
            found |= _drive(cluster, inside, bound_s)
    _add_ledger(cluster, found)
    return found


def _add_ledger(cluster: Cluster, found: Mapping[str, dict[str, Any]]) -> None:
    """Add what the ledger says of each job, as our record in Slurm is gone when a job starts."""
    jobs = {name: id_of(raw["files"]["record"]) for name, raw in found.items() if _has_job(raw)}
    if cluster.gated:  # the selector writes its ledger beside its rounds, in their order
        last = cluster.submit(USER, ["--gres=gpu:1"], "true")
        cluster.wait(last, "COMPLETED")
        expect_kinds(cluster, last, ["ended"])
    told = ledger_of(cluster, list(jobs.values()))
    for name, job_id in jobs.items():
        found[name]["ledger"] = told[job_id]


def _has_job(raw: Mapping[str, Any]) -> bool:
    return "record" in raw["files"]


@contextmanager
def _reservation(cluster: Cluster) -> Iterator[None]:
    """Alice's, on all nodes."""
    words = ["reservationname=matrix", f"users={USER}", "nodes=ALL", "starttime=now"]
    cluster.sh("ctl", ["scontrol", "create", "reservation", *words, "duration=240"])
    try:
        yield
    finally:
        cluster.sh("ctl", ["scontrol", "delete", "reservation=matrix"])


def _drive(cluster: Cluster, beside: Sequence[Sequence[Cell]], bound_s: float) -> dict[str, Any]:
    order = {
        "bound_s": bound_s,
        "out": OUT,
        "lanes": [
            [{"name": c.name, "tool": c.tool, "options": list(c.typed)} for c in lane]
            for lane in beside
            if lane
        ],
    }
    cluster.sh("ctl", f"install -d {LIBRARY}")
    cluster.sh("ctl", f"cat >{LIBRARY}/{CLOCK.name}", stdin=CLOCK.read_text())
    program = ["env", f"PYTHONPATH={LIBRARY}", "python3", "-c", DRIVER.read_text()]
    stdin = json.dumps(order)
    found = json.loads(cluster.sh("ctl", program, USER, timeout=1800, stdin=stdin))
    assert isinstance(found, dict)
    return found
