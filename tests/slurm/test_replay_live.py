"""Rounds of the live selector, planned again, give the same places."""

from __future__ import annotations

import json
from typing import Any

from cluster import OUTRUN, Cluster

pytestmark = OUTRUN

REPLAY = """
import json
from slurm_gpu_aware.planning.record import read_round, replay_all
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:
    contents = Ledger(store).snapshots()
    rounds, differences = replay_all(contents)
    placed = {}
    for content in contents:
        placed |= read_round(content).placed
print(json.dumps({'rounds': rounds, 'differences': [str(d) for d in differences],
                  'placed': placed}))
"""


def test_a_live_ledger_replayed_gives_identical_assignments(cluster: Cluster) -> None:
    cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm")
    wanted = [(1, "A"), (2, "B"), (4, "A"), (1, "C"), (2, "A"), (3, "B"), (1, "A"), (2, "C")]
    jobs = [
        cluster.submit(
            "alice" if i % 2 else "bob",
            [f"--gres=gpu:{gpus}", f"--comment=class={name}", "-t", "5"],
            "sleep 600",
        )
        for i, (gpus, name) in enumerate(wanted)
    ]
    two_nodes = cluster.submit(
        "alice", ["-N2", "--gres=gpu:2", "--comment=class=A", "-t", "5"], "sleep 1"
    )
    for job in jobs[:4]:
        cluster.wait(job, "RUNNING")
        cluster.sh("ctl", f"scancel {job}")
    for job in (*jobs[4:], two_nodes):
        cluster.wait(job, ("RUNNING", "COMPLETED"))
    given = {job: cluster.gpus(job) for job in jobs[4:]}

    python = ["/opt/slurm-gpu-aware/bin/python", "-c", REPLAY]
    found: dict[str, Any] = {}

    def written() -> bool:
        found.update(json.loads(cluster.sh("ctl", python, user="slurm")))
        return set(given) <= set(found["placed"])

    cluster.wait_until(written, 20, "the rounds in the ledger")
    assert found["differences"] == []
    assert found["rounds"] >= 1
    for job, gpus in given.items():
        nodes, slots = found["placed"][job]
        assert dict(zip(nodes, map(tuple, slots), strict=True)) == gpus
