"""The simulated side of a feature: when a run asks it, and what its answers do."""

from dataclasses import replace

from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.simulator import engine
from slurm_gpu_aware.simulator.settings import SimSettings
from slurm_gpu_aware.simulator.simulated_feature import SimulatedFeature
from slurm_gpu_aware.simulator.trace import Trace, TraceJob


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
