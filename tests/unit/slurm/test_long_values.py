"""Values of users that are long, or large, take no time, no memory and no other job's place."""

from types import SimpleNamespace
from typing import Any

import pytest
from cpu_time import least_cpu_s

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.libslurm import Libslurm, SlurmError
from slurm_gpu_aware.slurm.libslurm_fields import JOB
from slurm_gpu_aware.slurm.read_jobs import job_of
from slurm_gpu_aware.slurm.words import expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1" + "," * 60_000, ("n1",)),
        ("n1" + " " * 60_000, ("n1",)),
        ("n[" + "1-4," * 15_000 + "1]", ("n1", "n2", "n3", "n4")),
        ("n[1-4]," * 9_000, ("n1", "n2", "n3", "n4")),
    ],
)
def test_long_host_lists_are_read_at_once(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names
    assert least_cpu_s(lambda: expand_hostlist(text), 1) < 1


@pytest.mark.parametrize(
    "text",
    [
        "n[" * 30_000,
        "[" * 60_000,
        "n[1" + "," * 60_000,
        "n[1-2]" * 10_000,
        "[0-65535]" * 7_000,
        "n[0-65536]",
        ",".join(f"n[0-{most}]" for most in range(9_000)),
    ],
)
def test_long_host_lists_are_refused_at_once(text: str) -> None:
    def refused() -> None:
        with pytest.raises(SourceError):
            expand_hostlist(text)

    assert least_cpu_s(refused, 1) < 1


def record(**changed: Any) -> dict[str, Any]:
    """A pending job by the names of `libslurm_fields.JOB`."""
    fields: dict[str, Any] = dict.fromkeys(JOB.numbers, -2) | dict.fromkeys(JOB.texts, "")
    fields |= {"job_id": 5, "array_job_id": 0, "state": "PENDING", "partition": "gpu"}
    fields |= {"core_spec": -2, "oversized": 0, "bitflags": 0}
    return fields | changed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tres_req_str", "cpu=1,mem=16?,node=1"),  # sbatch --mem=18446744073709551614
        ("req_nodes", "n[0-99999]"),
        ("exc_nodes", "n["),
    ],
)
def test_a_value_beyond_measure_concerns_its_job_alone(field: str, value: str) -> None:
    """It is read, so that all records are known, and left to Slurm."""
    job = job_of(record(**{field: value}))
    assert len(job.unsupported) == 1
    assert job_of(record()).unsupported == ()


def test_a_plugin_that_refuses_an_update_has_answered() -> None:
    """A site's job_submit.lua returns ERROR (-1): that job is refused, the others go on."""
    library = Libslurm.__new__(Libslurm)
    library.lib = SimpleNamespace(slurm_strerror=lambda code: code, ESLURM_IN_STANDBY_MODE=7000)
    library.ffi = SimpleNamespace(string=lambda code: b"Unspecified error")
    with pytest.raises(SlurmError) as raised:
        library.check(-1, "update of job 5")
    assert raised.value.refused
