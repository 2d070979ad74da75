"""Every waiting job has its reason, however many wait."""

import json
from typing import Any

import pytest
from slurm_folder import SlurmFolder, parked, run_by_slurm

from slurm_gpu_aware.selector.waiting_jobs import EARLIER_TASK, WaitingJobs, folded
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger


def entry(job_id: str, reason: str = "no GPU is free", **more: object) -> dict[str, Any]:
    return {"job_id": job_id, "reason": reason, **more}


def test_jobs_that_wait_alike_share_an_entry() -> None:
    waiting = [entry(f"44_{task}") for task in (0, 1, 2, 7)] + [entry("9"), entry("10", "behind 9")]
    found = folded(waiting)
    assert [e["job_id"] for e in found] == ["9,44_[0-2,7]", "10"]
    known = WaitingJobs(json.loads(json.dumps(found)))
    assert dict(known.each()) == {
        w["job_id"]: {**w, "job_id": found[w["job_id"] == "10"]["job_id"]} for w in waiting
    }
    assert [jobs for jobs, _ in known.lines] == ["9", "44_[0-2,7]", "10"]
    assert known.of("44_7") == entry("44_7")
    assert known.of("44") == entry("44")
    assert known.of("44_8") == {"job_id": "44_8", "reason": EARLIER_TASK}
    assert known.of("45") is None


def test_what_holds_an_array_holds_its_tasks() -> None:
    known = WaitingJobs(folded([entry("44", "held by JobHeldUser")]))
    assert known.of("44_3") == entry("44_3", "held by JobHeldUser")


def test_of_too_many_kinds_of_waits_each_job_has_an_entry_yet() -> None:
    many = [entry(str(number), f"reason {number}") for number in range(20_000)]
    found = folded(many)
    assert len(found) == 5001
    known = WaitingJobs(found)
    assert known.of("4999") == entry("4999", "reason 4999")
    assert known.of("19999")["reason"].startswith("more jobs wait than reasons are kept")


@pytest.mark.parametrize("wrong", [None, 3, "x", [3], [{"reason": "x"}], [entry("a;b")]])
def test_a_record_of_another_form_says_nothing(wrong: object) -> None:
    assert WaitingJobs(wrong).of("7") is None


def test_an_array_of_hundreds_hides_no_other_job(slurm: SlurmFolder) -> None:
    tasks = ",".join(map(str, range(700)))
    array = parked("98", array_job_id=98, array_task_str=tasks, priority=9)
    jobs = [parked(str(number), priority=5) for number in range(200, 230)]
    slurm.write([run_by_slurm("3"), array, *jobs], ["n1"])
    assert slurm.round() == 0, slurm.said
    with open_store(slurm.store, readonly=True) as store:
        (record,) = Ledger(store).last_rounds(1)
    assert len(record.detail["waiting"]) < 10
    asked = ["gpu-aware", "--config", str(slurm.config)]
    rows = json.loads(slurm.run(*asked, "queue", "--json").stdout)["parked"]
    assert len(rows) == 31
    assert not [row for row in rows if "next round" in row["reason"]]
    for job_id in ("229", "98_1", "98_699"):
        answer = json.loads(slurm.run(*asked, "explain", job_id, "--json").stdout)
        assert answer["waiting"], job_id
        assert answer["waiting"]["reason"], job_id
