"""Facts of a job that is moved, and their words."""

from slurm_gpu_aware.model.facts import Fact
from slurm_gpu_aware.time_text import counted, duration

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


FACTS = Moved, Returned
