"""Lower bounds of the slowdown: on one node, and on common indices, they are what the best has."""

import itertools
import math
from dataclasses import replace

import numpy as np

from slurm_gpu_aware.model.cluster import Cluster, LocalityLevel
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.shapes import LeastSlowdown

SOCKETS = ((0, 0, 1, 1), (2, 2, 2, 3))


def brute(scores, free, gpus, sockets, penalties):
    """Least L x max V over all sets of one node."""
    in_socket, in_node = penalties
    found = [
        (in_socket if len({sockets[slot] for slot in chosen}) == 1 else in_node)
        * max(scores[slot] for slot in chosen)
        for chosen in itertools.combinations(np.flatnonzero(free).tolist(), gpus)
    ]
    return min(found, default=math.inf)


def test_bounds_know_that_a_socket_is_cheaper_than_its_node():
    rng = np.random.default_rng(7)
    for gpus, penalties in itertools.product((1, 2, 3, 4), ((1.0, 1.2), (1.0, 1.0), (1.1, 1.0))):
        scores = rng.choice([0.9, 1.06, 1.3, 2.55], (2, 4))
        base = Cluster.uniform(2, 4, scores={"A": scores})
        inner = (
            LocalityLevel("socket", penalties[0], np.array(SOCKETS)),
            LocalityLevel("node", penalties[1], np.array([0, 1])),
        )
        cluster = replace(base, levels=(*inner, *base.levels[1:]))
        request = Request("1", gpus, app_class="A", max_nodes=1)
        free = rng.random((2, 4)) < 0.8
        bounds = LeastSlowdown.of(request, cluster).on_nodes(np.array([0, 1]), free)
        wanted = [
            min(
                brute(scores[node], free[node], gpus, SOCKETS[node], penalties),
                brute(scores[node], free[node], gpus, SOCKETS[node], (penalties[1],) * 2),
            )
            for node in (0, 1)
        ]
        assert bounds.tolist() == wanted


def on_common_indices(scores, free, gpus):
    """Least L x max V over all sets; on several nodes every node gives the same slots."""
    found = [math.inf]
    for count in (1, 2, 4):
        for slots in itertools.combinations(range(4), gpus // count) if gpus % count == 0 else ():
            able = [n for n in range(len(free)) if free[n, list(slots)].all()]
            worst = sorted(scores[n, list(slots)].max() for n in able)
            if slots and len(worst) >= count:
                found.append((1.0 if count == 1 else 1.5) * worst[count - 1])
    return min(found)


def test_bounds_of_free_gpus_are_exact_on_common_indices_and_never_above_it():
    rng = np.random.default_rng(3)
    loose = 0
    for _ in range(300):
        scores, free = rng.choice([0.9, 1.06, 1.3], (4, 4)), rng.random((4, 4)) < 0.6
        cluster = Cluster.uniform(4, 4, scores={"A": scores}, same_indices=True)
        gpus = int(rng.choice([2, 4]))
        least = LeastSlowdown.of(Request("1", gpus, app_class="A"), cluster)
        wanted = on_common_indices(scores, free, gpus)
        assert least.among(free, common=True) == wanted
        assert least.among(free) <= wanted
        loose += least.among(free) < wanted
    assert loose
