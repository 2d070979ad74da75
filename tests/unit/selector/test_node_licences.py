"""Licences that Slurm counts for groups of nodes (resources.yaml), and for the whole cluster."""

from types import SimpleNamespace

import pytest
from make import as_gated, slurm_job

from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.selector.licences import Licences
from slurm_gpu_aware.slurm.records import SlurmLicense

LEFT, RIGHT = frozenset({"n1", "n2"}), frozenset({"n3", "n4"})


def licences(**free: int) -> Licences:
    """``power`` of n[1-2] and n[3-4], ``matlab`` of all nodes: free ones."""
    found = [
        SlurmLicense("power", free.get("left", 0), nodes=LEFT),
        SlurmLicense("power", free.get("right", 0), nodes=RIGHT),
        SlurmLicense("matlab", free.get("matlab", 0)),
    ]
    return Licences(SimpleNamespace(licenses=lambda: found))  # type: ignore[arg-type]


def parked_with(licence: str, on: tuple[str, ...] = (), off: tuple[str, ...] = ()) -> GatedJob:
    record = f"gpuaware/1;tn=gres/gpu:1;lic={licence}"
    return as_gated(slurm_job(admin_comment=record, req_nodes=on, exc_nodes=off))


@pytest.mark.parametrize(
    ("job", "lacks"),
    [
        (parked_with("power:1"), False),
        (parked_with("power:2"), True),
        (parked_with("power:1", on=("n2",)), True),
        (parked_with("power:1", on=("n2", "n3")), False),
        (parked_with("power:1", off=("n3",)), False),
        (parked_with("power:1", off=("n3", "n4")), True),
        (parked_with("power:1", on=("n9",)), False),  # Slurm knows why
        (parked_with("matlab:1", on=("n2",)), True),
        (parked_with("unknown:1"), False),
    ],
    ids=str,
)
def test_a_job_lacks_a_licence_that_is_free_on_none_of_its_nodes(
    job: GatedJob, lacks: bool
) -> None:
    """Else its gate opens in vain, and jobs behind it take the licence when it comes back."""
    lacking = licences(right=1).lacking(job, ())
    assert lacking == (job.original.licenses.partition(":")[0] if lacks else None)


def test_a_licence_of_a_round_goes_to_one_job() -> None:
    free = licences(left=1, right=1, matlab=1)
    free.use(parked_with("power:1", on=("n1",)))
    assert free.lacking(parked_with("power:1", on=("n2",)), ()) == "power"
    assert free.lacking(parked_with("power:1", on=("n3",)), ()) is None
    free.use(parked_with("power:1,matlab:1"))  # Slurm chooses where
    assert free.lacking(parked_with("power:1", on=("n3",)), ()) == "power"
    assert free.lacking(parked_with("matlab:1"), ()) == "matlab"
