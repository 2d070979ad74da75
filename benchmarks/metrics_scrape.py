"""Cost of the metrics of a large site: the refresh, and a scrape over HTTP beside a plain file's.

    python benchmarks/metrics_scrape.py [--nodes 2000] [--gpus 8]

A store of so many GPUs with three classes, every GPU in use by a job; about 30 s. Prints the time
of the first refresh, of one in which no sweep has come, and of scrapes (the slowest of ten), and
exits with 1 if that is more than a second.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.exporter.server import Exporter, MetricsServer
from slurm_gpu_aware.exporter.sources import SlurmWatch
from slurm_gpu_aware.selector.live_jobs import GateView, LiveJob, SlurmView
from slurm_gpu_aware.slurm.records import NodeShare, SlurmJob, SlurmNode
from slurm_gpu_aware.store.database import open_store, publish
from slurm_gpu_aware.store.ledger import Decision, Ledger

CLASSES = ("A", "B", "C")
RUNS = 5
MOST_S = 1.0


def fill(path: Path, nodes: int, gpus: int) -> None:
    """A store with that many GPUs, one measurement each, and a decision per GPU."""
    now = time.time()
    names = [f"node{n:04}" for n in range(nodes)]
    every = [(node, slot) for node in names for slot in range(gpus)]
    with open_store(path) as store, store.write():
        store.executemany(
            "INSERT INTO nodes (node, taken_at_unix, probed_at_unix) VALUES (?, ?, ?)",
            [(node, now, now) for node in names],
        )
        store.executemany(
            "INSERT INTO gpus (node, slot, uuid, name, model, pci, clocks_mhz)"
            " VALUES (?, ?, ?, 'NVIDIA A100-SXM4-80GB', 'a100', ?, '[1410]')",
            [
                (node, slot, f"GPU-{i:08x}-aaaa-bbbb-cccc-0123456789ab", f"0000:{slot:02x}:00.0")
                for i, (node, slot) in enumerate(every)
            ],
        )
        timing = "INSERT INTO timings VALUES (?,?,?,?,?,10.0,'fake','idle',0,0,9,.004,0,0,0,0,0,'')"
        of_class = [(*gpu, name) for gpu in every for name in CLASSES]
        store.executemany(timing, [(*gpu, now, run) for gpu in of_class for run in range(RUNS)])
        store.executemany(
            "INSERT INTO scores VALUES (?, ?, ?, 10.0, ?, 1.0, 0, 0, ?)",
            [(*gpu, 0.9 + i % 997 / 5000, now) for i, gpu in enumerate(of_class)],
        )
        ledger = Ledger(store)
        for number, (node, slot) in enumerate(every):
            place: tuple[list[str], list[list[int]]] = ([node], [[slot]])
            asked, took = {"class": "A", "gpus": 1}, {"summary": "fastest free GPU" * 20}
            ledger.add_decision(
                Decision(
                    *(str(number + 1), "alice", now, now, asked, "eft", *place),
                    *(1.0, "node", 1.02),
                    why=took,
                    state="started",
                )
            )
    with open_store(path) as store:
        publish(store)


def full_site(nodes: int, gpus: int) -> SlurmView:
    """Slurm's answer: a job on each GPU."""
    now, jobs = time.time(), []
    for number in range(nodes * gpus):
        node, slot = f"node{number // gpus:04}", number % gpus
        job = SlurmJob(
            *(str(number + 1), number + 1, "job", "alice", "RUNNING", "None", ("gpu",), 1),
            *(now, now, now, now + 3600, 3600.0, 0),
            nodes=(node,),
            shares=(NodeShare(node, 1, 1, (slot,)),),
        )
        jobs.append(LiveJob(job, "None", False, None, False, False, False))
    used = frozenset(range(gpus))
    all_nodes = [
        SlurmNode(f"node{n:04}", frozenset({"ALLOCATED"}), frozenset(), ((None, gpus),), used)
        for n in range(nodes)
    ]
    return SlurmView(now, jobs, all_nodes, GateView(True, False, now, now + 90, now))


class Told(SlurmWatch):
    """Slurm's answer without Slurm."""

    view: SlurmView

    def last(self, oldest_s: float) -> SlurmView | None:
        """The same, as new."""
        return self.view


def scrapes(port: int, path: str, times: int = 10) -> list[float]:
    """Durations of requests, s."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            answer.read()
        taken.append(time.perf_counter() - started)
    return taken


def serving(server: ThreadingHTTPServer) -> int:
    """Serve from a thread; the port."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--gpus", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "store.db"
        fill(path, given.nodes, given.gpus)
        config = Config(store=StoreConfig(path=path))
        watch = Told(config, 15.0)
        watch.view = full_site(given.nodes, given.gpus)
        exporter = Exporter(config, watch, 15.0)
        spent = []
        for _ in range(2):
            started = time.perf_counter()
            page = exporter.refresh()
            spent.append(time.perf_counter() - started)
        series = sum(not line.startswith(b"#") for line in page.text.splitlines())
        megabytes = len(page.text) / 1e6, len(page.packed) / 1e6
        print("{} series, {:.1f} MB, {:.1f} MB gzip".format(series, *megabytes))
        print(f"refresh        first {spent[0]:6.2f} s, without a new sweep {spent[1]:6.2f} s")
        (folder / "page.txt").write_bytes(page.text)
        with MetricsServer(("127.0.0.1", 0), lambda: exporter.page) as server:
            exporter.start()  # a refresh is under way meanwhile
            ours = scrapes(serving(server), "/metrics")
            server.shutdown()
        quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=name)) as server:
            plain = scrapes(serving(server), "/page.txt")
            server.shutdown()
        exporter.stop()
        ratio = statistics.median(ours) / statistics.median(plain)
        print(
            f"scrape         {max(ours):6.3f} s at most, while a refresh is under way;"
            f" median {ratio:.1f} x that of the same bytes as a file"
        )
        print(json.dumps({"scrape_s": max(ours), "refresh_s": spent, "series": series}))
        return 0 if max(ours) <= MOST_S else 1


if __name__ == "__main__":
    sys.exit(main())
