"""Placed jobs that wait are given back to Slurm when the selector is taken out."""

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from memory_slurm import MemorySlurm
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.cli import rollout as roll
from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.config.load import load_config
from slurm_gpu_aware.config.settings import Config, StoreConfig
from slurm_gpu_aware.deploy.job_requests import Restored, restore_all
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import hold_selector_lock
from slurm_gpu_aware.slurm.updates import JobUpdate
from slurm_gpu_aware.store.database import open_store

PINS = {"req_nodes": "n1", "tres_per_node": "gres/gpu:g0:1,gres/gpu:g1:1"}
RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"


def back(slurm: SlurmFolder) -> Restored:
    return restore_all(slurm.client(), Config(store=StoreConfig(path=slurm.store)))


def placed(job_id: str = "7", mark: str = "released", **fields: Any) -> dict[str, Any]:
    """A job that was placed and cannot start."""
    usual = {"licenses": "", "admin_comment": f"{RECORD};sel={mark}:0:1", "stuck": True}
    return parked(job_id, **{**PINS, **usual, **fields})


def is_plain(job: dict[str, Any]) -> bool:
    return (job["req_nodes"], job["tres_per_node"]) == ("", "gres/gpu:2")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reason": "BeginTime", "restart_cnt": 1},
        {"mark": "prepared", "licenses": "gpuaware:1"},
        {"mark": "opened"},
        {"licenses": "matlab:2", "admin_comment": f"{RECORD};lic=matlab:2;sel=released:0:1"},
    ],
    ids=["placed", "requeued", "prepared", "by hand", "licences"],
)
def test_a_placed_job_that_waits_gets_its_request_back(
    slurm: SlurmFolder, fields: dict[str, str]
) -> None:
    slurm.write([placed(**fields)], ["n1"])
    assert back(slurm).left == ["7"]
    job = slurm.jobs["7"]
    assert is_plain(job)
    assert job["licenses"] == ("matlab:2" if "matlab" in fields.get("licenses", "") else "")
    assert ";sel=left:" in job["admin_comment"]
    assert back(slurm) == Restored()


def test_others_are_not_touched(slurm: SlurmFolder) -> None:
    foreign = parked("8", licenses="", admin_comment="site note", stuck=True, **PINS)
    running = placed("9", state="RUNNING", nodes="n1", slots=[0, 1])
    slurm.write([foreign, running, parked("10")], ["n1"])
    before = slurm.jobs
    assert back(slurm) == Restored()
    assert slurm.jobs == before


def test_what_the_selector_looks_after_is_left_to_it(slurm: SlurmFolder) -> None:
    slurm.write([placed()], ["n1"])
    before = slurm.jobs
    with hold_selector_lock(slurm.store):
        found = back(slurm)
    assert (found.kept, found.left) == (["7"], [])
    assert "another selector runs" in found.kept_why
    assert slurm.jobs == before
    assert back(slurm).left == ["7"]


def test_a_job_that_cannot_be_given_back_is_named(slurm: SlurmFolder) -> None:
    slurm.write([placed(), placed("8")], ["n1"])
    slurm.set(refuse=["7"])
    found = back(slurm)
    assert (found.left, list(found.wrong)) == (["8"], ["7"])


def test_a_job_that_stays_bound_stays_behind_the_gate(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write([placed()], ["n1"])
    update = MemorySlurm.update_jobs

    def refusing(client: MemorySlurm, updates: Sequence[JobUpdate]) -> dict[str, str]:
        kept = [u for u in updates if "ReqNodeList" not in dict(u.fields)]
        refused = {u.job_id: "Access denied" for u in updates if u not in kept}
        return refused | update(client, kept)

    monkeypatch.setattr(MemorySlurm, "update_jobs", refusing)
    assert list(back(slurm).wrong) == ["7"]
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    monkeypatch.setattr(MemorySlurm, "update_jobs", update)
    assert back(slurm).left == ["7"]
    assert is_plain(slurm.jobs["7"])


def test_a_gate_that_was_made_for_it_is_taken_away(slurm: SlurmFolder) -> None:
    slurm.write([placed()], ["n1"])
    slurm.reserve()
    assert back(slurm).left == ["7"]
    assert slurm.get("reservations") == []
    assert "create_reservation" in [call[0] for call in slurm.calls]


def test_the_ledger_knows_a_job_whose_comment_was_overwritten(slurm: SlurmFolder) -> None:
    slurm.write([parked(stuck=True)], ["n1"])
    slurm.round()
    assert not is_plain(slurm.jobs["7"]), slurm.said
    slurm.change("7", restart_cnt=1, admin_comment="JS1:H4sIAAAA")
    assert back(slurm).left == ["7"]
    assert is_plain(slurm.jobs["7"])
    assert slurm.jobs["7"]["admin_comment"] == "JS1:H4sIAAAA"


def test_the_ledger_knows_a_requeued_job_of_a_plain_node(slurm: SlurmFolder) -> None:
    """Its AdminComment was freed at its start, and its request names no index."""
    slurm.write([parked(stuck=True)], ["n1"])
    slurm.round()
    slurm.change("7", restart_cnt=1, admin_comment="", tres_per_node="gres/gpu:2")
    with open_store(slurm.store) as store:
        store.execute("UPDATE decisions SET exact = 0")
    assert back(slurm).left == ["7"]
    assert is_plain(slurm.jobs["7"])


def test_release_all_takes_placed_jobs_too(slurm: SlurmFolder) -> None:
    slurm.write([placed(), parked("8", stuck=True)], ["n1"])
    command = ["--config", str(slurm.config), "release", "--all"]
    done = CliRunner().invoke(cli, command)
    assert (done.exit_code, done.stdout) == (0, "8\n7\n")
    assert is_plain(slurm.jobs["7"])


def test_undo_stops_before_it_takes_types_from_a_job(slurm: SlurmFolder) -> None:
    slurm.write([placed()], ["n1"])
    slurm.set(refuse=["7"])
    with pytest.raises(SourceError, match="job 7 is bound to GPU types"):
        roll._restore_all(load_config(slurm.config))
    slurm.set(refuse=[])
    roll._restore_all(load_config(slurm.config))
    assert is_plain(slurm.jobs["7"])
