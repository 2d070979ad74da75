"""Notes of locked clocks: one small file per GPU, named ``gpu`` and its index.

``50-gpu-aware``, the prolog and epilog scripts, read them too: by them they know whether there is
anything to do at all. A note is one line: job, ``running`` or ``ended``, method, time of a failed
try; ``-`` where it is not known.
"""

from __future__ import annotations

from slurm_gpu_aware.clocks.note_folder import NoteFolder

NO_JOB = "0"
"""Job of a note that cannot be read."""


class Note:
    """Note of a locked GPU."""

    def __init__(
        self, job_id: str, method: str = "", ended: bool = False, tried_at: float | None = None
    ) -> None:
        self.job_id = job_id
        self.method = method
        """``locked``, or (before Volta) ``application``; empty: not known (yet)."""
        self.ended = ended
        """The job's epilog ran: the next hook resets a clock that is still locked."""
        self.tried_at = tried_at
        """When a hook of another job tried to reset it, in vain. Units: Unix seconds."""


class Notes(NoteFolder):
    """The notes of a node.

    GPUs belong to one job at a time, so no two hooks write one note; only a hook that looks after
    what other jobs left behind must be :meth:`alone`, and so must the agent.
    """

    def write(self, index: int, note: Note) -> None:
        """Note a lock: before it is made, and again when it is known how. Raises OSError."""
        state = "ended" if note.ended else "running"
        self.put(index, f"{note.job_id} {state} {note.method or '-'} {note.tried_at or '-'}")

    def all(self) -> dict[int, Note]:
        """GPU index -> its note."""
        return {index: _note(words) for index, words in self.words().items()}


def _note(words: list[str]) -> Note:
    """One that cannot be read belongs to no job: any hook resets that GPU."""
    try:
        job_id, state, method, tried_at = words
        return Note(
            job_id,
            method if method in ("locked", "application") else "",
            state != "running",
            None if tried_at == "-" else float(tried_at),
        )
    except ValueError:
        return Note(NO_JOB, ended=True)
