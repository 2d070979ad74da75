"""The worked tables of ``docs/policies`` against the code."""

import re
from dataclasses import replace

import numpy as np
import pytest
from make import job_request
from pal_walk import traversal
from policy_pages import PAGES, numbers, table_rows

from gpu_aware_profile.imports.import_rows import Given, read_levels
from gpu_aware_profile.tables import penalty_records
from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.penalties import combine, level_ratios
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.account import set_words
from slurm_gpu_aware.placement.facts import Chosen
from slurm_gpu_aware.placement.policies.eft import Fastest
from slurm_gpu_aware.placement.policy import make_policy, option_names
from slurm_gpu_aware.text_file import read_table


def test_pal_walk():
    scores = np.array([[0.89, 0.94, 1.06, 2.55]] * 2)
    cluster = Cluster.uniform(2, 4, scores={"A": scores}, locality_penalty=1.5)
    walk = traversal(cluster, "A")
    rows = table_rows("pal.md", "step")
    assert [(r[1], float(r[2])) for r in rows] == [(level, v) for level, v, _ in walk]
    assert [float(r[3]) for r in rows] == pytest.approx([product for _, _, product in walk])
    assert [r[0] for r in rows] == [str(i + 1) for i in range(len(rows))]


def test_pal_on_two_sockets():
    """Every row is the best set of its level; the first row is pal's choice."""
    group = np.array([[0, 0, 1, 1]])
    scores = np.array([[1.0, 1.05, 1.0, 1.05]])
    base = Cluster.uniform(1, 4, scores={"A": scores})
    levels = (LocalityLevel("socket", 1.0, group), LocalityLevel("node", 1.1, np.array([0])))
    cluster = replace(base, levels=levels)
    rows = table_rows("pal.md", "level | V")
    assert [row[0] for row in rows] == ["socket", "node"]
    for level, score, product, gpus in rows:
        alone = replace(cluster, levels=tuple(one for one in levels if one.name == level))
        got = make_policy("pal").place(Request("1", 2, app_class="A"), alone)
        assert (got.level, got.score, got.slots[0]) == (level, float(score), numbers(gpus))
        assert got.slowdown == pytest.approx(float(product))
    got = make_policy("pal").place(Request("1", 2, app_class="A"), cluster)
    assert (got.level, got.slots[0]) == (rows[0][0], numbers(rows[0][3]))


def test_eft_price_of_breaking_up_a_node():
    """Costs as the policy accounts for them, node by node; the first row is its choice."""
    rows = table_rows("eft.md", "node")
    scores, free = np.full((len(rows), 4), 2.0), np.zeros((len(rows), 4), dtype=bool)
    for at, row in enumerate(rows):
        scores[at, 0], free[at, : int(row[1])] = float(row[2]), True
    cluster = Cluster.uniform([row[0] for row in rows], 4, scores={"A": scores}, free=free)
    policy = make_policy("eft")
    for at, row in enumerate(rows):
        alone = job_request("1", 1, app_class="A", eligible=np.arange(len(rows)) == at)
        why = policy.place(alone, cluster).why
        assert (why.of(Chosen).nodes[0].left_free, why.of(Fastest).least_cost) == (
            int(row[3]),
            float(row[4]),
        )
    assert policy.place(Request("1", 1, app_class="A"), cluster).nodes == (0,)


def test_the_page_of_eft_names_every_option():
    page = (PAGES / "eft.md").read_text()
    assert [name for name in sorted(option_names("eft")) if f"`{name}`" not in page] == []


def test_pal_measured_penalties():
    """The file on the page, read as ``gpu-aware-profile import`` reads it, gives its table."""
    page = (PAGES / "pal.md").read_text()
    lines = re.findall(r"^    (class,level.*|A,.*)$", page, re.M)
    times, bad = read_levels(read_table("pal.md", "\n".join(lines)), Given(["A"], 0.0))
    assert (len(times), bad) == (5, [])
    rows = penalty_records(times, combine({}, level_ratios(times), across=1.5), ["A"])
    wanted = [(row[0], *map(float, row[1:])) for row in table_rows("pal.md", "measured at")]
    assert [(r["level"], r["value_ms"], r["ratio"], r["penalty"]) for r in rows] == wanted


@pytest.mark.parametrize("row", table_rows("pm-first.md", "set"), ids=lambda row: row[3])
def test_pm_first_against_pal(row):
    scores = np.array([[0.89, 1.06], [0.89, 2.55]])
    cluster = Cluster.uniform(2, 2, scores={"A": scores}, same_indices=False)
    got = make_policy(row[3]).place(Request("1", 2, app_class="A"), cluster)
    assert set_words(cluster, got.nodes, got.slots) == row[0]
    assert (got.score, got.slowdown) == (float(row[1]), pytest.approx(float(row[2])))


BASELINES = re.findall(
    r"^\| `([a-z-]+)` \| n(\d) \| ([\d,]+) \|$", (PAGES / "baselines.md").read_text(), re.M
)


def test_baselines_are_all_shown():
    assert [name for name, _, _ in BASELINES] == ["packed", "best-fit", "lowest-index"]


@pytest.mark.parametrize(("name", "node", "slots"), BASELINES)
def test_baselines(name, node, slots):
    cluster = Cluster.uniform(3, 4)
    cluster.take(1, [0])
    cluster.take(2, [0, 3])
    got = make_policy(name).place(Request("1", 2), cluster)
    assert got.nodes == (int(node),)
    assert got.slots == (tuple(int(s) for s in slots.split(",")),)
