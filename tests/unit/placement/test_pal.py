"""PAL's walk of the L x V matrix, and its choice inside a cell."""

import numpy as np
import pytest
from make import job_request
from pal_walk import traversal

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.facts import Cells, Chosen
from slurm_gpu_aware.placement.policies.pal import Pal


def cluster_of(rows, penalty=1.5, **kwargs):
    scores = np.array(rows, dtype=float)
    return Cluster.uniform(*scores.shape, scores={"A": scores}, locality_penalty=penalty, **kwargs)


def ask(gpus, **kwargs):
    return job_request("1", gpus, app_class="A", **kwargs)


def test_account_tells_the_cells_in_order_and_which_one_held():
    got = Pal().place(ask(2), cluster_of([[0.89, 1.06], [0.94, 1.06]]))
    cells = got.why.plain()["cells"]["cells"]
    assert [(c["level"], c["V"], c["found"]) for c in cells] == [
        ("node", 0.89, False),
        ("node", 0.94, False),
        ("node", 1.06, True),
    ]
    assert got.why.of(Cells).tried == 3
    assert got.nodes == (0,)  # least variability: 0.89 + 1.06 < 0.94 + 1.06
    said = "the least slowdown by distance and slowest GPU, 3 combinations tried"
    assert got.why.text == said


def test_the_account_lists_the_sets_that_were_compared():
    scores = np.array([[1.0, 1.0, 2.0, 2.0], [0.9, 1.0, 2.0, 2.0], [0.9, 0.9, 1.0, 1.0]])
    cluster = Cluster.uniform(3, 4, scores={"A": scores})
    cluster.free[2, 0] = False
    why = Pal().place(Request("1", gpus=2, app_class="A"), cluster).why.of(Chosen)
    assert [one.value for one in why.considered] == [0.95, 0.95, 1.0]
    assert why.considered[0].slots == why.nodes[0].slots


def test_of_many_nodes_the_account_lists_the_best_few():
    rng = np.random.default_rng(4)
    cluster = cluster_of(rng.choice(np.arange(10) / 10 + 0.5, size=(300, 4)))
    why = Pal().place(ask(4), cluster).why.of(Chosen)
    listed = [one.value for one in why.considered]
    assert len(listed) <= 5
    assert listed == sorted(listed)
    assert listed[0] == round(float(np.mean(why.nodes[0].scores)), 4)


def test_account_holds_only_cells_that_the_search_looked_into():
    """A level that the job cannot lie in, and cells that bisection skips, were never tried."""
    values = [round(1.0 + i / 100, 2) for i in range(40)]
    cluster = cluster_of([values, values[::-1]])
    got = Pal().place(ask(2, gpus_per_node=1), cluster)
    cells = got.why.plain()["cells"]["cells"]
    assert {c["level"] for c in cells} == {"cluster"}
    assert got.why.of(Cells).tried == len(cells) < 15
    assert [c["LxV"] for c in cells] == sorted(c["LxV"] for c in cells)
    first = next(c for c in cells if c["found"])
    assert (first["V"], first["LxV"]) == (got.score, pytest.approx(got.slowdown))


@pytest.mark.parametrize("seed", range(5))
def test_account_agrees_with_the_walk_over_all_cells(seed):
    """Its cells are cells of the walk, and the first that holds a set is the one taken."""
    rng = np.random.default_rng(seed)
    cluster = cluster_of(rng.choice([0.9, 1.0, 1.1, 1.2, 1.9], (4, 8)))
    cluster.free[:] = rng.random((4, 8)) < 0.5
    got = Pal().place(ask(int(rng.integers(1, 4))), cluster)
    walk = [(level, round(v, 4)) for level, v, _ in traversal(cluster, "A")]
    places = [walk.index((c["level"], c["V"])) for c in got.why.plain()["cells"]["cells"]]
    assert places == sorted(places)
    first = next(c for c in got.why.plain()["cells"]["cells"] if c["found"])
    assert (first["level"], first["V"]) == (got.level, got.score)
