"""Requests inside one group of nodes against brute force over every set of every group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import with_fields
from small_clusters import all_sets, clusters, cost, level_index, requests

from slurm_gpu_aware.admission.fitting import fits
from slurm_gpu_aware.model.request import NodeGroups
from slurm_gpu_aware.placement.constraints import constrained
from slurm_gpu_aware.placement.policy import make_policy
from slurm_gpu_aware.planning.dispatcher import Dispatcher
from slurm_gpu_aware.planning.plan import PlanSettings

POLICIES = ("pal", "pal+mapa", "pm-first", "packed", "best-fit", "lowest-index", "random")
MANY = settings(max_examples=150, deadline=None)


@st.composite
def grouped(draw):
    cluster = draw(clusters())
    n = cluster.shape[0]
    of = draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n))
    return with_fields(draw(requests(cluster)), groups=NodeGroups(np.array(of), "block")), cluster


def sets_inside(request, cluster):
    """Every set of which all nodes are of one group."""
    for chosen in all_sets(with_fields(request, groups=None), cluster):
        groups = {int(request.nodes.groups.of[node]) for node, _ in chosen}
        if len(groups) == 1 and groups != {-1}:
            yield chosen


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(case=grouped())
def test_one_group_and_a_place_whenever_a_group_has_one(policy, case):
    request, cluster = case
    found = constrained(make_policy(policy)).place(request, cluster)
    sets = set(sets_inside(request, cluster))
    assert (found is not None) == bool(sets)
    if found is not None:
        assert tuple(zip(found.nodes, found.slots, strict=True)) in sets
        assert found.why.text.count("all nodes in one block") == 1
    else:
        assert constrained(make_policy(policy)).why_not(request, cluster).text


@MANY
@given(grouped())
def test_pal_is_as_fast_as_the_best_group_lets_it_be(case):
    request, cluster = case
    scores = cluster.score(request.app_class)
    slowdowns = [
        cluster.levels[level_index(request, cluster, chosen)].penalty
        * cost(request, cluster, chosen, scores)[0]
        for chosen in sets_inside(request, cluster)
    ]
    found = constrained(make_policy("pal")).place(request, cluster)
    assert (None if found is None else found.slowdown) == min(slowdowns, default=None)


@MANY
@given(grouped())
def test_what_has_a_place_fits_by_numbers(case):
    request, cluster = case
    cluster = replace(cluster, same_indices=True)
    if (
        constrained(make_policy("packed")).place(with_fields(request, gpu_model=None), cluster)
        is not None
    ):
        assert fits(request, cluster)


@MANY
@given(grouped())
def test_the_planners_chooser_keeps_to_it_and_answers_the_same_twice(case):
    request, cluster = case
    chooser = Dispatcher(PlanSettings(policy="pal"))
    found = chooser.place(request, cluster)
    assert found == Dispatcher(PlanSettings(policy="pal")).place(request, cluster)
    if found is not None:
        assert len({int(request.nodes.groups.of[node]) for node in found.nodes}) == 1
