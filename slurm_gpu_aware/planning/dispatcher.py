"""Each request's own policy, called so that one job's failure stays its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.placement.feasible import why_not
from slurm_gpu_aware.placement.node_groups import place_together, reason_together
from slurm_gpu_aware.placement.policy import Policy, make_policy, option_names
from slurm_gpu_aware.placement.reasons import Reason
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.power_saving import place_awake_first

__all__ = ["Chooser", "PlacementFailedError", "capacity_request", "postpones", "shape_of"]

log = logging.getLogger(__name__)


class PlacementFailedError(Exception):
    """The policy of a job cannot be used; carries the reason."""


class Chooser:
    """Calls each request's own policy and measures it."""

    def __init__(
        self,
        settings: PlanSettings,
        options: Mapping[str, Mapping[str, Any]],
        timer: Callable[[], float] | None,
        now: float | None = None,
        between: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings
        self.options = options
        self.timer = timer
        self.between = between
        """Called before each question to a policy."""
        self.now = now
        """Time of the round, on the clock of ``Request.submit_s``; None: waiting times unknown."""
        self.took_s: dict[str, float] = {}
        self._policies: dict[str, Policy] = {}
        self._takes: dict[str, frozenset[str]] = {}

    def place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Ask the request's policy; raise PlacementFailedError with the reason if it fails."""
        if self.between is not None:
            self.between()
        start = self.timer() if self.timer is not None else 0.0
        try:
            policy = self._policy(request)
            found = place_awake_first(
                request, cluster, lambda asked: place_together(policy, asked, cluster, self.between)
            )
        except PolicyError as exc:
            raise PlacementFailedError(str(exc)) from exc
        except Exception as exc:  # one job must not stop the round for all
            log.exception("job %s: its placement policy failed", request.job_id)
            raise PlacementFailedError(f"its placement policy failed: {exc!r}") from exc
        finally:
            if self.timer is not None:
                spent = self.timer() - start
                self.took_s[request.job_id] = self.took_s.get(request.job_id, 0.0) + spent
        return found

    def try_place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Like :meth:`place` for what-if questions: a failure counts as no place."""
        try:
            return self.place(request, cluster)
        except PlacementFailedError:
            return None

    def could_place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Where the job would go if it had to: the answer to every question of capacity.

        More free GPUs never turn it from a place into None, which :meth:`place` may do where a
        policy lets a job wait for a better set (``topo-aware-p``).
        """
        asked = capacity_request(request) if self._postpones(request) else request
        return self.try_place(asked, cluster)

    def postponed(self, request: Request, cluster: Cluster) -> bool:
        """Say whether a job without a place here only waits for a better one."""
        return self._postpones(request) and self.could_place(request, cluster) is not None

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Why the job's policy gives it no place here."""
        try:
            return reason_together(self._policy(request), request, cluster)
        except Exception:  # a reason that cannot be found must not stop the round
            log.exception("job %s: its policy cannot say why it has no place", request.job_id)
            return Reason(why_not(request, cluster))

    def _postpones(self, request: Request) -> bool:
        try:
            return _may_postpone(self._policy(request))
        except PolicyError:
            return False

    def _policy(self, request: Request) -> Policy:
        name = request.policy or self.settings.policy
        options = {**self.options.get(name, {}), **request.options}
        if name not in self._takes:
            self._takes[name] = option_names(name)
        if self.now is not None and "waited_s" in self._takes[name]:
            options.setdefault("waited_s", max(0.0, self.now - request.submit_s))
        key = f"{name} {sorted(options.items())!r}"
        if key not in self._policies:
            self._policies[key] = make_policy(name, options)
        return self._policies[key]


def postpones(policy: Policy, request: Request, cluster: Cluster) -> bool:
    """Say whether a job to which the policy gave no place here only waits for a better one."""
    return _may_postpone(policy) and policy.place(capacity_request(request), cluster) is not None


def _may_postpone(policy: Policy) -> bool:
    return bool(getattr(policy, "postpones", False))


def capacity_request(request: Request) -> Request:
    """The same request for a policy with thresholds, content with any set that it fits."""
    return replace(request, options={**request.options, "minimal_utility": 0.0})


def shape_of(request: Request) -> object:
    """Everything that decides whether a request fits, as a key: equal keys fit alike."""
    return (
        request.gpus,
        request.min_nodes,
        request.max_nodes,
        request.gpus_per_node,
        request.app_class,
        request.bandwidth_sensitive,
        request.pattern,
        request.policy,
        request.gpu_model,
        None if request.eligible is None else id(request.eligible),
        request.required,
        None if request.together is None else id(request.together),
        request.whole_node,
        request.bound,
        request.several_sockets,
        request.fills_sockets,
        request.cpus,
        request.cpus_per_gpu,
        request.memory_mb_per_node,
        request.memory_mb_per_cpu,
        request.memory_mb_per_gpu,
        repr(sorted(request.options.items())),
    )
