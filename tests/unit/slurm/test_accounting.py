"""What the settings of slurm.conf keep out of the accounting, with the line to add."""

import pytest

from slurm_gpu_aware.slurm.accounting import OFF, gaps_of

WHOLE = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpumem",
    "AccountingStoreFlags": "job_comment,job_extra",
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"AccountingStorageType": "slurmdbd"},
        {"AccountingStorageTRES": "GRES/gpu"},
        {"AccountingStorageTRES": "gres/gpu:a100,gres/gpu"},
        {"AccountingStoreFlags": "Job_Comment"},
    ],
)
def test_a_whole_accounting_lacks_nothing(changes: dict[str, str]) -> None:
    assert list(gaps_of({**WHOLE, **changes}.get)) == []


@pytest.mark.parametrize("kind", [None, "(null)", "accounting_storage/none"])
def test_without_slurmdbd_nothing_else_is_asked_for(kind: str | None) -> None:
    """gres/gpu alone would be fatal for slurmctld."""
    settings = {"AccountingStorageType": kind}
    assert list(gaps_of(settings.get)) == [OFF]
    assert "AccountingStorageType=accounting_storage/slurmdbd" in str(OFF)


@pytest.mark.parametrize(
    ("tres", "line", "cost"),
    [
        (None, "=gres/gpu,", "find no job with GPUs"),
        ("(null)", "=gres/gpu,", "find no job with GPUs"),
        ("cpu,mem,energy,node,billing,fs/disk,vmem,pages", "=gres/gpu,", "find no job"),
        ("cpu,license/matlab,gres/gpumem", "=license/matlab,gres/gpu,", "find no job"),
        ("gres/gpu:a100", "=gres/gpu:a100,gres/gpu,", "such as g0 of an indexed node"),
    ],
)
def test_gpus_that_are_not_recorded(tres: str | None, line: str, cost: str) -> None:
    (gap,) = gaps_of({**WHOLE, "AccountingStorageTRES": tres}.get)
    assert gap.found == "AccountingStorageTRES in slurm.conf has no gres/gpu"
    assert f"add AccountingStorageTRES{line}" in gap.cure
    assert cost in gap.cost


@pytest.mark.parametrize(
    ("flags", "line"),
    [(None, "=job_comment,"), ("(null)", "=job_comment,"), ("job_env", "=job_env,job_comment,")],
)
def test_comments_that_are_not_recorded(flags: str | None, line: str) -> None:
    (gap,) = gaps_of({**WHOLE, "AccountingStoreFlags": flags}.get)
    assert gap.found.endswith("has no job_comment")
    assert f"add AccountingStoreFlags{line}" in gap.cure
