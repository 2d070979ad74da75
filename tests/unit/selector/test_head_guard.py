"""Guard of the head where Slurm reserves no GPUs that are in use (26.05)."""

from typing import Any

import pytest

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.selector.head_guard import HeadGuard
from slurm_gpu_aware.slurm.updates import NewReservation


class Reservations:
    """Of one node with four GPUs."""

    def __init__(self, free: int, *, whole: bool) -> None:
        self.free, self.whole = free, whole
        self.there: dict[str, str] = {}

    def create_reservation(self, wanted: NewReservation) -> None:
        gpus = int(str(wanted.tres).split("=")[1].split(",")[0])
        if gpus > self.free and not self.whole:
            raise SourceError("Slurm, create reservation: Requested nodes are busy")
        self.there[wanted.name] = str(wanted.tres)

    def delete_reservation(self, name: str) -> None:
        del self.there[name]

    def move_reservation(self, name: str, end_s: float, **_: Any) -> bool:
        return name in self.there


@pytest.mark.parametrize("whole", [True, False])
def test_it_holds_the_free_gpus_where_slurm_refuses_those_in_use(whole: bool) -> None:
    slurm = Reservations(2, whole=whole)
    guard = HeadGuard(slurm)  # type: ignore[arg-type]
    for free in (2, 2, 3):
        slurm.free = free
        guard.keep({"n1": (4, free)}, 100.0)
    held = 4 if whole else 3
    assert slurm.there == {"gpuaware_head_n1": f"gres/gpu={held},cpu={held}"}
    guard.keep({}, 100.0)
    assert slurm.there == {}


def test_nothing_is_reserved_where_no_gpu_is_free() -> None:
    slurm = Reservations(0, whole=False)
    guard = HeadGuard(slurm)  # type: ignore[arg-type]
    for _ in range(3):
        guard.keep({"n1": (4, 0)}, 100.0)
    assert slurm.there == {}
