"""Due date of a waiting job, from its hints and options."""

from datetime import datetime

from slurm_gpu_aware.features.due_dates.declared import DUE, EPOCHS
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.model.facets import named
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.slurm.records import SlurmJob


def dated(hints: JobHints, job: SlurmJob, gpus: int, submit_s: float) -> dict[str, DueDate | None]:
    """The due date of a job's hints, else its ``--deadline``, as a facet of its request.

    A time without a zone is local time, as in Slurm's options. ``gpus``: those asked for;
    ``submit_s``: its first submission.
    """
    due, work = hints.get(DUE), hints.get(EPOCHS)
    if due is None:
        due_s = job.deadline_s
    elif isinstance(due, int):
        due_s = submit_s + due
    else:
        due_s = datetime.fromisoformat(due).timestamp()
    epochs = None if work is None else (work[0], gpus, float(work[1]))
    return named(DUE_DATE, None if due_s is None else DueDate(due_s, epochs=epochs))
