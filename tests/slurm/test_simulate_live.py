"""What-if on a live cluster: the site's own history, as Slurm's accounting has it, placed again."""

import json
from typing import Any

from cluster import Cluster


def test_what_if_from_the_live_history(cluster: Cluster) -> None:
    cluster.sh("ctl", "gpu-aware-profile sweep", user="slurm", timeout=180)
    jobs = [
        cluster.submit(user, [f"--gres=gpu:{gpus}", f"--comment=class={name}"], "sleep 5")
        for user, gpus, name in (("alice", 2, "A"), ("bob", 1, "B"), ("alice", 4, "C"))
    ]
    jobs.append(cluster.submit("bob", ["-N2", "--gres=gpu:1", "--comment=class=A"], "sleep 5"))
    cluster.wait_all(jobs, "COMPLETED")
    answer: dict[str, Any] = {}

    def in_the_accounts() -> bool:
        command = "gpu-aware simulate --what-if --days 1 -p slurm -p eft --json"
        # Of all tests before this one; nothing: the accounts know no job yet
        said = cluster.sh("ctl", command, user="slurm", timeout=300, check=False)
        answer.update(json.loads(said) if said else {})
        return bool(answer and answer["input"]["recorded"].get("exact", 0) >= len(jobs))

    cluster.wait_until(in_the_accounts, 60, lambda: str(answer))
    names = [run["policy"] for run in answer["runs"]]
    assert names == ["as recorded", "slurm", "eft"]
    done = {run["jobs"] for run in answer["runs"]}
    assert min(done) >= len(jobs)
    assert all(run["avg_jct_s"] > 0 for run in answer["runs"])

    # An ordinary user sees his own jobs, and gets an answer from them.
    command = "gpu-aware simulate --sacct live --days 1 -p pal --json"
    own = json.loads(cluster.sh("ctl", command, user="alice", timeout=300))
    assert own["runs"][0]["jobs"] >= 2
