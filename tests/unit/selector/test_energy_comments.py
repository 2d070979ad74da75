"""Energy in Slurm's accounting, with a fake sacct and sacctmgr."""

import threading

import pytest
from store_samples import decision, started

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.features.energy.accounts import EnergyComments
from slurm_gpu_aware.features.energy.declared import EnergyConfig
from slurm_gpu_aware.store.ledger import Event


def energy(node="n1", joules=1.8e6, **detail):
    known = {"node": node, "gpus": [0, 1], "restarts": 0, "energy_j": joules, "seconds": 600.0}
    return Event("7", "energy", known | detail, 1.0)


class Accounting:
    """What sacct says, and the sacctmgr calls that were made."""

    def __init__(self, said="7|7|\n", fails=False):
        self.said, self.fails = said, fails
        self.changed, self.asked = [], threading.Semaphore(0)

    def run(self, argv, timeout_s, stdin=""):
        try:
            if self.fails:
                raise SourceError("sacct: no answer within 20 s")
            if argv[0] == "sacct":
                return self.said, ""
            assert argv == ["sacctmgr", "-i", "-Q"]
            self.changed += stdin.splitlines()
            return "", ""
        finally:
            self.asked.release()

    def wait(self, calls):
        for _ in range(calls):
            assert self.asked.acquire(timeout=60)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def comments(events, accounting, decisions=(), **settings):
    clock = Clock()
    events = [started(*(event.detail["node"] for event in events)), *events]
    asked = (lambda job_id: events), (lambda job_id: decisions)
    config = Config().put(EnergyConfig(**settings))
    return EnergyComments(*asked, config, accounting.run, clock, 0.05), clock


def hand_over_after(energies, clock, accounting, *job_ids, calls=2):
    """Jobs have ended, and a minute later their energy has been handed over."""
    for job_id in job_ids or ("7",):
        energies.heard(job_id)
    clock.now += 60.0
    energies.hand_over()
    accounting.wait(calls)


def test_the_sum_of_all_nodes_is_written_once_when_they_have_recorded():
    accounting = Accounting()
    energies, clock = comments([energy("n1"), energy("n2")], accounting)
    energies.heard("7")
    clock.now = 5.0
    energies.heard("7")
    energies.hand_over()
    clock.now = 12.0
    energies.hand_over()
    assert accounting.changed == []
    clock.now = 15.0
    energies.hand_over()
    accounting.wait(2)
    assert accounting.changed == [
        "modify job where jobid=7 set SystemComment=gpu_energy=1.000000kWh"
    ]
    energies.hand_over()
    assert len(accounting.changed) == 1


def test_a_part_that_is_not_known_is_said():
    accounting = Accounting("7|7|gpu_energy=0.100kWh\n")
    unknown = energy("n2", error="no counter", energy_j=None)
    energies, clock = comments([energy("n1"), unknown], accounting)
    hand_over_after(energies, clock, accounting)
    assert accounting.changed == [
        "modify job where jobid=7 set SystemComment=gpu_energy>=0.500000kWh"
    ]


def test_many_jobs_cost_two_commands():
    """One with another text, and one that the accounting does not know, keep none from it."""
    accounting = Accounting("3_1|4|\n3_2|5|stage-in done\n7|7|gpu_energy=1.000kWh\n")
    energies, clock = comments([energy()], accounting)
    hand_over_after(energies, clock, accounting, "3_1", "3_2", "6", "7")
    assert accounting.changed == [
        f"modify job where jobid={number} set SystemComment=gpu_energy=0.500000kWh"
        for number in (4, 7)
    ]


@pytest.mark.parametrize("said", ["7|7|stage-in done\n", "", "\n", "7|no|\n", "7|7;x|\n", "9|7|\n"])
def test_another_text_stays_and_an_unknown_job_is_left(said):
    accounting = Accounting(said)
    energies, clock = comments([energy()], accounting)
    hand_over_after(energies, clock, accounting, calls=1)
    hand_over_after(energies, clock, accounting, "8", calls=1)
    assert accounting.changed == []


def test_an_accounting_that_does_not_answer_is_named_once(caplog):
    accounting = Accounting(fails=True)
    energies, clock = comments([energy()], accounting)
    for job_id in ("7", "8", "9"):
        hand_over_after(energies, clock, accounting, job_id, calls=1)
    assert caplog.text.count("is not in Slurm's accounting: sacct: no answer") == 1


def test_what_the_clock_has_saved_is_named():
    """At a clock that saves a fifth, 0.5 kWh are 0.125 kWh less."""
    why = {"energy": {"clock_mhz": 1110, "saves": 0.2, "slower": 0.02, "at_most": 0.03}}
    accounting = Accounting()
    energies, clock = comments([energy()], accounting, [decision("7", why=why)])
    hand_over_after(energies, clock, accounting)
    (changed,) = accounting.changed
    assert changed.endswith("SystemComment=gpu_energy=0.500000kWh,gpu_saved=0.125000kWh")


@pytest.mark.parametrize("kept", ["", "stage-in done"])
def test_the_energy_of_alloc_tres_is_set_where_all_of_it_is_known(kept):
    accounting = Accounting(f"7|7|{kept}\n")
    energies, clock = comments([energy()], accounting, alloc_tres=True)
    hand_over_after(energies, clock, accounting)
    assert accounting.changed[-1] == "modify job where jobid=7 set TRES=energy=1800000"
    assert len(accounting.changed) == (1 if kept else 2)
    accounting = Accounting()
    energies, clock = comments([energy(), energy("n2", None)], accounting, alloc_tres=True)
    hand_over_after(energies, clock, accounting)
    assert "TRES" not in "".join(accounting.changed)
