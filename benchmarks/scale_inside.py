"""Part of `benchmarks/scale.py` that runs inside its controller; prints JSON.

Reads the state as the selector does, and plans a whole round without placing (the gate counts as
not held). With the argument ``updates``: sends updates that change nothing.
"""

import gc
import json
import logging
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.planning import stages
from slurm_gpu_aware.selector import round as service
from slurm_gpu_aware.selector.daemon import GC_OBJECTS
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.updates import JobUpdate

PLANNING: Any = stages
"""Its ``place_round`` is timed."""

REPEATS = 5


def cpu_s() -> float:
    """CPU time of this process and its children, seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Timed:
    """A client that adds up the time of its readings."""

    def __init__(self, inner: SlurmClient) -> None:
        self.inner = inner
        self.spent: dict[str, float] = {}
        self.cpu = 0.0

    @property
    def unread(self) -> frozenset[int]:
        """Records that the last reading left out."""
        return self.inner.unread

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.inner, name)

        def timed(*arguments: Any) -> Any:
            start, cpu = time.perf_counter(), cpu_s()
            try:
                return call(*arguments)
            finally:
                took = time.perf_counter() - start
                self.cpu += cpu_s() - cpu
                self.spent[name] = self.spent.get(name, 0.0) + took

        return timed


def main() -> None:
    logging.disable(logging.CRITICAL)
    gc.set_threshold(GC_OBJECTS, 20, 20)  # as the daemon does
    config = load_config()
    client: Any = Timed(open_client(60.0))
    planned: list[float] = []
    planned_cpu: list[float] = []
    counts: list[tuple[int, int]] = []
    place_round = PLANNING.place_round

    def timed_plan(one: Any) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        found = place_round(one)
        planned.append(time.perf_counter() - start)
        planned_cpu.append(time.process_time() - cpu)
        counts.append((len(one.queue), len(found.plan.assignments)))
        return found

    PLANNING.place_round = timed_plan
    reads: list[float] = []
    reads_cpu: list[float] = []
    waiting: dict[str, int] = {}
    parts: dict[str, list[float]] = {}
    rests: list[float] = []
    rests_cpu: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        books = LedgerWriter(Path(folder) / "store.db")
        rounds = service.Rounds(
            client,
            config,
            books,
            gate_held_until=lambda: 0.0,
        )
        for _ in range(REPEATS):
            began = time.process_time()
            client.spent.clear()
            client.cpu = 0.0
            outcome = rounds.run()
            reads.append(sum(client.spent.values()))
            reads_cpu.append(client.cpu)
            for name, seconds in client.spent.items():
                parts.setdefault(name, []).append(seconds)
            rests_cpu.append(time.process_time() - began - planned_cpu[-1])
            rests.append(outcome.took_s - reads[-1] - planned[-1])
        books.close()
    for item in outcome.waiting:
        reason = re.sub(r"[0-9]+", "N", item["reason"])[:60]
        waiting[reason] = waiting.get(reason, 0) + 1
    jobs = client.inner.jobs()
    json.dump(
        {
            "jobs": len(jobs),
            "queued": counts[-1][0],
            "assigned": counts[-1][1],
            "read_s": statistics.median(reads),
            "read_parts_s": {name: statistics.median(v) for name, v in parts.items()},
            "read_cpu_s": statistics.median(reads_cpu),
            "plan_s": statistics.median(planned),
            "plan_cpu_s": statistics.median(planned_cpu),
            "waiting": dict(sorted(waiting.items(), key=lambda w: -w[1])[:5]),
            "rest_s": statistics.median(rests),
            "rest_cpu_s": statistics.median(rests_cpu),
        },
        sys.stdout,
    )


def updates() -> None:
    """Send as many updates as a full round; they change nothing."""
    client = open_client(60.0)
    parked = [job for job in client.jobs() if job.state == "PENDING"][:400]
    sent = [JobUpdate(job.id, (("AdminComment", job.admin_comment or ""),)) for job in parked]
    start = time.perf_counter()
    refused = client.update_jobs(sent)
    per_update = (time.perf_counter() - start) / max(1, len(sent))
    pooled = sum(job.holding_pool is not None for job in parked)
    found = {"updates": len(sent), "refused": len(refused), "pooled": pooled}
    json.dump(found | {"update_s": per_update}, sys.stdout)


updates() if sys.argv[1:] == ["updates"] else main()
