"""A selector without any feature places the jobs that it can, as they ask."""

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware import features
from slurm_gpu_aware.planning.record import read_round, replay


def test_jobs_with_hints_of_missing_features_are_placed_as_plain_ones(
    slurm: SlurmFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"comment": "due=36h,gpus=1-2,move=ok,freq=auto"}
    slurm.write([parked("7", stuck=True), parked("8", stuck=True, **asks)], ["n1"])
    monkeypatch.setattr(features, "FEATURES", ())
    bench = RoundsBench(slurm)
    bench.rounds.planner.features = ()
    assert not bench.rounds.lives.all
    outcome = bench.rounds.run()
    assert sorted(outcome.placed) == ["7", "8"]
    assert slurm.jobs["8"]["tres_per_node"].count("gpu:g") == 2  # as many as it asks for
    assert outcome.planned is not None
    content = outcome.planned()
    assert content["asked"].keys() == {"now", "settings", "options", "queue", "cluster"}
    assert replay(read_round(content, ()), ()) == []
