"""The way of a job on a real Slurm: submitted by a user, parked, chosen, placed, started, ended.

For every way to ask for GPUs: what the job sees, what Slurm says and what the ledger says are the
same GPUs, and ``srun`` inside the job works.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from cluster import ENDED, NODES, Cluster
from site_files import CONFIG, SLURM_CONF, kept

GATE_LICENCE = "gpuaware"
NO_HISTORY = "[estimates]\nhistory_days = 0\n"
"""The limits are the estimates: jobs of other tests under the same names are no history."""
SEEN = """
echo "batch $(hostname) $CUDA_VISIBLE_DEVICES"
srun bash -c 'echo "step $(hostname) $CUDA_VISIBLE_DEVICES"'
echo "srun $?"
while [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.2; done
"""
FORMS: dict[str, tuple[list[str], int, int]] = {
    # name: (options, nodes, GPUs on each node)
    "gres": (["--gres=gpu:2"], 1, 2),
    "gres on two nodes": (["-N2", "--gres=gpu:1"], 2, 1),
    "gpus": (["--gpus=3"], 1, 3),
    "gpus on two nodes": (["-N2", "--gpus=4"], 2, 2),
    "gpus-per-node": (["-N2", "--gpus-per-node=2"], 2, 2),
    "gpus-per-task": (["-n2", "--gpus-per-task=1"], 1, 2),
    "gpus-per-task with CPUs": (["-n2", "-c3", "--gpus-per-task=2"], 1, 4),
    "gpus-per-task on two nodes": (["-N2", "-n4", "--gpus-per-task=1"], 2, 2),
    "cpus-per-gpu": (["--gpus=2", "--cpus-per-gpu=3"], 1, 2),
    "cpus-per-gpu and tasks": (
        ["-N2", "--gpus-per-node=2", "--cpus-per-gpu=4", "--ntasks-per-node=2"],
        2,
        2,
    ),
    "mem-per-gpu": (["--gpus=2", "--mem-per-gpu=100"], 1, 2),
    "model": (["--gres=gpu:v100:2"], 1, 2),
    "required node": (["--gres=gpu:1", "-w", "n3"], 1, 1),
    "excluded nodes": (["--gres=gpu:1", "-x", "n1,n2,n3"], 1, 1),
    "constraint": (["--gres=gpu:1", "-C", "gpu_v100"], 1, 1),
}


def ledger_of(cluster: Cluster, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Decisions and events of each job, oldest first, from the daemon's own store."""
    code = (
        "import json,sys\n"
        "from slurm_gpu_aware.store.database import open_store\n"
        "from slurm_gpu_aware.store.ledger import Ledger\n"
        "with open_store('/var/lib/slurm-gpu-aware/store.db', readonly=True) as store:\n"
        "    ledger = Ledger(store)\n"
        "    print(json.dumps({job: {'decisions': [\n"
        "        dict(state=d.state, nodes=list(d.nodes), slots=list(d.slots), score=d.score,\n"
        "             clock=d.clock_mhz, outcome=d.outcome, exact=d.exact, asked=dict(d.asked))\n"
        "        for d in ledger.decisions(job)],\n"
        "        'events': [[e.kind, e.detail] for e in ledger.events(job)]}\n"
        "        for job in sys.argv[1:]}))\n"
    )
    found: dict[str, dict[str, Any]] = json.loads(
        cluster.sh(cluster.controller, ["python3", "-c", code, *job_ids])
    )
    return found


def decisions(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    """Decisions about a job, oldest first."""
    return list(ledger_of(cluster, [job_id])[job_id]["decisions"])


def placed_by_us(cluster: Cluster, job_id: str) -> bool:
    """Whether nodes or GPUs were ever chosen for a job; else its gate was opened in its turn."""
    return any(decision["nodes"] for decision in decisions(cluster, job_id))


def events(cluster: Cluster, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """(kind, detail) of a job's events, oldest first."""
    return [(kind, detail) for kind, detail in ledger_of(cluster, [job_id])[job_id]["events"]]


def placed(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    """Wait until the ledger tells of it: the selector writes it beside its rounds."""
    found: list[dict[str, Any]] = []

    def known() -> bool:
        found[:] = decisions(cluster, job_id)
        return bool(found)

    cluster.wait_until(known, 60, f"the ledger has a decision about job {job_id}")
    return found


def started(cluster: Cluster, job_id: str) -> dict[str, Any]:
    """Wait until the ledger says that the job started; the decision."""
    found: list[dict[str, Any]] = []

    def known() -> bool:
        found[:] = decisions(cluster, job_id)
        return bool(found) and found[-1]["state"] in ("started", "ended")

    cluster.wait_until(known, 60, lambda: f"ledger of job {job_id}: {found}")
    return found[-1]


def seen(text: str, word: str) -> dict[str, set[int]]:
    """Node -> CUDA_VISIBLE_DEVICES of all lines that start with a word."""
    given: dict[str, set[int]] = {}
    for node, indices in re.findall(rf"^{word} (n\d) ([\d,]+)$", text, flags=re.M):
        given.setdefault(node, set()).update(int(i) for i in indices.split(","))
    return given


def let_go(cluster: Cluster, user: str, job_id: str) -> None:
    cluster.sh("ctl", ["touch", f"/shared/home/{user}/go-{job_id}"])


def end_job(cluster: Cluster, user: str, job_id: str, deadline: float = 60) -> None:
    """Let it go, and wait for its end."""
    let_go(cluster, user, job_id)
    cluster.wait(job_id, "COMPLETED", deadline)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_names_the_same_gpus(cluster: Cluster, form: str) -> None:
    options, nodes, per_node = FORMS[form]
    job_id = cluster.running_job("alice", ["--comment=class=A", *options], SEEN)
    slurm = cluster.gpus(job_id)
    record = cluster.job(job_id)
    decision = started(cluster, job_id)
    end_job(cluster, "alice", job_id)
    text = cluster.output(job_id, "alice")

    assert len(slurm) == nodes
    assert {len(slots) for slots in slurm.values()} == {per_node}
    ledger = dict(zip(decision["nodes"], map(tuple, decision["slots"]), strict=True))
    assert ledger == slurm, text
    assert decision["outcome"]["as_planned"] is True
    as_sets = {node: set(slots) for node, slots in slurm.items()}
    batch = seen(text, "batch")
    assert batch == {node: as_sets[node] for node in batch}
    assert seen(text, "step") == as_sets
    assert "srun 0" in text
    assert GATE_LICENCE not in record["Licenses"]


def test_whole_nodes_get_all_gpus(cluster: Cluster) -> None:
    job_id = cluster.running_job("alice", ["-N2", "--gres=gpu:4", "--exclusive"], SEEN)
    assert set(cluster.gpus(job_id).values()) == {(0, 1, 2, 3)}
    assert set(started(cluster, job_id)["nodes"]) == set(cluster.gpus(job_id))
    end_job(cluster, "alice", job_id)
    assert "srun 0" in cluster.output(job_id, "alice")


def test_array_is_placed_task_by_task(cluster: Cluster) -> None:
    job_id = cluster.submit("alice", ["--gres=gpu:1", "--array=1-6%3"], "sleep 3")
    busiest = 0

    def done() -> bool:
        nonlocal busiest
        states = [job["JobState"] for job in cluster.jobs(job_id)]
        busiest = max(busiest, states.count("RUNNING"))
        return len(states) == 6 and set(states) <= ENDED

    cluster.wait_until(done, 90, lambda: str([j["JobState"] for j in cluster.jobs(job_id)]))
    assert {job["JobState"] for job in cluster.jobs(job_id)} == {"COMPLETED"}
    assert busiest <= 3
    for task in range(1, 7):
        decision = started(cluster, f"{job_id}_{task}")
        assert decision["outcome"]["as_planned"] is True, (task, decision)
        assert len(decisions(cluster, f"{job_id}_{task}")) == 1


@pytest.mark.parametrize(
    "command",
    [["salloc", "--gres=gpu:2", "--comment=class=A", "srun"], ["srun", "--gres=gpu:2"]],
    ids=["salloc", "srun"],
)
def test_an_interactive_job_gets_placed_and_its_steps_work(
    cluster: Cluster, command: list[str]
) -> None:
    step = 'echo "step $(hostname) $CUDA_VISIBLE_DEVICES"; echo "job $SLURM_JOB_ID"'
    done = cluster.run("ctl", [*command, "bash", "-c", step], "alice")
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    job_id = re.findall(r"^job (\d+)$", text, flags=re.M)[0]
    decision = started(cluster, job_id)
    assert seen(text, "step") == {decision["nodes"][0]: set(decision["slots"][0])}


def test_two_users_never_share_a_gpu(cluster: Cluster) -> None:
    jobs = [
        (user, cluster.submit(user, [f"--gres=gpu:{count}", "--comment=class=B"], SEEN))
        for user, count in (("alice", 2), ("bob", 3), ("alice", 4), ("bob", 1), ("alice", 3))
    ]
    for _, job_id in jobs:
        cluster.wait(job_id, "RUNNING")
    held = [
        (node, slot)
        for _, job_id in jobs
        for node, slots in cluster.gpus(job_id).items()
        for slot in slots
    ]
    assert len(held) == len(set(held)) == 13
    for user, job_id in jobs:
        end_job(cluster, user, job_id)


def import_scores(cluster: Cluster, values: dict[tuple[str, int], float], app_class: str) -> None:
    """Put timings (ms) into the store as a site would."""
    rows = ["gpu,node,class,value_ms"]
    rows += [f"{slot},{node},{app_class},{ms}" for (node, slot), ms in values.items()]
    cluster.sh("ctl", "cat > /tmp/timings.csv && chmod 644 /tmp/timings.csv", stdin="\n".join(rows))
    command = ["gpu-aware-profile", "import", "--accept-outliers", "/tmp/timings.csv"]
    cluster.sh("ctl", command, "slurm")


@contextlib.contextmanager
def one_fast_node(cluster: Cluster, settings: str) -> Iterator[None]:
    """n4 is twice as fast as the other nodes for class A, and the selector has more settings."""
    gpus = list(itertools.product(NODES, range(4)))
    with kept(cluster, CONFIG):
        cluster.sh("ctl", f"cat >>{CONFIG}", stdin=settings)
        import_scores(cluster, {gpu: 100.0 if gpu[0] == "n4" else 200.0 for gpu in gpus}, "A")
        cluster.kill("ctl", "selectd", "TERM")
        try:
            yield
        finally:
            import_scores(cluster, dict.fromkeys(gpus, 100.0), "A")


def fastest_sets(
    times: dict[tuple[str, int], float], count: int
) -> list[tuple[str, tuple[int, ...]]]:
    """All packed sets of ``count`` GPUs whose slowest GPU is as fast as can be (brute force)."""
    sets = [
        (max(times[node, slot] for slot in slots), node, slots)
        for node in NODES
        for slots in itertools.combinations(range(4), count)
    ]
    best = min(sets)[0]
    return [(node, slots) for worst, node, slots in sets if worst == best]


def test_class_a_alone_gets_the_fastest_packed_set(cluster: Cluster) -> None:
    """The fake GPUs are made slow, swept, and each job gets what brute force finds."""
    # Three speeds, far apart, so that bins and timings say the same.
    speeds = [1.0, 1.3, 1.7]
    pattern = [2, 1, 0, 2, 1, 0, 2, 0, 0, 1, 1, 2, 2, 2, 1, 0]
    gpus = list(itertools.product(NODES, range(4)))
    times = {gpu: speeds[p] for gpu, p in zip(gpus, pattern, strict=True)}
    for (node, slot), slow in times.items():
        state = f"/shared/fakegpu/{node}"
        cluster.sh("ctl", ["fake-gpu", "slow", state, str(slot), f"A={slow}"])
    cluster.sh("ctl", ["gpu-aware-profile", "sweep"], "slurm")
    cluster.kill("ctl", "selectd", "TERM")  # reads the profile at its start, else within seconds
    for count in (1, 2, 3):
        job_id = cluster.submit("alice", [f"--gres=gpu:{count}", "--comment=class=A"], "sleep 2")
        cluster.wait(job_id, {"RUNNING", "COMPLETED"})
        decision = started(cluster, job_id)
        chosen = (decision["nodes"][0], tuple(decision["slots"][0]))
        assert chosen in fastest_sets(times, count)
        assert decision["outcome"]["as_planned"] is True
        cluster.wait(job_id, "COMPLETED")


def test_ledger_tells_the_clock(cluster: Cluster) -> None:
    job_id = cluster.submit("alice", ["--gres=gpu:1", "--comment=class=C"], "sleep 2")
    cluster.wait(job_id, "COMPLETED")

    def told() -> bool:
        kinds = [kind for kind, _ in events(cluster, job_id)]
        return "clock_set" in kinds or "clock_failed" in kinds

    cluster.wait_until(told, 60, lambda: str(events(cluster, job_id)))
    assert decisions(cluster, job_id)[-1]["clock"] == 1005


def expect_kinds(cluster: Cluster, job_id: str, wanted: Sequence[str]) -> None:
    """Wait until ``wanted`` is a subsequence of the kinds of the job's events."""

    def told() -> bool:
        kinds = iter([kind for kind, _ in events(cluster, job_id)])
        return all(any(kind == want for kind in kinds) for want in wanted)

    cluster.wait_until(told, 60, lambda: f"{wanted} in {events(cluster, job_id)}")


def test_ledger_tells_the_whole_way(cluster: Cluster) -> None:
    job_id = cluster.submit("bob", ["--gpus=1"], "true")
    cluster.wait(job_id, "COMPLETED")
    expect_kinds(cluster, job_id, ["parked", "prepared", "released", "started", "ended"])


def reconfigure(cluster: Cluster) -> None:
    """For a moment Slurm refuses all GPU jobs by itself: waits until it knows the nodes' GPUs."""
    cluster.sh("ctl", ["scontrol", "reconfigure"])
    held = ["sbatch", "--hold", "-N4", "--gpus-per-node=4", "--wrap=:"]
    cluster.wait_until(lambda: cluster.run("ctl", held).returncode == 0, 60, "GPUs are known")
    cluster.end_all()


def test_own_licences_are_kept(cluster: Cluster) -> None:
    """Needs a licence beside the gate's; the cluster has one added for the test."""
    cluster.sh("ctl", f"sed -i 's/^Licenses=gpuaware:100000.*$/&,matlab:1/' {SLURM_CONF}")
    try:
        reconfigure(cluster)
        first = cluster.running_job("alice", ["--gres=gpu:1", "-L", "matlab:1"], SEEN)
        assert cluster.job(first)["Licenses"] == "matlab:1"
        second = cluster.submit("bob", ["--gres=gpu:1", "-L", "matlab:1"], "true")
        third = cluster.submit("bob", ["--gres=gpu:1"], "true")
        cluster.wait(third, "COMPLETED")
        assert cluster.job(second)["JobState"] == "PENDING"
        assert not decisions(cluster, second)
        let_go(cluster, "alice", first)
        cluster.wait(second, "COMPLETED")
    finally:
        cluster.cancel_all()
        cluster.sh("ctl", f"sed -i 's/,matlab:1$//' {SLURM_CONF}")
        reconfigure(cluster)
