"""Rounds of the live selector, planned again, give the same places."""

import json
from typing import Any

from cluster import Cluster

REPLAY = """
import json
from slurm_gpu_aware.features.registry import FEATURES
from slurm_gpu_aware.planning.record import read_round, replay
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger

with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:
    rounds = [read_round(content, FEATURES) for content in Ledger(store).snapshots()]
placed = {}
for one in rounds:
    placed |= one.placed
differences = [str(difference) for one in rounds for difference in replay(one, FEATURES)]
print(json.dumps({'rounds': len(rounds), 'differences': differences, 'placed': placed}))
"""


def test_a_live_ledger_replayed_gives_identical_assignments(cluster: Cluster) -> None:
    cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm", timeout=180)
    wanted = [(1, "A"), (2, "B"), (4, "A"), (1, "C"), (2, "A"), (3, "B"), (1, "A"), (2, "C")]
    jobs = [
        cluster.submit(
            "alice" if i % 2 else "bob",
            [f"--gres=gpu:{gpus}", f"--comment=class={name}", "-t", "5"],
            "sleep 600",
        )
        for i, (gpus, name) in enumerate(wanted)
    ]
    # Of the 8 GPUs left when four jobs are gone two have the same index, wherever they lie.
    two_nodes = cluster.submit(
        "alice", ["-N2", "--gres=gpu:1", "--comment=class=A", "-t", "5"], "sleep 1"
    )
    for job in jobs[:4]:
        cluster.wait(job, "RUNNING")
        cluster.sh("ctl", f"scancel {job}")
    cluster.wait_all((*jobs[4:], two_nodes), ("RUNNING", "COMPLETED"))
    given = {job: cluster.gpus(job) for job in jobs[4:]}

    python = ["/opt/slurm-gpu-aware/bin/python", "-c", REPLAY]
    found: dict[str, Any] = {}

    def recorded() -> bool:
        """Not every round is, as records take a small share of the time: there are more rounds."""
        more = cluster.running_job("bob", ["--gres=gpu:1", "-t", "5"], "sleep 600")
        given[more] = cluster.gpus(more)
        found.update(json.loads(cluster.sh("ctl", python, user="slurm")))
        cluster.sh("ctl", f"scancel {more}")
        return bool(given.keys() & found["placed"])

    cluster.wait_until(recorded, 300, "a round in the ledger")  # one that takes long puts it off
    assert found["differences"] == []
    assert found["rounds"] >= 1
    for job in given.keys() & found["placed"]:
        nodes, slots = found["placed"][job]
        assert dict(zip(nodes, map(tuple, slots), strict=True)) == given[job]
