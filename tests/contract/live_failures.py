"""Calls the client while Slurm fails, and prints JSON; see ``tests/slurm/test_client.py``.

python live_failures.py open                 open it once
python live_failures.py calls SECONDS        call it again and again, each call with 2 s, until it
                                             has failed and works again, for so long at most
python live_failures.py rights JOB           what an ordinary user may not do
python live_failures.py busy SECONDS JOB     eight threads at a time; with PYTHONMALLOC=malloc

All seconds are those of an idle machine.
"""

import ctypes
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from idle_clock import Stopwatch, idle_s

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.updates import JobUpdate, NewReservation

TIMEOUT_S = 2.0
MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Heartbeat:
    """How long another thread of Python was held up at most."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        last = idle_s()
        while True:
            time.sleep(0.01)
            now = idle_s()
            self.longest_s = max(self.longest_s, now - last)
            last = now


def timed(call: Callable[[], object]) -> tuple[float, str]:
    """(seconds, what it raised or refused; empty: nothing)."""
    watch = Stopwatch()
    said = ""
    try:
        found = call()
        said = "; ".join(found.values()) if isinstance(found, dict) else ""
    except SourceError as exc:
        said = f"SourceError: {exc}"
    return watch.idle_s, said


def update_extra(client: SlurmClient, job_id: str, value: str) -> dict[str, str]:
    """Complaints of one harmless update."""
    return client.update_jobs([JobUpdate(job_id, (("Extra", value),))])


def calls(seconds: float) -> list[Any]:
    """(call, seconds, what it raised or refused) of each, until all work again after a failure."""
    client = open_client(TIMEOUT_S)
    each: dict[str, Callable[[], object]] = {
        "jobs": lambda: [client.jobs()],
        "nodes": client.nodes,
        "update": lambda: [update_extra(client, "99999999", "x")],
        "licences": lambda: [client.free_licenses()],
    }
    found: list[Any] = []
    watch = Stopwatch()
    while watch.idle_s < seconds:
        for name, call in each.items():
            found.append([name, *timed(call)])
        works = not any(said for _, _, said in found[-len(each) :])
        if works and any(said for _, _, said in found):
            break
        time.sleep(0.2)
    return found


def rights(job_id: str) -> list[str]:
    """Answers to an ordinary user who changes another user's job, then reads it."""
    client = open_client(TIMEOUT_S)
    end_s = time.time() + 600
    said = [
        timed(lambda: update_extra(client, job_id, "x"))[1],
        timed(lambda: client.create_reservation(NewReservation("x", end_s, licenses="gpuaware:1")))[
            1
        ],
        timed(lambda: client.move_reservation("gpuaware_gate", end_s))[1],
        timed(lambda: client.delete_reservation("gpuaware_gate"))[1],
        timed(lambda: client.drain_node("n1", "x"))[1],
        timed(lambda: client.resume_node("n1"))[1],
    ]
    client.release_jobs([job_id])
    assert job_id in [job.id for job in client.jobs()]
    return said


class Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc: bytes, over all arenas."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO.split()]


def memory_kb() -> float:
    """Memory in use, without what is free again; Python's own where it allocates by malloc."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo
    found = mallinfo2()
    return (found.uordblks + found.hblkhd) / 1024


def busy(seconds: float, job_id: str) -> dict[str, Any]:
    """Calls of each thread, what went wrong, and by how much memory grew in the second half."""
    assert os.environ.get("PYTHONMALLOC") == "malloc"
    client = open_client(10.0)
    each = [
        client.jobs,
        client.nodes,
        lambda: update_extra(client, job_id, str(time.monotonic())),
        client.partitions,
        client.reservations,
        lambda: client.jobs_of([job_id]),
        client.settings,
        client.topology,
    ]
    failed: list[str] = []

    def half() -> list[int]:
        counts = [0] * len(each)
        watch = Stopwatch()

        def work(number: int) -> None:
            turn = number
            while watch.idle_s < seconds / 2:
                try:
                    each[turn % len(each)]()
                    counts[number] += 1
                except Exception as exc:
                    failed.append(repr(exc))
                turn += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(each))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return counts

    first = half()
    before_kb = memory_kb()
    second = half()
    grew_kb = memory_kb() - before_kb
    return {"counts": [first, second], "failed": failed, "grew_kb": grew_kb}


def run_one() -> None:
    what, *given = sys.argv[1:]
    heartbeat = Heartbeat()
    if what == "open":
        found: Any = timed(lambda: open_client(TIMEOUT_S))
    elif what == "calls":
        found = calls(float(given[0]))
    elif what == "rights":
        found = rights(given[0])
    else:
        found = busy(float(given[0]), given[1])
    print(json.dumps({"found": found, "longest_s": heartbeat.longest_s}))


if __name__ == "__main__":
    run_one()
