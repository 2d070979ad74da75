"""PAL's walk of the L x V matrix, and its choice inside a cell."""

import numpy as np
import pytest
from make import job_request
from pal_walk import traversal

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.facts import Cells, Chosen
from slurm_gpu_aware.placement.policies.pal import Pal


def cluster_of(rows, penalty=1.5, **kwargs):
    scores = np.array(rows, dtype=float)
    return Cluster.uniform(
        scores.shape[0],
        scores.shape[1],
        scores={"A": scores},
        locality_penalty=penalty,
        **kwargs,
    )


def ask(gpus, **kwargs):
    return job_request("1", gpus, app_class="A", **kwargs)


def test_traversal_of_the_papers_example():
    """The printed list drops 2.55 within; the text agrees with the order here."""
    cluster = cluster_of([[0.89, 0.94, 1.06, 2.55]] * 2)
    walk = [(v, level[0]) for level, v, _ in traversal(cluster, "A")]
    assert walk == [
        (0.89, "n"),
        (0.94, "n"),
        (1.06, "n"),
        (0.89, "c"),
        (0.94, "c"),
        (1.06, "c"),
        (2.55, "n"),
        (2.55, "c"),
    ]
    products = [product for _, _, product in traversal(cluster, "A")]
    assert products == pytest.approx([0.89, 0.94, 1.06, 1.335, 1.41, 1.59, 2.55, 3.825])


def test_distributed_is_preferred_over_the_slowest_bin():
    """'Prefers a distributed allocation over GPUs from bin 4': 1.59 across before 2.55 within."""
    cluster = cluster_of([[1.06, 2.55], [1.06, 2.55]])
    got = Pal().place(ask(2), cluster)
    assert got is not None
    assert (got.nodes, got.slots) == ((0, 1), ((0,), (0,)))
    assert got.slowdown == pytest.approx(1.59)
    assert got.level == "cluster"


def test_account_tells_the_cells_in_order_and_which_one_held():
    cluster = cluster_of([[0.89, 1.06], [0.94, 1.06]])
    got = Pal().place(ask(2), cluster)
    assert got is not None
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


def test_switch_level_keeps_a_job_inside_one_switch():
    base = cluster_of([[1.0]] * 4)
    switch = LocalityLevel("switch", 1.2, np.array([0, 1, 0, 1]))
    cluster = Cluster(**{**vars(base), "levels": (base.levels[0], switch, base.levels[1])})
    cluster.take(0, [0])
    got = Pal().place(ask(2), cluster)
    assert got is not None
    assert (got.nodes, got.level, got.slowdown) == ((1, 3), "switch", pytest.approx(1.2))


def test_whole_node_lies_in_a_socket_only_with_all_its_gpus():
    base = cluster_of([[1.0, 1.0], [1.0, 1.0]])
    sockets = LocalityLevel("socket", 1.0, np.array([[0, 1], [2, 2]]))
    node = LocalityLevel("node", 1.1, np.array([0, 1]))
    cluster = Cluster(**{**vars(base), "levels": (sockets, node, base.levels[1])})
    got = Pal().place(ask(1, whole=True), cluster)
    assert got is not None
    assert (got.nodes, got.level, got.slowdown) == ((1,), "socket", 1.0)


def test_one_gpu_lies_in_one_socket_on_a_plain_node_too():
    """Slurm may choose any GPU of n0, but each lies on one socket: V 1.0 beats 1.15."""
    base = cluster_of([[1.0, 1.0], [1.15, 1.15]])
    sockets = LocalityLevel("socket", 1.0, np.array([[0, 1], [2, 3]]))
    node = LocalityLevel("node", 1.2, np.array([0, 1]))
    indexed = np.array([False, True])
    cluster = Cluster(**{**vars(base), "levels": (sockets, node), "indexed": indexed})
    got = Pal().place(ask(1), cluster)
    assert got is not None
    assert (got.nodes, got.level, got.slowdown, got.exact) == ((0,), "socket", 1.0, False)
    both = Pal().place(ask(2), cluster)
    assert both is not None
    assert (both.nodes, both.level, both.slowdown) == ((0,), "node", 1.2)


def test_the_account_lists_the_sets_that_were_compared():
    scores = np.array([[1.0, 1.0, 2.0, 2.0], [0.9, 1.0, 2.0, 2.0], [0.9, 0.9, 1.0, 1.0]])
    cluster = Cluster.uniform(3, 4, scores={"A": scores})
    cluster.free[2, 0] = False
    why = Pal().place(Request("1", gpus=2, app_class="A"), cluster).why.of(Chosen)
    assert [one.value for one in why.considered] == [0.95, 0.95, 1.0]
    assert why.considered[0].slots == why.nodes[0].slots


def test_of_many_nodes_the_account_lists_the_best_few():
    rng = np.random.default_rng(4)
    scores = rng.choice(np.arange(10) / 10 + 0.5, size=(300, 4))
    why = (
        Pal()
        .place(Request("1", gpus=4, app_class="A"), Cluster.uniform(300, 4, scores={"A": scores}))
        .why.of(Chosen)
    )
    listed = [one.value for one in why.considered]
    assert len(listed) <= 5
    assert listed == sorted(listed)
    assert listed[0] == round(float(np.mean(why.nodes[0].scores)), 4)


def test_account_holds_only_cells_that_the_search_looked_into():
    """A level that the job cannot lie in, and cells that bisection skips, were never tried."""
    values = [round(1.0 + i / 100, 2) for i in range(40)]
    cluster = cluster_of([values, values[::-1]])
    got = Pal().place(ask(2, gpus_per_node=1), cluster)
    assert got is not None
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
    assert got is not None
    walk = [(level, round(v, 4)) for level, v, _ in traversal(cluster, "A")]
    places = [walk.index((c["level"], c["V"])) for c in got.why.plain()["cells"]["cells"]]
    assert places == sorted(places)
    first = next(c for c in got.why.plain()["cells"]["cells"] if c["found"])
    assert (first["level"], first["V"]) == (got.level, got.score)
