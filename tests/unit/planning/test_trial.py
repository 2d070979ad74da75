"""Trials of a round share the search of a common beginning, without a change of the result."""

import numpy as np
import pytest
from make import job_request, plan_round

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.policies.pal import Pal
from slurm_gpu_aware.planning import round as planning
from slurm_gpu_aware.planning.plan import Plan, PlanSettings
from slurm_gpu_aware.planning.prefix import TrialResults


class Forgetful(TrialResults):
    """A tree that stores nothing."""

    def __setitem__(self, key: int, value: object) -> None:
        pass


def queue(seed: int, count: int = 40) -> list[Request]:
    rng = np.random.default_rng(seed)
    return [
        job_request(
            str(i),
            int(rng.choice([1, 1, 2, 3, 4, 8])),
            app_class="ABC"[int(rng.integers(3))],
            bandwidth_sensitive=bool(rng.integers(2)),
            priority=float(rng.integers(3)),
            time_limit_s=float(rng.choice([100, 1000])),
            policy="random" if i % 7 == 0 else None,
        )
        for i in range(count)
    ]


def random_cluster(seed: int) -> Cluster:
    rng = np.random.default_rng(seed)
    scores = {c: rng.choice([0.9, 1.0, 1.3], (8, 4)) for c in "ABC"}
    found = Cluster.uniform(8, 4, scores=scores)
    found.free[:] = rng.random((8, 4)) < 0.8
    return found


def content(plan: Plan) -> tuple[object, ...]:
    placed = [(a.job_id, a.nodes, a.slots, a.why.text) for a in plan.assignments]
    return placed, [(w.job_id, w.reason, w.shadow_start_s) for w in plan.waiting]


@pytest.mark.parametrize("policy", ["pal", "pal+mapa", "packed"])
@pytest.mark.parametrize("seed", range(6))
def test_shared_results_of_trials_do_not_change_the_plan(
    monkeypatch: pytest.MonkeyPatch, policy: str, seed: int
) -> None:
    settings = PlanSettings(policy=policy)
    known = plan_round(queue(seed), random_cluster(seed), settings, 0.0)
    monkeypatch.setattr(planning, "TrialResults", Forgetful)
    anew = plan_round(queue(seed), random_cluster(seed), settings, 0.0)
    assert known.assignments
    assert content(known) == content(anew)


def test_a_common_beginning_is_not_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both small jobs take the best node, so that the last one has no place; without it the prefix
    is placed by class again, as before."""
    asked: list[str] = []
    place = Pal.place

    def counted(self: Pal, request: Request, here: Cluster) -> object:
        asked.append(request.job_id)
        return place(self, request, here)

    monkeypatch.setattr(Pal, "place", counted)
    scores = np.array([[0.9, 0.9], [1.0, 1.0], [1.0, 1.0]])
    here = Cluster.uniform(3, 2, scores=dict.fromkeys("ABC", scores))
    here.free[1:, 1] = False
    jobs = [
        Request("b", 1, app_class="B"),
        Request("a", 1, app_class="A", submit_s=1.0),
        Request("c", 2, max_nodes=1, app_class="C", submit_s=2.0),
    ]
    plan = plan_round(jobs, here, PlanSettings(policy="pal"), 0.0)
    assert [a.job_id for a in plan.assignments] == ["a", "b"]
    assert [job_id for job_id in asked if job_id != "c"] == ["a", "b", "b", "a"]
