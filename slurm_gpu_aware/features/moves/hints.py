"""Key of the comment: whether a job may be moved."""

from slurm_gpu_aware.model.job_hints import Duration, Hint

_WORDS, _RESTART = ("ok", "no"), Duration({"s": 1}, 86_400)
MOVE: Hint[str | int] = Hint(
    "move",
    _WORDS,
    (_RESTART,),
    says=f"{', '.join(_WORDS)}, or how long a restart takes, 1s to {_RESTART.most_s}s",
    none="no",
    of_shards=False,
)
"""``ok``, ``no``, or the time that a restart of the job takes, in seconds."""
HINTS = (MOVE,)


def _of_trace(move: str | int | None, *, plain: bool) -> dict[str, object]:
    if not plain:
        move = MOVE.none
    if move is None:
        return {}
    restart_s = float(move) if isinstance(move, int) else None
    return {"elastic": move != MOVE.none, "restart_s": restart_s}


TRACED = ((MOVE, _of_trace),)
"""In a trace; live no array task and no part of a heterogeneous job is moved."""
SENTENCES = {
    "stays": "gpu-aware: move=%s has no effect: only a batch job that Slurm may requeue, and no"
    " array, is moved",
}
