"""The cells of the parity matrix: requests as a user types them.

The five main factors (GPU form, nodes, tasks, CPUs, memory) are combined so that any choice of
any three of them occurs (a covering array of strength 3; all combinations of any two come first
and are the part that every test run takes). Each further option is combined with the GPU forms,
and what the factors cannot express is listed.
"""

import functools
import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["FACTORS", "LANES", "RESERVED", "WIDE", "Cell", "cells", "missing_combinations"]

LANES = (("left", ("n1", "n2")), ("right", ("n3", "n4")))
"""Partitions of two nodes each; cells that need no more run in them side by side."""
WIDE = "wide"
RESERVED = "reserved"

GPUS = ("gres", "gpus", "per-node", "per-task", "per-socket")
NODES = ("", "-N1", "-N2", "--nodes=2-4")
TASKS = ("", "-n", "--ntasks-per-node", "--ntasks-per-gpu")
CPUS = ("", "-c", "--cpus-per-gpu")
MEMORY = ("", "--mem", "--mem-per-cpu", "--mem-per-gpu")
FACTORS: tuple[tuple[str, ...], ...] = (GPUS, NODES, TASKS, CPUS, MEMORY)

Row = tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One request."""

    name: str
    """Short and unique, the job's name."""
    tool: str
    """``sbatch``, ``salloc`` or ``srun``."""
    options: tuple[str, ...]
    """As in the document, with the node names of the first lane."""
    phase: str
    """`WIDE`: alone on all four nodes; `RESERVED`: in a reservation; else the name of a lane."""
    quick: bool
    """Part of every test run."""

    @property
    def typed(self) -> tuple[str, ...]:
        """What is submitted: the partition and the node names of its lane added."""
        if self.phase == WIDE:
            return self.options
        partition, nodes = next(lane for lane in LANES if lane[0] == self.phase.split()[-1])
        swap = dict(zip(LANES[0][1], nodes, strict=True))
        words = (re.sub(r"\bn\d\b", lambda m: swap.get(m[0], m[0]), w) for w in self.options)
        return (f"--partition={partition}", *words)

    @property
    def request(self) -> str:
        """One line for the document."""
        return " ".join(self.options)


def options_of(row: Row) -> tuple[str, ...]:
    """A row of the covering array as options; numbers are such that a request makes sense."""
    gpus, nodes, tasks, cpus, memory = row
    several = nodes in ("-N2", "--nodes=2-4")
    words = {
        "gres": ["--gres=gpu:2"],
        "gpus": ["--gpus=4" if several else "--gpus=2"],
        "per-node": ["--gpus-per-node=2"],
        "per-task": ["--gpus-per-task=1"],
        "per-socket": ["--sockets-per-node=2", "--gpus-per-socket=1"],
    }[gpus]
    if nodes:
        words.append(nodes)
    if tasks:
        number = {"-n": 4 if several else 2, "--ntasks-per-node": 2, "--ntasks-per-gpu": 1}[tasks]
        words += ["-n", str(number)] if tasks == "-n" else [f"{tasks}={number}"]
    if cpus:
        words += ["-c", "2"] if cpus == "-c" else ["--cpus-per-gpu=3"]
    if memory:
        number = {"--mem": 2000, "--mem-per-cpu": 300, "--mem-per-gpu": 700}[memory]
        words.append(f"{memory}={number}")
    return tuple(words)


def _parts(row: Row, strength: int) -> frozenset[tuple[tuple[int, str], ...]]:
    return frozenset(itertools.combinations(enumerate(row), strength))


def covering(factors: Sequence[Sequence[str]], strength: int, given: Sequence[Row]) -> list[Row]:
    """Rows in which, with the given ones, any ``strength`` factors take all their combinations."""
    rows = list(itertools.product(*factors))
    parts_of = {row: _parts(row, strength) for row in rows}
    missing = set().union(*parts_of.values()).difference(*(parts_of[row] for row in given))
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(parts_of[row] & missing))
        chosen.append(best)
        missing -= parts_of[best]
    return chosen


# Each further option, with the GPU forms. A true mark: needs all four nodes.
EXTRAS: tuple[tuple[str, bool], ...] = (
    ("--gpu-bind=closest", False),
    ("--gpu-bind=single:1", False),
    ("--gpu-bind=per_task:1", False),
    ("--gpu-bind=none", False),
    ("--exclusive", False),
    ("-w n2", False),
    ("-x n1", True),
    ("--constraint=gpu_v100", False),
    ("-p left,right", True),
    ("--time=30 --time-min=5", False),
    ("--time=30 --deadline=now+2hours", False),
)
BASES: tuple[str, ...] = (
    "--gres=gpu:2",
    "--gpus=2",
    "-n 2 --gpus-per-task=1",
    "-N2 --gpus-per-node=1",
    "--sockets-per-node=2 --gpus-per-socket=1",
    "-N2 --ntasks-per-node=2 --gres=gpu:2",
)

# What the factors cannot express: odd numbers, whole nodes, several requests, further options.
ODD: tuple[str, ...] = (
    "--gres=gpu",
    "--gres=gpu:0",
    "--gres=gpu:5",
    "--gres=gpu:v100:2",
    "--gres=gpu:g1:1",
    "--gres=gpu:1 --gpus=1",
    "-N1 --gpus=5",
    "-N2 --gpus=2",
    "-N2 --gpus=3",
    "--gpus=6",
    "--gpus=8",
    "-N2 -n 2 --gpus=4",
    "--gpus=4 --gpus-per-node=2",
    "--gpus=2 --gpus-per-task=1",
    "--gpus=4 --gpus-per-task=2",
    "-n 3 --gpus-per-task=1",
    "-N2 -n 3 --gpus-per-task=1",
    "-N2 -n 2 --gpus-per-task=2",
    "-n 2 -c 3 --gpus-per-task=2",
    "-n 6 --gpus-per-task=1",
    "-n 2 --tres-per-task=cpu=2,gres/gpu=1",
    "-N1 -n 4 --gpus-per-task=1 --cpus-per-gpu=2",
    "-n 8 --gres=gpu:1",
    "-n 20 --gres=gpu:1",
    "-n 20 --gpus=2",
    "-n 4 --ntasks-per-gpu=2",
    "-n 4 --gpus=2 --ntasks-per-gpu=2",
    "-N2 --gpus=4 --ntasks-per-gpu=2 --cpus-per-gpu=4",
    "--gpus=2 --ntasks-per-gpu=2 --cpus-per-gpu=3",
    "--sockets-per-node=1 --gpus-per-socket=2",
    "--sockets-per-node=2 --gpus-per-socket=2",
    "--sockets-per-node=2 --gpus-per-socket=3",
    "--sockets-per-node=2 --gpus-per-socket=1 --gres-flags=enforce-binding",
    "-n 3 --gpus=2 --cpus-per-gpu=3",
    "-n 3 --gres=gpu:2 -c 5",
    "-N2 -n 3 --gres=gpu:2",
    "-N2 -n 3 --gpus=4",
    "-N2 -n 6 --ntasks-per-node=4 --gres=gpu:1",
    "-n 6 --ntasks-per-node=4 --gres=gpu:1",
    "-n 4 --ntasks-per-node=2 --gres=gpu:2",
    "-n 4 --ntasks-per-node=2 --gpus=2",
    "-N2 --gpus=4 --cpus-per-gpu=3",
    "-c 16 --gres=gpu:1",
    "-c 17 --gres=gpu:1",
    "--gres=gpu:1 --mem=0",
    "--gres=gpu:4 --mem=64000",
    "--gres=gpu:1 --mem=65000",
    "--gpus=2 --mem-per-gpu=1G --cpus-per-gpu=4",
    "-N2 --gpus=4 --mem-per-gpu=1G --cpus-per-gpu=4 -n 4",
    "--gres=gpu:2 --exclusive --mem=1000",
    "-N2 --gres=gpu:4 --exclusive",
    "--gres=gpu:1 --exclusive=user",
    "--gres=gpu:1 --oversubscribe",
    "--gres=gpu:2 --mincpus=6",
    "--gres=gpu:2 --ntasks-per-socket=1 -n 2",
    "--gres=gpu:1 --sockets-per-node=1 --cores-per-socket=2",
    "--gres=gpu:1 --threads-per-core=1",
    "--gres=gpu:1 --hint=nomultithread",
    "--gres=gpu:2 --gres-flags=enforce-binding",
    "--gres=gpu:2 --gres-flags=disable-binding -n 2",
    "-N2 --gres=gpu:1 --contiguous",
    "-N2 --gres=gpu:1 -n 4 --distribution=cyclic",
    "--gres=gpu:1 --constraint=nothere",
    "--gres=gpu:1 --constraint=gpu_v100|gpu_v100",
    "-N2 --gres=gpu:1 --constraint=[gpu_v100*1]",
    "-N2 --gres=gpu:1 -w n1,n2",
    "-N1 --gres=gpu:1 -x n1,n2",
    "--gres=gpu:1 --time=30 --deadline=now+5minutes",
    "--gres=gpu:1 --gpu-freq=medium",
    "--gres=gpu:1 --use-min-nodes",
    "--gres=gpu:1 --requeue --nice=10",
    "--gpus=2 --gpu-bind=map_gpu:0,1 -n 2",
    "--gpus=2 -n 2 --gpu-bind=mask_gpu:0x1,0x2",
)
WIDE_ODD: tuple[str, ...] = (
    "-N4 --gres=gpu:4",
    "-N3 --gpus=6",
    "-N3 --gpus=4",
    "--gpus=12",
    "--gpus=17",
    "--nodes=2-4 --gpus=6",
    "--nodes=2-3 --gres=gpu:1 --ntasks-per-node=1",
    "--nodes=1-4 --gpus=4 -n 4",
    "-n 8 --gpus-per-task=1",
    "--spread-job -n 4 --gres=gpu:1",
)
INTERACTIVE: tuple[str, ...] = (
    "--gres=gpu:1",
    "--gres=gpu:2 -n 2",
    "--gres=gpu:2 -c 4",
    "--gres=gpu:2 --mem-per-gpu=700",
    "--gres=gpu:2 --cpus-per-gpu=3",
    "--gres=gpu:2 --mem-per-cpu=300",
    "-N2 --gres=gpu:1",
    "-N2 --ntasks-per-node=2 --gres=gpu:2 --mem=2000",
    "-N2 -n 4 --gpus-per-node=2",
    "--gpus-per-node=2 -n 2 --gpu-bind=single:1",
    "--gpus=2",
    "-n 2 --gpus-per-task=1",
    "-N2 -n 4 --gpus-per-task=1",
    "-N2 --gpus=4",
    "-N2 --gres=gpu:2 --cpus-per-gpu=3",
    "-n 2 --gpus=2 --cpus-per-gpu=3",
    "-N2 --gres=gpu:2 --ntasks-per-gpu=1",
    "--gpus=2 --ntasks-per-gpu=1",
    "--sockets-per-node=2 --gpus-per-socket=1",
    "-N2 --sockets-per-node=2 --gpus-per-socket=1",
    "--gres=gpu:1 --exclusive",
    "--gres=gpu:1 -w n2",
    "--gres=gpu:1 -x n1 --time=30 --time-min=5",
    "--gres=gpu:1 --constraint=gpu_v100",
    "--gres=gpu:5",
)
# Only where all cells are tried; as are the rows with each pair of values of the factors.
INTERACTIVE_MORE: tuple[str, ...] = (
    "-c 17 --gres=gpu:1",
    "--gres=gpu:1 --mem=65000",
)


def missing_combinations(requests: Collection[str], strength: int) -> set[tuple[str, ...]]:
    """Combinations of ``strength`` factors' values that no request has."""
    rows = list(itertools.product(*FACTORS))
    have = [row for row in rows if " ".join(options_of(row)) in requests]
    parts = set().union(*(_parts(row, strength) for row in rows))
    left = parts.difference(*(_parts(row, strength) for row in have))
    return {tuple(value for _, value in part) for part in left}


@functools.cache
def cells() -> tuple[Cell, ...]:
    """The whole matrix, in the order of the document; over 200 cells."""
    found: dict[tuple[str, str], Cell] = {}
    turn = itertools.cycle(name for name, _ in LANES)

    def add(prefix: str, tool: str, words: Sequence[str], phase: str, *, quick: bool) -> None:
        if (tool, " ".join(words)) in found:
            return
        where = phase if phase == WIDE else f"{phase} {next(turn)}".strip()
        number = sum(cell.name.startswith(prefix) for cell in found.values()) + 1
        cell = Cell(f"{prefix}{number:03d}", tool, tuple(words), where, quick)
        found[tool, cell.request] = cell

    pairs = covering(FACTORS, 2, [])
    for row in [*pairs, *covering(FACTORS, 3, pairs)]:
        phase = WIDE if row[1] == "--nodes=2-4" else ""
        add("f", "sbatch", options_of(row), phase, quick=row in pairs)
    for i, (option, wide) in enumerate(EXTRAS):
        for j, base in enumerate(BASES):
            words = [*base.split(), *option.split()]
            add("x", "sbatch", words, WIDE if wide else "", quick=(i + j) % len(BASES) == 0)
    for base in BASES:
        words = [*base.split(), "--reservation=matrix"]
        add("r", "sbatch", words, RESERVED, quick=base in BASES[:2])
    for i, text in enumerate(ODD):
        add("o", "sbatch", text.split(), "", quick=i % 4 == 0)
    for i, text in enumerate(WIDE_ODD):
        add("w", "sbatch", text.split(), WIDE, quick=i % 5 == 0)
    for i, text in enumerate(INTERACTIVE):
        add("a", "salloc", text.split(), "", quick=i % 5 == 0)
        add("s", "srun", text.split(), "", quick=i % 5 == 1)
    for text in INTERACTIVE_MORE:
        add("a", "salloc", text.split(), "", quick=False)
        add("s", "srun", text.split(), "", quick=False)
    for i, row in enumerate(pairs):
        prefix, tool = (("a", "salloc"), ("s", "srun"))[i % 2]
        add(prefix, tool, options_of(row), WIDE if row[1] == "--nodes=2-4" else "", quick=False)
    return tuple(found.values())
