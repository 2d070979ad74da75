"""Guard of the head: what Slurm reserves, in use or not (26.05), and against which jobs."""

from typing import Any

import pytest
from make import context_of, slurm_job, slurm_node

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.selector.head_guard import HeadGuard, passing
from slurm_gpu_aware.slurm.records import SlurmReservation
from slurm_gpu_aware.slurm.updates import NewReservation


class Reservations:
    """Of one node with four GPUs."""

    def __init__(self, free: int, *, whole: bool) -> None:
        self.free, self.whole = free, whole
        self.there: dict[str, str] = {}
        self.created = 0

    def create_reservation(self, wanted: NewReservation) -> None:
        gpus = int(wanted.tres.split("=")[1].split(",")[0]) if wanted.tres else 0
        if gpus > self.free and not self.whole:
            raise SourceError("Slurm, create reservation: Requested nodes are busy")
        self.there[wanted.name] = str(wanted.tres)
        self.created += 1

    def shown(self) -> list[SlurmReservation]:
        """As Slurm lists them: one of whole nodes without a number of GPUs."""
        gpus = {n: int(t.split("=")[1].split(",")[0]) if t else None for n, t in self.there.items()}
        return [SlurmReservation(n, 0.0, 100.0, frozenset({"n1"}), gpus=g) for n, g in gpus.items()]

    def delete_reservation(self, name: str) -> None:
        del self.there[name]

    def move_reservation(self, name: str, end_s: float, **_: Any) -> bool:
        return name in self.there


@pytest.mark.parametrize("whole", [True, False])
def test_it_holds_the_free_gpus_where_slurm_refuses_those_in_use(whole: bool) -> None:
    slurm = Reservations(2, whole=whole)
    guard = HeadGuard(slurm)  # type: ignore[arg-type]
    for free in (1, 1, 2, 2):
        slurm.free = free
        guard.take_over(slurm.shown())
        guard.keep({"n1": (3, free, False)}, 100.0)
    held = 3 if whole else 2
    assert slurm.there == {"gpuaware_head_n1": f"gres/gpu={held},cpu={held}"}
    guard.keep({}, 100.0)
    assert slurm.there == {}


def test_it_holds_a_node_of_which_the_head_gets_all_gpus() -> None:
    slurm = Reservations(2, whole=False)
    guard = HeadGuard(slurm)  # type: ignore[arg-type]
    for _ in range(4):
        guard.take_over(slurm.shown())
        guard.keep({"n1": (4, 2, True)}, 100.0)
    assert slurm.there == {"gpuaware_head_n1": ""}
    assert slurm.created == 1


def test_nothing_is_reserved_where_no_gpu_is_free() -> None:
    slurm = Reservations(0, whole=False)
    guard = HeadGuard(slurm)  # type: ignore[arg-type]
    for _ in range(3):
        guard.keep({"n1": (3, 0, False)}, 100.0)
    assert slurm.there == {}


PARKED = {"admin_comment": "gpuaware/1;tn=gres/gpu:1;mc=1", "tres_per_node": "gres/gpu:1"}

OPENED = {"admin_comment": "gpuaware/1;tn=gres/gpu:1;mc=1;sel=left:0:1790000000"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tres_per_node": "gres/gpu:1"}, True),
        ({"tres_per_node": "gres/gpu:1", "partitions": ("cpu", "gpu")}, True),
        ({"tres_per_node": "gres/gpu:1", "partitions": ("cpu",)}, False),
        ({"tres_per_node": "gres/gpu:1", "state": "RUNNING"}, False),
        (PARKED, False),
        ({**PARKED, "exclusive": True}, False),
        ({**OPENED, "tres_per_node": "gres/gpu:1"}, True),
        (OPENED, True),  # Slurm hides the GPUs of a job in an update that it refuses
        ({"exclusive": True}, True),
        (
            {"exclusive_user": True},
            False,
        ),  # with one CPU it has the node, whatever is reserved there
        ({"exclusive": True, "priority": 0, "reason": "JobHeldUser"}, False),
        ({"exclusive": True, "dependency": "afterok:5(unfulfilled)"}, False),
        ({"exclusive": True, "reason": "BeginTime"}, False),
        ({"exclusive": True, "reason": "Resources"}, True),
        ({"exclusive": True, "partitions": ("cpu",)}, False),
        ({"partitions": ("own",)}, False),
        ({}, False),
    ],
)
def test_jobs_that_may_take_gpus_past_the_gate(fields: dict[str, Any], expected: bool) -> None:
    nodes = [slurm_node("n1"), slurm_node("c1", gpus=())]
    parts = {"gpu": ("n1",), "cpu": ("c1",), "own": ("n1",)}
    context = context_of(nodes, parts, exclusive_user={"own"})
    assert passing([slurm_job(**fields)], context) is expected
