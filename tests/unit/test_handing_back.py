"""Placed jobs that wait are given back to Slurm when the selector is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from fake_slurm import FakeSlurm, parked

from slurm_gpu_aware.cli import roll
from slurm_gpu_aware.cli.main import cli
from slurm_gpu_aware.config import Config, StoreConfig, load_config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.service.alone import LOCK, alone
from slurm_gpu_aware.service.handing_back import HandedBack, hand_back
from slurm_gpu_aware.slurm.cli_gateway import CliGateway
from slurm_gpu_aware.slurm.client import JobUpdate

PINS = {"ReqNodeList": "n1", "TresPerNode": "gres/gpu:g0:1,gres/gpu:g1:1"}
RECORD = "gpuaware/1;tn=gres/gpu:2;mc=1"


def back(slurm: FakeSlurm) -> HandedBack:
    return hand_back(
        CliGateway(scontrol=slurm.scontrol), Config(store=StoreConfig(path=slurm.store))
    )


def placed(job_id: str = "7", mark: str = "released", **fields: Any) -> dict[str, Any]:
    """A job that was placed and cannot start."""
    usual = {"Licenses": "(null)", "AdminComment": f"{RECORD};sel={mark}:0:1", "stuck": "1"}
    return parked(job_id, **{**PINS, **usual, **fields})


def is_plain(job: dict[str, Any]) -> bool:
    return (job["ReqNodeList"], job["TresPerNode"]) == ("(null)", "gres/gpu:2")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Reason": "BeginTime", "Restarts": "1"},
        {"mark": "prepared", "Licenses": "gpuaware:1"},
        {"mark": "hand"},
        {"Licenses": "matlab:2", "AdminComment": f"{RECORD};lic=matlab:2;sel=released:0:1"},
    ],
    ids=["placed", "requeued", "prepared", "by hand", "licences"],
)
def test_a_placed_job_that_waits_gets_its_request_back(
    slurm: FakeSlurm, fields: dict[str, str]
) -> None:
    slurm.write([placed(**fields)], ["n1"])
    assert back(slurm).opened == ["7"]
    job = slurm.jobs["7"]
    assert is_plain(job)
    assert job["Licenses"] == ("matlab:2" if "matlab" in fields.get("Licenses", "") else "(null)")
    assert ";sel=hand:" in job["AdminComment"]
    assert back(slurm) == HandedBack()


def test_others_are_not_touched(slurm: FakeSlurm) -> None:
    foreign = parked("8", Licenses="(null)", AdminComment="site note", stuck="1", **PINS)
    running = placed("9", JobState="RUNNING", NodeList="n1", slots=[0, 1])
    slurm.write([foreign, running, parked("10")], ["n1"])
    before = slurm.jobs
    assert back(slurm) == HandedBack()
    assert slurm.jobs == before


def test_what_the_selector_looks_after_is_left_to_it(slurm: FakeSlurm) -> None:
    slurm.write([placed()], ["n1"])
    before = slurm.jobs
    with alone(slurm.store.parent / LOCK):
        found = back(slurm)
    assert (found.kept, found.opened) == (["7"], [])
    assert "another selector runs" in found.kept_why
    assert slurm.jobs == before
    assert back(slurm).opened == ["7"]


def test_a_job_that_cannot_be_given_back_is_named(slurm: FakeSlurm) -> None:
    slurm.write([placed(), placed("8")], ["n1"])
    (slurm.home / "refuse").write_text("7")
    found = back(slurm)
    assert (found.opened, list(found.wrong)) == (["8"], ["7"])


def test_what_keeps_its_pins_stays_closed(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.write([placed()], ["n1"])
    update = CliGateway.update_jobs

    def refusing(gateway: CliGateway, updates: Sequence[JobUpdate]) -> dict[str, str]:
        kept = [u for u in updates if "ReqNodeList" not in dict(u.fields)]
        refused = {u.job_id: "Access denied" for u in updates if u not in kept}
        return refused | update(gateway, kept)

    monkeypatch.setattr(CliGateway, "update_jobs", refusing)
    assert list(back(slurm).wrong) == ["7"]
    assert slurm.jobs["7"]["Licenses"] == "gpuaware:1"
    monkeypatch.setattr(CliGateway, "update_jobs", update)
    assert back(slurm).opened == ["7"]
    assert is_plain(slurm.jobs["7"])


def test_a_gate_that_was_made_for_it_is_taken_away(slurm: FakeSlurm) -> None:
    slurm.write([placed()], ["n1"])
    (slurm.home / "no-reservation").touch()
    (slurm.home / "reservations").touch()
    assert back(slurm).opened == ["7"]
    assert (slurm.home / "reservations").read_text() == ""


def test_the_ledger_knows_a_job_whose_comment_was_overwritten(slurm: FakeSlurm) -> None:
    slurm.write([parked(stuck="1")], ["n1"])
    slurm.round()
    assert not is_plain(slurm.jobs["7"]), slurm.said
    slurm.change("7", Restarts="1", AdminComment="JS1:H4sIAAAA")
    assert back(slurm).opened == ["7"]
    assert is_plain(slurm.jobs["7"])
    assert slurm.jobs["7"]["AdminComment"] == "JS1:H4sIAAAA"


def test_release_all_takes_placed_jobs_too(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    slurm.write([placed(), parked("8", stuck="1")], ["n1"])
    command = ["--config", str(slurm.config), "release", "--all"]
    done = CliRunner().invoke(cli, command)
    assert (done.exit_code, done.stdout) == (0, "8\n7\n")
    assert is_plain(slurm.jobs["7"])


def test_undo_stops_before_it_takes_types_from_a_job(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", slurm.environment["PATH"])
    slurm.write([placed()], ["n1"])
    (slurm.home / "refuse").write_text("7")
    with pytest.raises(SourceError, match="job 7 is bound to GPU types"):
        roll._hand_back(load_config(slurm.config))
    (slurm.home / "refuse").unlink()
    roll._hand_back(load_config(slurm.config))
    assert is_plain(slurm.jobs["7"])
