"""Parking again, with clocks of the test's own."""

from __future__ import annotations

import pytest
from rounds_bench import RoundsBench
from slurm_folder import SlurmFolder, parked


def test_a_clock_that_is_set_back_keeps_no_job_pinned(slurm: SlurmFolder) -> None:
    slurm.write([parked(stuck=True)], ["n1"])
    bench = RoundsBench(slurm)
    bench.rounds.run()
    slurm.change("7", reason="Resources")
    assert slurm.jobs["7"]["req_nodes"] == "n1"
    bench.wall -= 3600.0
    bench.steady += 31.0
    bench.rounds.run()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    assert slurm.jobs["7"]["req_nodes"] == ""
    slurm.change("7", reason="Licenses")
    bench.steady += 59.0
    assert bench.rounds.run().placed == []
    bench.steady += 2.0
    assert bench.rounds.run().placed == ["7"]


@pytest.mark.parametrize(
    ("reason", "placed"),
    [
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", ["7"]),
        ("ReqNodeNotAvail,_Reserved_for_maintenance", []),
        ("Dependency", []),
    ],
)
def test_a_node_that_another_job_waits_for_holds_nobody(
    slurm: SlurmFolder, reason: str, placed: list[str]
) -> None:
    """Slurm gives the reason at submission and looks again only after a while."""
    slurm.write([parked(reason=reason)], ["n1"])
    assert RoundsBench(slurm).rounds.run().placed == placed


@pytest.mark.parametrize(
    ("reason", "left"),
    [("Resources", True), ("BadConstraints", True), ("QOSMaxGRESPerUser", False)],
)
def test_a_bound_job_is_slurms_only_if_its_place_kept_it(
    slurm: SlurmFolder, reason: str, left: bool
) -> None:
    """Slurm alone knows all of what it looks at for sockets; a limit says nothing about these."""
    comment = "gpuaware/1;tn=gres/gpu:1;nt=1"
    slurm.write([parked(admin_comment=comment, bitflags=1 << 4, stuck=True)], ["n1"])
    bench = RoundsBench(slurm)
    assert bench.rounds.run().placed == ["7"]
    slurm.change("7", reason=reason)
    bench.steady += 31.0
    bench.rounds.run()
    assert slurm.jobs["7"]["licenses"] == "gpuaware:1"
    slurm.change("7", reason="Licenses")
    bench.steady += 61.0
    assert bench.rounds.run().placed == ([] if left else ["7"])
    assert slurm.jobs["7"]["licenses"] == ""
    assert (";sel=hand:" in slurm.jobs["7"]["admin_comment"]) is left


@pytest.mark.parametrize(("seconds", "parked_again"), [(-30, 0), (0, 0), (1, 1)])
def test_a_licence_that_another_job_took_first(
    slurm: SlurmFolder, seconds: int, parked_again: int
) -> None:
    """The gate's own reason is shown until Slurm has looked; afterwards it means another licence.

    Slurm tells whole seconds: the one in which the gate was opened says nothing.
    """
    slurm.write([parked(stuck=True)], ["n1"])
    bench = RoundsBench(slurm)
    bench.wall += 0.4
    assert bench.rounds.run().placed == ["7"]
    slurm.change("7", reason="Licenses", last_sched_eval=int(bench.wall) + seconds)
    bench.steady += 1.0
    assert bench.rounds.start_monitor.look() == parked_again
    if not parked_again:
        bench.steady += 4.5
        assert bench.rounds.start_monitor.look() == 1
