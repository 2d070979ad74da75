"""Places by counts against all spreads of a job's GPUs over the nodes of small clusters."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import job_request

from slurm_gpu_aware.model.cluster import Cluster, Shards
from slurm_gpu_aware.model.request import LeftToSlurm, Part
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy, left_demand
from slurm_gpu_aware.planning.timeline import take


def left_job(*parts, job_id="1", fixed=False, whole=False, **kwargs):
    gpus = max(1, sum(part.gpus for part in parts))
    left = LeftToSlurm("x", tuple(replace(p, whole=p.whole or whole) for p in parts), fixed=fixed)
    whole = any(part.whole for part in left.parts)
    return job_request(job_id, gpus, left=left, whole=whole, **kwargs)


def spread(request, cluster):
    """Node -> GPUs as the policy keeps them; None: no place."""
    found = LeftPolicy().place(request, cluster)
    return None if found is None else {n: len(s) for n, s in found.gpus}


@st.composite
def machines(draw):
    """Up to 4 nodes of up to 4 GPUs: held GPUs, those that Slurm may give away, starting jobs."""
    n, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    exists = rng.random((n, width)) < draw(st.sampled_from([1.0, 0.8]))
    not_held = exists & (rng.random((n, width)) < draw(st.sampled_from([1.0, 0.6])))
    by_slurm = not_held & (rng.random((n, 1)) < 0.5)
    starting = rng.random(n) < 0.3 if draw(st.booleans()) else None
    return Cluster.build(
        [f"n{i}" for i in range(n)],
        exists,
        free=not_held & ~by_slurm,
        by_slurm=by_slurm,
        starting=starting,
        free_cpus=rng.integers(0, 9, n),
        free_memory_mb=rng.integers(0, 9, n),
        cpus=np.full(n, 8),
    )


@st.composite
def parts(draw, n, width):
    """With GPUs, or without."""
    least = draw(st.integers(1, n))
    even = draw(st.booleans())
    each = draw(st.integers(0, width))
    gpus = each * least if even else draw(st.integers(0, n * width))
    return Part(
        gpus,
        per_node=each if even and gpus else None,
        min_nodes=least,
        max_nodes=draw(st.none() | st.integers(least, n)),
        cpus=draw(st.integers(0, 9)),
        memory_mb=draw(st.sampled_from([0, 0, 6])),
        node_memory_mb=draw(st.sampled_from([0, 0, 5])),
        tasks=draw(st.integers(1, 5)),
    )


@st.composite
def one_left(draw, most_parts=1):
    cluster = draw(machines())
    n, width = cluster.shape
    wanted = [draw(parts(n, width)) for _ in range(draw(st.integers(1, most_parts)))]
    required = ()
    if most_parts == 1 and draw(st.booleans()):
        required = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=wanted[0].min_nodes))))
    eligible = None
    if draw(st.booleans()):
        eligible = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        eligible[list(required)] = True
    one = left_job(*wanted, required=required, eligible=eligible, whole=draw(st.booleans()))
    return cluster, one


def usable(request, cluster, *, whole):
    """(N,) whether the job may get something of a node now, and its free GPUs."""
    here = cluster.exists.any(axis=1)
    if request.nodes.eligible is not None:
        here &= request.nodes.eligible
    if cluster.starting is not None:
        here &= ~cluster.starting
    counts = cluster.not_held.sum(axis=1)
    if whole:
        here &= (counts == cluster.exists.sum(axis=1)) & (cluster.free_cpus >= cluster.cpus)
    return here, np.where(here, counts, 0)


def units_of(part):
    return part.gpus or max(part.tasks, part.min_nodes)


def spreads(part, required, request, cluster):
    """Every spread of one part that its numbers allow: GPUs, or tasks without, of each node."""
    here, counts = usable(request, cluster, whole=part.whole)
    units = units_of(part)
    able = counts if part.gpus else np.where(here, units, 0)
    top = cluster.shape[0] if part.max_nodes is None else part.max_nodes
    for chosen in product(*(range(int(most) + 1) for most in able)):
        nodes = [i for i, here in enumerate(chosen) if here]
        if sum(chosen) != units or not {*required} <= {*nodes}:
            continue
        if part.per_node is not None:
            fine = all(chosen[i] == part.per_node for i in nodes)
        else:
            fine = part.min_nodes <= len(nodes) <= top
        if fine and all(
            chosen[i] * part.cpus <= cluster.free_cpus[i] * units
            and memory_of(part, chosen[i]) <= cluster.free_memory_mb[i]
            for i in nodes
        ):
            yield chosen


def memory_of(part, units):
    """``--mem`` is of each node, ``--mem-per-cpu`` goes by the CPUs."""
    return part.node_memory_mb or -(-part.memory_mb * units // units_of(part))


def fit_together(parts, required, request, cluster):
    """Whether each part has a spread over nodes of its own."""
    if not parts:
        return True
    part, *others = parts
    for chosen in spreads(part, required, request, cluster):
        after = replace(cluster, exists=cluster.exists & (np.array(chosen) == 0)[:, None])
        if fit_together(others, (), request, after):
            return True
    return False


@settings(max_examples=400, deadline=None)
@given(one_left())
def test_it_finds_a_place_exactly_if_there_is_one(situation):
    cluster, request = situation
    (part,) = request.left.parts
    possible = list(spreads(part, request.nodes.required, request, cluster))
    found = spread(request, cluster)
    if found is None:
        assert possible == []
        assert LeftPolicy().why_not(request, cluster).text
        return
    assert len(found) == min(sum(map(bool, one)) for one in possible)
    exists = cluster.exists.sum(axis=1)
    if part.whole:  # it gets all GPUs of the nodes of one of these
        possible = [tuple(np.where(one, exists, 0).tolist()) for one in possible]
    elif part.gpus == 0:
        assert {*found.values()} == {0}
        found = dict.fromkeys(found, 1)
        possible = [tuple(map(bool, one)) for one in possible]
    assert tuple(found.get(i, 0) for i in range(cluster.shape[0])) in possible


@st.composite
def several(draw):
    """An idle cluster, and parts of a job, the first of which may name nodes."""
    n, width = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    cluster = Cluster.uniform(n, width, cpus_per_node=8, cpus=np.full(n, 8))
    cluster = replace(cluster, memory_mb=np.full(n, 8))
    cluster.free_memory_mb[:] = 8
    wanted = [draw(parts(n, width)) for _ in range(draw(st.integers(2, 3)))]
    wanted = [replace(one, whole=draw(st.booleans())) for one in wanted]
    required = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=wanted[0].min_nodes))))
    return cluster, left_job(*wanted, required=required)


@settings(max_examples=400, deadline=None)
@given(several())
def test_no_job_of_several_parts_is_called_impossible_by_mistake(situation):
    cluster, request = situation
    if spread(request, cluster) is None:
        asked = request.left.parts, request.nodes.required
        assert not fit_together(*asked, request, cluster)


@settings(max_examples=200, deadline=None)
@given(one_left(most_parts=3))
def test_parts_never_share_gpus_cpus_or_memory(situation):
    cluster, request = situation
    found = LeftPolicy().place(request, cluster)
    if found is None:
        return
    if not any(part.whole for part in request.left.parts) and not request.nodes.whole:
        assert sum(map(len, found.slots)) == sum(part.gpus for part in request.left.parts)
    for node, slots in found.gpus:
        assert cluster.not_held[node, list(slots)].all()
        assert len(slots) <= usable(request, cluster, whole=request.nodes.whole)[1][node]


@pytest.mark.parametrize(
    "wanted",
    [
        (Part(0, min_nodes=4, whole=True), Part(1)),  # --exclusive -N4 : --gres=gpu:1
        (Part(0, min_nodes=2, whole=True), Part(0, min_nodes=3, whole=True)),
        (Part(4), Part(4), Part(4), Part(4), Part(1)),
        (Part(9), Part(5)),  # three and two nodes
    ],
)
def test_a_job_that_no_cluster_of_this_size_holds_keeps_no_gpus(wanted):
    assert LeftPolicy().place(left_job(*wanted), Cluster.uniform(4, 4)) is None


@settings(max_examples=200, deadline=None)
@given(one_left(), st.booleans())
def test_a_job_whose_nodes_are_fixed_waits_while_others_start_on_them(situation, fixed):
    cluster, request = situation
    request = replace(request, left=replace(request.left, fixed=fixed))
    may = (
        np.ones(cluster.shape[0], bool)
        if request.nodes.eligible is None
        else request.nodes.eligible
    )
    meets = cluster.starting is not None and bool((cluster.starting & may).any())
    if fixed and meets:
        assert spread(request, cluster) is None
    else:
        free = replace(request, left=replace(request.left, fixed=False))
        assert spread(request, cluster) == spread(free, cluster)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Part(1), {2: 1}),  # the fullest node that suffices
        (Part(3), {0: 3}),
        (Part(4), {1: 4}),
        (Part(6), {0: 2, 1: 4}),
        (Part(4, 2, min_nodes=2), {0: 2, 1: 2}),
        (Part(3, None, min_nodes=3), {0: 1, 1: 1, 2: 1}),
        (Part(5, None, min_nodes=1, max_nodes=1), None),
        (Part(9), None),
    ],
)
def test_which_nodes_are_kept(part, expected):
    """Of 4 GPUs on each of 3 nodes, 3, 4 and 1 are free."""
    free = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]], bool)
    assert spread(left_job(part), Cluster.uniform(3, 4, free=free)) == expected


def test_required_nodes_come_first():
    cluster = Cluster.uniform(3, 4)
    assert spread(left_job(Part(2), required=(1,)), cluster) == {1: 2}
    assert set(spread(left_job(Part(4, None, 3), required=(2,)), cluster)) == {0, 1, 2}
    cluster.free[1] = False
    assert spread(left_job(Part(2), required=(1,)), cluster) is None


def test_a_whole_node_needs_its_memory_too():
    cluster = Cluster.uniform(2, 2, cpus_per_node=8, cpus=np.full(2, 8))
    cluster.free_memory_mb[:] = 5, 9
    request = left_job(Part(2, 2, cpus=8, memory_mb=8), whole=True)
    assert spread(request, cluster) == {1: 2}
    cluster.free_cpus[1] = 7
    assert spread(request, cluster) is None


def shared(free_shards, *, gpu_free):
    cluster = Cluster.uniform(2, 2, free=np.array([[gpu_free] * 2, [False] * 2]))
    total = np.full((2, 2), 4)
    return replace(cluster, shards=Shards(total, np.array([[0, 0], [free_shards, 0]])))


@pytest.mark.parametrize(
    ("free_shards", "gpu_free", "expected"),
    [(4, True, {1: 0}), (2, True, {1: 0}), (1, True, {0: 1}), (1, False, None)],
)
def test_shards_go_to_a_used_gpu_if_it_has_enough(free_shards, gpu_free, expected):
    request = left_job(Part(1, 1, cpus=2, shards=2))
    assert spread(request, shared(free_shards, gpu_free=gpu_free)) == expected


def test_shards_of_a_used_gpu_take_cpus_and_memory():
    request = left_job(Part(1, 1, cpus=2, memory_mb=30, shards=2))
    cluster = shared(4, gpu_free=False)
    assert left_demand(request, ((1, ()),)) == {1: (2, 30)}
    cluster.free_cpus[1] = 1
    assert spread(request, cluster) is None


def test_demand_is_shared_by_gpus():
    request = left_job(Part(4, cpus=8, memory_mb=100))
    assert left_demand(request, ((0, (0,)), (2, (0, 1, 2)))) == {0: (2, 25), 2: (6, 75)}
    by_node = left_job(Part(4, cpus=8, memory_mb=100, node_memory_mb=50))
    assert left_demand(by_node, ((0, (0,)), (2, (0, 1, 2)))) == {0: (2, 50), 2: (6, 50)}


def test_nodes_of_a_component_without_gpus_are_charged_its_share_only():
    """``--gres=gpu:1 -c2 : -N2 -n28``"""
    more = Part(0, min_nodes=2, cpus=28, memory_mb=8, tasks=28)
    request = left_job(Part(1, 1, cpus=2, memory_mb=3), more)
    gpus = (0, (0,)), (1, ()), (2, ())
    assert left_demand(request, gpus) == {0: (2, 3), 1: (14, 4), 2: (14, 4)}
    away = left_job(Part(1, 1, cpus=2), replace(more, elsewhere=True))
    assert left_demand(away, gpus[:1]) == {0: (2, 0)}
    cluster = Cluster.uniform(3, 2, cpus_per_node=16)
    cluster = replace(cluster, by_slurm=np.zeros_like(cluster.free))
    take(cluster, request, LeftPolicy().place(request, cluster))
    assert sorted(cluster.free_cpus.tolist()) == [2, 2, 14]


@pytest.mark.parametrize(
    ("parts", "fits"),
    [
        ([Part(1, 1), Part(0, cpus=16)], True),
        ([Part(1, 1), Part(0, cpus=17)], False),  # one task
        ([Part(1, 1), Part(0, cpus=17, tasks=17)], False),  # three nodes
        ([Part(1, 1), Part(0, cpus=17, tasks=17, max_nodes=1)], False),
        ([Part(1, 1, cpus=16), Part(0, min_nodes=2, cpus=18)], False),
        ([Part(0, min_nodes=2, cpus=18), Part(1, 1, cpus=9)], False),
        ([Part(0, min_nodes=2, cpus=18, elsewhere=True), Part(1, 1, cpus=9)], True),
        ([Part(0, cpus=16), Part(1, 1, cpus=16)], True),
        ([Part(0, whole=True), Part(1, 1, cpus=9)], True),
        ([Part(0, whole=True), Part(1, 1, cpus=9), Part(0, cpus=7)], False),
        ([Part(1), Part(1)], True),
        ([Part(1), Part(1), Part(1)], False),
        ([Part(0, memory_mb=30, cpus=1), Part(1, 1)], False),
    ],
)
def test_components_fit_together(parts, fits):
    """Two idle nodes of 16 CPUs, two GPUs and 20 MB; another is in use."""
    cluster = Cluster.uniform(3, 2, cpus_per_node=16, cpus=np.full(3, 16))
    cluster.free_memory_mb[:] = 20
    cluster.free[2], cluster.free_cpus[2], cluster.free_memory_mb[2] = False, 0, 0
    assert (spread(left_job(*parts), cluster) is not None) == fits


def test_components_are_placed_in_other_orders_where_the_usual_one_fails():
    """The smaller component would take the larger node."""
    cluster = Cluster.uniform(2, 2, cpus_per_node=16)
    cluster.free_cpus[1] = 8
    assert spread(left_job(Part(1, 1, cpus=8), Part(2, 2, cpus=10)), cluster) == {0: 2, 1: 1}


@pytest.mark.parametrize(
    ("parts", "required"),
    [
        ([Part(0, cpus=16), Part(1, 1, cpus=1)], (0,)),
        ([Part(0, min_nodes=2, cpus=3, tasks=3, memory_mb=180, node_memory_mb=90, whole=True)], ()),
        ([Part(3, None, 2, memory_mb=180, node_memory_mb=90)], ()),
    ],
)
def test_what_fits_on_the_idle_cluster_has_a_place(parts, required):
    """Two nodes of 16 CPUs, two GPUs and 100 MB."""
    cluster = Cluster.uniform(2, 2, cpus_per_node=16, cpus=np.full(2, 16))
    cluster.free_memory_mb[:] = 100
    request = left_job(*parts, required=required)
    assert spread(request, cluster) is not None
    cluster.free_cpus[:] = 0
    cluster.free_memory_mb[:] = 0
    assert spread(request, cluster) is None


def test_an_older_record_says_of_the_job_only_that_it_gets_whole_nodes():
    cluster = Cluster.uniform(1, 2, free=np.array([[False, True]]))
    part = LeftToSlurm("x", (Part(1, 1),))
    assert spread(job_request("1", 1, left=part, whole=True), cluster) is None


@pytest.mark.parametrize(
    ("parts", "required", "expected"),
    [
        ([{"min_nodes": 2}], (), "2 wholly free nodes; of the 3 that it may use 1 is free"),
        ([{}], (0,), "1 wholly free node; n0 is not free"),
        ([{"cpus": 9}], (), "1 wholly free node, with the CPUs and memory that it asks for"),
        (
            [{"min_nodes": 3}, {"gpus": 3}],
            (),
            "3 free GPUs on its nodes, with CPUs and memory beside them, each of its 2 components"
            " on nodes of its own",
        ),
    ],
)
def test_why_whole_nodes_are_not_there(parts, required, expected):
    cluster = Cluster.uniform(3, 2, cpus_per_node=8, cpus=np.full(3, 8))
    cluster.free_cpus[0] -= 1
    cluster.free[1, 0] = False
    first, *more = ({"gpus": 0, "cpus": 2, **one} for one in parts)
    request = left_job(Part(**first, whole=True), *(Part(**one) for one in more), required=required)
    assert LeftPolicy().why_not(request, cluster).text == f"needs {expected}"
