"""Time and size of the pages of a large site, beside one plain file of the same size.

    python benchmarks/page.py [--nodes 2000] [--gpus 8] [--sweeps 12] [--jobs 2000] [--starts 50000]

Slurm is left out: nodes and jobs are values. Prints one line per measurement.
"""

import argparse
import random
import sqlite3
import tempfile
import time
from pathlib import Path

from slurm_gpu_aware.cli.page import jobs_section, without_collection
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.features import found
from slurm_gpu_aware.features.shadow.losses import GpuSet, Sets, ShadowJob
from slurm_gpu_aware.features.shadow.store import add_job, begin_watch
from slurm_gpu_aware.model.profile import GpuScore
from slurm_gpu_aware.page.drift import DRIFT
from slurm_gpu_aware.page.fleet import FLEET
from slurm_gpu_aware.page.sections import Source, built
from slurm_gpu_aware.page.site import Frame, write_site
from slurm_gpu_aware.selector.job_answers import Answers, Reader
from slurm_gpu_aware.slurm.records import SlurmNode
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Decision, Ledger, RoundRecord
from slurm_gpu_aware.store.profiles import put_scores
from slurm_gpu_aware.topology.machines import machine

CLASSES = ("A", "B", "C")
NOW = 1_790_000_000.0
DAY_S = 86_400.0


def names(nodes: int) -> list[str]:
    """16 nodes to a rack."""
    return [f"r{i // 16:03}-n{i % 16:02}" for i in range(nodes)]


def fill(path: Path, nodes: int, gpus: int, sweeps: int, jobs: int, starts: int) -> None:
    """A store with weekly sweeps of three runs, links of a DGX-1, jobs, and starts of a month."""
    rng = random.Random(1)
    graph = machine("dgx-1-v100")
    with open_store(path) as store:
        rows = [(name, slot) for name in names(nodes) for slot in range(gpus)]
        base = {gpu: 1.0 + abs(rng.gauss(0.0, 0.03)) for gpu in rows}
        store.executemany(
            "INSERT INTO nodes (node, taken_at_unix, probed_at_unix) VALUES (?, ?, ?)",
            [(name, NOW, NOW) for name in names(nodes)],
        )
        store.executemany(
            "INSERT INTO gpus (node, slot, model, clocks_mhz) VALUES (?, ?, 'v100', '[1530]')", rows
        )
        store.executemany(
            "INSERT INTO links (node, a, b, link_class, gbps) VALUES (?, ?, ?, ?, ?)",
            [
                (name, a, b, graph.classes[a][b], float(graph.gbps[a, b]))
                for name in names(nodes)
                for a in range(gpus)
                for b in range(a + 1, gpus)
            ],
        )
        for sweep in range(sweeps):
            at = NOW - (sweeps - 1 - sweep) * 7 * DAY_S
            store.executemany(
                "INSERT INTO timings (node, slot, class, taken_at_unix, run, value_ms, source,"
                " neighbours, clock_mhz, limit_w, throttle)"
                " VALUES (?, ?, ?, ?, ?, ?, 'fake', 'idle', 0, 0, '')",
                [
                    (*gpu, name, at, run, 100.0 * base[gpu] * rng.gauss(1.0, 0.003))
                    for gpu in rows
                    for name in CLASSES
                    for run in range(3)
                ],
            )
        scores = [
            GpuScore(*gpu, name, 100.0 * base[gpu], base[gpu], base[gpu], 0, base[gpu] > 1.1, NOW)
            for gpu in rows
            for name in CLASSES
        ]
        put_scores(store, scores)
        with store.write():
            begin_watch(store, NOW - 30 * DAY_S)
            for n in range(starts):
                gpu = rows[n % len(rows)][0]
                given, ours = (GpuSet(((gpu, pair),), "node", s, s, 20.0, True)
                               for pair, s in (((0, 3), 1.1), ((0, 1), 1.0)))  # fmt: skip
                began = NOW - 29 * DAY_S * (1 - n / starts)
                add_job(
                    store,
                    ShadowJob(f"{n}", "alice", f"p{n % 5}", "A", began, Sets(given, ours),
                              ended_at=NOW, waited_s=n % 7),
                )  # fmt: skip
        ledger = Ledger(store)
        waiting = [{"job_id": str(n), "reason": f"no {n % 7 + 1} GPUs free"} for n in range(jobs)]
        for minute in range(2000):
            at = NOW - minute * 300.0
            detail = {"waiting": waiting} if minute == 1999 else {}
            power = (2e6, 1.8e6, 1.7e6)
            ledger.add_round(RoundRecord(at, 20.0, jobs, 1, jobs, "timer", detail, *power))
        with store.write():
            for n in range(jobs):
                why = {"summary": "fastest free pair"}
                asked = {"gpus": 2, "class": "A"}
                where = ([rows[n % len(rows)][0]], [[0, 1]])
                ledger.add_decision(
                    Decision(f"{10**6 + n}", "alice", NOW, NOW, asked, "eft", *where, 1.0, "node",
                             1.0, why=why, state="started")
                )  # fmt: skip


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--gpus", type=int, default=8, choices=range(1, 9))
    parser.add_argument("--sweeps", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--starts", type=int, default=50_000, help="jobs that the shadow saw")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "store.db", Path(folder) / "out"
        fill(path, given.nodes, given.gpus, given.sweeps, given.jobs, given.starts)
        config = Config(store=StoreConfig(path=path))
        kinds = tuple((f"g{slot}", 1) for slot in range(given.gpus))
        nodes = [
            SlurmNode(name, frozenset({"MIXED"}), frozenset(), kinds, frozenset({0, 1}))
            for name in names(given.nodes)
        ]
        began, parts, cpu = time.perf_counter(), [], time.process_time()
        with without_collection(), open_store(path, readonly=True) as store:
            known = Answers(Reader(store, Ledger(store), None), config)
            jobs, paths = jobs_section(known, False)
            sections = [FLEET, jobs, DRIFT, *found("page", "SECTION")]
            source = Source(config, store, NOW, False, nodes, explained=paths)
            pages = []
            for section in sections:
                start = time.perf_counter()
                more, notes = built([section], source)
                assert not notes, notes
                pages += more
                parts.append(f"{section.title} {time.perf_counter() - start:.2f}")
        start = time.perf_counter()
        titles = [(one.name, one.title) for one in sections]
        with without_collection():
            count = write_site(out, pages, Frame("bench", titles, NOW), public=False)
        parts.append(f"HTML {time.perf_counter() - start:.2f}")
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        sizes = [file.stat().st_size for file in out.rglob("*.html")]
        start = time.perf_counter()
        (Path(folder) / "plain").write_bytes(bytes(sum(sizes)))
        plain = time.perf_counter() - start
        rows = sqlite3.connect(path).execute("SELECT count(*) FROM timings").fetchone()[0]
    gpus = given.nodes * given.gpus
    print(f"{given.nodes} nodes, {gpus} GPUs, {rows} runs, {given.jobs} jobs wait and run")
    print(f"{given.starts} starts seen by the shadow")
    print(f"page  {took:6.2f} s  {took / plain:7.0f} x one plain file of the same size")
    print(f"      {cpu:6.2f} s of a CPU")
    print(f"      of this: {', '.join(parts)} s")
    print(f"      {count} files, {sum(sizes) / 1e6:.1f} MB, the largest {max(sizes) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
