"""Parity with plain Slurm: each form of request, once with us and once without.

The normal run takes the cells that are marked ``quick``: any two of the five main factors in all
combinations, and some of each further kind. ``make test-requests`` takes all, ``make requests``
writes ``docs/internals/requests.md`` as well.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster
from requests_cells import GPUS, Cell, cells, missing_combinations
from requests_page import SUITES, Summary, full_table, left_row, page, read_page, summary
from requests_run import lanes, run_pass
from requests_seen import Seen, seen_of
from requests_table import judge

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "requests.md"
WRITE = os.environ.get("GPU_AWARE_REQUESTS") == "write"
ALL = WRITE or os.environ.get("GPU_AWARE_REQUESTS") == "all"
BOUND_S = 15.0
"""A job that plain Slurm starts, and that waits longer with us on idle nodes, hangs."""


@dataclass(frozen=True)
class Pair:
    """A cell and what was seen of it."""

    cell: Cell
    plain: Seen
    ours: Seen

    def __str__(self) -> str:
        return f"{self.cell.name} {self.cell.tool} {self.cell.request} [{self.cell.phase}]"


@pytest.fixture(scope="module")
def both_ways(cluster: Cluster) -> list[Pair]:
    """All chosen cells, after both passes."""
    chosen = [cell for cell in cells() if ALL or cell.quick]
    cluster.reset()
    began = time.monotonic()
    with lanes(cluster):
        with cluster.plain():
            plain = run_pass(cluster, chosen, BOUND_S)
        ours = run_pass(cluster, chosen, BOUND_S)
    print(f"\n{len(chosen)} requests, both ways in {time.monotonic() - began:.0f} s")
    return [Pair(c, seen_of(plain[c.name]), seen_of(ours[c.name])) for c in chosen]


def test_the_matrix_is_large_enough() -> None:
    quick = {cell.request for cell in cells() if cell.quick and cell.tool == "sbatch"}
    every = {cell.request for cell in cells() if cell.tool == "sbatch"}
    assert len(cells()) >= 200
    assert sum(cell.quick for cell in cells()) >= 60
    assert {cell.tool for cell in cells() if cell.quick} == {"sbatch", "salloc", "srun"}
    assert missing_combinations(quick, 2) == set()
    assert missing_combinations(every, 3) == set()


def test_none_hangs(both_ways: list[Pair]) -> None:
    hung = [
        f"{pair}: {pair.ours.verdict} {pair.ours.reason}"
        for pair in both_ways
        if pair.ours.verdict in ("waits", "does not end") and pair.plain.verdict == "ran"
    ]
    hung += [
        f"{pair}: srun ({name}) hangs"
        for pair in both_ways
        for name, step in pair.ours.steps.items()
        if step.status == 124 and pair.plain.steps[name].status != 124
    ]
    assert not hung, "\n".join(hung)


def test_each_request_is_as_on_plain_slurm(both_ways: list[Pair]) -> None:
    wrong = [
        "\n    ".join([str(pair), *rest])
        for pair in both_ways
        if (rest := judge(pair.cell, pair.plain, pair.ours)[1])
    ]
    assert not wrong, f"{len(wrong)} of {len(both_ways)} differ:\n" + "\n".join(wrong)


def test_what_was_parked_was_chosen(both_ways: list[Pair]) -> None:
    """Equal because no GPUs were chosen is no parity: the gate must not have opened by itself."""
    assert [str(p) for p in both_ways if p.ours.placed == "parked"] == []
    assert [str(p) for p in both_ways if p.plain.placed] == []
    forms = {"--gres", "--gpus", "--gpus-per-node", "--gpus-per-task", "--gpus-per-socket"}
    chosen = {
        form
        for pair in both_ways
        if pair.ours.placed == "gpus"
        for form in forms
        if any(word.startswith(f"{form}=") for word in pair.cell.options)
    }
    assert chosen == forms
    assert len(forms) == len(GPUS)


def test_the_page_names_what_is_left_to_slurm(both_ways: list[Pair]) -> None:
    unnamed = [
        str(p) for p in both_ways if p.ours.left is not None and left_row(p.ours.left) is None
    ]
    assert unnamed == []


def test_the_page_says_what_was_found(cluster: Cluster, both_ways: list[Pair]) -> None:
    """All of it if all requests were tried, else no more than the page says."""
    triples = [(pair.cell, pair.plain, pair.ours) for pair in both_ways]
    known = read_page(PAGE.read_text())
    now = summary(triples)
    if WRITE:
        known[cluster.suite] = now
        PAGE.write_text(page(known))
        file = PAGE.parents[2] / "build" / f"requests-{SUITES[cluster.suite]}.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(full_table(triples))
        known = read_page(PAGE.read_text())
    said = _counts(known[cluster.suite])
    seen = _counts(now)
    if ALL:
        assert seen == said
    assert {row: n for row, n in seen.items() if n > said.get(row, 0)} == {}


def _counts(found: Summary) -> dict[tuple[str, str], int]:
    return {
        (section, row): count.number
        for section, rows in found.items()
        for row, count in rows.items()
    }
