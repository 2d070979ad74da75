"""Rounds over a Slurm of our own, with clocks of the test's own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slurm_folder import SlurmFolder, parked

from slurm_gpu_aware.config.settings import Config, EventsConfig
from slurm_gpu_aware.features.estimates.history import RunHistory
from slurm_gpu_aware.features.estimates.live import Estimates
from slurm_gpu_aware.selector.holding_pool import HoldingPool
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.round import Rounds
from slurm_gpu_aware.selector.round_state import Outcome
from slurm_gpu_aware.slurm.updates import JobUpdate

__all__ = ["RoundsBench", "placed_and_stuck", "reads", "reasons_of", "rounds_with"]


class RoundsBench:
    """Rounds over a Slurm of our own; ``wall`` may be set, ``steady`` runs on.

    ``told``: the updates that were sent, each with the steady time; each takes ``update_s``.
    """

    def __init__(
        self, slurm: SlurmFolder, config: Config | None = None, history: RunHistory | None = None
    ) -> None:
        self.wall, self.steady = 1_790_000_000.0, 5000.0
        self.update_s = 0.0
        self.told: list[tuple[float, JobUpdate]] = []
        self.client = client = slurm.client()
        send = client.update_jobs

        def update_jobs(updates: Sequence[JobUpdate]) -> dict[str, str]:
            self.told += [(self.steady, update) for update in updates]
            self.steady += self.update_s * len(updates)
            return send(updates)

        client.update_jobs = update_jobs  # type: ignore[method-assign]
        self.ledger = LedgerWriter(slurm.store, clock=lambda: self.steady)
        self.pool = HoldingPool(
            client, clock=lambda: self.wall, timer=lambda: self.steady, saved_s=0.0
        )
        config = config or Config()
        if config.events == EventsConfig():  # a site may have a selector on this host
            config = replace(config, events=EventsConfig(slurm.home / "submitted"))
        self.config = config
        self.rounds = Rounds(
            client,
            config,
            self.ledger,
            gate_held_until=lambda: self.wall + 60.0,
            pool=self.pool,
            clock=lambda: self.wall,
            timer=lambda: self.steady,
        )
        if history is not None:
            self.rounds.site.of(Estimates).reader.history = history

    def run(self, later_s: float = 0.0) -> Outcome:
        """A round, so much later by the steady clock."""
        self.steady += later_s
        return self.rounds.run()

    def poll(self, later_s: float = 0.0) -> int:
        """A poll of released jobs, so much later; for how many a round has to look."""
        self.steady += later_s
        return self.rounds.start_monitor.poll()

    def turn(self, later_s: float = 0.0) -> Outcome:
        """A round, so much later, and a poll after it."""
        outcome = self.run(later_s)
        self.poll()
        return outcome

    def wait(self, seconds: float) -> None:
        """Let time pass by both clocks."""
        self.steady, self.wall = self.steady + seconds, self.wall + seconds

    def closed(self, job_id: str) -> list[float]:
        """Steady times at which the job's gate was closed."""
        return [
            at
            for at, update in self.told
            if update.job_id == job_id and dict(update.fields).get("Licenses") == "gpuaware:1"
        ]


def rounds_with(
    slurm: SlurmFolder, *jobs: dict[str, Any], nodes: Sequence[str] = ("n1",)
) -> RoundsBench:
    """Rounds of a site with these jobs and nodes."""
    slurm.write(list(jobs), list(nodes))
    return RoundsBench(slurm)


def placed_and_stuck(slurm: SlurmFolder) -> RoundsBench:
    """Jobs 7 and 8 have been placed and cannot start yet."""
    slurm.write([parked(stuck=True), parked("8", stuck=True)], ["n1"])
    bench = RoundsBench(slurm)
    assert sorted(bench.rounds.run().placed) == ["7", "8"]
    slurm.forget_calls()
    return bench


def reasons_of(outcome: Outcome) -> dict[str, str]:
    """Why the other jobs of a round wait."""
    return {entry["job_id"]: entry["reason"] for entry in outcome.waiting}


def reads(slurm: SlurmFolder) -> list[str]:
    """What was read of jobs since their calls were forgotten, in order."""
    return [" ".join(call) for call in slurm.calls if call[0] in ("jobs", "job")]
