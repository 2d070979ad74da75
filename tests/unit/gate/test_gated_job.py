"""Phases of a gated job, as its record shows them."""

from typing import Any

import pytest
from make import as_gated, slurm_job

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.gate.admin_comment import unmarked
from slurm_gpu_aware.gate.gated_job import gated_job, gated_jobs
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import SlurmJob

RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"
CLOSED: dict[str, Any] = {"licenses": (("gpuaware", 1),)}
POOL: dict[str, Any] = {"holding_pool": "gpuaware_pool_1"}
BOUND: dict[str, Any] = {"req_nodes": ("n1",), "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
RUNS: dict[str, Any] = {"state": "RUNNING", "nodes": ("n1",)}


def marked(marker: str = "", **fields: Any) -> SlurmJob:
    """Job 7; ``marker``: phase and restart count of its marker."""
    comment = f"{RECORD};sel={marker}:1000" if marker else RECORD
    return slurm_job(**{"tres_per_node": "gres/gpu:2", "admin_comment": comment, **fields})


@pytest.mark.parametrize(
    ("marker", "fields", "phase"),
    [
        ("", CLOSED, "waiting"),
        ("", CLOSED | POOL, "held"),
        ("", CLOSED | BOUND, "prepared"),
        ("prepared:0", CLOSED | BOUND, "prepared"),
        ("prepared:0", CLOSED | BOUND | POOL, "prepared"),
        ("prepared:0", CLOSED, "prepared"),  # an update that Slurm applied in part
        ("released:0", CLOSED | BOUND, "prepared"),  # closed again, not restored yet
        ("left:0", CLOSED, "waiting"),
        ("opened:0", CLOSED | POOL, "held"),
        ("", BOUND, "released"),
        ("released:0", BOUND, "released"),
        ("prepared:0", BOUND, "released"),  # the gate's licence was taken away by another
        ("released:0", {}, "released"),
        ("released:0", BOUND | {"restarts": 1}, "requeued"),
        ("released:1", BOUND | {"restarts": 1}, "released"),
        ("", BOUND | {"restarts": 1}, "released"),
        ("left:0", {}, "left"),
        ("left:0", BOUND, "left"),
        ("left:0", {"restarts": 1}, "left"),
        ("opened:0", {}, "opened"),
        ("opened:0", POOL, "opened"),
        ("", {}, "opened"),  # an operator removed the licence
        ("", CLOSED | RUNS, "started"),  # the gate's reservation ran out
        ("released:0", BOUND | RUNS, "started"),
        ("left:0", RUNS, "started"),
        ("released:0", BOUND | RUNS | {"state": "SUSPENDED"}, "started"),
        ("released:0", BOUND | RUNS | {"state": "COMPLETING"}, "started"),
        ("", CLOSED | {"state": "CANCELLED"}, "ended"),
        ("released:0", BOUND | {"state": "COMPLETED"}, "ended"),
        ("opened:0", {"state": "TIMEOUT"}, "ended"),
    ],
)
def test_the_phase_of_a_record(marker: str, fields: dict[str, Any], phase: str) -> None:
    found = as_gated(marked(marker, **fields))
    assert found.phase is JobPhase(phase)
    assert found.parked is (phase in ("waiting", "held", "prepared"))
    assert found.released is (phase in ("released", "requeued"))


def test_a_request_that_cannot_be_read_is_not_bound() -> None:
    odd = "gpuaware/1;tn=gres/gpu:1;rn=n%5B1%3A2"
    assert as_gated(marked(admin_comment=odd, **CLOSED)).phase is JobPhase.WAITING
    assert as_gated(marked(admin_comment=odd, **BOUND)).phase is JobPhase.OPENED


@pytest.mark.parametrize("comment", [None, "", "ticket-4711", "JS1:H4sIAAAA"])
def test_what_the_filter_has_not_marked_is_no_gated_job(comment: str | None) -> None:
    assert gated_job(marked(admin_comment=comment, **CLOSED), GateConfig()) is None


def test_gated_jobs_stand_in_the_order_of_their_records() -> None:
    records = [slurm_job(n, admin_comment=RECORD) for n in (9, 7)] + [slurm_job(8)]
    assert [found.id for found in gated_jobs(records, GateConfig())] == ["9", "7"]


def test_the_licence_of_another_site_does_not_close_the_gate() -> None:
    assert as_gated(marked(**CLOSED), licence="other").phase is JobPhase.OPENED


def test_the_record_is_what_the_filter_wrote() -> None:
    assert unmarked(marked("released:0", **BOUND).admin_comment or "") == RECORD


def test_a_task_of_an_unsplit_array() -> None:
    array = as_gated(marked(array_id=7, array_tasks="1-3", **CLOSED))
    task = array.task("7_2")
    assert (task.id, task.job.array_tasks, task.phase) == ("7_2", None, array.phase)
    assert array.task(array.id) is array


def test_as_seen_in_a_newer_record() -> None:
    released = as_gated(marked("released:0", **BOUND))
    closed = released.as_seen(marked("released:0", **BOUND, **CLOSED), GateConfig())
    assert (closed.phase, closed.original) == (JobPhase.PREPARED, released.original)
    overwritten = released.as_seen(marked(**BOUND, **CLOSED, admin_comment="x"), GateConfig())
    assert (overwritten.phase, overwritten.marker) == (JobPhase.PREPARED, released.marker)


def test_a_begin_time_of_the_filters_own() -> None:
    comment = f"{RECORD};bt=5000"
    own = as_gated(marked(admin_comment=comment, eligible_s=5000.0, reason="BeginTime"))
    assert (own.deferred, own.only_deferred) == (True, True)
    user = as_gated(marked(admin_comment=comment, eligible_s=6000.0, reason="BeginTime"))
    assert (user.deferred, user.only_deferred) == (False, False)
    held = as_gated(marked(admin_comment=comment, eligible_s=5000.0, reason="Dependency"))
    assert (held.deferred, held.only_deferred) == (True, False)
