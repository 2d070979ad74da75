"""The simulated side of a feature: when a run asks it, and what its answers do."""

from dataclasses import replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.planning.plan import Waiting
from slurm_gpu_aware.planning.stages import Stage
from slurm_gpu_aware.simulator import engine
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace, TraceJob, poisson_trace


class Doubled(SimulatedFeature):
    """Jobs get twice the GPUs that they ask for; a round looks again after 7 s, once."""

    def prepare(self):
        self.seen = []

    def asked(self, job, request):
        self.seen.append("asked")
        return replace(request, gpus=2 * request.gpus)

    def renew(self, queue):
        self.seen.append(f"renew {len(queue)}")

    def planned(self, plan):
        now = self.state.clock.now
        self.seen.append(f"planned {len(plan.assignments)} at {now:g}")
        return now + 7.0 if now < 7.0 else float("inf")

    def begins(self, waiting):
        return True

    def starts(self, active, assignment):
        self.seen.append("starts")
        return replace(assignment, slowdown=2.0)

    def ends(self, active):
        self.seen.append(f"ends {active.size} {active.placed.slowdown:g}")


def test_a_run_asks_its_features(monkeypatch):
    monkeypatch.setattr(engine, "SIMULATED", (Doubled,))
    trace = Trace.of("t", [TraceJob("1", 0.0, 2, 100.0)])
    run = engine.Simulator(trace, Cluster.uniform(1, 4), SimSettings(policy="packed"), stages=())
    assert run.run().end_s.tolist() == [100.0]
    (feature,) = run.state.features
    assert feature.seen == [
        *("asked", "renew 1", "planned 1 at 0", "starts"),
        *("renew 0", "planned 0 at 7", "ends 4 2", "renew 0", "planned 0 at 100"),
    ]


class WholeNodesWait(Stage):
    """Jobs of whole nodes wait, and hold up no other."""

    name = "whole nodes wait"

    def before(self, one):
        held = tuple(request for request in one.queue if request.gpus == 4)
        return replace(one, queue=[r for r in one.queue if r.gpus < 4], aside=held)

    def after(self, one):
        held = (Waiting(r.job_id, "waits") for r in one.queue if r.gpus == 4)
        return replace(one, plan=replace(one.plan, waiting=(*one.plan.waiting, *held)))


def test_jobs_that_a_stage_holds_back_hold_up_no_other():
    sizes = ((0.0, 4), (0.0, 4), (0.0, 2), (5.0, 2))
    jobs = [TraceJob(str(n), at_s, gpus, 100.0) for n, (at_s, gpus) in enumerate(sizes)]
    settings, cluster = SimSettings(policy="packed"), Cluster.uniform(1, 4)
    result = engine.simulate(Trace.of("t", jobs), cluster, settings, stages=(WholeNodesWait(),))
    assert result.end_s[2:].tolist() == [100.0, 105.0]


class Passes(SimulatedFeature):
    """Each round sees the whole queue."""

    passes = True


def test_a_queue_is_shown_as_far_as_it_matters(monkeypatch):
    """A job that waits by choice holds up no other, so the round sees those behind it."""
    trace, cluster = poisson_trace(150, 20.0), Cluster.uniform(6, 4)
    settings = SimSettings(policy="eft")
    ends = engine.simulate(trace, cluster, settings).end_s
    monkeypatch.setattr(engine, "SIMULATED", (*engine.SIMULATED, Passes))
    assert engine.simulate(trace, cluster, settings).end_s.tolist() == ends.tolist()
