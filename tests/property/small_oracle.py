"""Comparison of a policy's answer with the best of all sets."""

from small_clusters import all_sets

from slurm_gpu_aware.placement.policy import make_policy


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
