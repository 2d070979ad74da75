"""scontrol reconfigure on a simulated slurmctld that is slow, hangs, dies, or refuses."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest
from make import slurm_job

from slurm_gpu_aware.deploy import reconfiguration
from slurm_gpu_aware.deploy.reconfiguration import Reconfiguration
from slurm_gpu_aware.errors import SourceError, StoppedError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmJob, SlurmNode
from slurm_gpu_aware.slurm.updates import NewReservation

TIMED_OUT = "slurm_reconfigure error: Socket timed out on send/recv operation"


def view(name: str, states: set[str], start_s: float | None) -> SlurmNode:
    return SlurmNode(name, frozenset(states), frozenset(), (), frozenset(), slurmd_start_s=start_s)


@dataclass
class Slurm:
    """Nodes n1, n2 answer, n3 is down. Reading files takes a slurmctld and its slurmds a second."""

    clock: float = 0.0
    away_until: float = 0.0
    """slurmctld does not answer before."""
    registered_at: float = 0.0
    anew_at: float | None = None
    """When the slurmds begin anew, once slurmctld has told them."""
    tells: bool = True
    hangs: set[int] = field(default_factory=set)
    """Which reconfigures, from 1, do not come back."""
    admin_after: float = 100.0
    """Time from the hang to a restart of slurmctld; nodes register 5 s later."""
    restarts_slurmds: bool = False
    replies_first: bool = False
    """An answer comes even where it hangs then, as from a slurmctld in the foreground."""
    takes: float = 1.0
    refusal: str | None = None
    held_until: float = 0.0
    """When the reservation ends."""
    other_restarted: bool = False
    """The slurmd of n2 is restarted during a hang."""
    none_up: bool = False
    left_over: bool = False
    starting_until: float = 0.0
    """A job is being started until then."""
    sent: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reconfigured: int = 0
    started_while_reading: bool = False

    def asked(self, what: str) -> None:
        if self.clock < self.away_until:
            self.clock += min(20.0, self.away_until - self.clock)
            raise SourceError(f"Slurm, {what}: no answer within 20 s")
        self.clock += 0.02
        self.sent.append(what)

    # What `Reconfiguration` asks of the client

    def jobs(self) -> list[SlurmJob]:
        self.asked("jobs")
        self.sent.pop()
        starting = "Prolog" if self.clock < self.starting_until else "None"
        return [
            slurm_job(1, state="RUNNING", reason="None"),
            slurm_job(2, state="RUNNING", reason=starting),
        ]

    def create_reservation(self, wanted: NewReservation) -> None:
        self.asked("create")
        if self.left_over:
            raise SourceError("Duplicate reservation name")
        assert (wanted.nodes, wanted.start_s) == ("ALL", None)
        self.held_until = wanted.end_s

    def move_reservation(self, name: str, end_s: float, start_s: float | None = None) -> bool:
        self.asked("move")
        assert self.held_until > self.clock
        assert start_s is None
        self.held_until = end_s
        return True

    def delete_reservation(self, name: str) -> None:
        self.asked("delete")
        self.look()
        self.left_over = False
        self.held_until = 0.0

    def nodes(self) -> list[SlurmNode]:
        self.asked("nodes")
        return self.shown()

    # What `scontrol reconfigure` does

    def reconfigure(self, argv: list[str], timeout_s: float) -> None:
        assert argv == ["scontrol", "reconfigure"]
        self.asked("reconfigure")
        assert self.held_until > self.clock + 100
        assert self.clock >= self.starting_until + 0.7
        if self.refusal is not None:
            raise SourceError(self.refusal)
        self.reconfigured += 1
        if self.reconfigured in self.hangs:
            self.away_until = self.clock + self.admin_after
            self.registered_at = self.away_until + 5.0
            self.anew_at = self.registered_at if self.restarts_slurmds else None
            if self.replies_first:
                return
            self.clock += min(20.0, self.admin_after)
            raise SourceError(TIMED_OUT)
        self.away_until = self.clock + self.takes
        if self.tells:
            self.anew_at = self.registered_at = self.away_until + 1.0
        if self.takes > 20:
            self.clock += 20.0
            raise SourceError(TIMED_OUT)

    def look(self) -> None:
        """slurmctld may start jobs; do slurmds read their files?"""
        reading = self.anew_at is not None and self.clock < self.anew_at
        self.started_while_reading |= reading and self.clock >= self.away_until

    def shown(self) -> list[SlurmNode]:
        if self.clock >= self.held_until:
            self.look()
        start: float | None = 100.0
        if self.anew_at is not None and self.clock >= self.anew_at:
            start = 200.0
        if self.clock < self.registered_at:
            start = None
        down = view("n3", {"DOWN", "NOT_RESPONDING"}, 100.0)
        if self.none_up:
            return [down]
        other = 300.0 if self.other_restarted and self.clock >= self.registered_at > 0 else start
        return [view("n1", {"IDLE"}, start), view("n2", {"MIXED", "DRAIN"}, other), down]

    def pause(self, seconds: float) -> None:
        self.clock += seconds

    def run(
        self,
        ready: Callable[[], None] = lambda: None,
        node: str | None = "n1",
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        time = SimpleNamespace(
            time=lambda: self.clock, monotonic=lambda: self.clock, sleep=self.pause
        )
        with mock.patch.multiple(reconfiguration, time=time, run_command=self.reconfigure):
            client = cast("SlurmClient", self)
            Reconfiguration(client, self.said.append, stopping).run(ready, node)
        assert self.held_until <= self.clock
        assert not self.started_while_reading


def test_no_job_starts_before_the_slurmds_have_read_their_files():
    """One that is being started is waited for; a reservation that was left over is taken away."""
    slurm = Slurm(starting_until=4.0, left_over=True)
    slurm.run()
    assert slurm.sent[:6] == ["create", "delete", "create", "nodes", "move", "reconfigure"]
    assert slurm.sent[-1] == "delete"
    assert slurm.clock < 10
    assert slurm.said == []


def test_one_that_is_slow_is_not_asked_twice():
    """On a large cluster scontrol does not wait long enough for the answer."""
    slurm = Slurm(takes=70.0)
    slurm.run()
    assert slurm.reconfigured == 1
    assert len(slurm.said) == 1


@pytest.mark.parametrize("replies_first", [False, True])
@pytest.mark.parametrize("admin_after", [4.0, 28.0, 45.0, 500.0])
@pytest.mark.parametrize("hangs", [{1}, {1, 2}])
def test_hung_and_restarted(hangs: set[int], admin_after: float, replies_first: bool):
    """The slurmds were not told: once more, however early the answer and the restart came."""
    slurm = Slurm(hangs=hangs, admin_after=admin_after, replies_first=replies_first)
    slurm.run()
    assert slurm.reconfigured == len(hangs) + 1
    assert slurm.anew_at is not None
    advice = [line for line in slurm.said if "kill -9" in line]
    assert bool(advice) == (admin_after > 40)
    assert all("no answer within 20 s" in line for line in advice)
    if admin_after == 500.0:
        assert 6 * len(hangs) <= len(advice) <= 9 * len(hangs)


def test_an_admin_who_restarts_the_slurmds_too_has_done_it():
    slurm = Slurm(hangs={1}, restarts_slurmds=True)
    slurm.run()
    assert slurm.reconfigured == 1


def test_another_slurmd_that_is_restarted_does_not_count():
    slurm = Slurm(hangs={1}, other_restarted=True)
    slurm.run(node="n1")
    assert slurm.reconfigured == 2


def test_where_no_slurmd_answers_no_slurmd_is_told():
    slurm = Slurm(hangs={1}, none_up=True)
    slurm.run(node=None)
    assert slurm.reconfigured == 1


def test_one_that_answers_now_and_then_does_not_block_for_ever(monkeypatch: pytest.MonkeyPatch):
    """And Ctrl-C is heard."""
    monkeypatch.setattr(Reconfiguration, "TRIES", 1)

    class Flapping(Slurm):
        def shown(self) -> list[SlurmNode]:
            if self.reconfigured and self.anew_at is None:
                self.away_until = self.clock + 19.0
            return super().shown()

    slurm = Flapping(tells=False)
    with pytest.raises(SourceError, match="given up after 1 tries"):
        slurm.run()
    assert slurm.clock < 2000
    slurm = Flapping(tells=False)
    with pytest.raises(StoppedError):
        slurm.run(stopping=lambda: slurm.clock > 100)
    assert slurm.clock < 150


def test_never_told():
    slurm = Slurm(hangs={1, 2, 3})
    with pytest.raises(SourceError, match=r"given up after 3 tries.*Socket timed out"):
        slurm.run()
    assert slurm.held_until <= slurm.clock


@pytest.mark.parametrize(
    "refusal",
    [
        "slurm_reconfigure error: Invalid user id",
        "Access denied, contact your administrator",
        "error configuring interconnect",
        "Unable to process configuration file",
    ],
)
def test_a_refusal_is_told_at_once(refusal: str):
    slurm = Slurm(refusal=refusal)
    with pytest.raises(SourceError, match=refusal):
        slurm.run()
    assert slurm.sent.count("reconfigure") == 1
    assert slurm.held_until <= slurm.clock


def test_given_up_by_a_person():
    """Not before the advice is given; the reservation need not be deleted."""
    slurm = Slurm(hangs={1}, admin_after=1e6)
    with pytest.raises(StoppedError, match="slurmctld does not answer"):
        slurm.run(stopping=lambda: True)
    assert len(slurm.said) == 1
    assert 30 <= slurm.clock <= 80
    assert "delete" not in slurm.sent


def test_what_speaks_against_it_is_asked_before_each_try():
    slurm = Slurm(hangs={1})

    def ready() -> None:
        if slurm.reconfigured:
            raise SourceError("an admin resumed it meanwhile")

    with pytest.raises(SourceError, match="resumed"):
        slurm.run(ready)
    assert slurm.reconfigured == 1
    assert slurm.held_until <= slurm.clock


def test_slurmds_that_do_not_begin_anew_are_not_waited_for_for_ever():
    """Slurm said yes and was not away: the node's registration shows what is wrong."""
    slurm = Slurm(tells=False, takes=0.0)
    slurm.run()
    assert slurm.reconfigured == 1
    assert 20 <= slurm.clock <= 30
