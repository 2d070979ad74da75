"""explain, queue and status while the selector is dead, on a Slurm of our own."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from commands import gpu_aware, succeeded
from memory_slurm import reservation_record
from slurm_folder import SlurmFolder, parked
from store_samples import decision

from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.licence_gate import Silence, gate_state, selector_silence
from slurm_gpu_aware.selector.live_jobs import live_jobs
from slurm_gpu_aware.store.database import open_store, publish
from slurm_gpu_aware.store.ledger import Ledger, RoundRecord

LEASE_S = 3600
"""So long that no gate ends, and no selector gets silent, while a test runs on a slow machine."""
HEARTBEAT_S = LEASE_S // 3
AWAY_S = HEARTBEAT_S + 20
RUNNING = {"state": "RUNNING", "reason": "None", "nodes": "n1", "slots": [0, 1]}


@contextmanager
def site_ledger(slurm: SlurmFolder) -> Iterator[Ledger]:
    with open_store(slurm.store) as store:
        yield Ledger(store)


@pytest.fixture
def two_wait(tmp_path: Path) -> SlurmFolder:
    """A job that waits, with a reason of the last round, and one that was placed."""
    slurm = SlurmFolder(tmp_path)
    slurm.configure(f"[gate]\nlease_s = {LEASE_S}\n[selector]\nheartbeat_s = {HEARTBEAT_S}")
    with site_ledger(slurm) as ledger:
        for job_id in ("7", "8"):
            ledger.add_event(job_id, "parked", {"user": "alice", "reason": "None"}, 900.0)
        ledger.add_decision(decision("5", state="started"))
        ledger.add_decision(decision("6", state="started"))
    record_round(slurm, 950.0, job_id="8", reason="no 4 free GPUs", shadow_start_s=1000.0)
    slurm.write([parked("7"), parked("8"), parked("5", licenses="", **RUNNING)], ["n1"])
    gate(slurm, 600)
    return slurm


def record_round(slurm: SlurmFolder, at: float, **waiting: object) -> None:
    """A round after which one job waits."""
    with site_ledger(slurm) as ledger:
        detail = {"waiting": [waiting]} if waiting else {}
        ledger.add_round(RoundRecord(at, 1.0, 0, 0, 1, "submit", detail))


def gate(slurm: SlurmFolder, quiet_s: float | None) -> float:
    """A gate whose last heartbeat was so long ago (None: no gate); returns its end."""
    end = int(time.time()) + LEASE_S - (quiet_s or 0)
    held = reservation_record("gpuaware_gate", end_time=int(end), licenses="gpuaware:100000")
    slurm.reserve(*([] if quiet_s is None else [held]))
    return end


def says(slurm: SlurmFolder, *args: str) -> tuple[str, str]:
    """What a command printed on stdout and stderr, on one line each."""
    more = {"TZ": "UTC", "COLUMNS": "100"}
    done = slurm.run("gpu-aware", "--config", str(slurm.config), *args, environment=more)
    assert "Traceback" not in done.stderr
    if "--json" in args:
        return done.stdout, done.stderr
    return " ".join(done.stdout.split()), " ".join(done.stderr.split())


def test_a_living_selector_is_not_called_away(two_wait: SlurmFolder):
    assert "It waits for the selector's next round." in says(two_wait, "explain", "7")[0]
    out, err = says(two_wait, "queue")
    assert "waits for the next round" in out
    assert err == ""
    assert "runs, last heartbeat" in says(two_wait, "status")[0]
    assert json.loads(says(two_wait, "explain", "7", "--json")[0])["selector_away"] is None


def test_explain_of_a_parked_job_says_when_the_gate_opens(two_wait: SlurmFolder):
    """'It waits for the selector's next round', while there was no selector."""
    end = gate(two_wait, AWAY_S)
    opens = time.strftime("%H:%M:%S", time.gmtime(end))
    for job_id in ("7", "8"):
        told = says(two_wait, "explain", job_id)[0]
        assert f"Job {job_id}: waiting" in told
        assert "The selector has not answered for " in told
        assert f"the gate opens by itself at {opens} or within a minute" in told
        assert "next round" not in told
        assert "at the latest" not in told
    answer = json.loads(says(two_wait, "explain", "7", "--json")[0])
    assert answer["selector_away"]["gate_opens_at"] == end
    gate(two_wait, None)
    assert "the gate is open: Slurm starts this job by itself" in says(two_wait, "explain", "7")[0]


def test_queue_says_that_no_selector_plans_and_leaves_out_what_has_ended(two_wait: SlurmFolder):
    gate(two_wait, AWAY_S)
    out, err = says(two_wait, "queue")
    assert "waits for the selector, which is away" in out
    assert "no 4 free GPUs (when the selector last looked)" in out
    assert "Slurm starts parked jobs as if we were not installed" in err
    placed = json.loads(says(two_wait, "queue", "--json")[0])["placed"]
    assert [d["job_id"] for d in placed] == ["5"]  # Slurm does not list job 6 any more


def test_queue_of_a_user_without_parked_jobs_says_whose(two_wait: SlurmFolder):
    assert "No job of bob is parked." in says(two_wait, "queue", "-u", "bob")[0]


def test_status_counts_what_slurm_shows(two_wait: SlurmFolder):
    """'runs', 'parked 0' and '2 started' 57 s after the selector had died."""
    gate(two_wait, AWAY_S)
    told = says(two_wait, "status")[0]
    assert "no heartbeat for " in told
    assert "parked 2" in told
    assert "placed 1 started" in told
    assert "pool" not in told
    two_wait.change("8", resv_name="gpuaware_pool_1790000000", reason="Reservation")
    assert "parked 2, 1 of them in the holding pool" in says(two_wait, "status")[0]
    answer = json.loads(says(two_wait, "status", "--json")[0])
    assert (answer["parked"], answer["in_holding_pool"]) == (2, 1)


def test_a_placed_job_that_ended_meanwhile_is_not_called_started(two_wait: SlurmFolder):
    gate(two_wait, AWAY_S)
    told = says(two_wait, "explain", "6")[0]
    assert told.startswith("Job 6: ended Slurm no longer lists this job: it has ended.")
    with site_ledger(two_wait) as ledger:
        ledger.add_event("11", "parked", {"user": "alice"}, 900.0)
    assert "it was cancelled, or it has run, while" in says(two_wait, "explain", "11")[0]
    two_wait.change("5", state="COMPLETED")
    told = says(two_wait, "explain", "5")[0]
    assert "Its state in Slurm is COMPLETED: it has ended. The selector has not recorded" in told


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_passed_the_open_gate_was_ours(two_wait: SlurmFolder, known: bool):
    """It was called 'not ours', as one without GPUs or with place=off."""
    gate(two_wait, None)
    job_id = "7" if known else "9"
    two_wait.write([parked(job_id, **RUNNING)], ["n1"])
    told = says(two_wait, "explain", job_id)[0]
    assert f"Job {job_id}: left to Slurm" in told
    assert "placed it (state RUNNING): " in told
    assert "the selector was away, so the gate opened by itself" in told


TYPED = {"tres_per_node": "gres/gpu:v100:2"}
FREE = {"licenses": "", "admin_comment": ""}
HELD = {"record": ";lf=a%20GPU%20type", "reason": "JobHeldUser", "priority": 0}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {**FREE, "reason": "BadConstraints"},
            "Job 9: left to Slurm|PENDING, reason BadConstraints): it asks for GPU type v100",
        ),
        (HELD, "Why it waits: its owner holds it|so the job"),
    ],
    ids=["left", "parked"],
)
def test_a_job_whose_gpu_type_is_gone_is_told_to_come_again(
    two_wait: SlurmFolder, fields: dict[str, object], told: str
) -> None:
    two_wait.write([parked("9", **TYPED, **fields)], ["n1"])
    said = says(two_wait, "explain", "9")[0]
    for words in told.split("|"):
        assert words in said
    assert "can no longer start: cancel it and submit it again" in said
    assert "Slurm chooses its GPUs when its turn comes" not in said


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({**TYPED, **RUNNING}, "while its nodes still had that type."),
        (
            {"features": "big&gpu_v100", "tres_per_node": "gres/gpu:1"},
            "it asked for GPU type v100 while nodes still had that type (now the feature gpu_v100,",
        ),
        ({"tres_per_node": "", "tres_req_str": "cpu=1"}, "it asks for no GPUs."),
        ({"comment": "class=A,place=off"}, "its comment says place=off."),
        ({"het_job_id": 9}, "it is a heterogeneous job."),
    ],
)
def test_a_job_of_slurms_says_its_own_reason(
    two_wait: SlurmFolder, fields: dict[str, object], why: str
) -> None:
    """It listed what does not hold, and called a typed job that had just started 'not recorded'."""
    plain = {**FREE, "start_time": int(time.time()) - 1}
    two_wait.write([parked("9", **(plain | fields))], ["n1"])
    with open_store(two_wait.store) as store:
        publish(store)
    two_wait.store.unlink()  # as for an ordinary user
    told = says(two_wait, "explain", "9")[0]
    assert told.startswith("Job 9: left to Slurm "), told
    assert why in told


@pytest.mark.parametrize("phase", ["", ";sel=left:0:950"])
def test_a_job_left_to_slurm_says_what_sbatch_said(two_wait: SlurmFolder, phase: str) -> None:
    """Also while it waits for its turn at the gate."""
    record = f"gpuaware/1;tn=gres/gpu:1;lf=--contiguous{phase}"
    fields = {} if not phase else {"licenses": "", "reason": "Resources"}
    off = {"licenses": "", "admin_comment": "", "comment": "place=off", "reason": "Priority"}
    jobs = [parked("9", admin_comment=record, **fields), parked("10", **off)]
    two_wait.write(jobs, ["n1"])
    record_round(two_wait, 955.0, **({} if phase else {"job_id": "9", "reason": "behind job 8"}))
    assert "--contiguous" in says(two_wait, "explain", "9")[0]
    rows = json.loads(says(two_wait, "queue", "--json")[0])["left"]
    found = {row["job_id"]: (row["reason"], row["left"]) for row in rows}
    assert found.pop("10") == ("Priority", "its comment says place=off")
    assert found == ({"9": ("Resources", "--contiguous")} if phase else {})
    told = says(two_wait, "queue")[0]
    assert "Left to Slurm (" in told
    assert ("behind job 8; Slurm chooses its GPUs: --contiguous" in told) == (not phase)


@pytest.mark.parametrize("gate_is", ["closed", "open"])
def test_the_first_component_of_a_heterogeneous_job_stands_for_all(
    two_wait: SlurmFolder, gate_is: str
) -> None:
    """Regression: the others were listed as jobs that are left to Slurm."""
    record = "gpuaware/1;tn=gres/gpu:2;lf=a%20heterogeneous%20job"
    first = parked("9", het_job_id=9, admin_comment=record, tres_req_str="cpu=1,gres/gpu=2")
    if gate_is == "open":
        first |= {"licenses": "", "admin_comment": f"{record};sel=left:0:950"}
    fields = {"het_job_id": 9, "licenses": "", "reason": "Resources", "admin_comment": record}
    others = [parked("10", tres_req_str="cpu=1,gres/gpu=1", **fields), parked("11", **fields)]
    two_wait.write([first, *others[:1], others[1] | {"tres_req_str": "cpu=1"}], ["n1"])
    queue = json.loads(says(two_wait, "queue", "--json")[0])
    listed = queue["parked" if gate_is == "closed" else "left"]
    assert [(one["job_id"], one["gpus"]) for one in listed] == [("9", 3)]
    assert not queue["left" if gate_is == "closed" else "parked"]
    for asked in ("10", "9+1"):
        told = says(two_wait, "explain", asked)[0]
        assert told.startswith("Job 9: ")
        assert "Job 10 is a component of this job and starts with it." in told
    assert "component" not in says(two_wait, "explain", "9+0")[0]


def test_a_component_that_slurm_forgot_is_explained_by_its_job(two_wait: SlurmFolder) -> None:
    """It was called unknown: the ledger has the number of the first component only."""
    with site_ledger(two_wait) as ledger:
        ledger.add_event("9", "ended", {}, 960.0)
    told = says(two_wait, "explain", "9+1")[0]
    assert told.startswith("Job 9: ended")
    assert "Job 10 is a component of this job" in told
    unknown = says(two_wait, "explain", "19+1")[0]
    assert unknown.startswith("Job 19: unknown")
    assert "component" not in unknown


def test_a_job_with_gpus_in_a_later_component_alone_is_listed(two_wait: SlurmFolder) -> None:
    off = {"het_job_id": 9, "licenses": "", "admin_comment": "", "reason": "Resources"}
    first = parked("9", tres_per_node="", tres_req_str="cpu=1", **off)
    two_wait.write([first, parked("10", **off)], ["n1"])
    (row,) = json.loads(says(two_wait, "queue", "--json")[0])["left"]
    assert (row["job_id"], row["left"]) == ("9", "it is a heterogeneous job")


def test_the_queue_says_its_order_and_words_for_what_holds_a_job(two_wait: SlurmFolder) -> None:
    ids = {"10": 5, "9": 5, "8": 9}
    record_round(two_wait, 960.0, job_id="10", reason="held by QOSGrpGRES; tried again in 44 s")
    jobs = [parked(i, priority=p, reason="JobHeldUser") for i, p in ids.items()]
    two_wait.write([*jobs, parked("11", reason="AssocGrpGRES", priority=1)], ["n1"])
    assert [p["job_id"] for p in json.loads(says(two_wait, "queue", "--json")[0])["parked"]] == [
        *("8", "9", "10", "11")
    ]
    told = says(two_wait, "queue")[0]
    assert "Parked (4), highest priority first, of equal ones the oldest" in told
    assert "its owner holds it; to let it go: scontrol release (JobHeldUser)" in told
    assert "a limit of its account is reached (AssocGrpGRES)" in told
    assert "a limit of its QOS is reached (QOSGrpGRES); tried again in 44 s" in told


def test_the_queue_cuts_the_numbers_of_tasks_as_squeue_does(two_wait: SlurmFolder) -> None:
    tasks = ",".join(map(str, range(1, 99, 2)))
    held = "job_requeued_in_held_state"
    of_array = parked("98", array_job_id=98, array_task_str=tasks, reason=held)
    two_wait.write([of_array, parked("9", reason="PartitionConfig")], ["n1"])
    told = says(two_wait, "queue")[0]
    assert "98_[1,3,5,7,9,11,13,15,17,1...] alice" in told
    assert "requeued and held; to let it go: scontrol release (job requeued in held state)" in told
    assert "its partition does not allow what it asks for (PartitionConfig)" in told
    whole = json.loads(says(two_wait, "queue", "--json")[0])["parked"]
    assert f"98_[{tasks}]" in [one["job_id"] for one in whole]


def test_a_task_of_an_array_that_is_one_record_is_explained_by_its_own_id(
    two_wait: SlurmFolder,
) -> None:
    two_wait.write([parked("98", array_job_id=98, array_task_str="0-332")], ["n1"])
    assert says(two_wait, "explain", "98_300")[0].startswith("Job 98_300: waiting")


def test_what_the_selector_finds_when_it_is_back_is_explained(two_wait: SlurmFolder):
    with site_ledger(two_wait) as ledger:
        detail = {"start_s": 1_795_000_000.0, "gpus": {"n1": [0]}, "without_us": True}
        ledger.add_event("7", "started", detail, 1_795_000_000.0)
    two_wait.write([parked("7", **RUNNING)], ["n1"])
    told = says(two_wait, "explain", "7")[0]
    assert "the gate had opened by itself, because the selector was away" in told
    assert "2026-11-18 11:06:40 started on n1: 0, placed by Slurm alone" in told
    assert "reason=" not in told


def test_a_job_that_came_back_shows_no_choice_as_current(two_wait: SlurmFolder):
    with site_ledger(two_wait) as ledger:
        ledger.add_decision(decision("7", state="waiting"))
    told = says(two_wait, "explain", "7")[0]
    assert "asked 4 GPUs submitted" in told
    assert "chosen" not in told
    assert "Earlier placements time place slowdown became" in told
    assert "1.590 waiting" in told


def test_tasks_as_queue_shows_them(two_wait: SlurmFolder):
    two_wait.write([parked("44", array_job_id=44, array_task_str="3-9")], ["n1"])
    assert "44_[3-9]" in says(two_wait, "queue")[0]
    out, err = says(two_wait, "explain", "44_[3-9]")
    assert "Job 44_3: waiting" in out
    assert err == "This is task 44_3, the first of 44_[3-9]."


def test_an_open_gate_has_no_time():
    assert Silence(None, None).sentences() == (
        "The selector has not answered for a while, and the gate is open: Slurm starts this job"
        " by itself."
    )


@pytest.mark.parametrize(("user_id", "hidden"), [(1000, True), (0, False)])
def test_a_reservation_that_is_hidden_is_no_open_gate(
    two_wait: SlurmFolder, monkeypatch: pytest.MonkeyPatch, user_id: int, hidden: bool
):
    """PrivateData=reservations: users see none, and the selector lives all the same."""
    gate(two_wait, None)
    two_wait.set(settings={**two_wait.get("settings"), "PrivateData": "reservations,usage"})
    two_wait.serve(monkeypatch)
    monkeypatch.setattr("os.geteuid", lambda: user_id)
    config = load_config(str(two_wait.config))
    found = gate_state(config)
    assert (found is None) == hidden
    assert (selector_silence(found, config) is None) == hidden


def test_a_host_on_which_no_client_can_be_opened_knows_no_gate(
    two_wait: SlurmFolder, monkeypatch: pytest.MonkeyPatch
):
    """As where Slurm's library is missing: `status` shows what the ledger says."""
    missing = Mock(side_effect=SourceError("the client of Slurm's library is not built"))
    monkeypatch.setattr("slurm_gpu_aware.slurm.client.SlurmClient", missing)
    config = load_config(str(two_wait.config))
    assert gate_state(config) is None
    with pytest.raises(SourceError, match="not built"):
        live_jobs(config)
    done = succeeded(gpu_aware("status", config=two_wait.config))
    assert "gate unknown: Slurm does not answer" in " ".join(done.stdout.split())
    assert "Slurm does not answer: the client of Slurm's library is not built." in done.stderr
