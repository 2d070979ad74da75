"""Jobs bound to the sockets of their GPUs: what is asked of the planner, what is left to Slurm."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from make import (
    SLURM_WITH_CORES,
    as_gated,
    asked,
    context_of,
    live_site,
    nodes_for,
    request_of,
    slurm_job,
    two_sockets,
    why_left,
)
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.admission import fitting
from slurm_gpu_aware.admission.context import AdmissionContext
from slurm_gpu_aware.admission.fitting import binds_sockets, fills_sockets, fits
from slurm_gpu_aware.features.moves.declared import MovesConfig
from slurm_gpu_aware.filter_rules import SOCKETS_PER_NODE
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.model.cluster import Cluster
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.model.socket_views import socket_views
from slurm_gpu_aware.selector.backoff import Backoff
from slurm_gpu_aware.selector.candidates import Candidates
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.selector.live import Lives
from slurm_gpu_aware.slurm.records import (
    NodeCores,
    NodeShare,
    SlurmConfig,
    SlurmJob,
    SlurmNode,
)


def site_of(
    *nodes: SlurmNode, slurm: SlurmConfig = SLURM_WITH_CORES, **more: Any
) -> AdmissionContext:
    return context_of(nodes, slurm=slurm, **more)


def bound_job(number: int = 7, **fields: object) -> SlurmJob:
    return slurm_job(number, **{"enforce_binding": True, **fields})


@pytest.mark.parametrize(
    ("flag", "default", "bound"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False)],
)
def test_jobs_that_it_holds_for(flag: bool | None, default: bool, bound: bool) -> None:
    slurm = replace(SLURM_WITH_CORES, enforce_binding=default)
    record = bound_job(enforce_binding=flag)
    assert binds_sockets(record, slurm) is bound
    where = site_of(two_sockets("n1"), slurm=slurm)
    assert request_of(record, asked(), where).sockets.bound is bound


def test_exclusive_jobs_have_all_cores_in_any_case() -> None:
    where = site_of(two_sockets("n1"))
    assert not request_of(bound_job(), asked(exclusive=True), where).sockets.bound


@pytest.mark.parametrize(
    ("fields", "nodes", "fills"),
    [
        ({}, 1, True),
        ({}, 2, True),
        ({"num_tasks": 1}, 1, False),
        ({"num_tasks": 4}, 1, False),
        ({"num_tasks": 1}, 2, False),
        ({"num_tasks": 2}, 2, False),
        ({"num_tasks": 4}, 2, True),
        ({"ntasks_per_node": 2}, 2, False),
    ],
)
def test_jobs_that_get_all_cores_beside_their_gpus(
    fields: dict[str, int], nodes: int, fills: bool
) -> None:
    assert fills_sockets(asked(**fields), nodes) is fills


def test_with_gpus_and_one_cpu_slurm_looks_at_one_socket() -> None:
    """--gpus=2 where each socket has one GPU left: with one CPU a node it waits, as in Slurm."""
    held = NodeShare("n1", 2, 500, (0, 2), {}, (0, 8))
    running = slurm_job(3, state="RUNNING", shares=(held,))
    here = site_of(two_sockets("n1", gpus_used=frozenset({0, 2}), cpus_used=2), jobs=(running,))
    two = OriginalRequest(tres_per_job="gres/gpu:2")
    assert not fits(request_of(bound_job(), two, here), here.cluster)
    assert fits(request_of(bound_job(cpus=2), two, here), here.cluster)
    assert fits(request_of(bound_job(), asked("gpu:2"), here), here.cluster)


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_sockets": (None, (0,), (1,), (1,))},
        {"gpu_sockets": ((0, 1), (0,), (1,), (1,))},
        {"gpus": (("v100", 4),), "gpu_sockets": ((0, 1),)},
        {"cores": None},
    ],
)
def test_gpus_without_one_socket_are_slurms(fields: dict[str, object]) -> None:
    where = site_of(two_sockets("n1"), two_sockets("n2", **fields))
    assert "node n2" in why_left(bound_job(), asked(), where)
    assert request_of(bound_job(), asked(exc_nodes="n2"), where).sockets.bound
    assert not request_of(bound_job(enforce_binding=False), asked(), where).sockets.bound


def test_on_nodes_of_one_socket_nothing_has_to_be_told() -> None:
    one = two_sockets("n1", cores=NodeCores(1, 16, 1, 1), gpu_sockets=(None,) * 4)
    assert request_of(bound_job(cpus=16), asked("gpu:4"), site_of(one)).sockets.bound


def test_slurm_that_counts_sockets_or_nodes() -> None:
    slurm = replace(SLURM_WITH_CORES, counts_cores=False)
    where = site_of(two_sockets("n1"), slurm=slurm)
    assert "no single cores" in why_left(bound_job(), asked(), where)


def test_what_no_socket_can_hold_is_slurms() -> None:
    """Plain Slurm says so at once, or knows better."""
    where = site_of(two_sockets("n1"))
    assert "no socket has" in why_left(bound_job(cpus=10), asked(), where)
    four = OriginalRequest(tres_per_job="gres/gpu:4", nodes=(1, 1))
    assert "no socket has" in why_left(bound_job(), four, where)
    assert request_of(bound_job(cpus=8), asked(), where).sockets.bound


def test_what_idle_sockets_hold_is_worked_out_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []

    def counted(request: Request, *args: Any, **fields: Any) -> Iterator[tuple[Request, Cluster]]:
        asked_for.append(request.job_id)
        return socket_views(request, *args, **fields)

    monkeypatch.setattr(fitting, "socket_views", counted)
    here = site_of(two_sockets("n1"))
    for number in (1, 2, 3):
        assert request_of(bound_job(number), asked(), here).sockets.bound
    assert asked_for == ["1"]


@pytest.mark.parametrize(("binding", "node"), [(True, "n2"), (None, "n1")])
def test_the_partition_with_free_cores_on_a_socket(binding: bool | None, node: str) -> None:
    share = NodeShare("n1", 14, 500, (), {}, (*range(7), *range(8, 15)))
    busy = slurm_job(3, state="RUNNING", shares=(share,))
    nodes = two_sockets("n1", cpus_used=14), two_sockets("n2")
    here = site_of(*nodes, jobs=(busy,), partitions={"a": ["n1"], "b": ["n2"]})
    assert nodes_for(here, cpus=2, partitions=("a", "b"), enforce_binding=binding) == {node}


class Tries:
    """Readings of a job that waits on a node of two sockets; the time is ours."""

    def __init__(self, **fields: Any) -> None:
        self.job = bound_job(admin_comment="gpuaware/1;tn=gres/gpu:1", **fields)
        self.here, self.now = site_of(two_sockets("n1")), 0.0
        self.backoff = Backoff(60.0, lambda: self.now)
        self.no_licences: Any = SimpleNamespace(licenses=dict)
        self.pool = HoldingPool(self.no_licences)

    def request(self) -> Request:
        """What a round plans for it."""
        lives = Lives(live_site(backoff=self.backoff))
        licences = Licences(self.no_licences)
        one = Candidates(self.here, self.backoff, licences, self.pool, lives)
        one.sort_out([as_gated(self.job)], [self.job])
        (planned,) = one.to_plan.values()
        return planned.request


@pytest.mark.parametrize("bound", [True, False])
@pytest.mark.parametrize(
    "why",
    [{"misplaced": True}, {"blocked": True, "misplaced": True}, {"blocked": True}, {}],
    ids=["not in time", "BadConstraints", "a limit of its QOS", "a refused update"],
)
def test_what_could_not_start_where_it_was_placed_is_slurms(
    bound: bool, why: dict[str, bool]
) -> None:
    tries = Tries(enforce_binding=bound)
    assert tries.request().left is None
    tries.now += tries.backoff.punish("7", **why)
    assert (tries.request().left is not None) is (bound and why.get("misplaced", False))


def test_a_job_that_did_not_start_is_marked_for_as_long_as_no_job_moves_again() -> None:
    """No running job shrinks for it meanwhile."""
    tries = Tries()
    tries.now += tries.backoff.punish("7")
    assert tries.request().wait.refused
    tries.now += tries.here.config.of(MovesConfig).again_s
    assert not tries.request().wait.refused


# a whole round, by what Slurm says ---------------------------------------------------------------

ENFORCED = 1 << 4
"""GRES_ENFORCE_BIND"""


def other_job(job_id: str, node_name: str, cores: str, slots: list[int]) -> dict[str, object]:
    fields = {
        "state": "RUNNING",
        "nodes": node_name,
        "admin_comment": "",
        "licenses": "",
        "gres_total": ",".join(f"gpu:g{i}:1" for i in slots) or "gpu:g0:0",
        "end_time": 99_999_999_999,
    }
    return {**parked(job_id, **fields), "slots": slots, "held_cores": cores}


def asks_for(gpus: int, **fields: object) -> dict[str, object]:
    comment = f"gpuaware/1;tn=gres/gpu:{gpus};nt=1"
    return parked("98", admin_comment=comment, tres_per_node=f"gres/gpu:{gpus}", **fields)


def test_a_round_takes_a_gpu_beside_free_cores(slurm: SlurmFolder) -> None:
    """A job without GPUs holds six of the eight cores of socket 0."""
    asks = {"num_cpus": 4, "cpus_per_task": 4, "bitflags": ENFORCED}
    slurm.write([other_job("3", "n1", "0-5", []), asks_for(1, **asks)], ["n1"])
    slurm.round()
    assert slurm.jobs["98"]["state"] == "RUNNING", slurm.said
    assert slurm.jobs["98"]["tres_per_node"] == "gres/gpu:g2:1"


def test_a_round_lets_slurm_choose_gpus_of_several_sockets(slurm: SlurmFolder) -> None:
    jobs = [other_job("3", "n1", "0", [0]), other_job("4", "n1", "8", [2])]
    slurm.write([*jobs, asks_for(2, bitflags=ENFORCED) | {"stuck": True}], ["n1"])
    slurm.round()
    placed = slurm.jobs["98"]
    assert (placed["licenses"], placed["req_nodes"]) == ("", "n1"), slurm.said
    assert placed["tres_per_node"] == "gres/gpu:2"
    (decision,) = slurm.ledger("98")
    assert not decision.exact


# --gpus-per-socket --------------------------------------------------------------------------------


def per_socket(count: int, sockets: int = 2, **fields: object) -> OriginalRequest:
    request = OriginalRequest(tres_per_socket=f"gres/gpu:{count}", sockets_per_node=sockets)
    return replace(request, **fields)  # type: ignore[arg-type]


def test_gpus_of_each_socket() -> None:
    free_job = bound_job(enforce_binding=None, unsupported=(SOCKETS_PER_NODE,))
    here = site_of(two_sockets("n1"), two_sockets("n2", gpus_used=frozenset({0, 1})))
    request = request_of(free_job, per_socket(1, nodes=(2, 2)), here)
    assert (request.gpus, request.gpus_per_node, request.sockets.gpus_each) == (4, 2, 1)
    assert not fits(request, here.cluster)
    assert fits(request, here.cluster.empty())
    assert fits(request_of(free_job, per_socket(1), here), here.cluster)


@pytest.mark.parametrize(
    ("fields", "nodes", "reason"),
    [
        ({"enforce_binding": True}, {}, "--gpus-per-socket with --gres-flags=enforce-binding"),
        ({}, {"gpu_sockets": (None, (0,), (1,), (1,))}, "are not each bound to one socket"),
        ({}, {"gpus": (("v100", 4),), "gpu_sockets": ((0,),)}, "are not each bound"),
        ({}, {"gpu_sockets": ((0,), (0,), (0,), (1,))}, "no node has so many on each socket"),
        ({"unsupported": ("--cores-per-socket (-B)",)}, {}, "--cores-per-socket"),
    ],
)
def test_gpus_of_each_socket_that_are_left_to_slurm(
    fields: dict[str, Any], nodes: dict[str, Any], reason: str
) -> None:
    record = bound_job(**{"enforce_binding": None, **fields})
    assert reason in why_left(record, per_socket(2), site_of(two_sockets("n1", **nodes)))


def test_sockets_without_gpus_of_each_are_left_to_slurm() -> None:
    record = bound_job(enforce_binding=None, unsupported=(SOCKETS_PER_NODE,))
    assert SOCKETS_PER_NODE in why_left(record, asked(), site_of(two_sockets("n1")))


def test_a_bound_job_keeps_its_number_of_gpus() -> None:
    """Whether Slurm would take another number on the sockets is not known."""
    original = asked("gpu:2", resizable="nodes", min_cpus=1)
    for binding, sizes in ((True, ()), (False, (1, 2, 4))):
        record = bound_job(comment="gpus=1-4", enforce_binding=binding)
        assert request_of(record, original, site_of(two_sockets("n1"))).sizes == sizes
