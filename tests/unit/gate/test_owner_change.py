"""Changes by owners are settled: what Slurm has accepted of them becomes the record."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from memory_slurm import MemorySlurm
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, GateConfig
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gated_job import Change, gated_jobs, is_changed, settle_changes
from slurm_gpu_aware.gate.restore import close_gate, release_by_hand
from slurm_gpu_aware.slurm.records import SlurmJob, split_arrays

OLD = "gpuaware/1;tn=gres/gpu:2;lic=matlab:1;feat=big;mc=1"
NEW = "gpuaware/1;tn=gres/gpu:1;nn=2-2;lic=matlab:1;feat=big;nt=4;mc=8;cpt=2;mcn=3"
SAME_NODES = {"admin_comment": f"{OLD};nn=2-2"}
BINDING = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
SIZES = {
    "num_nodes": 2,
    "max_nodes": 2,
    "num_tasks": 4,
    "num_cpus": 8,
    "cpus_per_task": 2,
    "pn_min_cpus": 3,
}
"""What Slurm shows of a job with the sizes of `NEW`."""
PLANNED = ("NumNodes", "NumTasks", "CPUsPerTask")  # by the record
OLD_SIZES = dict.fromkeys(SIZES, 1)
RESET = {
    "ReqNodeList": "",
    "NumNodes": "2-2",
    "NumTasks": "4",
    "NumCPUs": "8",
    "CPUsPerTask": "2",
    "MinCPUsNode": "3",
    "TresPerNode": "gres/gpu:1",
}


def changed(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """A parked job as the filter leaves a change by its owner."""
    usual = {
        "licenses": "matlab:1,gpuaware:2",
        "admin_comment": OLD,
        "extra": f"mine,{NEW}",
        "tres_per_node": "gres/gpu:1",
        "features": "big",
        **SIZES,
    }
    return parked(job_id, **{**usual, **fields})


def placed_one(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    """A placed job as the filter leaves a change by its owner."""
    marker = f"{OLD};sel=released:0:1000"
    extra = f"mine,freq=900@0+1,{NEW}"
    bound = {"admin_comment": marker, "extra": extra, **BINDING, **OLD_SIZES}
    return changed(job_id, **{**bound, **fields})


def settle(slurm: SlurmFolder, client: MemorySlurm | None = None) -> list[Change]:
    client = client if client is not None else slurm.client()
    jobs = client.jobs()
    slurm.forget_calls()
    return settle_changes(client, GateConfig(), gated_jobs(jobs, GateConfig()), split_arrays(jobs))


def test_a_parked_job_shows_its_request_already(slurm: SlurmFolder) -> None:
    slurm.write([changed(**SAME_NODES), parked("8")], ["n1"])
    (change,) = settle(slurm)
    assert (change.job.id, change.record, change.refused) == ("7", NEW, None)
    settled = {"AdminComment": NEW, "Extra": "mine", "Licenses": "matlab:1,gpuaware:1"}
    assert slurm.calls == [["update", "7", settled]]
    assert settle(slurm) == []


@pytest.mark.parametrize(
    ("applied", "missing"),
    [(SIZES, PLANNED[:1]), (OLD_SIZES, PLANNED)],
    ids=["all sizes", "none"],
)
def test_a_change_that_slurm_refused_half_way_is_carried_out(
    slurm: SlurmFolder, applied: dict[str, int], missing: tuple[str, ...]
) -> None:
    """Regression: its record was passed over, so the job was planned smaller than it was."""
    slurm.write([changed(licenses="matlab:1,gpuaware:1", **applied)], ["n1"])
    (change,) = settle(slurm)
    assert (change.record, change.refused) == (NEW, None)
    first = {name: RESET[name] for name in missing} | {"Licenses": "matlab:1,gpuaware:2"}
    then = {"AdminComment": NEW, "Extra": "mine", "Licenses": "matlab:1,gpuaware:1"}
    assert slurm.calls == [["update", "7", first], ["update", "7", then]]
    assert settle(slurm) == []


@pytest.mark.parametrize("licences", ["matlab:1", ""])
def test_what_slurm_refused_at_the_open_gate_is_no_change_when_the_job_is_parked(
    slurm: SlurmFolder, licences: str
) -> None:
    """Its owner was told that it is refused, and what it asked for stands in the note alone."""
    slurm.write([placed_one(licenses=licences)], ["n1"])
    assert settle(slurm) == []
    jobs, wrong = gated_jobs(slurm.client().jobs(), GateConfig()), dict[str, str]()
    (parked_again,) = close_gate(slurm.client(), GateConfig(), jobs, 0.0, wrong)
    assert (wrong, parked_again.parked) == ({}, True)
    assert slurm.jobs["7"]["extra"] == "mine,freq=900@0+1"
    assert settle(slurm) == []


def test_a_placed_job_loses_its_binding(slurm: SlurmFolder) -> None:
    slurm.write([placed_one()], ["n1"])
    (change,) = settle(slurm)
    assert change.refused is None
    first = RESET | {"Licenses": "matlab:1,gpuaware:2"}
    then = {"AdminComment": NEW, "Extra": "mine", "Licenses": "matlab:1,gpuaware:1"}
    assert slurm.calls == [["update", "7", first], ["update", "7", then]]
    (job,) = gated_jobs(slurm.client().jobs(), GateConfig())
    assert (job.original.tres_per_node, job.marker) == ("gres/gpu:1", None)


@pytest.mark.parametrize("own", ["", "n3"])
def test_a_job_that_slurm_places_gets_its_own_exclusions_back(slurm: SlurmFolder, own: str) -> None:
    """Those of the round would stay for good, as the marker goes."""
    left = NEW.replace("mc=8", f"xn={own};mc=8" if own else "mc=8") + ";lf=place%3Doff"
    fields = {"req_nodes": "", "tres_per_node": "gres/gpu:1", "exc_nodes": "n1,n3"}
    slurm.write([placed_one(extra=f"mine,{left}", **fields)], ["n1", "n2", "n3"])
    (change,) = settle(slurm)
    assert (change.refused, slurm.jobs["7"]["exc_nodes"]) == (None, own)


def test_what_slurm_refuses_leaves_the_old_request(slurm: SlurmFolder) -> None:
    wrong = NEW.replace("lic=matlab:1", "rn=nosuch")
    slurm.write([placed_one(extra=wrong)], ["n1"])
    (change,) = settle(slurm)
    assert (change.record, change.refused) == (wrong, "Invalid node name specified")
    job = slurm.jobs["7"]
    assert (job["admin_comment"], job["extra"]) == (OLD, "")
    assert (job["req_nodes"], job["tres_per_node"]) == ("", "gres/gpu:2")
    # One update brings it back: what it sets stays, even if Slurm finds a limit last.
    assert len([call for call in slurm.calls if call[0] == "update"]) == 2
    assert job["licenses"] == "matlab:1,gpuaware:1"


def test_what_slurm_set_of_a_refused_update_is_taken_back(slurm: SlurmFolder) -> None:
    """Regression: it kept the number of nodes, and started on more than it was placed on."""

    class HalfApplied(MemorySlurm):
        def update_jobs(self, updates: Any) -> dict[str, str]:
            if slurm.jobs["7"]["max_nodes"] == 1:
                slurm.change("7", max_nodes=2)
                return {"7": "Invalid generic resource (gres) specification"}
            return super().update_jobs(updates)

    old = OLD.replace("mc=1", "nn=1-1;mc=1")
    one = {"admin_comment": f"{old};sel=released:0:1000", "extra": NEW, "max_nodes": 1}
    slurm.write([placed_one(**one)], ["n1"])
    settle(slurm, HalfApplied(slurm.home))
    assert slurm.calls[-1][2]["NumNodes"] == "1-1"


@pytest.mark.parametrize("make", [changed, placed_one])
def test_a_request_that_slurm_refuses_last_never_becomes_the_record(
    slurm: SlurmFolder, make: Callable[..., dict[str, Any]]
) -> None:
    """Regression: its owner changed the job in between, and the refused request was carried out."""
    wrong = OLD.replace("gres/gpu:2", "gpu:1")
    newest = wrong.replace("mc=1", "nt=3;mc=3")

    class ChangedBetween(MemorySlurm):
        def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
            slurm.write([slurm.jobs["7"] | {"extra": newest}], ["n1"])
            return super().jobs_of(ids)

    slurm.write([make(extra=wrong, tres_per_node="gres/gpu:2")], ["n1"])
    assert settle(slurm, ChangedBetween(slurm.home)) == []
    assert slurm.jobs["7"]["admin_comment"].startswith(OLD)
    (change,) = settle(slurm)
    assert change.refused == "Invalid Trackable RESource (TRES) specification"
    assert settled(slurm.jobs["7"]) == (OLD, "", "big", "matlab:1,gpuaware:1")
    assert slurm.jobs["7"]["tres_per_node"] == "gres/gpu:2"


def test_a_binding_of_gpus_to_tasks_is_recorded_when_slurm_has_taken_it(slurm: SlurmFolder) -> None:
    slurm.write([changed(extra=NEW + ";tb=gres/gpu:closest", **SAME_NODES)], ["n1"])
    assert settle(slurm)[0].refused is None
    first = {"TresBind": "gres/gpu:closest", "Licenses": "matlab:1,gpuaware:2"}
    assert slurm.calls[0] == ["update", "7", first]


def settled(job: dict[str, Any]) -> tuple[Any, ...]:
    return job["admin_comment"], job["extra"], job["features"], job["licenses"]


@pytest.mark.parametrize("noted", [False, True])
def test_features_are_those_that_slurm_has_accepted(slurm: SlurmFolder, noted: bool) -> None:
    """Regression: a record of refused features could not be settled; the job parked for ever."""
    wrong = OLD.replace("big", "nosuch")
    extra = f"mine,{wrong};nt=4" if noted else "mine"
    slurm.write([changed(admin_comment=wrong, extra=extra, features="a|b")], ["n1"])
    assert len(settle(slurm)) == 1
    record = OLD.replace(";feat=big", "") + (";nt=4" if noted else "") + ";feat=a%7Cb"
    assert settled(slurm.jobs["7"]) == (record, "mine", "a|b", "matlab:1,gpuaware:1")
    (job,) = gated_jobs(slurm.client().jobs(), GateConfig())
    assert job.original.features == "a|b"


def test_a_job_that_is_changed_once_more_meanwhile_is_left_to_the_next_call(
    slurm: SlurmFolder,
) -> None:
    """The filter refuses the older record; with it, the newer change was lost."""
    newest = NEW.replace("nt=4", "nt=3")

    class ChangedAgain(MemorySlurm):
        def update_jobs(self, updates: Any) -> dict[str, str]:
            slurm.write([placed_one(extra=newest)], ["n1"])
            slurm.set(refuse=["7"])
            return super().update_jobs(updates)

    slurm.write([placed_one()], ["n1"])
    assert settle(slurm, ChangedAgain(slurm.home)) == []
    assert len([call for call in slurm.calls if call[0] == "update"]) == 1
    slurm.set(refuse=[])
    assert [change.record for change in settle(slurm)] == [newest]


@pytest.mark.parametrize("extra", ["", "mine", "gpuaware/1;tn=%zz", "gpuaware/2;x=y"])
def test_without_a_readable_note_the_record_stays(slurm: SlurmFolder, extra: str) -> None:
    slurm.write([changed(extra=extra)], ["n1"])
    (change,) = settle(slurm)
    assert change.record == OLD
    assert slurm.jobs["7"]["licenses"] == "matlab:1,gpuaware:1"
    assert "gpuaware" not in slurm.jobs["7"]["extra"]


def test_a_job_that_runs_is_not_touched(slurm: SlurmFolder) -> None:
    slurm.write([changed(state="RUNNING", nodes="n1", slots=[0])], ["n1"])
    assert settle(slurm) == []
    assert slurm.calls == []


def test_the_rest_of_a_split_array_is_settled_as_a_whole(slurm: SlurmFolder) -> None:
    rest = changed(array_job_id=7, array_task_str="1-2", **SAME_NODES)
    task = parked("9", array_job_id=7, array_task_id=0)
    slurm.write([rest, task], ["n1"])
    settle(slurm)
    assert [call[1] for call in slurm.calls] == ["7_1-2"]
    assert len(slurm.jobs) == 2


def test_a_silent_slurm_is_asked_again(slurm: SlurmFolder) -> None:
    slurm.write([changed()], ["n1"])

    class Silent(MemorySlurm):
        def update_jobs(self, updates: Any) -> dict[str, str]:
            raise SourceError("slurmctld does not answer")

    with pytest.raises(SourceError):
        settle(slurm, Silent(slurm.home))
    assert settle(slurm) != []


def test_the_start_monitor_leaves_a_changed_job_alone(slurm: SlurmFolder) -> None:
    slurm.write([placed_one()], ["n1"])
    client, wrong = slurm.client(), dict[str, str]()
    jobs = gated_jobs(client.jobs(), GateConfig())
    slurm.set(refuse=["7"])  # as the filter does
    assert close_gate(client, GateConfig(), jobs, 0.0, wrong) == []
    assert wrong == {}


def test_release_by_hand_releases_the_changed_request(slurm: SlurmFolder) -> None:
    slurm.write([placed_one(stuck=True)], ["n1"])
    assert release_by_hand(slurm.client(), Config(), ["7"]) == ["7"]
    job = slurm.jobs["7"]
    assert (job["licenses"], job["tres_per_node"]) == ("matlab:1", "gres/gpu:1")
    assert not is_changed(slurm.client().jobs()[0], GateConfig())


def test_a_round_settles_and_places(slurm: SlurmFolder) -> None:
    slurm.write(
        [
            placed_one(
                licenses="gpuaware:2",
                admin_comment=OLD,
                features="",
                extra="gpuaware/1;tn=gres/gpu:1;mc=1",
            )
        ],
        ["n1"],
    )
    bench = RoundsBench(slurm)
    bench.rounds._backoff.punish("7")
    assert bench.rounds.run().placed == ["7"]
    assert slurm.jobs["7"]["slots"] == [0]
    assert bench.ledger.first_event("7", "changed") is not None


def test_a_round_keeps_off_a_change_that_it_cannot_settle(slurm: SlurmFolder) -> None:
    slurm.write([changed()], ["n1"])
    slurm.set(refuse=["7"])
    bench = RoundsBench(slurm)
    assert bench.rounds.run().placed == []
    assert all("Licenses" in dict(update.fields) for _, update in bench.told)
    # It is tried again in each round, and told once.
    told = len(bench.told)
    bench.rounds.run()
    assert len(bench.told) > told
    assert [event.kind for event in bench.ledger.events("7")].count("changed") == 1
