"""One queue: what Slurm places itself, and what cannot wait at the gate, passes no other job."""

import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
from cluster import NODES, Cluster
from idle_clock import Stopwatch
from site_files import mixed_partition, several_clusters
from test_limits import WAIT
from test_power import limited, plan_takes, power, power_for
from test_way_of_a_job import GATE_LICENCE, end_job, let_go

__all__ = ["limited"]

AHEAD = "jobs end so quickly that it takes the next GPU that becomes free"
LOWER = ["--nice=1000000", "-t", "60"]
SLACK_S = 4.0
"""Of an idle machine: selector and Slurm may take so long to start a job whose turn has come."""
HET = (
    "#!/bin/bash\n#SBATCH --gres=gpu:1 -t 60\n#SBATCH hetjob\n#SBATCH --gres=gpu:1 -t 60\nsleep 1\n"
)
FORMS = {
    "place=off": ["--gres=gpu:1", "--comment=place=off"],
    "contiguous": ["--gres=gpu:1", "--contiguous"],
    "uneven": ["--gpus=3", "-N2"],
    "array": ["--gres=gpu:1", "--comment=place=off", "--array=0-2"],
    "two requests": ["--gres=gpu:1,gpu:1"],
    "GPUs by tasks": ["-n", "4", "--ntasks-per-gpu=2"],
}
INTERACTIVE = {
    "srun": ["srun", "--gres=gpu:1", "--contiguous", *LOWER, "true"],
    "salloc": ["salloc", "--gres=gpu:1", "--comment=place=off", *LOWER, "true"],
}


def slack_s(watch: Stopwatch) -> float:
    """SLACK_S of this machine. Jobs last longer: else it would hide that they pass others."""
    return SLACK_S / max(watch.share, 0.5)


@pytest.fixture
def full(cluster: Cluster) -> Iterator[dict[str, list[str]]]:
    """Node -> jobs of one GPU that fill it, and end when they are told to."""
    jobs = {
        node: [
            cluster.submit("bob", ["--gres=gpu:1", "-w", node, "-t", "30"], WAIT) for _ in range(4)
        ]
        for node in NODES
    }
    cluster.wait_all((job for each in jobs.values() for job in each), "RUNNING")
    yield jobs
    cluster.cancel_all()


def starts(cluster: Cluster) -> dict[str, float]:
    """Start of each job that has started, by Slurm's accounting: job or first component -> time."""
    text = "sacct -X -n -P -o jobidraw,start -S now-1hour"
    out = cluster.sh("ctl", ["sh", "-c", f"SLURM_TIME_FORMAT=%s {text}"])
    rows = (line.split("|") for line in out.splitlines())
    return {job: float(at) for job, at in rows if at.isdecimal()}


def story(cluster: Cluster, jobs: Sequence[str]) -> str:
    """What selector and slurmctld say of jobs, shortened, and when which job ran."""
    names = "|".join(jobs)
    logs = "/var/log/cluster/selectd.log /var/log/cluster/slurmctld.log"
    find = f"grep -hE '[jJ]ob(Id=| )({names})[^0-9]' {logs} | cut -c1-130 | tail -40"
    ran = "sacct -X -n -P -o jobidraw,start,end,nodelist -S now-1hour | tail -20"
    return cluster.sh("ctl", ["sh", "-c", f"{find}; {ran}"])


def test_whatever_slurm_places_waits_for_its_turn(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    """GPUs become free one by one: two nodes go to jobs of four GPUs, then to the others."""
    whole = ["--gres=gpu:4", "--comment=class=A", "-t", "5"]
    high = [cluster.submit("alice", [*whole, "-w", node]) for node in NODES[:2]]
    low = [cluster.submit("bob", [*form, *LOWER]) for form in FORMS.values()]
    het = cluster.sh("ctl", ["sbatch", "--parsable", "--nice=1000000"], "bob", stdin=HET).strip()
    waiting = [cluster.start_command("ctl", command, "bob") for command in INTERACTIVE.values()]
    for job in low:
        assert GATE_LICENCE in cluster.job(job)["Licenses"]
    assert cluster.job(het)["JobState"] == "PENDING"
    for node in NODES:
        for job in full[node]:
            end_job(cluster, "bob", job)
        if node == NODES[0]:
            cluster.wait(high[0], {"RUNNING", "COMPLETED"})
    # A start that fails is tried again after 60 s
    cluster.wait_all((*high, *low, het), "COMPLETED", 300)
    for process in waiting:
        cluster.finish(process, 60)
        assert process.returncode == 0
    fewest = len(high) + len(low) + len(INTERACTIVE) + 1

    def later() -> set[str]:
        return {job for job in starts(cluster) if int(job) >= int(high[0])}

    cluster.wait_until(lambda: len(later()) >= fewest, 60, "accounting knows the starts")
    runs = accounted(cluster, later())
    first = {run.node: run.start for run in runs if run.job in high}
    for node, start in first.items():  # the name of some is n[1-2]
        assert all(run.start >= start for run in runs if node[1] in run.node), story(cluster, high)


def test_the_owners_exclusions_stay_when_it_is_parked_again(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    job = cluster.submit("bob", ["--gres=gpu:1", "--comment=place=off", "-x", NODES[3], "-t", "9"])
    cluster.submit("alice", ["--gres=gpu:4", "-t", "9"])
    for one in full[NODES[3]]:
        let_go(cluster, "bob", one)
    cluster.sh("ctl", ["scontrol", "hold", job], "bob")
    cluster.sh("ctl", ["scontrol", "release", job], "bob")
    let_go(cluster, "bob", full[NODES[1]][0])
    done = cluster.wait(job, "COMPLETED", 90)
    assert done["NodeList"] != NODES[3]


def test_a_job_that_its_owner_requeues_as_a_special_one_is_parked_again(cluster: Cluster) -> None:
    """A flag hides its state; with an open gate it would start as soon as it is released."""
    job = cluster.running_job("bob", ["--gres=gpu:1", "-t", "9"], WAIT)
    cluster.sh("ctl", ["scontrol", "requeuehold", "State=SpecialExit", job], "bob")
    cluster.wait(job, "SPECIAL_EXIT")
    parked = lambda: GATE_LICENCE in cluster.job(job)["Licenses"]  # noqa: E731
    cluster.wait_until(parked, 60, lambda: str(cluster.job(job)))
    # Else its turn comes when Slurm's delay of a requeue ends
    cluster.running_job("alice", ["-N4", "--gres=gpu:4", "-t", "30"], WAIT)
    cluster.sh("ctl", ["scontrol", "release", job], "bob")
    assert cluster.job(job)["JobState"] == "PENDING"
    assert parked()


def guarded(cluster: Cluster) -> dict[str, int]:
    """Node -> GPUs that a reservation holds for the head of the queue; a whole node has four."""
    shown = cluster.sh("ctl", ["scontrol", "-o", "show", "res"])
    found = re.findall(r"ReservationName=gpuaware_head__?(\S+) (?:.*?gres/gpu=(\d+))?", shown)
    return {node: int(gpus or 4) for node, gpus in found}


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def told_to_wait(cluster: Cluster, head: str) -> bool:
    """Whether the plan has reserved GPUs for the first that waits."""
    return "reserved:" in cluster.sh("ctl", ["gpu-aware", "explain", head])


def node_of_head(cluster: Cluster, head: str) -> str | None:
    """The node whose GPUs the plan reserves for the first that waits."""
    told = re.search(r"reserved: (n\d)", cluster.sh("ctl", ["gpu-aware", "explain", head]))
    return told[1] if told else None


def test_what_cannot_wait_takes_no_reserved_gpu(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    """While a job of `-M` is pending, a reservation keeps the GPUs of the head.

    Slurm 26.05 reserves no GPUs that are in use, but their node.
    """
    node, watch = NODES[2], Stopwatch()
    head = cluster.submit("alice", ["--gres=gpu:4", "-t", "5", "-w", node], WAIT)
    with several_clusters(cluster):
        past = cluster.submit("bob", ["-M", "all", "--gres=gpu:1", *LOWER])
    assert GATE_LICENCE not in cluster.job(past)["Licenses"]
    cluster.wait_until(lambda: node_of_head(cluster, head) == node, 60, "a node for the head")
    held = {node: 4}
    cluster.wait_until(lambda: guarded(cluster) == held, 60, "a reservation for the head")
    for free, job in enumerate(full[node], 1):
        end_job(cluster, "bob", job)
        if free < 4:
            cluster.wait_until(lambda: guarded(cluster) == held, 60, f"a reservation of {held}")
            assert cluster.job(past)["JobState"] == "PENDING"
        now = ["srun", "--immediate", "--gres=gpu:1", *LOWER, "true"]
        assert cluster.run("ctl", now, "bob").returncode != 0
    cluster.wait(head, "RUNNING")
    let_go(cluster, "alice", head)
    cluster.wait(past, "COMPLETED")
    at = {run.job: run.start for run in accounted(cluster, {head, past})}
    # The reservation goes a moment before the head may start
    assert at[head] <= at[past] + slack_s(watch)
    cluster.wait_until(lambda: not guarded(cluster), 60, "the reservation ends with its use")


def test_a_job_without_gpus_opens_no_way_past_the_first_that_waits(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    """It may end at any time, so no GPU job behind uses its limit of ten hours; others go on.

    When only such jobs hold up the head, no more of them start on its node, but those that come
    before it.
    """
    node, cores = NODES[2], ["-c", "4", *LOWER, "-t", "600"]
    asked = ["--gres=gpu:4", "-c", "16", "-t", "600", "-w", node, "--nice=100"]
    head = cluster.submit("alice", asked, WAIT)
    first = cluster.running_job("bob", [*cores, "-w", node], WAIT)
    promised_late = lambda: "9 h" in cluster.sh("ctl", ["gpu-aware", "explain", head])  # noqa: E731
    cluster.wait_until(promised_late, 60, "a start of the head when the job without GPUs ends")
    end_job(cluster, "bob", full[node][0])
    behind = cluster.submit("bob", ["--gres=gpu:1", "-w", node, *LOWER, "-t", "300"])
    short = cluster.submit("bob", ["--gres=gpu:1", "-w", node, *LOWER, "-t", "5"])
    cluster.wait(short, "COMPLETED")
    assert guarded(cluster) == {}
    for job in full[node][1:]:
        end_job(cluster, "bob", job)
    cluster.wait_until(lambda: guarded(cluster) == {node: 4}, 60, "the share of the head is held")
    second = cluster.submit("bob", [*cores, "-w", node])
    elsewhere = cluster.submit("bob", [*cores])
    before = cluster.submit("alice", ["-c", "4", "-w", node, "-t", "1"])
    cluster.wait_all((elsewhere, before), "COMPLETED")
    states = {job: cluster.job(job)["JobState"] for job in (head, behind, second)}
    assert set(states.values()) == {"PENDING"}, states
    let_go(cluster, "bob", first)
    cluster.wait(head, "RUNNING", 90)
    assert cluster.job(behind)["JobState"] == "PENDING", story(cluster, [head, behind, second])
    let_go(cluster, "alice", head)
    cluster.wait_all((head, behind, second), "COMPLETED", 90)


def test_a_job_of_whole_nodes_waits_for_its_turn(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    """Without a word about GPUs Slurm gives it all of its nodes; one node of the head is free."""
    free, busy, other = NODES[0], NODES[1], NODES[2]
    head = cluster.submit("alice", ["-N2", "--gres=gpu:4", "-t", "60", "-w", f"{free},{busy}"])
    for job in full[free]:
        end_job(cluster, "bob", job)
    cluster.wait_until(lambda: told_to_wait(cluster, head), 60, "a reservation for the head")
    whole = cluster.submit("bob", ["--exclusive", "-N1", *LOWER])
    assert GATE_LICENCE in cluster.job(whole)["Licenses"]
    behind = f"past the start of job {head}"
    waits = lambda: behind in in_one_line(cluster.sh("ctl", ["gpu-aware", "explain", whole]))  # noqa: E731
    cluster.wait_until(waits, 60, "the reason why it waits")
    time.sleep(8)
    assert cluster.job(whole)["JobState"] == "PENDING", story(cluster, [head, whole])
    for job in full[busy]:
        end_job(cluster, "bob", job)
    cluster.wait(head, {"RUNNING", "COMPLETED"})
    cluster.wait(whole, "COMPLETED", 90)
    at = {run.job: run for run in accounted(cluster, {head, whole})}
    assert at[whole].start >= at[head].start
    assert at[whole].gpus == 4
    again = cluster.submit("bob", ["--exclusive", "-N1", *LOWER])
    for job in full[other]:
        end_job(cluster, "bob", job)
    cluster.wait(again, "COMPLETED")


def test_no_job_of_whole_nodes_passes_where_some_nodes_have_no_gpus(
    cluster: Cluster, full: dict[str, list[str]]
) -> None:
    """On nodes with GPUs it waits for its turn, on the others it starts at once."""
    free, busy = NODES[0], NODES[1]
    whole = ["-p", "mixed", "--exclusive", *LOWER]
    with mixed_partition(cluster):
        head = cluster.submit("alice", ["-N2", "--gres=gpu:4", "-t", "60", "-w", f"{free},{busy}"])
        for job in full[free]:
            end_job(cluster, "bob", job)
        cluster.wait_until(lambda: told_to_wait(cluster, head), 60, "a reservation for the head")
        moved = cluster.submit("bob", ["-p", "cpus", "--exclusive", "--hold", *LOWER])
        told = cluster.run("ctl", ["scontrol", "update", f"jobid={moved}", "partition=gpu"], "bob")
        assert b"while GPU jobs wait" in told.stderr
        cluster.sh("ctl", ["scancel", moved])
        past = [cluster.submit("bob", [*whole, "-w", free]), cluster.submit("bob", ["-H", *whole])]
        het = HET.replace("--gres=gpu:1 -t 60\nsleep", f"{' '.join(whole)} -w {free}\nsleep")
        past.append(cluster.submit("bob", LOWER, het.replace("--gres=gpu:1 -t 60", "-n1")))
        first = cluster.running_job("bob", whole, WAIT)
        assert cluster.job(first)["NodeList"] == "c1"
        cluster.sh("ctl", ["scontrol", "release", past[1]], "bob")
        past.append(cluster.submit("bob", whole))
        excluded = lambda: cluster.job(past[1])["ExcNodeList"] == "n[1-4]"  # noqa: E731
        cluster.wait_until(excluded, 60, lambda: story(cluster, [head, *past]))
        time.sleep(10)
        states = {job: cluster.job(job)["JobState"] for job in (head, *past)}
        assert set(states.values()) == {"PENDING"}, story(cluster, [head, *past])
        told_why = in_one_line(cluster.sh("ctl", ["gpu-aware", "explain", past[1]], "bob"))
        assert "on nodes without GPUs it may start at any time" in told_why
        for job in full[busy]:
            end_job(cluster, "bob", job)
        cluster.wait(head, {"RUNNING", "COMPLETED"})
        cluster.wait_all((head, *past), "COMPLETED", 120)
        alone = {past[0], past[1], past[3]}
        at = {run.job: run for run in accounted(cluster, {head, *alone})}
        assert all(at[job].start >= at[head].start for job in alone)
        assert {at[job].gpus for job in alone} == {4}  # c1 was not free
        end_job(cluster, "bob", first)


def test_a_job_of_whole_nodes_starts_as_soon_as_a_gpu_job(cluster: Cluster) -> None:
    waited: dict[str, list[float]] = {"--gres=gpu:4": [], "--exclusive": []}
    for _ in range(3):
        for form, found in waited.items():
            at = time.monotonic()
            job = cluster.running_job("bob", [form, "-N1", "-t", "5"], WAIT)
            found.append(time.monotonic() - at)
            end_job(cluster, "bob", job)
    print("\n", waited)
    assert min(waited["--exclusive"]) <= min(waited["--gres=gpu:4"]) + SLACK_S


@pytest.mark.parametrize("command", ["requeue", "requeuehold"])
def test_a_requeued_job_of_whole_nodes_is_parked_again(cluster: Cluster, command: str) -> None:
    job = cluster.running_job("bob", ["--exclusive", "-N1", "-t", "5"], WAIT)
    cluster.sh("ctl", ["scontrol", command, job], "bob")
    parked = lambda: GATE_LICENCE in cluster.job(job)["Licenses"]  # noqa: E731
    cluster.wait_until(parked, 60, lambda: str(cluster.job(job)))
    cluster.cancel_all()


def test_a_requeued_job_that_still_ends_does_not_choose_its_start(cluster: Cluster) -> None:
    """Slurm delays it only when it has ended, and only if its start does not lie ahead then."""
    script = "trap 'sleep 6; exit 0' TERM; while :; do sleep 0.2; done"
    job = cluster.submit("bob", ["--exclusive", "-N1", "-t", "5"], script)
    cluster.wait(job, "RUNNING")
    time.sleep(12)  # the filter goes by the time of its submission otherwise
    cluster.sh("ctl", ["scontrol", "requeue", job], "bob")
    change = ["scontrol", "update", f"jobid={job}", "starttime=now+7seconds"]
    told = cluster.run("ctl", change, "bob")
    assert cluster.job(job)["JobState"] == "COMPLETING"
    assert b"on its way back to the queue" in told.stderr
    parked = lambda: GATE_LICENCE in cluster.job(job)["Licenses"]  # noqa: E731
    cluster.wait_until(parked, 60, lambda: str(cluster.job(job)))
    assert cluster.job(job)["JobState"] == "PENDING"
    cluster.cancel_all()


def test_a_component_without_gpus_needs_its_room_too(cluster: Cluster) -> None:
    """No GPU is kept for a heterogeneous job that cannot start."""
    cpus = [cluster.submit("bob", ["-c", "9", "-w", node, "-t", "60"], WAIT) for node in NODES]
    cluster.wait_all(cpus, "RUNNING")
    time.sleep(1.1)  # a job without GPUs that starts in the second in which another comes passes it
    script = HET.replace("--gres=gpu:1 -t 60\nsleep", "-c 9 -t 60\nsleep")
    het = cluster.sh("ctl", ["sbatch", "--parsable"], "alice", stdin=script).strip()
    waits = lambda: "CPUs" in cluster.sh("ctl", ["gpu-aware", "explain", het])  # noqa: E731
    cluster.wait_until(waits, 60, "the reason why it waits")
    short = cluster.submit("bob", ["--gres=gpu:4", *LOWER, "-t", "1"])
    cluster.wait(short, "COMPLETED", 30)
    assert GATE_LICENCE in cluster.job(het)["Licenses"]
    let_go(cluster, "bob", cpus[0])
    cluster.wait(het, "COMPLETED", 120)
    cluster.cancel_all()


@pytest.mark.parametrize("first", [True, False])
def test_components_keep_their_tasks(cluster: Cluster, first: bool) -> None:
    """Slurm counts tasks by GPU anew in an update, and an update of the first changes all."""
    asked = ["-N1 --gres=gpu:2 --ntasks-per-gpu=2", "-N1 -n1 --gres=gpu:1"]
    parts = [f"#SBATCH {text} -t 60\n" for text in (asked if first else asked[::-1])]
    script = "#!/bin/bash\n" + "#SBATCH hetjob\n".join(parts) + "sleep 1\n"
    het = cluster.sh("ctl", ["sbatch", "--parsable"], "alice", stdin=script).strip()
    cluster.wait(het, "COMPLETED", 90)
    tasks = [job["NumTasks"] for job in cluster.jobs(het)]
    assert tasks == (["4", "1"] if first else ["1", "4"])


def test_they_count_under_a_power_limit(cluster: Cluster, limited: None) -> None:
    """The limit leaves power for three GPUs."""
    asked = ["--gres=gpu:1", "--comment=place=off"]
    jobs = [cluster.submit("bob", asked, WAIT) for _ in range(8)]

    def running() -> int:
        states = [job["JobState"] for job in cluster.jobs()]
        assert states.count("RUNNING") <= 3
        return states.count("RUNNING")

    cluster.wait_until(
        lambda: running() == 3 and plan_takes(cluster, 3), 120, lambda: str(power(cluster))
    )
    told = power(cluster)
    assert told is not None
    assert not told["unmet"]
    for job in jobs:
        let_go(cluster, "bob", job)
        running()
    cluster.wait_all(jobs, "COMPLETED", 120)


# Mixed submissions, from accounting ---------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One job by Slurm's accounting; times are Unix seconds."""

    job: str
    gpus: int
    priority: int
    submit: float
    start: float
    end: float
    node: str
    limit: float


def accounted(cluster: Cluster, jobs: set[str]) -> list[Run]:
    """All of them, once Slurm has written their ends."""
    fields = "jobidraw,alloctres,priority,submit,start,end,nodelist,timelimitraw"
    command = f"SLURM_TIME_FORMAT=%s sacct -X -n -P -o {fields} -S now-2hours"
    rows: list[list[str]] = []

    def written() -> bool:
        every = [line.split("|") for line in cluster.sh("ctl", command).splitlines()]
        rows[:] = [row for row in every if row[0] in jobs and row[5].isdecimal()]
        return len(rows) >= len(jobs)

    cluster.wait_until(written, 60, lambda: f"accounting knows the ends: {rows}")
    runs = []
    for job, tres, priority, submit, start, end, node, limit in rows:
        gpus = next(int(t[9:]) for t in tres.split(",") if t.startswith("gres/gpu="))
        times = float(submit), float(start), float(end)
        runs.append(Run(job, gpus, int(priority), *times, node, 60.0 * float(limit)))
    return runs


def in_line(run: Run) -> tuple[int, float, int]:
    """Smaller: stands before."""
    return -run.priority, run.submit, int(run.job)


def fits(head: Run, busy: list[Run], most: int) -> bool:
    """Whether it would have its GPUs on one node beside these; ``most``: GPUs busy at a time."""
    free = max(4 - sum(r.gpus for r in busy if r.node == node) for node in NODES)
    return head.gpus <= min(free, most - sum(r.gpus for r in busy))


def promised_s(head: Run, one: Run, passed: list[Run], runs: list[Run], most: int) -> float:
    """When the first in line could start without ``one`` and these, by the limits of the rest."""
    left = [r for r in runs if r not in (one, *passed) and r.start <= one.start < r.end]
    ends = sorted({one.start, *(r.start + r.limit for r in left)})
    return next(at for at in ends if fits(head, [r for r in left if r.start + r.limit > at], most))


def delayed(
    runs: list[Run], most: int = 4 * len(NODES), *, slack_s: float
) -> list[tuple[list[str], str]]:
    """(jobs, the first job in line that they delayed together): without them it would have fitted.

    ``most``: GPUs that can be busy at a time. ``slack_s``: between a job's turn and its start.
    """
    passed: dict[str, list[Run]] = {}
    for one in sorted(runs, key=lambda run: run.start):
        before = [
            r
            for r in runs
            if in_line(r) < in_line(one) and r.submit + slack_s < one.start < r.start
        ]
        head = min(before, key=in_line, default=one)
        if head.start - slack_s <= one.start:
            continue  # none waits, or the first in line has just got its place
        known = passed.get(head.job, [])
        if one.start + one.limit > promised_s(head, one, known, runs, most):
            passed[head.job] = [*known, one]  # no backfill, which had to end before by its limit
    found = []
    for head in runs:
        others = passed.get(head.job, [])
        moments = (r.end + slack_s for r in runs if others and others[0].start < r.end + slack_s)
        for at in (at for at in moments if at < head.start - slack_s):
            busy = [r for r in runs if r.start <= at < r.end + slack_s]
            rest = [r for r in busy if r not in others]
            if not fits(head, busy, most) and fits(head, rest, most):
                found.append(([r.job for r in others], head.job))
                break
    return found


@pytest.mark.parametrize("most", [16, 8])
def test_mixed_submissions_pass_no_one(cluster: Cluster, most: int) -> None:
    """Half of them are placed by Slurm; three priorities, two users; power for ``most`` GPUs."""
    with power_for(cluster, most) if most < 4 * len(NODES) else nullcontext():
        check_mixed(cluster, most)


def check_mixed(cluster: Cluster, most: int) -> None:
    rng, watch = random.Random(7), Stopwatch()
    count = int(os.environ.get("GPU_AWARE_MIXED_JOBS") or 60 * most // 16)
    left = [["--comment=place=off"], ["--contiguous"], ["--spread-job", "-N1"], ["--oversubscribe"]]
    forms = [*left, ["--comment=class=A"], [], ["--comment=class=C"], ["-c", "2"]]
    jobs = set()
    for number in range(count):
        gpus = rng.choice([1, 1, 2, 4])
        options = [
            f"--gres=gpu:{gpus}",
            f"--nice={rng.choice([0, 50_000, 150_000])}",
            *forms[number % len(forms)],
            *("-t", str(rng.choice([1, 5]))),
        ]
        user = rng.choice(["alice", "bob"])
        jobs.add(cluster.submit(user, options, f"sleep {rng.choice([4, 8, 16])}"))
    cluster.wait_all(jobs, "COMPLETED", 60 + 3 * count)
    runs = accounted(cluster, jobs)
    assert len(runs) == count
    passed = delayed(runs, most, slack_s=slack_s(watch))
    told = [cluster.sh("ctl", ["gpu-aware", "explain", head, "--details"]) for _, head in passed]
    assert passed == [], (told, [str(run) for run in sorted(runs, key=lambda run: run.start)])


def test_short_jobs_are_opened_ahead_and_pass_no_one(cluster: Cluster) -> None:
    """Whole nodes of a higher priority come between them."""
    log = "/var/log/cluster/selectd.log"
    watch, logged = Stopwatch(), int(cluster.sh("ctl", f"wc -c <{log}"))
    low = [cluster.submit("alice", ["--gres=gpu:1", *LOWER], "sleep 9") for _ in range(56)]
    high = []
    for _ in range(3):
        high.append(cluster.submit("bob", ["--gres=gpu:4", "-t", "5"], "sleep 2"))
        time.sleep(3)
    cluster.wait_all((*low, *high), "COMPLETED", 180)
    runs = accounted(cluster, {*low, *high})
    assert len(runs) == len(low) + len(high)
    assert delayed(runs, slack_s=slack_s(watch)) == [], story(cluster, high)
    told = cluster.sh("ctl", f"tail -c +{logged + 1} {log}").count(f"turn: {AHEAD}")
    print(f"\n{told} jobs were opened ahead")
    assert told >= 8
