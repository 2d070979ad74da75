"""Jobs that are left to Slurm: how the selector opens their gate in turn, and closes it again."""

from collections.abc import Sequence
from typing import Any

import pytest
from memory_slurm import node_record
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked, run_by_slurm

from slurm_gpu_aware.admission.snapshot import NODE_TAKEN
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.slurm.records import SlurmJob
from slurm_gpu_aware.slurm.updates import JobUpdate

LEFT = "gpuaware/1;tn=gres/gpu:2;mc=1;lf=place%3Doff"
HET = LEFT.replace("place%3Doff", "a%20heterogeneous%20job")
HELD = "QOSMaxGRESPerUser"


def left(job_id: str = "7", **fields: Any) -> dict[str, Any]:
    return parked(job_id, **{"admin_comment": LEFT, "stuck": True, **fields})


def bench_of(slurm: SlurmFolder, jobs: list[dict[str, Any]], nodes: list[str]) -> RoundsBench:
    slurm.write(jobs, nodes)
    return RoundsBench(slurm)


def het_job(**other: Any) -> list[dict[str, Any]]:
    """The components of job 7, of which the second one is job 8; ``other``: fields of that."""
    parts = {"het_job_id": 7, "licenses": "", "stuck": True, **other}
    return [left(het_job_id=7, admin_comment=HET), parked("8", **parts)]


def is_open(slurm: SlurmFolder, job_id: str) -> bool:
    return bool(slurm.jobs[job_id]["licenses"] == "")


def test_on_an_idle_cluster_it_starts_at_once_and_is_kept_off_no_node(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, [left()], ["n1", "n2"])
    assert bench.run().placed == ["7"]
    job = slurm.jobs["7"]
    assert (job["licenses"], job["req_nodes"], job["exc_nodes"]) == ("", "", "")
    assert job["tres_per_node"] == "gres/gpu:2"
    assert ";sel=released:0:" in job["admin_comment"]
    assert "st=by-Slurm" in job["admin_comment"]
    assert "lf=place%3Doff" in job["admin_comment"]


def beside_an_exact_job(slurm: SlurmFolder, **fields: Any) -> RoundsBench:
    jobs = [parked("6", priority=900, stuck=True), left(**fields)]
    bench = bench_of(slurm, jobs, ["n1", "n2"])
    assert sorted(bench.run().placed) == ["6", "7"]
    return bench


@pytest.mark.parametrize("own", ["", "n9", "n8,n9"])
def test_it_is_kept_off_the_nodes_of_exact_gpus_until_it_is_parked_again(
    slurm: SlurmFolder, own: str
) -> None:
    record = LEFT.replace(";lf", f";xn={own};lf") if own else LEFT
    bench = beside_an_exact_job(slurm, exc_nodes=own, admin_comment=record)
    (exact,) = slurm.jobs["6"]["req_nodes"].split(",")
    seen = next(job for job in bench.client.jobs() if job.id == "7")
    assert set(seen.exc_nodes) == {exact, *filter(None, own.split(","))}
    assert is_open(slurm, "7")
    slurm.change("7", reason=HELD)
    slurm.change("6", reason="Resources")
    assert bench.poll() == 1
    assert not is_open(slurm, "7")
    seen = next(job for job in bench.client.jobs() if job.id == "7")
    assert set(seen.exc_nodes) == {*filter(None, own.split(","))}
    assert "sel=" not in slurm.jobs["7"]["admin_comment"]


@pytest.mark.parametrize(
    "kept", [{"exc_nodes": ""}, {"features": "big"}, {"tres_per_node": "gres/gpu:4"}], ids=str
)
def test_it_is_not_opened_with_what_slurm_kept_of_an_update_that_it_refused(
    slurm: SlurmFolder, kept: dict[str, str]
) -> None:
    """Its owner sent it while the round planned the job by its older record."""
    bench = bench_of(slurm, [left(exc_nodes="n2")], ["n1", "n2"])
    send = bench.client.update_jobs

    def meanwhile(updates: Sequence[JobUpdate]) -> dict[str, str]:
        slurm.change("7", **kept)
        return send(updates)

    bench.client.update_jobs = meanwhile  # type: ignore[method-assign]
    assert bench.run().placed == []
    assert not is_open(slurm, "7")
    assert bench.rounds.tracker.refusals.count == 0  # Slurm refused nothing


@pytest.mark.parametrize("step", ["ReqNodeList", "Licenses"], ids=["prepared", "opened"])
@pytest.mark.parametrize(("licences", "count"), [("gpuaware:2", 0), ("gpuaware:1", 1)])
def test_a_refusal_for_a_change_by_its_owner_does_not_count(
    slurm: SlurmFolder, step: str, licences: str, count: int
) -> None:
    """Regression: two users who changed their jobs all the time opened the gate for all."""
    bench = bench_of(slurm, [parked("7", stuck=True)], ["n1"])
    send = bench.client.update_jobs

    def meanwhile(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if not any(name == step for update in updates for name, _ in update.fields):
            return send(updates)
        slurm.change("7", licenses=licences)
        return {"7": "Unspecified error"}

    bench.client.update_jobs = meanwhile  # type: ignore[method-assign]
    assert bench.run().placed == []
    assert bench.rounds.tracker.refusals.count == count


def test_a_slurm_that_falls_silent_after_a_refusal_hides_no_job_that_was_opened(
    slurm: SlurmFolder,
) -> None:
    bench = bench_of(slurm, [parked("7", stuck=True), parked("8", stuck=True)], ["n1"])
    send = bench.client.update_jobs

    def silent(ids: Sequence[str]) -> list[SlurmJob]:
        raise SourceError(f"Slurm does not answer about {ids}")

    def refusing(updates: Sequence[JobUpdate]) -> dict[str, str]:
        opens = any(name == "Licenses" for update in updates for name, _ in update.fields)
        if opens:
            bench.client.jobs_of = silent  # type: ignore[method-assign]
        refused = {"7": "Unspecified error"} if opens else {}
        return send([one for one in updates if one.job_id not in refused]) | refused

    bench.client.update_jobs = refusing  # type: ignore[method-assign]
    assert bench.run().placed == ["8"]
    assert bench.rounds.tracker.placed["8"].phase is JobPhase.RELEASED


def test_a_lower_job_waits_for_one_of_higher_priority(slurm: SlurmFolder) -> None:
    """n1 has 4 GPUs, 2 of them in use; the first in line wants 4."""
    first = run_by_slurm("5", slots=[0, 1], start_time=1_789_999_000, end_time=1_790_000_600)
    bench = bench_of(slurm, [first, parked("6", 4, priority=900), left()], ["n1"])
    assert bench.run().placed == []
    assert not is_open(slurm, "6")
    assert not is_open(slurm, "7")


def failed_three_times(slurm: SlurmFolder, reason: str) -> RoundsBench:
    bench = bench_of(slurm, [left(priority=500)], ["n1"])
    for _ in range(3):
        assert bench.run().placed == ["7"]
        slurm.change("7", reason=reason)
        assert bench.poll(31.0) == 1
        assert not is_open(slurm, "7")
        slurm.change("7", reason="Licenses")
        bench.wait(3600.0)
    assert bench.run().placed == ["7"]
    assert is_open(slurm, "7")
    slurm.change("7", reason=reason)
    return bench


@pytest.mark.parametrize("reason", ["Priority", HELD])
def test_after_three_failures_its_gate_stays_open_until_it_starts(
    slurm: SlurmFolder, reason: str
) -> None:
    """What Slurm shows (a limit) is no failure: a user could bring it about."""
    bench = failed_three_times(slurm, reason)
    for _ in range(3):
        bench.poll(3600.0)
    assert is_open(slurm, "7") is (reason != HELD)


@pytest.mark.parametrize("reason", ["Resources", NODE_TAKEN])
def test_it_keeps_gpus_no_longer_when_slurm_finds_no_node_for_it(
    slurm: SlurmFolder, reason: str
) -> None:
    bench = bench_of(slurm, [left()], ["n1"])
    assert bench.run().placed == ["7"]
    slurm.change("7", reason=reason, last_sched_eval=int(bench.wall) + 5)
    assert bench.poll(7.0) == 1
    assert not is_open(slurm, "7")


@pytest.mark.parametrize("priority", [900, 1])
def test_it_is_parked_again_when_a_job_before_it_waits(slurm: SlurmFolder, priority: int) -> None:
    """No GPUs are kept for it, so Slurm's own scheduler would let it pass."""
    bench = failed_three_times(slurm, "Priority")
    slurm.add(run_by_slurm("5", slots=[0]), parked("9", 4, priority=priority))
    assert bench.run().placed == []
    bench.poll()
    assert is_open(slurm, "7") is (priority == 1)


def test_behind_it_others_start_on_the_gpus_that_it_cannot_have(slurm: SlurmFolder) -> None:
    bench = failed_three_times(slurm, "Priority")
    slurm.add(parked("9", priority=1, stuck=True))
    assert bench.run().placed == ["9"]
    assert is_open(slurm, "7")


def test_array_tasks_are_opened_by_task(slurm: SlurmFolder) -> None:
    array = left("98", array_job_id=98, array_task_str="0-4")
    bench = bench_of(slurm, [array], ["n1"])
    placed = bench.run().placed
    assert placed == ["98_0", "98_1"]
    opened = [i for i in slurm.jobs if is_open(slurm, i)]
    assert len(opened) == 2


def test_a_heterogeneous_job_waits_while_exact_jobs_start_on_its_nodes(slurm: SlurmFolder) -> None:
    """The node lists of its components stay as they are."""
    jobs = [parked("6", priority=900, stuck=True), *het_job(admin_comment="")]
    bench = bench_of(slurm, jobs, ["n1", "n2"])
    assert bench.run().placed == ["6"]
    assert not is_open(slurm, "7")
    slurm.change("6", state="RUNNING", nodes="n1", slots=[0, 1])
    assert bench.run().placed == ["7"]
    assert is_open(slurm, "7")
    assert slurm.jobs["7"]["exc_nodes"] == slurm.jobs["8"]["exc_nodes"] == ""


@pytest.mark.parametrize("what", ["gres/shard:2", "gres/shard:a100:2", "gres/gpu:2"])
def test_a_job_whose_nodes_are_all_down_waits_and_starts_when_they_return(
    slurm: SlurmFolder, what: str
) -> None:
    node = {
        "gres": "gpu:g0:1(S:0),gpu:g1:1(S:0),shard:g0:4(S:0),shard:g1:4(S:0)",
        "gres_used": "gpu:g0:0(IDX:N/A),gpu:g1:0(IDX:N/A),shard:g0:0(0/4),shard:g1:0(0/4)",
    }
    record = f"gpuaware/1;tn={what};mc=1;lf=shards%20and%20MPS%20share%20GPUs"
    slurm.write([left(tres_per_node=what, admin_comment=record, tres_req_str="cpu=1")], [])
    bench = RoundsBench(slurm)
    slurm.set(nodes=[node_record("n1", state="DOWN", **node)])
    for _ in range(2):
        assert bench.run().placed == []
        assert not is_open(slurm, "7")
    slurm.set(nodes=[node_record("n1", **node)])
    assert bench.run().placed == ["7"]
    assert ";sel=left:" not in slurm.jobs["7"]["admin_comment"]


def test_components_that_an_update_of_the_first_changed_are_no_jobs_of_their_own(
    slurm: SlurmFolder,
) -> None:
    """Regression: parked again, the second one had the gate's licence, too. It was opened alone,
    held its GPUs, and so the first one waited for it for minutes."""
    bench = bench_of(slurm, het_job(licenses="gpuaware:1", admin_comment=HET), ["n1", "n2"])
    assert bench.run().placed == ["7"]
    assert not is_open(slurm, "8")  # Slurm changes it with the first


@pytest.mark.parametrize(
    "change",
    [
        {"time_limit": 600},
        {"num_tasks": 2},
        {"num_cpus": 2},
        {"max_nodes": 2},
        {"tres_per_node": "gres/gpu:3"},
        {"partition": "gpu,other"},
    ],
    ids=str,
)
def test_no_later_component_starts_with_what_the_round_has_not_planned(
    slurm: SlurmFolder, change: dict[str, Any]
) -> None:
    """Regression: with ten hours instead of a minute, it delayed the jobs before it."""
    first = left(het_job_id=7, admin_comment=HET)
    other = parked("8", het_job_id=7, licenses="", admin_comment="", stuck=True)
    bench = bench_of(slurm, [first, other], ["n1", "n2"])
    send = bench.client.update_jobs

    def meanwhile(updates: Sequence[JobUpdate]) -> dict[str, str]:
        slurm.change("8", **change)
        return send(updates)

    bench.client.update_jobs = meanwhile  # type: ignore[method-assign]
    result = bench.rounds.run()
    assert (result.placed, is_open(slurm, "7")) == ([], False)
    assert "sel=" not in slurm.jobs["7"]["admin_comment"]
    bench.steady += 61.0
    assert bench.rounds.run().placed == ["7"]


def test_tasks_that_an_update_of_the_first_component_gives_to_all_are_no_change(
    slurm: SlurmFolder,
) -> None:
    first = left(het_job_id=7, admin_comment=HET.replace(";lf", ";nt=4;tpg=2;lf"), num_tasks=4)
    bench = bench_of(slurm, [first, parked("8", het_job_id=7, licenses="")], ["n1", "n2"])
    send = bench.client.update_jobs

    def to_all(updates: Sequence[JobUpdate]) -> dict[str, str]:
        if any("NumTasks" in dict(update.fields) for update in updates):
            slurm.change("8", num_tasks=4, num_cpus=4, max_nodes=1)
        return send(updates)

    bench.client.update_jobs = to_all  # type: ignore[method-assign]
    assert bench.rounds.run().placed == ["7"]


@pytest.mark.parametrize(
    ("waits", "why"),
    [
        ({"priority": 0, "reason": "JobHeldUser"}, "JobHeldUser"),
        ({"dependency": "afterany:5(unfulfilled)", "reason": "None"}, "Dependency"),
        ({"eligible_time": 1_790_003_600, "reason": "Resources"}, "BeginTime"),
        ({"reason": HELD}, None),  # which may be of an earlier try
    ],
    ids=str,
)
def test_a_heterogeneous_job_waits_like_any_of_its_components(
    slurm: SlurmFolder, waits: dict[str, Any], why: str | None
) -> None:
    """Regression: opened, it kept all nodes from others for 90 s, three times."""
    behind = parked("9", priority=1, stuck=True)
    bench = bench_of(slurm, [*het_job(**waits), behind], ["n1", "n2"])
    result = bench.run()
    assert result.placed == (["7"] if why is None else ["9"])
    assert [one["held_by"] for one in result.waiting if one["job_id"] == "7"] == [why] * bool(why)


@pytest.mark.parametrize("asked", ["gres/gpu:3", "gpu:3"])
def test_changes_by_its_owner_do_not_renew_what_is_kept_for_it(
    slurm: SlurmFolder, asked: str
) -> None:
    """Regression: changed every 50 s, a job that Slurm never starts kept its GPUs for ever. Slurm
    refuses the second change.
    """
    bench = bench_of(slurm, [left(), parked("9", priority=1, stuck=True)], ["n1"])
    whole = LEFT.replace("gres/gpu:2", "gres/gpu:4")
    for record in (whole, LEFT.replace("gres/gpu:2", asked), whole):
        assert "7" in bench.run().placed
        assert is_open(slurm, "7")
        slurm.change("7", licenses="gpuaware:2", extra=record)
    assert bench.run().placed == ["7"]
    assert bench.run().placed == ["9"]
    assert is_open(slurm, "7")


def test_a_heterogeneous_job_has_the_time_of_several_passes_of_backfill(slurm: SlurmFolder) -> None:
    bench = bench_of(slurm, het_job(), ["n1", "n2"])
    assert bench.run().placed == ["7"]
    slurm.change("7", reason="Resources", last_sched_eval=int(bench.wall) + 5)
    assert bench.poll(80.0) == 0
    assert bench.poll(11.0) == 1
    assert not is_open(slurm, "7")


@pytest.mark.parametrize(
    "waits",
    [
        {"priority": 0, "reason": "JobHeldUser"},
        {"dependency": "afterany:5(unfulfilled)"},
        {"eligible_time": 1_790_003_600},
    ],
    ids=str,
)
def test_what_holds_a_later_component_at_the_open_gate_is_seen_at_once(
    slurm: SlurmFolder, waits: dict[str, Any]
) -> None:
    """Regression: its GPUs were kept for 90 s."""
    bench = bench_of(slurm, het_job(), ["n1", "n2"])
    assert bench.run().placed == ["7"]
    assert bench.poll() == 0
    slurm.change("8", **waits)
    assert bench.poll() == 1
    assert not is_open(slurm, "7")
    assert bench.run(3.0).placed == []
    slurm.change("8", priority=500, dependency="", eligible_time=0)
    slurm.change("7", reason="Resources")  # never Licenses
    assert bench.run().placed == ["7"]


def beside_a_whole_node(slurm: SlurmFolder, *more: dict[str, Any]) -> RoundsBench:
    """Job 5 runs for an hour, so that job 6, which comes when the het job 7 is opened, waits."""
    times = {"start_time": 1_789_999_000, "end_time": 1_790_003_600}
    jobs = [run_by_slurm("5", slots=[0], **times)]
    times["end_time"] += 3600
    jobs.append(run_by_slurm("4", "n2", slots=[0, 1], **times))
    one = {"tres_per_node": "gres/gpu:1", "tres_req_str": "gres/gpu=1"}
    first, other = het_job(time_limit=1, **one)
    bench = bench_of(slurm, [*jobs, first | {"time_limit": 1}, other], ["n1", "n2"])
    assert bench.run().placed == ["7"]
    slurm.change("7", reason="Resources")
    slurm.add(parked("6", 4, priority=900, stuck=True), *more)
    return bench


def test_a_heterogeneous_job_that_does_not_start_holds_up_no_job_before_it(
    slurm: SlurmFolder,
) -> None:
    """Slurm accepts some that it never starts, and until then they keep all their nodes."""
    bench = beside_a_whole_node(slurm)
    for ended in (False, True):
        if ended:
            slurm.change("5", state="COMPLETED")
        bench.run()
        bench.turn(5.0)
        assert is_open(slurm, "7") is not ended
    assert bench.run().placed == ["6"]


def test_a_heterogeneous_job_is_parked_once_for_jobs_that_wait_all_the_same(
    slurm: SlurmFolder,
) -> None:
    """Regression: each round parked it again for a long job that waits for the first, and none
    started.
    """
    bench = beside_a_whole_node(
        slurm, parked("9", 1, ";rn=n1", priority=800, stuck=True, time_limit=6000)
    )
    for _ in range(6):
        bench.turn(5.0)
        assert is_open(slurm, "7")
