"""The one protocol by which a job loses its binding: close, read back, restore, open."""

from collections.abc import Sequence
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import GatedJob, gated_jobs
from slurm_gpu_aware.gate.restore import FEW, Restoration, restore
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import split_arrays
from slurm_gpu_aware.slurm.updates import JobUpdate

NOW = 1_790_000_000.0
RECORD = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1;mc=1"
BINDING = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
CLOSE = {"Licenses": "matlab:1,gpuaware:1"}
RESTORE = {"ReqNodeList": "", "NumNodes": "1-0", "TresPerNode": "gres/gpu:2"}


def released(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """A bound job behind the open gate, which cannot start."""
    comment = f"{RECORD};sel=released:0:1000"
    usual = {"licenses": "matlab:1", "admin_comment": comment, "stuck": True, **BINDING}
    return parked(job_id, **{**usual, **fields})


def waiting(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """A job behind the closed gate that was never bound."""
    usual = {"licenses": "matlab:1,gpuaware:1", "admin_comment": RECORD, "stuck": True}
    return parked(job_id, **{**usual, **fields})


def read_gated(client: MemorySlurm) -> list[GatedJob]:
    return gated_jobs(client.jobs(), GateConfig())


def restored(
    slurm: SlurmFolder, then: JobPhase = JobPhase.WAITING, client: MemorySlurm | None = None
) -> Restoration:
    """Restore all gated jobs that wait; the calls are counted from here."""
    client = client if client is not None else slurm.client()
    jobs = client.jobs()
    gated = [job for job in gated_jobs(jobs, GateConfig()) if job.parked or job.released]
    slurm.forget_calls()
    return restore(client, GateConfig(), gated, NOW, then=then, split=split_arrays(jobs))


def steps(slurm: SlurmFolder) -> list[tuple[str, ...]]:
    """What was sent and read of jobs, in order: an update by the names of its fields."""
    return [(call[0], call[1], *(call[2] if call[0] == "update" else ())) for call in slurm.calls]


@pytest.mark.parametrize("then", [JobPhase.WAITING, JobPhase.LEFT, JobPhase.OPENED])
def test_it_closes_reads_restores_and_opens_in_this_order(
    slurm: SlurmFolder, then: JobPhase
) -> None:
    slurm.write([released()], ["n1"])
    found = restored(slurm, then)
    assert found.wrong == {}
    assert [job.id for job in found.parked] == ["7"]
    close, look, restore, *opening = slurm.calls
    assert close == ["update", "7", CLOSE]
    assert look == ["job", "7"]
    assert restore == ["update", "7", {**RESTORE, "AdminComment": RECORD}]
    job = slurm.jobs["7"]
    assert (job["req_nodes"], job["tres_per_node"]) == ("", "gres/gpu:2")
    if then is JobPhase.WAITING:
        assert (opening, found.left) == ([], {})
        assert (job["licenses"], job["admin_comment"]) == ("matlab:1,gpuaware:1", RECORD)
        return
    ((_, _, opened),) = opening
    assert opened["Licenses"] == "matlab:1"
    assert found.left == {"7": ["7"]}
    assert job["admin_comment"] == f"{RECORD};sel={then}:0:{int(NOW)}"


def test_a_bound_job_is_read_again_before_it_is_restored(slurm: SlurmFolder) -> None:
    """It may have started since it was read, if the gate was open in between."""
    slurm.write([waiting(admin_comment=f"{RECORD};sel=prepared:0:1", **BINDING)], ["n1"])
    assert [job.id for job in restored(slurm).parked] == ["7"]
    assert [step[0] for step in steps(slurm)] == ["update", "job", "update"]
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_a_prepared_job_that_started_meanwhile_keeps_its_nodes(slurm: SlurmFolder) -> None:
    slurm.write([waiting(admin_comment=f"{RECORD};sel=prepared:0:1", **BINDING)], ["n1"])
    client = slurm.client()
    gated = gated_jobs(client.jobs(), GateConfig())
    slurm.change("7", state="RUNNING", nodes="n1", slots=[0, 1])
    done = restore(client, GateConfig(), gated, 1000.0)
    assert (done.parked, done.wrong) == ([], {})
    assert slurm.get("touched_running") == []


def test_of_what_was_never_bound_nothing_is_sent(slurm: SlurmFolder) -> None:
    slurm.write([waiting()], ["n1"])
    assert [job.id for job in restored(slurm).parked] == ["7"]
    assert steps(slurm) == []


def test_clock_and_extra_are_taken_back(slurm: SlurmFolder) -> None:
    slurm.write([released(tres_freq="gpu:900", extra="mine,freq=900@0+1")], ["n1"])
    restored(slurm)
    assert (slurm.jobs["7"]["tres_freq"], slurm.jobs["7"]["extra"]) == ("", "mine")


class Interfered(MemorySlurm):
    """Something happens to job 7 just before or after its gate is closed."""

    def __init__(self, slurm: SlurmFolder, *, before: bool, **fields: Any) -> None:
        super().__init__(slurm.home)
        self._slurm, self._before, self._fields = slurm, before, fields

    def _happen(self) -> None:
        if self._fields:
            self._slurm.change("7", **self._fields)
        self._fields = {}

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        if self._before:
            self._happen()
        refused = super().update_jobs(updates)
        self._happen()
        return refused


@pytest.mark.parametrize("before", [True, False], ids=["before closing", "after closing"])
@pytest.mark.parametrize("then", [JobPhase.WAITING, JobPhase.LEFT])
def test_a_job_that_starts_meanwhile_keeps_nodes_and_licences(
    slurm: SlurmFolder, before: bool, then: JobPhase
) -> None:
    slurm.write([released(), released("8")], ["n1", "n2"])
    starts = {"state": "RUNNING", "nodes": "n1", "slots": [0, 1]}
    found = restored(slurm, then, Interfered(slurm, before=before, **starts))
    assert ([job.id for job in found.parked], found.wrong) == (["8"], {})
    assert "7" not in found.left
    job = slurm.jobs["7"]
    assert (job["licenses"], job["req_nodes"]) == ("matlab:1", "n1")
    assert job["tres_per_node"] == BINDING["tres_per_node"]
    assert slurm.get("touched_running") == []
    assert slurm.jobs["8"]["req_nodes"] == ""


def test_a_job_that_ends_meanwhile_is_not_restored(slurm: SlurmFolder) -> None:
    slurm.write([released()], ["n1"])
    found = restored(slurm, JobPhase.LEFT, Interfered(slurm, before=False, state="CANCELLED"))
    assert (found.parked, found.left, found.wrong) == ([], {}, {})
    assert slurm.jobs["7"]["req_nodes"] == "n1"


def test_a_gate_that_slurm_does_not_close_leaves_the_job_as_it_is(slurm: SlurmFolder) -> None:
    slurm.write([released()], ["n1"])
    slurm.set(refuse=["7"])
    before = slurm.jobs
    found = restored(slurm, JobPhase.LEFT)
    assert (found.parked, found.left) == ([], {})
    assert found.wrong == {"7": "Invalid job id specified"}
    assert slurm.jobs == before


@pytest.mark.parametrize("then", [JobPhase.WAITING, JobPhase.LEFT, JobPhase.OPENED])
def test_a_refused_restore_stays_closed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, then: JobPhase
) -> None:
    slurm.write([released(), released("8")], ["n1", "n2"])
    send = MemorySlurm.update_jobs

    def refuse(client: MemorySlurm, updates: Sequence[JobUpdate]) -> dict[str, str]:
        wrong = [u for u in updates if u.job_id == "7" and "ReqNodeList" in dict(u.fields)]
        refused = send(client, [update for update in updates if update not in wrong])
        return refused | {update.job_id: "busy" for update in wrong}

    monkeypatch.setattr(MemorySlurm, "update_jobs", refuse)
    found = restored(slurm, then)
    assert found.wrong == {"7": "busy"}
    assert [j.id for j in found.parked if j.id not in found.wrong] == ["8"]
    # An operator's release is the way out: it opens the gate all the same.
    opened = then is JobPhase.OPENED
    assert slurm.jobs["7"]["licenses"] == ("matlab:1" if opened else "matlab:1,gpuaware:1")
    assert slurm.jobs["7"]["req_nodes"] == "n1"
    if opened:
        return
    monkeypatch.setattr(MemorySlurm, "update_jobs", send)
    assert restored(slurm, then).wrong == {}  # a later call goes on
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_a_refused_opening_is_told(slurm: SlurmFolder) -> None:
    slurm.write([waiting(), waiting("8")], ["n1"])
    slurm.set(refuse=["7"])
    found = restored(slurm, JobPhase.LEFT)
    assert found.wrong == {"7": "Invalid job id specified"}
    assert found.refused == {"7"}
    assert found.left == {"7": [], "8": ["8"]}
    assert [j.id for j in found.parked if j.id not in found.wrong] == ["8"]
    assert slurm.jobs["7"]["licenses"] == "matlab:1,gpuaware:1"


@pytest.mark.parametrize("silent_at", [1, 2, 3])
def test_after_silence_a_later_call_goes_on(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, silent_at: int
) -> None:
    """Slurm stops answering before the job is closed, restored, or opened."""
    slurm.write([released()], ["n1"])
    send, calls = MemorySlurm.update_jobs, []

    def silent(client: MemorySlurm, updates: Sequence[JobUpdate]) -> dict[str, str]:
        calls.extend([1] if updates else [])
        if len(calls) == silent_at:
            raise SourceError("no answer")
        return send(client, updates)

    with monkeypatch.context() as patch:
        patch.setattr(MemorySlurm, "update_jobs", silent)
        with pytest.raises(SourceError):
            restored(slurm, JobPhase.LEFT)
    (job,) = read_gated(slurm.client())
    assert job.phase is (JobPhase.RELEASED, JobPhase.PREPARED, JobPhase.WAITING)[silent_at - 1]
    assert restored(slurm, JobPhase.LEFT).left == {"7": ["7"]}
    (job,) = read_gated(slurm.client())
    assert job.phase is JobPhase.LEFT
    assert slurm.jobs["7"]["req_nodes"] == ""


def test_a_request_that_cannot_be_read_opens_as_it_is(slurm: SlurmFolder) -> None:
    odd = "gpuaware/1;tn=gres/gpu:1;rn=n%5B1%3A2"
    slurm.write([parked(stuck=True, admin_comment=odd, req_nodes="n1")], ["n1"])
    found = restored(slurm, JobPhase.LEFT)
    assert (found.wrong, found.left) == ({}, {"7": ["7"]})
    job = slurm.jobs["7"]
    assert (job["licenses"], job["req_nodes"]) == ("", "n1")
    assert job["admin_comment"] == f"{odd};sel=left:0:{int(NOW)}"


def test_what_another_wrote_into_admin_comment_stays(slurm: SlurmFolder) -> None:
    slurm.write([released()], ["n1"])
    client = Interfered(slurm, before=False, admin_comment="ticket-4711")
    assert restored(slurm, JobPhase.LEFT, client).left == {"7": ["7"]}
    assert slurm.jobs["7"]["admin_comment"] == "ticket-4711"
    assert slurm.jobs["7"]["req_nodes"] == ""


def array(tasks: str, number: str = "98", **fields: Any) -> dict[str, Any]:
    """The unsplit rest of array 98, or one task of it."""
    if tasks.isdigit():
        return waiting(number, array_job_id=98, array_task_id=int(tasks), **fields)
    return waiting(number, array_job_id=98, array_task_str=tasks, **fields)


def test_an_array_of_one_record_is_changed_as_one(slurm: SlurmFolder) -> None:
    slurm.write([array("0-2")], ["n1"])
    found = restored(slurm, JobPhase.LEFT)
    (job_id,) = found.left
    assert found.left == {job_id: ["98"]}
    assert [step[:2] for step in steps(slurm)] == [("update", "98")]
    (job,) = slurm.jobs.values()
    assert job["licenses"] == "matlab:1"


def test_an_array_of_several_records_is_changed_by_task(slurm: SlurmFolder) -> None:
    """The array's own id would mean its running task, too."""
    runs = {"state": "RUNNING", "licenses": "matlab:1", "nodes": "n1", "slots": [0, 1]}
    slurm.write([array("1,2"), array("0", "99", **runs)], ["n1"])
    before = slurm.jobs["99"]
    found = restored(slurm, JobPhase.LEFT)
    assert list(found.left.values()) == [["98_1", "98_2"]]
    assert slurm.jobs["99"] == before
    others = [job for job in slurm.jobs.values() if job["job_id"] != 99]
    assert [job["licenses"] for job in others] == ["matlab:1"] * 2


@pytest.mark.parametrize(("then", "most"), [(JobPhase.LEFT, 500), (JobPhase.OPENED, 1199)])
def test_of_an_array_of_masses_a_round_changes_five_hundred_and_an_operator_all(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch, then: JobPhase, most: int
) -> None:
    runs = {"state": "RUNNING", "licenses": "matlab:1", "nodes": "n1", "slots": [0, 1]}
    tasks = ",".join(map(str, range(1, 1200)))
    slurm.write([array(tasks), array("0", "99", **runs)], ["n1"])
    client, sent = slurm.client(), []

    def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
        sent.extend(update.job_id for update in updates)
        return {}

    monkeypatch.setattr(client, "update_jobs", update_jobs)
    (ids,) = restored(slurm, then, client).left.values()
    assert ids == sent == [f"98_{task}" for task in range(1, most + 1)]


def test_tasks_that_cannot_be_read_stay_closed(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: object) -> list[str]:
        raise ValueError("1-x")

    slurm.write([waiting(), array("1,2")], ["n1"])
    monkeypatch.setattr("slurm_gpu_aware.gate.restore.update_ids", unreadable)
    found = restored(slurm, JobPhase.LEFT)
    assert set(found.wrong.values()) == {"it must be released by hand: 1-x"}
    assert found.refused == set()  # that is no rule of the site
    assert (set(found.wrong), found.left["98"], steps(slurm)) == ({"7", "98"}, [], [])


def test_many_are_read_at_once(slurm: SlurmFolder) -> None:
    numbers = [str(n) for n in range(100, 101 + FEW)]
    slurm.write([released(number) for number in numbers], ["n1"])
    assert [job.id for job in restored(slurm).parked] == numbers
    assert [step[0] for step in [c for c in slurm.calls if c[0] != "update"]] == ["jobs"]


def test_it_leaves_the_holding_pool(slurm: SlurmFolder) -> None:
    slurm.write([waiting(resv_name="gpuaware_pool_1"), waiting("8", resv_name="class")], ["n1"])
    restored(slurm, JobPhase.OPENED)
    assert slurm.jobs["7"]["resv_name"] == ""
    assert slurm.jobs["8"]["resv_name"] == "class"
