"""Actions of a pass: the site's command, drains and resumes, scores in the nodes' Extra.

None is on by default. One that fails is said, is tried again by the next pass, and stops no other.
"""

from collections.abc import Iterable, Sequence

from msgspec import structs

from gpu_aware_profile.child import run_command_of_site
from gpu_aware_profile.watch import slurm_nodes
from gpu_aware_profile.watch.draining import Budget, DrainPlan, plan_drains
from gpu_aware_profile.watch.show import changed, message
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment
from slurm_gpu_aware.store.watch_state import STATES, Drained, GpuState, WatchState

_EXACT = 1e-3
"""Scores in Extra are rounded to this, or each pass would write each node."""


def tell(state: WatchState, argv: Sequence[str]) -> tuple[WatchState, str]:
    """Give the site's command the news on its standard input, once.

    Returns (state that remembers it, why the command failed or empty).
    """
    news = changed(state)
    if not news:
        return state, ""
    failure = run_command_of_site(argv, clean_environment(), message(news).encode())
    if failure:
        return state, failure
    told = {(one.node, one.gpu) for one in news}
    gpus = [
        structs.replace(one, told=one.state) if (one.node, one.gpu) in told else one
        for one in state.gpus
    ]
    return structs.replace(state, gpus=gpus), ""


def drain_and_resume(
    state: WatchState, budget: Budget, now: float
) -> tuple[WatchState, DrainPlan, list[str]]:
    """Drain nodes with ill or slow GPUs, resume those that are well again.

    Returns (state that remembers it, what was done, what failed). Raises SourceError if Slurm does
    not tell its nodes.
    """
    nodes = slurm_nodes.read_nodes()
    plan = plan_drains(state.gpus, nodes, state.drained, budget, now, state.on_trial)
    remembered = dict(plan.drained)
    drained, resumed, failed, on_trial = [], [], [], []
    for node in plan.resume:
        try:
            slurm_nodes.resume(node)
            resumed.append(node)
        except SourceError as exc:
            failed.append(f"{node}: not resumed: {exc}")
            remembered[node] = state.drained.get(node, Drained(now))
    for node, reason in plan.drain:
        try:
            slurm_nodes.drain(node, reason)
            drained.append((node, reason))
        except SourceError as exc:
            failed.append(f"{node}: not drained: {exc}")
            if node in state.on_trial:
                on_trial.append(node)
            else:
                del remembered[node]
    done = DrainPlan(tuple(drained), tuple(resumed), plan.held_back, remembered)
    after = structs.replace(state, drained=remembered, on_trial=tuple(on_trial))
    return after, done, failed


def node_extras(states: Iterable[GpuState]) -> dict[str, dict[str, float | str]]:
    """Node -> the worst state and slowness of its GPUs, for ``--extra`` of users' jobs."""
    worst: dict[str, dict[str, float | str]] = {}
    for one in states:
        own = worst.setdefault(one.node, {"gpu_aware_state": one.state, "gpu_aware_worst": 1.0})
        if STATES.index(one.state) < STATES.index(str(own["gpu_aware_state"])):
            own["gpu_aware_state"] = one.state
        slowness = round((1.0 + (one.by or 0.0)) / _EXACT) * _EXACT
        own["gpu_aware_worst"] = round(max(float(own["gpu_aware_worst"]), slowness), 3)
    return worst
