"""A large site as records, read and planned as the selector does, without Slurm and without Docker.

    python benchmarks/large_site.py [PART ...] [--nodes 2000] [--jobs 1000] [--ended 10000]

Makes the records that Slurm's library would return for nodes of 8 GPUs, three quarters of them
busy, with parked jobs of many shapes (those of ``benchmarks/scale.py``), and reads them through the
client; only the library itself is left out. Parts:

- ``round``: one whole round without Slurm: reading, snapshot and translation, planning;
- ``idle``: the selector's CPU per minute with jobs that have ended still in slurmctld's memory.

Times are medians of CPU time of this process, so that other load disturbs them little.
"""

import argparse
import gc
import logging
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from typing import Any

from placement_profile import show_profile

from slurm_gpu_aware.config.settings import Config, EventsConfig, StoreConfig
from slurm_gpu_aware.planning import stages
from slurm_gpu_aware.selector.daemon import GC_OBJECTS, Selector
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.slurm import reader
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.libslurm import CallCounts, Libslurm, SlurmError
from slurm_gpu_aware.slurm.libslurm_fields import (
    JOB,
    LICENSE,
    NODE,
    NOT_SET,
    PARTITION,
    RESERVATION,
    UNLIMITED,
    RecordKind,
)

PLANNING: Any = stages
"""Its ``place_round`` is timed."""

REPEATS = 5
SETTLE_S = 40.0
"""As long after its start every round of the selector asks Slurm."""
WIDTH = 8
NOW = 1_795_260_000
SETTINGS = (
    b"ClusterName             = site\nSLURM_VERSION           = 24.11.5\n"
    b"SelectTypeParameters    = CR_CORE_MEMORY\n"
)
GPUS = ",".join(f"gpu:g{i}:1" for i in range(WIDTH))
HELD = ",".join(f"gpu:g{i}:1(IDX:{i})" for i in range(WIDTH))
NOT_USED = ",".join(f"gpu:g{i}:0(IDX:N/A)" for i in range(WIDTH))


def encoded(kind: RecordKind, **fields: int | str) -> bytes:
    """A record as the C code packs it; absent fields are 0 or empty."""
    numbers = [int(fields.pop(name, 0)) for name in kind.numbers]
    texts = [str(fields.pop(name, "")) for name in kind.texts]
    if fields:
        raise ValueError(f"{kind.name} has no {', '.join(fields)}")
    return Struct(f"={len(numbers)}q").pack(*numbers) + "".join(f"{t}\0" for t in texts).encode()


def job(number: int, state: str, width: int, gpus: int, minutes: int = 60, **more: Any) -> bytes:
    """A job record; ``width``: number of nodes."""
    unset = ("array_task_id", "ntasks_per_core", "threads_per_core", "sockets_per_node")
    fields: dict[str, Any] = dict.fromkeys((*unset, "cores_per_socket", "core_spec"), NOT_SET)
    fields |= {
        "job_id": number,
        "user_id": 2001,
        "user_name": "alice",
        "name": "wrap",
        "priority": 20_000 - number,
        "state": state,
        "reason": "None",
        "time_limit": minutes,
        "submit_time": NOW - 600,
        "eligible_time": NOW - 600,
        "accrue_time": NOW - 600,
        "last_sched_eval": NOW,
        "partition": "gpu",
        "num_nodes": width,
        "num_cpus": width,
        "num_tasks": width,
        "cpus_per_task": 1,
        "pn_min_cpus": 1,
        "pn_min_memory": 500 - (1 << 63),
        "tres_req_str": f"cpu={width},mem={500 * width}M,node={width},billing={width}"
        f",gres/gpu={width * gpus}",
        "admin_comment": f"gpuaware/1;tn=gres/gpu:{gpus};nn={width}-{width};mc={width}",
        "comment": f"class={'ABC'[number % 3]}",
        "tres_per_node": f"gres/gpu:{gpus}",
    }
    return encoded(JOB, **fields | more)


def node(number: int, busy: bool) -> bytes:
    """A node record."""
    return encoded(
        NODE,
        name=f"c{number}",
        state="MIXED+CLOUD" if busy else "IDLE+CLOUD",
        features="gpu_v100",
        gres=GPUS,
        gres_used=HELD if busy else NOT_USED,
        gres_drain="N/A",
        cpus=64,
        cpus_efctv=64,
        sockets=2,
        cores=32,
        threads=1,
        real_memory=512_000,
        alloc_cpus=int(busy),
        alloc_memory=500 * busy,
    )


class Constants:
    """Stands for the library's names: every number is 0, except those that the code compares."""

    SLURM_NO_CHANGE_IN_DATA = 1900

    def __getattr__(self, name: str) -> int:
        return 0


class Library(Libslurm):
    """`Libslurm` without the library: the same records each time, and all changes are taken."""

    NULL = None

    def __init__(self, nodes: int, jobs: int, ended: int, busy: float = 0.75) -> None:
        self.ffi, self.counts = self, CallCounts()
        self.lib = Constants()
        self._timeout_s = 20.0
        self._waiting = threading.Semaphore(16)
        self.asked = 0
        taken = int(nodes * busy)
        running = [
            job(
                i + 1,
                "RUNNING",
                1,
                WIDTH,
                7 * 24 * 60,
                start_time=NOW - 100,
                end_time=NOW + 7 * 86400,
                nodes=f"c{i + 1}",
                gres_total=GPUS,
                shares=f"c{i + 1}\t1\t0\t500\t{HELD}\n",
            )
            for i in range(taken)
        ]
        parked = [
            job(
                taken + i + 1,
                "PENDING",
                i % 4 + 1,
                i % 8 + 1,
                60 + i % 50,
                reason="Licenses",
                licenses="gpuaware:1",
            )
            for i in range(jobs)
        ]
        over = [
            job(
                taken + jobs + i + 1,
                "COMPLETED",
                1,
                1,
                start_time=NOW - 20,
                end_time=NOW - 10,
                nodes=f"c{i % nodes + 1}",
            )
            for i in range(ended)
        ]
        gate: dict[str, int | str] = {
            "start_time": 100,
            "end_time": 99_999_999_999,
            "licenses": "gpuaware:100000",
        }
        answers = {
            "aware_jobs": [*running, *parked, *over],
            "aware_nodes": [node(i + 1, i < taken) for i in range(nodes)],
            "aware_partitions": [
                encoded(
                    PARTITION,
                    name="gpu",
                    nodes=f"c[1-{nodes}]",
                    state_up=3,
                    max_time=UNLIMITED,
                    default_time=60,
                    max_nodes=UNLIMITED,
                    priority_tier=1,
                    max_share=1,
                )
            ],
            "aware_reservations": [encoded(RESERVATION, name="gpuaware_gate", **gate)],
            "aware_licenses": [
                encoded(LICENSE, name="gpuaware", available=100_000, reserved=100_000)
            ],
        }  # fmt: skip
        self._answers = {
            name: b"".join(Struct("=I").pack(len(record)) + record for record in found)
            for name, found in answers.items()
        }

    def new(self, _type: str, _value: object = None) -> list[int]:
        """Room for one number."""
        return [NOW]

    def ask(self, function: str, *given: Any) -> bytes:
        """The same records each time: the jobs do not change. There is no topology."""
        if function == "aware_jobs":
            self.asked += 1
            if given[0]:
                raise SlurmError("no change", Constants.SLURM_NO_CHANGE_IN_DATA, refused=True)
        return SETTINGS if function == "aware_settings" else self._answers.get(function, b"")

    def call(self, _function: str, *_given: object) -> None:
        """Success."""


def client_of(library: Library) -> SlurmClient:
    """The client over that library."""
    vars(reader)["Libslurm"] = lambda _timeout_s: library
    return SlurmClient(20.0)


def whole_round(given: argparse.Namespace) -> None:
    """CPU time of a round's parts, without Slurm's library."""
    client = client_of(Library(given.nodes, given.jobs, given.ended))
    place_round = PLANNING.place_round
    spent: dict[str, list[float]] = {}
    placed: list[int] = []

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments, **options)
            finally:
                spent.setdefault(name, []).append(time.process_time() - began)

        return wrapped

    def plan(one: Any) -> Any:
        found = place_round(one)
        placed.append(len(found.plan.assignments))
        return found

    for name in ("jobs", "nodes", "partitions", "reservations"):
        setattr(client, name, timed(f"read {name}", getattr(client, name)))
    PLANNING.place_round = timed("plan", plan)
    with tempfile.TemporaryDirectory() as folder:
        books = LedgerWriter(Path(folder) / "store.db")
        rounds = Rounds(client, Config(), books, gate_held_until=lambda: 0.0, clock=lambda: NOW)
        whole: list[float] = []
        for _ in range(1 + REPEATS):
            began = time.process_time()
            outcome = rounds.run()
            whole.append(time.process_time() - began)
        print(
            f"{given.nodes} nodes, {given.jobs} parked and {given.ended} ended jobs:"
            f" {outcome.queued} planned, {placed[-1]} placed"
        )
        print(f"{'':<20}{'first, s':>10}{'then, s':>10}")
        for name, times in {**spent, "whole round": whole}.items():
            print(f"{name:<20}{times[0]:>10.3f}{statistics.median(times[1:]):>10.3f}")
        if given.profile:
            show_profile(rounds.run)
        books.close()
    PLANNING.place_round = place_round


def idle(given: argparse.Namespace) -> None:
    """CPU of the selector while no job is parked or runs and many have ended."""
    library = Library(given.nodes, 0, given.ended, busy=0.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = Config(
            store=StoreConfig(path=folder / "store.db"),
            events=EventsConfig(submit_file=folder / "submitted"),
        )
        os.environ["GPU_AWARE_CLOCK_CONFIG"] = str(folder / "clock.conf")
        selector = Selector(config, client_of(library))
        marks: list[float] = []

        def measure() -> None:
            time.sleep(SETTLE_S)
            marks.append(cpu_s())
            time.sleep(given.seconds)
            marks.append(cpu_s())
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=measure, daemon=True).start()
        selector.loop()
        selector.close()
    share = (marks[1] - marks[0]) / given.seconds
    print(
        f"idle for {given.seconds:g} s with {given.ended} ended jobs: {100 * share:.2f}% of a core"
        f" without slurmctld's own; all jobs were asked for {library.asked} times"
    )


def cpu_s() -> float:
    """CPU time of this process and its children, seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"round": whole_round, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--ended", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to be idle")
    parser.add_argument("--profile", action="store_true", help="show where a round spends its time")
    given = parser.parse_args()
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}")
    logging.disable(logging.CRITICAL)
    gc.set_threshold(GC_OBJECTS, 20, 20)  # as the daemon does
    for name in given.parts or PARTS:
        PARTS[name](given)


if __name__ == "__main__":
    main()
