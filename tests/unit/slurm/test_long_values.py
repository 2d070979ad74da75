"""Values of users that are long, or large, take no time, no memory and no other job's place."""

import pytest
from cpu_time import least_cpu_s
from memory_slurm import job_record

from slurm_gpu_aware.errors import SourceError
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
    assert len(job_of(job_record(**{field: value})).unsupported) == 1
    assert job_of(job_record()).unsupported == ()
