"""Calls the client while Slurm fails, and prints JSON; see ``tests/slurm/test_client.py``.

python live_failures.py open                 open it once
python live_failures.py calls SECONDS FILE   call it again and again, each call with 2 s, until it
                                             has failed and works again, for so long at most; FILE
                                             is made when each call was made once
python live_failures.py rights JOB           what an ordinary user may not do
python live_failures.py busy CALLS JOB       so many calls by each of eight threads at a time, then
                                             again; with PYTHONMALLOC=malloc

SECONDS are those of an idle machine, others those in which another process goes on (`Heartbeat`).
"""

import ctypes
import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from idle_clock import Stopwatch

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.updates import JobUpdate, NewReservation

TIMEOUT_S = 2.0
BEAT_S = 0.01
MALLINFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Heartbeat:
    """How long another thread of Python was held up at most.

    Time is counted by a process beside this one: where the machine stands still, both do.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        alike = multiprocessing.get_context("fork")  # before there is any thread
        self._went_on_s = alike.RawValue("d", 0.0)
        alike.Process(target=self._count, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def now_s(self) -> float:
        """Seconds since the start in which the other process went on."""
        return float(self._went_on_s.value)

    def _count(self) -> None:
        parent, last = os.getppid(), time.monotonic()
        while os.getppid() == parent:
            time.sleep(BEAT_S)
            now = time.monotonic()
            self._went_on_s.value += min(now - last, 5 * BEAT_S)  # longer: it stood still
            last = now

    def _beat(self) -> None:
        last = self.now_s
        while True:
            time.sleep(BEAT_S)
            now = self.now_s
            self.longest_s = max(self.longest_s, now - last)
            last = now


HEARTBEAT = Heartbeat()


def timed(call: Callable[[], object]) -> tuple[float, str]:
    """(seconds, what it raised or refused; empty: nothing)."""
    began_s = HEARTBEAT.now_s
    said = ""
    try:
        found = call()
        said = "; ".join(found.values()) if isinstance(found, dict) else ""
    except SourceError as exc:
        said = f"SourceError: {exc}"
    return HEARTBEAT.now_s - began_s, said


def update_extra(client: SlurmClient, job_id: str, value: str) -> dict[str, str]:
    """Complaints of one harmless update."""
    return client.update_jobs([JobUpdate(job_id, (("Extra", value),))])


def calls(seconds: float, called: Path) -> list[Any]:
    """(call, seconds, what it raised or refused) of each, until all work again after a failure."""
    client = open_client(TIMEOUT_S)
    each: dict[str, Callable[[], object]] = {
        "jobs": lambda: [client.jobs()],
        "nodes": client.nodes,
        "update": lambda: [update_extra(client, "99999999", "x")],
        "licences": lambda: [client.licenses()],
    }
    found: list[Any] = []
    watch = Stopwatch()
    while watch.idle_s < seconds:
        for name, call in each.items():
            found.append([name, *timed(call)])
        called.touch()
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


def busy(count: int, job_id: str) -> dict[str, Any]:
    """What went wrong, and by how much memory grew in the second half."""
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

    def half() -> None:
        def work(number: int) -> None:
            for turn in range(number, number + count):
                try:
                    each[turn % len(each)]()
                except Exception as exc:
                    failed.append(repr(exc))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(each))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    half()
    before_kb = memory_kb()
    half()
    return {"failed": failed, "grew_kb": memory_kb() - before_kb}


def run_one() -> None:
    what, *given = sys.argv[1:]
    if what == "open":
        found: Any = timed(lambda: open_client(TIMEOUT_S))
    elif what == "calls":
        found = calls(float(given[0]), Path(given[1]))
    elif what == "rights":
        found = rights(given[0])
    else:
        found = busy(int(given[0]), given[1])
    print(json.dumps({"found": found, "longest_s": HEARTBEAT.longest_s}))


if __name__ == "__main__":
    run_one()
