"""Shared parts of the reproductions: data, runs, tables, the page of results."""

import argparse
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from slurm_gpu_aware.model.arrays import FloatArray
from slurm_gpu_aware.simulator.parallel import Run, run_all
from slurm_gpu_aware.simulator.result import Result
from slurm_gpu_aware.simulator.simulated_site import Timings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "reproductions.md"
SYNTHETIC = (
    "The measured data were not there: these are **synthetic data of the same shape**, and the\n"
    "numbers say nothing about the paper.\n\n"
)
WIDTH = 100


def arguments(what: str, **flags: str) -> argparse.Namespace:
    """Options that every reproduction has, and further flags with their help."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--quick", action="store_true", help="a small part, in a minute or two")
    parser.add_argument("--write", action="store_true", help=f"replace the section in {PAGE.name}")
    parser.add_argument("--processes", type=int, default=None, help="default: one per CPU")
    for name, text in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser.parse_args()


def shared(*needed: str) -> Path | None:
    """The folder of measured data; None if one of the needed files is missing (note on stderr).

    A part of the data is not used: half of a table would be measured, half synthetic.
    """
    given = os.environ.get("GPU_AWARE_SHARED")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        print(f"{folder / missing[0]} is not there: synthetic data", file=sys.stderr, flush=True)
    return None if missing else folder


def measured_data(*needed: str) -> Path:
    """The folder of measured data. Raises SystemExit if one of the needed files is missing."""
    data = shared(*needed)
    if data is None:
        sys.exit("this reproduction needs the measured data; synthetic tables would say nothing")
    return data


def run(what: str, runs: Sequence[Run], processes: int | None) -> list[Result]:
    """Run all and print the time."""
    started = time.perf_counter()
    results = run_all(runs, timer=time.perf_counter, processes=processes)
    took = time.perf_counter() - started
    print(f"{what}: {len(runs)} runs in {took:.0f} s", file=sys.stderr, flush=True)
    return results


def geomean(ratios: Iterable[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(list(ratios)))))


def gain(ours: float, theirs: float) -> float:
    """Reduction from ``theirs`` to ``ours``, as a share of ``theirs``."""
    return 1.0 - ours / theirs


def standard_error(logs: FloatArray) -> str:
    """Standard error of the mean of logarithms, in percent; ``?`` of one."""
    return percent(float(logs.std(ddof=1)) / len(logs) ** 0.5) if len(logs) > 1 else "?"


def percent(share: float) -> str:
    """``12.3%``, with the sign of a loss; never ``-0.0%``."""
    return f"{round(100 * share, 1) + 0.0:.1f}%"


def between(shares: Iterable[float]) -> str:
    """``1.0% to 2.0%``."""
    values = list(shares)
    return f"{percent(min(values))} to {percent(max(values))}"


def paragraph(*sentences: str) -> str:
    """Sentences as lines of the page's width; empty ones are left out."""
    return textwrap.fill(" ".join(s for s in sentences if s), WIDTH, break_on_hyphens=False)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers to the right."""
    lines = [f"| {' | '.join(headers)} |", f"| --- |{' ---: |' * (len(headers) - 1)}"]
    lines += [f"| {' | '.join(str(c) for c in row)} |" for row in rows]
    return "\n".join(lines)


def finish(section: str, text: str, *, write: bool) -> None:
    """Print the section, and put it between its marks in ``PAGE``."""
    print(text)
    if not write:
        return
    begin, end = f"<!-- {section}: made by benchmarks/reproduce/{section}.py -->", "<!-- end -->"
    content = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(begin) + r".*?" + re.escape(end), re.DOTALL)
    block = f"{begin}\n{text.strip()}\n{end}"
    found = pattern.search(content)
    content = (
        content[: found.start()] + block + content[found.end() :]
        if found
        else f"{content.rstrip()}\n\n{block}\n"
    )
    PAGE.write_text(content, encoding="utf-8")


def synthetic_timings(name: str, spread: float, transient: float, seed: int) -> Timings:
    """336 GPUs on 84 nodes, 4 runs each, log-normal; ``transient`` of the node-runs 2.8x slow."""
    rng = np.random.default_rng(seed)
    nodes, width, runs = 84, 4, 4
    base = 100 * rng.lognormal(0, spread, (nodes, width, 1))
    slow = np.where(rng.random((nodes, 1, runs)) < transient, 2.8, 1.0)
    values = base * slow * rng.lognormal(0, spread / 2, (nodes, width, runs))
    gpu = [f"{n}-{g}" for n in range(nodes) for g in range(width) for _ in range(runs)]
    node = [f"n{n}" for n in range(nodes) for _ in range(width * runs)]
    return Timings(name, tuple(gpu), tuple(node), values.reshape(-1))
