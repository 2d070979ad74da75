"""No job is called impossible by mistake: by what a reading has counted twice, or by one alone."""

from typing import Any

import pytest
from memory_slurm import node_record, reservation_record
from rounds_bench import RoundsBench, reasons_of
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.planning.plan import Plan, Waiting
from slurm_gpu_aware.selector.round_state import DOUBTFUL, Verdicts

FORMS: dict[str, dict[str, Any]] = {
    "-c 16": {"record": ";cpt=16;mc=16", "num_cpus": 16, "cpus_per_task": 16, "pn_min_cpus": 16},
    "--mem-per-gpu=64000": {"record": ";mg=gres/gpu:64000;mc=1"},
    "--mem=64000": {"record": ";mem=1;mc=1", "pn_min_memory": 64000},
    "--mem=0": {"record": ";mem=1;mc=1", "pn_min_memory": 0},
    "--exclusive": {"record": ";ex=1;mc=1", "exclusive": 1},
}


def one_gpu(job_id: str, record: str = ";mc=1", **fields: Any) -> dict[str, Any]:
    """A job that asks for ``--gres=gpu:1``, and what its record says besides."""
    return parked(job_id, 1, **{"admin_comment": f"gpuaware/1;tn=gres/gpu:1{record}", **fields})


def starting(slurm: SlurmFolder) -> RoundsBench:
    """A placed job on each node, which Slurm starts between the readings of jobs and of nodes: it
    is counted among the placed jobs, and in what the nodes have given away."""
    jobs = [
        one_gpu(job_id, f";rn={name};mc=1", req_nodes=name, stuck=True)
        for job_id, name in (("1", "n1"), ("2", "n2"))
    ]
    slurm.write(jobs, ["n1", "n2"])
    bench = RoundsBench(slurm)
    assert sorted(bench.run().placed) == ["1", "2"]
    held = {"alloc_cpus": 1, "alloc_memory": 500, "gres_used": "gpu:g3:1(IDX:3)"}
    slurm.set(nodes=[node_record("n1", **held), node_record("n2", **held)])
    return bench


@pytest.mark.parametrize("form", FORMS)
def test_jobs_that_are_placed_and_not_started_make_none_impossible(
    slurm: SlurmFolder, form: str
) -> None:
    bench = starting(slurm)
    slurm.add(one_gpu("3", **FORMS[form]))
    for _ in range(3):
        outcome = bench.run()
        reason = reasons_of(outcome)["3"]
        assert reason.startswith("next in line: ")
        assert "1099511627776" not in reason
        assert outcome.doubtful == 0
        assert slurm.jobs["3"]["licenses"] == "gpuaware:1"
    slurm.write([slurm.jobs["3"]], ["n1", "n2"])
    assert bench.run().placed == ["3"]


def waiting_for(slurm: SlurmFolder, *nodes: dict[str, Any], **fields: Any) -> list[str]:
    """What two rounds say of a job for all CPUs of a node, whose gate stays closed."""
    slurm.write([one_gpu("3", **{**FORMS["-c 16"], **fields})], ["n1"])
    slurm.set(nodes=list(nodes))
    bench = RoundsBench(slurm)
    said = [bench.run().waiting for _ in range(2)]
    assert slurm.jobs["3"]["licenses"] == "gpuaware:1"
    return [one["reason"] for entries in said for one in entries]


@pytest.mark.parametrize("state", ["DOWN", "IDLE+DRAIN", "IDLE*", "MIXED+DRAIN"])
def test_a_node_that_is_down_is_no_reason_for_never(slurm: SlurmFolder, state: str) -> None:
    small = node_record("n1", cpus=8, cpus_efctv=8, cores=4)
    said = waiting_for(slurm, small, node_record("n2", state=state))
    why = "GPUs are free, but too few nodes have 16 free CPUs; down, drained or reserved: n2"
    assert said == [DOUBTFUL, why]


def test_a_reservation_that_ends_is_no_reason_for_never(slurm: SlurmFolder) -> None:
    gate = reservation_record("gpuaware_gate", licenses="gpuaware:100000")
    slurm.reserve(gate, reservation_record("repair", node_list="n1", flags="MAINT"))
    why = "no node that the job may use has usable GPUs; down, drained or reserved: n1"
    assert waiting_for(slurm, node_record("n1")) == [DOUBTFUL, why]


@pytest.mark.parametrize("away", ["DOWN", "IDLE+DRAIN", "reserved"])
def test_a_job_that_slurm_places_waits_for_nodes_that_are_away(
    slurm: SlurmFolder, away: str
) -> None:
    """Its gate is not opened for good, past all that wait."""
    if away == "reserved":
        gate = reservation_record("gpuaware_gate", licenses="gpuaware:100000")
        slurm.reserve(gate, reservation_record("repair", node_list="n2", flags="MAINT"))
    comment = "gpuaware/1;tn=gres/gpu:4;nn=2-2;mc=2"
    tres = {"tres_per_node": "gres/gpu:4", "tres_req_str": "cpu=2,mem=1000M,node=2,gres/gpu=8"}
    two = {"num_nodes": 2, "num_cpus": 2, "num_tasks": 2, "comment": "place=off"}
    slurm.write([parked("3", admin_comment=comment, **tres, **two)], ["n1"])
    state = "IDLE" if away == "reserved" else away
    slurm.set(nodes=[node_record("n1"), node_record("n2", state=state)])
    bench = RoundsBench(slurm)
    for _ in range(4):
        (waiting,) = bench.run().waiting
        assert slurm.jobs["3"]["licenses"] == "gpuaware:1"
    assert "; down, drained or reserved: n2; Slurm chooses" in waiting["reason"]


def test_what_no_node_has_is_never(slurm: SlurmFolder) -> None:
    """Two nodes of a partition that has no more, and a job for three of them."""
    counts = {"num_nodes": 3, "num_cpus": 3, "cpus_per_task": 1, "pn_min_cpus": 1}
    asked = {"record": ";nn=3-3;mc=3", **counts}
    said = waiting_for(slurm, node_record("n1"), node_record("n2", state="DOWN"), **asked)
    never = "cannot start even on an idle cluster: needs 3 nodes with 1 GPU each; 2 nodes have that"
    assert said == [DOUBTFUL, f"{never} many"]


def no_room(*jobs: str, why: str = "no GPUs") -> Plan:
    return Plan((), tuple(Waiting(job_id, why, infeasible=True) for job_id in jobs))


def counted(verdicts: Verdicts, found: Plan, *, complete: bool = True) -> list[str]:
    confirmed, doubtful = verdicts.confirmed(found, complete=complete)
    firm = [one.job_id for one in confirmed.waiting if one.infeasible]
    doubted = [one for one in confirmed.waiting if one.reason == DOUBTFUL]
    assert doubtful == (len(doubted) if complete else 0)
    assert len(firm) + len(doubted) == len(found.waiting)
    return firm


def test_a_verdict_counts_when_two_rounds_in_a_row_come_to_it() -> None:
    verdicts = Verdicts()
    assert counted(verdicts, no_room("1")) == []
    assert counted(verdicts, no_room("1", "2")) == ["1"]
    assert counted(verdicts, no_room()) == []
    assert counted(verdicts, no_room("1", "2")) == []
    assert counted(verdicts, no_room("1", "2", why="no memory")) == []
    assert counted(verdicts, no_room("1", why="no memory")) == ["1"]


def test_a_round_that_could_not_read_every_record_says_nothing() -> None:
    verdicts = Verdicts()
    assert counted(verdicts, no_room("1")) == []
    assert counted(verdicts, no_room("1"), complete=False) == []
    assert counted(verdicts, no_room("1")) == []
    assert counted(verdicts, no_room("1")) == ["1"]
