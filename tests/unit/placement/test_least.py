"""Lower bounds of the slowdown: on one node they are what the best set has."""

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
