"""A selector without any feature places the jobs that it can, as they ask."""

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware import features
from slurm_gpu_aware.admission import translate
from slurm_gpu_aware.planning.record import read_round, replay


def leave_out_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FEATURES", ())
    for parts in ("ASKED", "FITTED"):
        monkeypatch.setattr(translate, parts, ())


def test_jobs_with_hints_of_missing_features_are_placed_as_plain_ones(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"comment": "due=36h,gpus=1-2,move=ok,freq=auto"}
    slurm.write([parked("7", stuck=True), parked("8", stuck=True, **asks)], ["n1"])
    leave_out_all(monkeypatch)
    bench = RoundsBench(slurm)
    bench.rounds.planner.features = ()
    assert not bench.rounds.lives.all
    outcome = bench.run()
    assert sorted(outcome.placed) == ["7", "8"]
    assert slurm.jobs["8"]["tres_per_node"].count("gpu:g") == 2  # as many as it asks for
    assert outcome.planned is not None
    content = outcome.planned()
    assert content["asked"].keys() == {"now", "settings", "options", "queue", "cluster"}
    assert replay(read_round(content, ()), ()) == []


def test_shards_are_left_to_slurm(slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of shards was planned as one of a whole GPU, on nodes without typed shards, too."""
    record = "gpuaware/1;tn=gres/shard:2;mc=1"
    job = parked(tres_per_node="gres/shard:2", admin_comment=record, tres_req_str="cpu=1")
    slurm.write([job], ["n1"])
    leave_out_all(monkeypatch)
    bench = RoundsBench(slurm)
    bench.rounds.planner.features = ()
    bench.run()
    told = slurm.jobs["7"]
    assert (told["licenses"], told["tres_per_node"]) == ("", "gres/shard:2")
    assert "st=by-Slurm" in told["admin_comment"]
