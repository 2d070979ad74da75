"""Dispatcher: asks the policy of each request; a failure affects only that job.

`Impossible` is the one place that calls a job impossible. It asks about `Cluster.empty`: no running
or placed job, no power limit, nothing that a reading of Slurm may have missed or counted twice
plays a part.
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.model.assignment import Assignment
from slurm_gpu_aware.model.cluster import Cluster, Gpu, RunningJob
from slurm_gpu_aware.model.request import Postponement, Request
from slurm_gpu_aware.placement.constraints import constrained
from slurm_gpu_aware.placement.feasible import common_reason, enough_free
from slurm_gpu_aware.placement.left_to_slurm import LeftPolicy
from slurm_gpu_aware.placement.policy import Policy, Reason, make_policy
from slurm_gpu_aware.planning.later import ExpectedEnds, better_later
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.planning.postponing import awaited, least_now, postponement, with_bound

log = logging.getLogger(__name__)
_SHAPE = attrgetter(
    *("gpus", "min_nodes", "max_nodes", "gpus_per_node", "cpus.total", "cpus.per_gpu", "memory"),
    *("nodes.required", "nodes.groups", "nodes.gpu_model", "nodes.whole", "nodes.alone"),
    *("nodes.sharing", "sockets"),
    *("app_class", "bandwidth_sensitive", "pattern", "policy.name", "power_w", "left"),
)
_LEFT = LeftPolicy()
_MOST_NAMES = 3


class PlacementFailedError(Exception):
    """The policy of a job cannot be used. The message is the reason."""


class Dispatcher:
    """Asks each request's policy, at the time ``now`` on the clock of ``Request.submit_s``."""

    def __init__(
        self,
        settings: PlanSettings,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        now: float = 0.0,
        running: Sequence[RunningJob] = (),
    ) -> None:
        """``running``: the jobs of the snapshot."""
        self.settings = settings
        self.options = options or {}
        self.now = now
        self.ends = ExpectedEnds(running, now)
        """Expected ends of the round; the round keeps them up to date."""
        self._policies: dict[str, Policy] = {}

    def place(
        self,
        request: Request,
        cluster: Cluster,
        reserved: Collection[Gpu] = (),
        ends: ExpectedEnds | None = None,
    ) -> Assignment | Postponement | None:
        """Ask the request's policy: the best set now, or the wait for a later one.

        ``reserved``: GPUs that other jobs get when they become free. ``ends``: those of a trial
        instead of the round's. Raises PlacementFailedError if the policy fails.
        """
        try:
            policy = self._policy(request)
            if request.left is not None:
                return policy.place(request, cluster) if _enough(request, cluster) else None
            aged = self._aged(request, policy)
            wait = self._wait(aged, cluster, policy)
            if wait is not None and self._keeps_by_bound(wait, aged, cluster, policy):
                return wait  # which spares a search
            here = policy.place(aged, cluster) if _enough(aged, cluster) else None
            if here is None:
                return None
            if wait is not None and self._keeps(wait, aged, here.slowdown, policy):
                return wait
            ends = self.ends if ends is None else ends
            later = better_later(aged, here, cluster, ends, self.now, policy, reserved)
            if later is None:
                return with_bound(here, aged, cluster, self.now, policy.wait_rule())
            return postponement(aged, later, self.now, cluster)
        except PolicyError as exc:
            raise PlacementFailedError(str(exc)) from exc
        except Exception as exc:  # one job must not stop the round
            log.exception("job %s: its placement policy failed", request.job_id)
            raise PlacementFailedError(f"its placement policy failed: {exc!r}") from exc

    def kept_wait(self, request: Request, cluster: Cluster) -> Postponement | None:
        """The wait of a postponed job, if a bound shows that no set free now is worth ending it.

        None: the job is not postponed, or only a search can tell. Raises PolicyError.
        """
        if request.wait.postponed is None:
            return None
        policy = self._policy(request)
        aged = self._aged(request, policy)
        wait = self._wait(aged, cluster, policy)
        kept = wait is not None and self._keeps_by_bound(wait, aged, cluster, policy)
        return wait if kept else None

    def _wait(self, request: Request, cluster: Cluster, policy: Policy) -> Postponement | None:
        """The wait of a postponed job until its time has come; None: weigh anew."""
        wait, rule = request.wait.postponed, policy.wait_rule()
        if wait is None or rule is None:
            return None
        if not self.now < wait.start_s <= rule.until_s(request, self.now):
            return None
        return wait if awaited(request, wait, cluster) else None

    def _keeps(self, wait: Postponement, request: Request, slowdown: float, policy: Policy) -> bool:
        """Say whether a wait is worth more than a start now at this slowdown; inf: no set fits."""
        rule = policy.wait_rule()
        if rule is None or slowdown == math.inf:
            return False
        return self.now + request.expected_s * (slowdown - rule.margin) >= wait.end_s

    def _keeps_by_bound(
        self, wait: Postponement, request: Request, cluster: Cluster, policy: Policy
    ) -> bool:
        """Whether a bound of the slowdown now says that `_keeps` holds; the quicker one first."""
        bounds = (least_now(request, cluster, common=common) for common in (False, True))
        return any(self._keeps(wait, request, least, policy) for least in bounds)

    def try_place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Place now; None also if the policy fails."""
        try:
            policy = self._policy(request)
            if not _enough(request, cluster):
                return None
            return policy.place(self._aged(request, policy), cluster)
        except PolicyError:
            return None
        except Exception:  # one job must not stop the round
            log.exception("job %s: its placement policy failed", request.job_id)
            return None

    def could_place(self, request: Request, cluster: Cluster) -> Assignment | None:
        """Place on any set that fits; unlike :meth:`place`, more free GPUs never lead to None."""
        try:
            return self.try_place(self._policy(request).relaxed(request), cluster)
        except PolicyError:
            return None

    def postponed(self, request: Request, cluster: Cluster) -> bool:
        """Say whether a job without a place only waits for a better one."""
        try:
            may_postpone = self._policy(request).may_postpone
            return may_postpone and self.could_place(request, cluster) is not None
        except PolicyError:
            return False

    def only_lacks_power(self, request: Request, cluster: Cluster) -> bool:
        """Say whether a job would have a place but for the power limit."""
        if cluster.has_power(request.power_w):
            return False
        return self.could_place(request, replace(cluster, power_w=None)) is not None

    def why_not(self, request: Request, cluster: Cluster) -> Reason:
        """Return the reason why the job's policy gives the job no place."""
        try:
            policy = self._policy(request)
            if self.only_lacks_power(request, cluster):
                return Reason(f"waits for power: {_power_words(request, cluster)}")
            return policy.why_not(self._aged(request, policy), cluster)
        except Exception:  # a missing reason must not stop the round
            log.exception("job %s: its policy cannot say why it has no place", request.job_id)
            return Reason(common_reason(request, cluster))

    def _policy(self, request: Request) -> Policy:
        if request.left is not None:
            return _LEFT
        name = request.policy.name or self.settings.policy
        options = {**self.options.get(name, {}), **request.policy.options}
        if not options:
            return _policy_named(name)
        key = f"{name} {sorted(options.items())!r}"
        if key not in self._policies:
            self._policies[key] = constrained(make_policy(name, options))
        return self._policies[key]

    def _aged(self, request: Request, policy: Policy) -> Request:
        """The request, with its waiting time for a policy that may postpone."""
        if not policy.may_postpone:
            return request
        waited_s = max(0.0, self.now - request.waits_since_s)
        return replace(request, wait=replace(request.wait, waited_s=waited_s))


@lru_cache
def _policy_named(name: str) -> Policy:
    """The policy with its defaults; rounds share it."""
    return constrained(make_policy(name))


def _enough(request: Request, cluster: Cluster) -> bool:
    """Say whether power and GPUs are enough, without any other rule."""
    if not cluster.has_power(request.power_w):
        return False
    return request.left is not None or enough_free(request, cluster)


def _power_words(request: Request, cluster: Cluster) -> str:
    left = 0.0 if cluster.power_w is None else max(0.0, float(cluster.power_w[0]))
    return f"it needs {request.power_w:.0f} W, and the limit leaves {left:.0f} W"


def shape_of(request: Request, cluster: Cluster | None = None) -> object:
    """Key of all fields that decide whether a request fits; arrays by identity.

    ``cluster``: where it fits, if that is not the empty one.
    """
    options = repr(sorted(request.policy.options.items()))
    user = None if cluster is None or cluster.users is None else cluster.users.row(request.user)
    return *_SHAPE(request), id(request.nodes.eligible), options, user


class Impossible:
    """Verdicts of one round; jobs that fit alike are asked about once."""

    def __init__(self, cluster: Cluster, dispatcher: Dispatcher) -> None:
        """``cluster``: the snapshot of the round."""
        self._cluster, self._dispatcher = cluster, dispatcher
        self._known: dict[object, Reason | None] = {}

    @cached_property
    def _empty(self) -> Cluster:
        return self._cluster.empty()

    @cached_property
    def _repaired(self) -> Cluster:
        return self._cluster.empty(repaired=True)

    def why(self, request: Request) -> Reason | None:
        """Why a job has no place on the empty cluster; None: it has one.

        "Never" is said only of a job that has none when all nodes are back and no reservation is
        left. ``own`` is of the nodes that are usable now.
        """
        key = shape_of(request)
        if key not in self._known:
            fits = self._dispatcher.could_place(request, self._empty) is not None
            self._known[key] = None if fits else self._reason(request)
        return self._known[key]

    def _reason(self, request: Request) -> Reason:
        ask, missing = self._dispatcher, self._missing(request)
        now, later = ask.why_not(request, self._empty), request.unreserved
        # The sockets of a node that is down may not be known.
        if missing and ask.could_place(later.on_any_sockets, self._repaired) is not None:
            return replace(now, text=f"{now.text}; down, drained or reserved: {missing}")
        never = ask.why_not(later, self._repaired).text
        return replace(now, text=f"cannot start even on an idle cluster: {never}")

    def _missing(self, request: Request) -> str:
        """Names of the nodes on which something that the job may use cannot be used now."""
        missing = (self._repaired.exists & ~self._cluster.exists).any(axis=1)
        if request.nodes.eligible is not None:
            missing |= ~request.nodes.eligible
        if (allowed := request.unreserved.nodes.eligible) is not None:
            missing &= allowed
        names = [self._cluster.nodes[i] for i in np.flatnonzero(missing)]
        more = len(names) - _MOST_NAMES
        return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
