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
    least = draw(st.integers(1, n))
    even = draw(st.booleans())
    each = draw(st.integers(1, width))
    gpus = each * least if even else draw(st.integers(1, n * width))
    return Part(
        gpus,
        per_node=each if even else None,
        min_nodes=least,
        max_nodes=draw(st.none() | st.integers(least, n)),
        cpus=draw(st.sampled_from([0, 1, 4, 9])),
        memory_mb=draw(st.sampled_from([0, 0, 6])),
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


def usable(request, cluster):
    """(N,) GPUs of each node that it may get now."""
    allowed = (
        np.ones(cluster.shape[0], bool)
        if request.nodes.eligible is None
        else request.nodes.eligible
    )
    if cluster.starting is not None:
        allowed = allowed & ~cluster.starting
    counts = np.where(allowed, cluster.not_held.sum(axis=1), 0)
    if request.nodes.whole:
        whole = (counts == cluster.exists.sum(axis=1)) & (cluster.free_cpus >= cluster.cpus)
        counts = np.where(whole, counts, 0)
    return counts


def spreads(part, request, cluster):
    """Every spread of one part that its numbers allow: GPUs of each node."""
    for chosen in product(*(range(int(most) + 1) for most in usable(request, cluster))):
        nodes = [i for i, gpus in enumerate(chosen) if gpus]
        if sum(chosen) != part.gpus or not {*request.nodes.required} <= {*nodes}:
            continue
        if part.per_node is not None:
            fine = all(chosen[i] == part.per_node for i in nodes)
        else:
            most = cluster.shape[0] if part.max_nodes is None else part.max_nodes
            fine = part.min_nodes <= len(nodes) <= most
        if fine and all(
            chosen[i] * part.cpus <= free[0] * part.gpus
            and chosen[i] * part.memory_mb <= free[1] * part.gpus
            for i in nodes
            for free in [(cluster.free_cpus[i], cluster.free_memory_mb[i])]
        ):
            yield chosen


@settings(max_examples=400, deadline=None)
@given(one_left())
def test_it_finds_a_place_exactly_if_there_is_one(situation):
    cluster, request = situation
    (part,) = request.left.parts
    possible = list(spreads(part, request, cluster))
    found = spread(request, cluster)
    if found is None:
        assert possible == []
        assert LeftPolicy().why_not(request, cluster).text
        return
    chosen = tuple(found.get(i, 0) for i in range(cluster.shape[0]))
    if request.nodes.whole:  # it gets all GPUs of the nodes of one of these
        exists = cluster.exists.sum(axis=1)
        possible = [tuple(np.where(one, exists, 0).tolist()) for one in possible]
    assert chosen in possible
    assert len(found) == min(sum(map(bool, one)) for one in possible)


@settings(max_examples=200, deadline=None)
@given(one_left(most_parts=3))
def test_parts_never_share_gpus_cpus_or_memory(situation):
    cluster, request = situation
    found = LeftPolicy().place(request, cluster)
    if found is None:
        return
    got = sum(map(len, found.slots))
    assert got >= request.gpus if request.nodes.whole else got == request.gpus
    for node, slots in found.gpus:
        assert cluster.not_held[node, list(slots)].all()
        assert len(slots) <= usable(request, cluster)[node]


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
    assert left_demand(request, 0) == (2, 30)
    cluster.free_cpus[1] = 1
    assert spread(request, cluster) is None


def test_demand_is_shared_by_gpus():
    request = left_job(Part(4, cpus=8, memory_mb=100))
    assert left_demand(request, 1) == (2, 25)
    assert left_demand(request, 4) == (8, 100)


@st.composite
def without_gpus(draw):
    """A cluster, and a job without GPUs; whole nodes or not."""
    cluster = draw(machines())
    n = cluster.shape[0]
    least = draw(st.integers(1, n))
    part = Part(
        0,
        min_nodes=least,
        max_nodes=draw(st.none() | st.integers(least, n)),
        cpus=draw(st.integers(0, 9)),
        tasks=draw(st.integers(1, 6)),
        memory_mb=draw(st.sampled_from([0, 0, 6])),
    )
    required = tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=least))))
    return cluster, left_job(part, required=required, whole=draw(st.booleans()))


@settings(max_examples=400, deadline=None)
@given(without_gpus())
def test_a_job_without_gpus_is_spread_by_its_tasks(situation):
    """It finds nodes exactly if some spread of its tasks over nodes suits, and the fewest."""
    cluster, request = situation
    (part,) = request.left.parts
    units = max(part.tasks, part.min_nodes)
    usable_here = cluster.exists.any(axis=1)
    if cluster.starting is not None:
        usable_here &= ~cluster.starting
    if request.nodes.whole:
        usable_here &= cluster.not_held.sum(axis=1) == cluster.exists.sum(axis=1)
        usable_here &= cluster.free_cpus >= cluster.cpus
    most = [
        max(
            (
                k
                for k in range(1, units + 1)
                if k * part.cpus <= cluster.free_cpus[i] * units
                and k * part.memory_mb <= cluster.free_memory_mb[i] * units
            ),
            default=0,
        )
        if usable_here[i]
        else 0
        for i in range(cluster.shape[0])
    ]
    top = cluster.shape[0] if part.max_nodes is None else part.max_nodes
    sets = [
        chosen
        for chosen in product((False, True), repeat=len(most))
        if part.min_nodes <= sum(chosen) <= min(top, units)
        and all(chosen[i] for i in request.nodes.required)
        and all(most[i] for i, there in enumerate(chosen) if there)
        and sum(most[i] for i, there in enumerate(chosen) if there) >= units
    ]
    found = spread(request, cluster)
    if found is None:
        assert sets == []
        assert LeftPolicy().why_not(request, cluster).text
        return
    assert tuple(i in found for i in range(len(most))) in sets
    assert len(found) == min(map(sum, sets))
    for node, gpus in found.items():
        assert gpus == (cluster.exists[node].sum() if request.nodes.whole else 0)


@pytest.mark.parametrize(
    ("parts", "fits"),
    [
        ([Part(1, 1), Part(0, cpus=16)], True),
        ([Part(1, 1), Part(0, cpus=17)], False),  # one task
        ([Part(1, 1), Part(0, cpus=17, tasks=17)], True),  # two nodes
        ([Part(1, 1), Part(0, cpus=17, tasks=17, max_nodes=1)], False),
        ([Part(1, 1, cpus=16), Part(0, min_nodes=2, cpus=18)], False),
        ([Part(0, min_nodes=2, cpus=18), Part(1, 1, cpus=9)], False),
        ([Part(0, min_nodes=2, cpus=18, elsewhere=True), Part(1, 1, cpus=9)], True),
        ([Part(0, cpus=16), Part(1, 1, cpus=16)], True),
        ([Part(0, whole=True), Part(1, 1, cpus=9), Part(0, cpus=8)], False),
        ([Part(0, whole=True), Part(1, 1, cpus=9), Part(0, cpus=7)], True),
        ([Part(0, memory_mb=30, cpus=1), Part(1, 1)], False),
    ],
)
def test_components_fit_together(parts, fits):
    """Two nodes of 16 CPUs, two GPUs and 20 MB."""
    cluster = Cluster.uniform(2, 2, cpus_per_node=16, cpus=np.full(2, 16))
    cluster.free_memory_mb[:] = 20
    assert (spread(left_job(*parts), cluster) is not None) == fits


def test_why_whole_nodes_are_not_there():
    cluster = Cluster.uniform(3, 2, cpus_per_node=8, cpus=np.full(3, 8))
    cluster.free_cpus[0] -= 1
    cluster.free[1, 0] = False
    request = left_job(Part(0, min_nodes=2, cpus=2, whole=True))
    told = LeftPolicy().why_not(request, cluster).text
    assert told == "needs 2 wholly free nodes; of the 3 that it may use 1 is free"
