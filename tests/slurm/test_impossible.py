"""No request that Slurm starts on the empty cluster is called impossible on a busy one.

Slurm itself says what it starts there (``sbatch --test-only``). The worst moment is when placed
jobs have not started: what they hold is then read twice, or not at all.
"""

import json
import re
import shlex
from collections.abc import Iterator

import pytest
from cluster import NODES, Cluster
from requests_cells import RESERVED, cells
from requests_run import lanes
from test_way_of_a_job import ledger_of

IMPOSSIBLE = re.compile(
    "idle cluster|than a node has|no node has so many|no socket has|down, drained"
)
PINNED = " ".join(f"-w{node}" for node in NODES)
CHURN = (
    f"for i in $(seq {{turns}}); do for node in {PINNED}; do"
    " sbatch -Q $node --gres=gpu:1 -o /dev/null --wrap 'sleep 1' >/dev/null & done; sleep {pause};"
    " {then}; wait; done"
)
"""Jobs that are placed and start, again and again; ``then``: in between."""
WAITING = """
import json
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:
    rounds = Ledger(store).last_rounds(limit=400)
print(json.dumps(sorted({(w['job_id'], w['reason']) for r in rounds
                         for w in r.detail.get('waiting', ())})))
"""


def called_impossible(cluster: Cluster, jobs: dict[str, str]) -> list[str]:
    """What the selector has said of these jobs (id -> request) that Slurm contradicts."""
    text = cluster.sh("ctl", ["python3", "-c", WAITING])
    said = [(job_id, why) for job_id, why in json.loads(text)]
    told = ledger_of(cluster, list(jobs))
    for job_id, ledger in told.items():
        left = [detail.get("left_to_slurm") for _, detail in ledger["events"]]
        said += [(job_id, str(why)) for why in left if why]
    return [
        f"{job_id} {jobs[job_id]}: {why}"
        for job_id, why in said
        if job_id in jobs and IMPOSSIBLE.search(why)
    ]


@pytest.mark.parametrize("form", ["-c 16", "--mem-per-gpu=64000", "--mem=0", "--exclusive"])
def test_a_job_for_a_whole_node_beside_jobs_that_start(cluster: Cluster, form: str) -> None:
    then = f"sbatch --parsable --gres=gpu:1 {form} -o /dev/null --wrap true"
    churn = CHURN.format(turns=4, pause=0.2, then=then)
    jobs = cluster.sh("ctl", churn, "alice").split()
    cluster.wait_all(jobs, "COMPLETED", 90)
    assert len(jobs) == 4
    assert called_impossible(cluster, dict.fromkeys(jobs, form)) == []


@pytest.fixture
def possible(cluster: Cluster) -> Iterator[list[str]]:
    """The forms of requests that Slurm starts on the empty cluster."""
    asked = [shlex.join(c.options) for c in cells() if c.tool == "sbatch" and c.phase != RESERVED]
    with lanes(cluster):
        ask = "".join(
            f"sbatch --test-only {options} --wrap true >/dev/null 2>&1 && echo {number};"
            for number, options in enumerate(asked)
        )
        with cluster.plain():
            answers = cluster.sh("ctl", f"{ask} true", "alice", timeout=300).split()
        assert len(answers) > 0.8 * len(asked)
        yield [asked[int(number)] for number in answers]
        cluster.cancel_all()


def test_every_form_beside_jobs_that_start(cluster: Cluster, possible: list[str]) -> None:
    """All forms wait, behind jobs on three GPUs of each node and those that come and go."""
    for node in NODES:
        cluster.running_job("bob", ["-w", node, "--gres=gpu:3", "-t", "30"], "sleep 900")
    submit = "".join(
        f"id=$(sbatch --parsable --nice=10000 {options} -o /dev/null --wrap true)"
        f" && echo $id {number};"
        for number, options in enumerate(possible)
    )
    cluster.sh("ctl", CHURN.format(turns=2, pause=0.5, then="true"), "alice")
    said = cluster.sh("ctl", f"{submit} true", "alice", timeout=300).splitlines()
    numbers = dict(line.split() for line in said)
    jobs = {job_id: possible[int(number)] for job_id, number in numbers.items()}
    refused = sorted(set(possible) - set(jobs.values()))
    assert refused == ["--gres=gpu:g1:1"]  # users name no GPU
    cluster.sh("ctl", CHURN.format(turns=15, pause=0.5, then="true"), "alice", timeout=300)
    assert called_impossible(cluster, jobs) == []
