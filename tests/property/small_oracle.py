"""Comparison of a policy's answer with the best of all sets, and renamed clusters."""

from dataclasses import replace

from make import with_fields
from small_clusters import all_sets

from slurm_gpu_aware.placement.registry import make_policy


def chosen_of(assignment):
    """The set of an assignment as ``all_sets`` writes it."""
    return tuple(zip(assignment.nodes, assignment.slots, strict=True))


def best(request, cluster, key):
    """Least key over all sets, or None if there is no set."""
    return min((key(chosen) for chosen in all_sets(request, cluster)), default=None)


def assert_best(policy, request, cluster, key, **options):
    """The policy finds a set exactly when there is one, and none has a smaller key.

    Returns the assignment, or None if there is no set.
    """
    got = make_policy(policy, options).place(request, cluster)
    expected = best(request, cluster, key)
    assert (got is None) == (expected is None)
    if got is not None:
        assert key(chosen_of(got)) == expected
    return got


def relabelled(request, cluster, order):
    """Request and cluster when node ``order[i]`` comes i-th. The same nodes, other numbers."""
    place_of = {old: new for new, old in enumerate(order)}
    order = list(order)
    moved = replace(
        cluster,
        nodes=tuple(cluster.nodes[i] for i in order),
        exists=cluster.exists[order],
        free=cluster.free[order],
        scores={c: v[order] for c, v in cluster.scores.items()},
        levels=tuple(replace(level, group=level.group[order]) for level in cluster.levels),
        free_cpus=cluster.free_cpus[order],
        free_memory_mb=cluster.free_memory_mb[order],
        indexed=cluster.indexed[order],
        model=tuple(cluster.model[i] for i in order),
        graphs=tuple(cluster.graphs[i] for i in order) if cluster.graphs else (),
    )
    wanted = with_fields(
        request,
        eligible=None if request.nodes.eligible is None else request.nodes.eligible[order],
        required=tuple(sorted(place_of[i] for i in request.nodes.required)),
    )
    return wanted, moved
