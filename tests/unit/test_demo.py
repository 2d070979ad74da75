"""docker/demo.py without a cluster: what it compares with is what each job could have had."""

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make import plan_round

from slurm_gpu_aware.model.cluster import Cluster, RunningJob
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.registry import make_policy
from slurm_gpu_aware.planning.plan import PlanSettings

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("gpu_aware_demo", ROOT / "docker" / "demo.py")
assert spec is not None
assert spec.loader is not None
demo = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = demo
spec.loader.exec_module(demo)

LIMIT_S, RUN_S, ROUND_S = 120.0, 12.0, 0.5


def the_mix():
    """Requests of the demo's jobs, submitted half a second apart; tasks of an array together."""
    found = []
    for number, (_, app_class, options, count) in enumerate(demo.MIX):
        text = " ".join(options)
        nodes = 2 if "-N2" in options else 1
        gpus = (
            2 if "-n2" in options else nodes * int(re.search(r"(?:gpu:|gpus=|node=)(\d)", text)[1])
        )
        for _ in range(count * (4 if "--array=0-3" in options else 1)):
            one = Request(
                str(len(found)), gpus, nodes, nodes, app_class=app_class, time_limit_s=LIMIT_S,
                submit_s=number * 0.5,
            )  # fmt: skip
            found.append(one)
    return found


def a_run(cluster, epilog_s):
    """The demo on a virtual clock: its jobs with their decisions as the ledger has them."""
    pending, running, ended = the_mix(), {}, {}
    requests = {r.job_id: r for r in pending}
    jobs, now = [], 0.0
    while pending or running:
        now += ROUND_S
        for job_id in [j for j, (end, _, _) in running.items() if end <= now]:
            ended[job_id] = now
            del running[job_id]
        free = cluster.free.copy()
        for _, assignment, _ in running.values():
            for node, slots in zip(assignment.nodes, assignment.slots, strict=True):
                free[node, list(slots)] = False
        here = replace(cluster, free=free, running=tuple(r for _, _, r in running.values()))
        queue = [r for r in pending if r.submit_s <= now]
        for a in plan_round(queue, here, PlanSettings(policy="pal+mapa"), now).assignments:
            pending.remove(requests[a.job_id])
            holds = tuple(zip(a.nodes, a.slots, strict=True))
            known = RunningJob(a.job_id, holds, now + LIMIT_S)
            running[a.job_id] = (now + RUN_S + epilog_s, a, known)
            decision = {
                "id": len(jobs),
                "decided_at": now + 0.1,
                "nodes": [cluster.nodes[n] for n in a.nodes],
                "slots": [list(s) for s in a.slots],
                "slowdown": a.slowdown,
                "why": dict(a.why),
            }
            jobs.append(demo.Job(a.job_id, "alice", requests[a.job_id].app_class, "", decision))
    for job in jobs:
        job.ended_at = ended[job.job_id]
    return jobs, requests


@pytest.mark.parametrize("seed", range(4))
def test_packed_gets_no_better_gpus_than_the_job_could_have(seed):
    """Among the same GPUs no set is quicker than the one that pal+mapa chose."""
    rng = np.random.default_rng(seed)
    scores = {c: 1 + rng.choice([0, 0.01, 0.05, 0.3], (4, 4)) for c in "ABC"}
    cluster = Cluster.uniform(["n1", "n2", "n3", "n4"], 4, scores=scores, locality_penalty=1.5)
    jobs, requests = a_run(cluster, epilog_s=2.0 * (seed % 2))
    assert len(jobs) == 20
    differ, kept = 0, 0
    for at, job in enumerate(jobs):
        there = cluster.copy()
        for node, slot in demo.out_of_reach(job, jobs[:at]):
            there.take(cluster.nodes.index(node), [slot])
        other = make_policy("packed").place(requests[job.job_id], there)
        assert other.slowdown >= job.decision["slowdown"] - 1e-9
        differ += other.slowdown > job.decision["slowdown"] + 1e-9
        kept += "kept" in job.decision["why"]
    assert differ
    assert kept  # otherwise nothing was tried


def test_the_tables_fit_100_columns(capsys):
    decision = {
        "nodes": ["n1", "n2"],
        "slots": [[0, 1], [0, 1]],
        "level": "cluster",
        "score": 1.04,
        "slowdown": 1.56,
        "clock_mhz": 1980,
        "policy": "pal+mapa",
        "why": {"summary": "the least link bandwidth taken from others, of 12 sets " * 2},
    }
    jobs = [
        demo.Job(f"12{i}_3", user, app_class, demo.asked_of(options), decision)
        for i, (user, app_class, options, _) in enumerate(demo.MIX)
    ]
    for job in jobs:
        job.seen = {"n1": {0, 1}, "n2": {0, 1}}
    other = {"place": {"n3": [2, 3], "n4": [2, 3]}, "slowdown": 1.5}
    demo.report_jobs(jobs)
    demo.report_packed(jobs, {job.job_id: other for job in jobs})
    demo.further(jobs[0], keep=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "n1:0,1 n2:0,1  1980 MHz" in out


def test_make_help_counts_the_jobs():
    (line,) = re.findall(r"^demo:.*## (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert f"{len(the_mix())} jobs" in line
