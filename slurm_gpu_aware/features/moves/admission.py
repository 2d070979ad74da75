"""What a job says about moves, and what its request says of a job that was moved."""

from slurm_gpu_aware.admission.context import QueueEntry
from slurm_gpu_aware.admission.hints import hints_of
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.features.moves.declared import HAD_GPUS, MOVE, MovesConfig
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.job_hints import JobHints
from slurm_gpu_aware.model.request import Request
from slurm_gpu_aware.slurm.gres import shards_of


def after_move(request: Request, entry: QueueEntry, hints: JobHints) -> Request:
    """The request with the GPUs that the job had before its move."""
    before = entry.before_move
    return request if before is None else request.put(HAD_GPUS, before.gpus)


ASKED = after_move


def move_of(gated: GatedJob, config: Config) -> str | int | None:
    """What a job says about moves (`MOVE`); None: nothing, or it cannot be moved.

    Only a batch job can be requeued, and a task that comes back would stop the later tasks of its
    array until it is placed. A requeued job has its whole time limit again, and Slurm cancels it if
    that does not fit before its deadline.
    """
    return None if gated.job.deadline_s is not None else _move_asked(gated, config)


def _move_asked(gated: GatedJob, config: Config) -> str | int | None:
    original = gated.original
    if original.interactive or gated.job.het or gated.job.array_id is not None:
        return None
    if shards_of(original.tres_per_node):
        return None
    move = hints_of(gated.job, gated.original, config).get(MOVE)
    return None if move == MOVE.none else move


def why_not_moved(gated: GatedJob, config: Config) -> str | None:
    """Why a job that allows moves stays where it is; None: it may move, or allows none."""
    if _move_asked(gated, config) is None:
        return None
    if gated.job.deadline_s is not None:
        return "it allows moves, but Slurm may cancel a requeued job that has a --deadline"
    off = "it allows moves, but moves are off on this site"
    return None if config.of(MovesConfig).enabled else off
