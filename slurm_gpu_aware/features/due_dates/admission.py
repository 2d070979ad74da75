"""Due date of a waiting job, from its hints and options."""

from datetime import datetime

from slurm_gpu_aware.admission.context import QueueEntry
from slurm_gpu_aware.features.due_dates.declared import DUE, EPOCHS
from slurm_gpu_aware.features.due_dates.due_date import DUE_DATE, DueDate
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request


def dated(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request with the due date of the job's hints, else with its ``--deadline``.

    It counts from the first submission. A time without a zone is local time, as in Slurm's options.
    """
    due, work, before = hints.get(DUE), hints.get(EPOCHS), entry.before_move
    if due is None:
        due_s = entry.job.deadline_s
    elif isinstance(due, int):
        due_s = due + (entry.job.submit_s if before is None else before.submit_s)
    else:
        due_s = datetime.fromisoformat(due).timestamp()
    if due_s is None:
        return request
    epochs = None if work is None else (work[0], request.gpus, float(work[1]))
    return request.put(DUE_DATE, DueDate(due_s, epochs=epochs))


ASKED = dated
