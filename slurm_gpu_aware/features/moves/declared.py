"""What moves declare: key of the comment, the section ``[moves]``, events, and facts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from slurm_gpu_aware.model.facets import Facet, Section
from slurm_gpu_aware.model.facts import Fact, Summary
from slurm_gpu_aware.model.job_hints import Duration, Hint
from slurm_gpu_aware.model.job_phase import JobPhase
from slurm_gpu_aware.records import MOST, Seconds, whole
from slurm_gpu_aware.time_text import counted, duration

RATE_S = 3600.0  # Period of `MoveSettings.per_hour`.
LOOK_S = 30.0  # Pause between two looks for moves.

HAD_GPUS: Facet[int] = Facet("GPUs before its move", 0, int)
"""Of a request: the GPUs that the job had before the selector moved it; it gets no fewer. 0: it was
not moved."""

Count = Annotated[int, whole(1, MOST)]


@dataclass(frozen=True)
class MoveSettings:
    """When running jobs may move. Times in seconds."""

    sticky: bool = True
    """A job moves only for a gain above cost and margin; False: PAL's non-sticky mode."""
    shrink: bool = True
    """A job may give GPUs back, so that waiting jobs start; False: it only gets more."""
    margin_s: Seconds = 300.0  # Least time that a move must save beyond the cost of the restart.
    first_s: Seconds = 600.0  # A job is not moved so soon after its start.
    last_s: Seconds = 600.0  # A job is not moved so shortly before its expected end.
    again_s: Seconds = 3600.0  # A job is not moved again so soon after its last move.
    per_round: Count = 4  # Most moves that begin in one round.
    per_hour: Count = 12
    """Most moves of the whole site that begin within `RATE_S`; see `MoveRates`."""


@dataclass(frozen=True)
class MovesConfig(MoveSettings, Section):
    """``[moves]``: running jobs that allow it are requeued to better GPUs."""

    name = "moves"
    enabled: bool = False
    restart_s: Seconds = 60.0  # Time that a restart takes: checkpoint, requeue, start, restore.


SECTIONS = (MovesConfig,)


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


def _move_words(why: Mapping[str, Any]) -> str:
    """``moved from ...``."""
    return Summary.said(why.get("summary")) or Moved.said(why.get("moved")) or "moved"


EVENTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "move_begun": lambda detail: f"is being {_move_words(detail['why'])}",
    "moved": lambda detail: (
        f"runs again on {', '.join(detail['nodes'])}, {duration(detail['after_s'])} later"
    ),
}


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """The sentence on a move that is under way, or that Slurm refused."""
    moves = [
        e for e in answer["events"] if e["kind"] in EVENTS or e["detail"].get("step") == "move"
    ]
    over = answer["state"] in (JobPhase.ENDED, "unknown")
    if over or not moves or moves[-1]["kind"] == "moved":
        return []
    detail = moves[-1]["detail"]
    if moves[-1]["kind"] == "error":
        return [f"It is not moved: {detail['why']}."]
    return [f"It is being {_move_words(detail['why'])}."]


_NAMED = 5  # Jobs that the words name.


class Moved(Fact, frozen=True, rename={"source": "from"}):
    """A running job is requeued to other GPUs. Times: s."""

    key = "moved"

    source: str  # The sets in words.
    slowdown_before: float
    saves_s: float  # Less than 0: it takes longer, so that others start.
    remaining_s: float
    restart_s: float
    to: str = ""
    slowdown: float = 1.0
    gpus: int | None = None  # None: as many as before.
    gpus_before: int | None = None
    time_ratio: float = 1.0  # Time of the work with ``gpus`` / that with ``gpus_before``.
    starts: tuple[str, ...] = ()  # Jobs that start on what it gives back.
    others_s: float = 0.0  # How much sooner they start, in all.

    def words(self) -> str:
        faster = ""
        if self.time_ratio != 1.0:
            faster = f", {1 / self.time_ratio:.2f} times as fast by their number"
        left = f"the {duration(self.remaining_s)} that it still needed"
        gain = f"saves {duration(self.saves_s)} of {left}"
        if self.saves_s < 0:
            gain = f"takes {duration(-self.saves_s)} more than {left}"
        text = (
            f"moved from {self.source} (slowdown {self.slowdown_before:.2f}) to {self.to}"
            f" ({self.slowdown:.2f}{faster}), which {gain}"
        )
        if self.restart_s:
            text += f", with {duration(self.restart_s)} for the restart"
        return f"{text}; {self._others()}" if self.starts else text

    def _others(self) -> str:
        """What other jobs gain."""
        number = len(self.starts)
        more = f" and {number - _NAMED} more" if number > _NAMED else ""
        jobs = ("job " if number == 1 else "jobs ") + ", ".join(self.starts[:_NAMED]) + more
        sooner = f"{'' if number == 1 else 'the first of them '}{duration(self.others_s / number)}"
        return f"on what it gives back {jobs} can start, {sooner} sooner"


class Returned(Fact, frozen=True):
    """A moved job came back to other GPUs than those of its move."""

    key = "returned"

    gpus: int | None = None  # As many as it had, as no job waits; None: the others were taken.
    move: Moved | None = None  # What was meant.

    def words(self) -> str:
        if self.gpus is None:
            return "moved, but its new GPUs were no longer free"
        return (
            f"restarted with the {counted(self.gpus, 'GPU')} that it had, as no job waits any more"
        )


class NotMoved(Fact, frozen=True):
    """Why a job that asks to be moved never is."""

    key, line = "not_moved", "not moved"
    waits = "It will not be moved: {}."

    cause: str

    def words(self) -> str:
        return self.cause


FACTS = Moved, Returned, NotMoved
