"""The table of a gated job's phases."""

from slurm_gpu_aware.model.job_phase import OPEN_DECISION, TRANSITIONS, JobPhase
from slurm_gpu_aware.store.ledger import STATES


def test_every_phase_stands_in_the_table() -> None:
    assert set(TRANSITIONS) == set(JobPhase)
    assert all(why for after in TRANSITIONS.values() for why in after.values())


def test_every_phase_is_reached_and_only_an_end_is_final() -> None:
    reached, new = set(), {JobPhase.WAITING}
    while new:
        reached |= new
        new = {after for phase in new for after in TRANSITIONS[phase]} - reached
    assert reached == set(JobPhase)
    assert [phase for phase, after in TRANSITIONS.items() if not after] == [JobPhase.ENDED]
    assert all(phase not in after for phase, after in TRANSITIONS.items())


def test_the_ledger_speaks_of_phases() -> None:
    assert set(STATES) <= set(JobPhase)
    assert set(OPEN_DECISION) == set(STATES) - {JobPhase.WAITING, JobPhase.ENDED}
