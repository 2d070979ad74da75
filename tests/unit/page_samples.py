"""A site for the tests of the pages: racks, links, slow GPUs, jobs with reasons, hostile texts."""

import json
import random
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from memory_slurm import FOREVER, job_record, node_record, reservation_record
from slurm_folder import SlurmFolder, parked
from store_samples import ingest

from gpu_aware_profile.store_writer import recompute_scores
from slurm_gpu_aware.features.shadow.losses import GpuSet, Sets, ShadowJob
from slurm_gpu_aware.features.shadow.store import add_job, begin_watch, go_on
from slurm_gpu_aware.model.hardware_graph import direct_links
from slurm_gpu_aware.model.profile import Alarm
from slurm_gpu_aware.store.database import POWER, Store, open_store, put_value
from slurm_gpu_aware.store.ledger import Decision, Ledger, RoundRecord
from slurm_gpu_aware.store.profiles import put_alarms
from slurm_gpu_aware.topology.machines import machine

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\u202e\n"
DAY_S = 86_400.0
SLOW = ("v100-r1-02", 5)
"""The GPU that becomes 12% slower in the middle of the time."""
MACHINES = {
    **{f"v100-r1-{i:02}": ("dgx-1-v100", "v100", "Tesla V100-SXM2-16GB", 300.0) for i in (1, 2, 3)},
    **{f"h100-r2-{i:02}": ("h100-nvl-8", "h100", "NVIDIA H100 NVL", 400.0) for i in (1, 2)},
    **{f"a100-r3-{i:02}": ("dgx-a100", "a100", "NVIDIA A100-SXM4-40GB", 400.0) for i in (1, 2)},
    "v100-r4-01": ("dgx-2", "v100", "Tesla V100-SXM2-16GB", 350.0),
}
"""Node -> machine, model, product, power limit."""
_TIMES = {"A": 120.0, "B": 80.0, "C": 40.0}


def probe_report(
    node: str, kind: tuple[str, str, str, float], taken_at: float, rng: random.Random, slow: float
) -> dict[str, Any]:
    """The report of a node; ``slow``: factor of the time of `SLOW`."""
    name, model, product, limit_w = kind
    graph = machine(name)
    own = random.Random(node)
    base = [1.0 + abs(own.gauss(0.0, 0.02)) for _ in range(graph.n)]
    timings = [
        {
            "index": slot,
            "class": name,
            "value_ms": ms * base[slot] ** weight * (slow if (node, slot) == SLOW else 1.0)
            * rng.gauss(1.0, 0.002),
            "samples": 5,
            "spread": 0.004,
        }
        for slot in range(graph.n)
        for (name, ms), weight in zip(_TIMES.items(), (1.0, 0.6, 0.1), strict=True)
        for _ in range(3)
    ]  # fmt: skip
    return {
        "schema": "gpu-aware-probe/2",
        "node": node,
        "taken_at": taken_at,
        "driver": "550.54",
        "backend": "fake",
        "gpus": [
            {
                "index": slot,
                "uuid": f"GPU-{node}-{slot}",
                "name": product,
                "model": model,
                "numa": graph.groups[slot],
                "clocks_mhz": [1530, 1312],
                "power_limit_w": limit_w,
                "ecc_uncorrected": 3 if (node, slot) == ("h100-r2-01", 6) else 0,
            }
            for slot in range(graph.n)
        ],
        "links": [
            {"a": a, "b": b, "class": graph.classes[a][b], "gbps": float(graph.gbps[a, b])}
            for a, b in combinations(range(graph.n), 2)
            if direct_links(graph.classes[a][b]) or graph.classes[a][b] in ("PIX", "PXB")
        ],
        "timings": timings,
        "errors": [{"index": 2, "call": "nvmlDeviceGetPowerUsage", "error": HOSTILE}]
        if node == "a100-r3-02"
        else [],
    }


def fill_store(store: Store, now: float, sweeps: int = 9) -> None:
    """Weekly sweeps of `MACHINES`, and a power limit of a week."""
    rng = random.Random(7)
    for week in range(sweeps):
        at = now - (sweeps - 1 - week) * 7 * DAY_S - 3_600.0
        slow = 1.0 if week < sweeps - 3 else 1.04 + 0.03 * (week - sweeps + 4)
        for number, (node, kind) in enumerate(MACHINES.items()):
            ingest(store, probe_report(node, kind, at + 60.0 * number, rng, slow))
    recompute_scores(store)
    put_alarms(store, [Alarm(*SLOW, "A", 1.01, 1.12)])
    _power(store, now, rng)
    _shadow(store, now, rng)


def _power(store: Store, now: float, rng: random.Random) -> None:
    ledger = Ledger(store)
    for hour in range(7 * 24):
        at, limit = now - (7 * 24 - hour) * 3_600.0, 18_000.0 if hour % 24 < 8 else 21_000.0
        planned = min(limit, 14_000 + 4_000 * (hour % 24 > 7) + rng.gauss(0, 700))
        round_ = RoundRecord(at, 12.0, 5, 1, 4, limit_w=limit, planned_w=planned)
        ledger.add_round(RoundRecord(**{**vars(round_), "measured_w": planned * 0.94}))
    reading = {
        "limit": "21000 W by the schedule of config.toml", "limit_w": 21_000.0,
        "planned_w": 18_420.0, "unmet": False, "measured_w": 17_300.0, "measured_gpus": 64,
        "gpus": 72, "keeps_clock": {}, "keeping": 1, "agents": {}, "idle_nodes": "a100-r3-01",
        "no_model": {}, "without_model": 2,
    }  # fmt: skip
    put_value(store, POWER, json.dumps(reading))


def _shadow(store: Store, now: float, rng: random.Random) -> None:
    """Starts of two weeks in two partitions: links lost, nodes broken up, slow GPUs."""
    since = now - 14 * DAY_S
    with store.write():
        go_on(store, begin_watch(store, since), now)
        for number in range(60):
            node, other = rng.choice(["v100-r1-01", "v100-r1-02"]), "v100-r1-03"
            slow = rng.choice([1.0, 1.12])
            given = GpuSet(((node, (0, 5)),), "node", slow, slow, 12.0, False, (node,))
            ours = GpuSet(((other, (0, 3)),), "node", 1.0, 1.0, 50.0, True)
            began = since + number * 5 * 3_600.0
            job = ShadowJob(
                f"{8000 + number}", "alice", ("gpu", HOSTILE)[number % 2], "A", began,
                Sets(given, ours if number % 5 else None), "" if number % 5 else HOSTILE, 600.0,
                began + 7_200.0, 600.0 * (number % 3), f"{8001 + number}",
            )  # fmt: skip
            add_job(store, job)


def fill_jobs(slurm: SlurmFolder, store: Store, now: float) -> None:
    """Jobs that run, wait with reasons, and are left to Slurm."""
    nodes = [_node(name) for name in MACHINES]
    running = _running("9001", "v100-r1-01", [0, 1, 2, 3], now, name="train-resnet")
    also = _running("9002", "h100-r2-01", [4, 5], now, name=HOSTILE)
    waiting = [
        parked(str(number), name=f"job-{number}", user_id=1000 + number % 3, submit_time=int(now))
        for number in range(9100, 9106)
    ]
    left = job_record(
        job_id=9200, comment="gpu:place=off", tres_per_node="gres/gpu:1", name="own",
        tres_req_str="cpu=1,gres/gpu=1", reason="Priority", submit_time=int(now),
    )  # fmt: skip
    slurm.set(
        jobs=[running, also, *waiting, left],
        nodes=nodes,
        settings={**slurm.get("settings"), "ClusterName": "tessa"},
    )
    end = min(int(now) + 90, FOREVER)
    slurm.reserve(reservation_record("gpuaware_gate", licenses="gpuaware:100000", end_time=end))
    ledger = Ledger(store)
    _decide(ledger, "9001", "v100-r1-01", [0, 1, 2, 3], now, "train-resnet")
    _decide(ledger, "9002", "h100-r2-01", [4, 5], now, HOSTILE)
    reasons = [
        "8 GPUs on one node: none is whole before 14:05, when job 9001 ends at the latest",
        "waits until 14:05 for v100-r1-02:0,1: ends 22 min sooner than on h100-r2-02",
        "held by QOSMaxGRESPerUser",
        HOSTILE,
        "x" * 3000,
    ]
    entries = [
        {"job_id": str(9100 + i), "reason": why, "shadow_start_s": now + 3_600.0}
        for i, why in enumerate(reasons)
    ]
    ledger.add_round(RoundRecord(now - 30, 18.0, 6, 1, 5, "submit", {"waiting": entries}))


def _node(name: str) -> dict[str, Any]:
    count = machine(MACHINES[name][0]).n
    more: dict[str, Any] = {}
    if name == "v100-r1-03":
        more = {"state": "IDLE+DRAIN", "reason": f"fan {HOSTILE} [root@2026-11-20]"}
    if name == "a100-r3-02":
        more = {"gres_drain": "gpu:g2:1(IDX:2)"}
    gres = ",".join(f"gpu:g{slot}:1" for slot in range(count))
    return node_record(name, **{"gres": gres, **more})


def _running(job_id: str, node: str, slots: Sequence[int], now: float, name: str) -> dict[str, Any]:
    return parked(
        job_id, state="RUNNING", nodes=node, slots=list(slots), licenses="", name=name,
        reason="None", start_time=int(now) - 600,
    )  # fmt: skip


def _decide(
    ledger: Ledger, job_id: str, node: str, slots: list[int], now: float, name: str
) -> None:
    asked = {"gpus": len(slots), "class": "A", "min_nodes": 1, "max_nodes": 1, "name": name,
             "comment": f"class=A {name}", "time_limit_s": 7200}  # fmt: skip
    why = {
        "summary": "fastest free GPUs of one node",
        "estimate": {"seconds": 2400.0, "limit_s": 7200.0, "runs": 12, "source": "name"},
    }
    ledger.add_decision(
        Decision(
            job_id,
            "mallory",
            now - 700,
            now - 620,
            asked,
            "eft",
            [node],
            [slots],
            1.02,
            "node",
            1.02,
            why=why,
            state="started",
        )
    )
    ledger.add_event(job_id, "parked", {}, now - 700)
    ledger.add_event(job_id, "released", {}, now - 615)
    ledger.add_event(job_id, "started", {"gpus": {node: slots}}, now - 600)


def fill(slurm: SlurmFolder, now: float) -> None:
    """All of it."""
    with open_store(slurm.store) as store:
        fill_store(store, now)
        fill_jobs(slurm, store, now)
