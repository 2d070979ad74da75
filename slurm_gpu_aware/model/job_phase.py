"""Phases of a gated job and the transitions between them; `docs/architecture.md` shows both."""

from enum import StrEnum


class JobPhase(StrEnum):
    """Phase of a gated job. The values occur in Slurm's records and in the ledger."""

    WAITING = "waiting"
    """Pending behind the closed gate, with the user's own request."""
    HELD = "held"
    """Waiting in the holding pool: far from its turn, not tried by Slurm's scheduler."""
    PLANNED = "planned"
    """The decision is in the ledger, but not yet in Slurm."""
    PREPARED = "prepared"
    """Bound to nodes, GPUs and clock; the gate is still closed."""
    RELEASED = "released"
    """Bound, and the selector has opened the gate; Slurm has not started the job yet."""
    STARTED = "started"
    """The job holds resources: running, suspended or completing."""
    REQUEUED = "requeued"
    """Back in Slurm's queue after a start; the gate is open and the job is still bound."""
    LEFT = "left"
    """The selector opened the gate without a binding: Slurm places the job."""
    OPENED = "opened"
    """An operator opened the gate without a binding."""
    ENDED = "ended"
    """Slurm shows an end, or has no record of the job."""


OPEN_DECISION = (JobPhase.PLANNED, JobPhase.PREPARED, JobPhase.RELEASED, JobPhase.STARTED)
"""Phases in which the job has, or may still get, the decided resources."""
_ALWAYS = {
    JobPhase.LEFT: "its form or its record does not allow a placement",
    JobPhase.OPENED: "`gpu-aware release`, or an operator removes the licence",
    JobPhase.STARTED: "the gate's reservation has run out",
    JobPhase.ENDED: "cancelled",
}
"""Transitions of a job behind the closed gate that may occur at any time."""

TRANSITIONS: dict[JobPhase, dict[JobPhase, str]] = {
    JobPhase.WAITING: {
        JobPhase.HELD: "more jobs wait than Slurm's scheduler should try",
        JobPhase.PLANNED: "a round finds a place",
        **_ALWAYS,
    },
    JobPhase.HELD: {
        JobPhase.WAITING: "its turn comes, or the pool is removed",
        JobPhase.PLANNED: "a round finds a place, and the pool has opened",
        **_ALWAYS,
    },
    JobPhase.PLANNED: {
        JobPhase.PREPARED: "Slurm shows all that was set",
        JobPhase.RELEASED: "seen after a restart of the selector",
        JobPhase.REQUEUED: "seen after a restart of the selector",
        JobPhase.WAITING: "Slurm refuses the update",
        **_ALWAYS,
    },
    JobPhase.PREPARED: {
        JobPhase.RELEASED: "the gate is opened",
        JobPhase.REQUEUED: "seen after a restart of the selector",
        JobPhase.WAITING: "the gate cannot be opened, or the selector was restarted",
        **_ALWAYS,
    },
    JobPhase.RELEASED: {
        JobPhase.STARTED: "Slurm starts it",
        JobPhase.WAITING: "it cannot start: a limit, a lost node, a timeout",
        JobPhase.REQUEUED: "Slurm starts it and puts it back",
        JobPhase.LEFT: "its AdminComment was overwritten, or the site removes us",
        JobPhase.ENDED: "cancelled",
    },
    JobPhase.STARTED: {
        JobPhase.ENDED: "Slurm shows its end",
        JobPhase.REQUEUED: "requeued, by Slurm or by its owner",
        JobPhase.WAITING: "requeued with the licence, as it ran without the selector",
        JobPhase.LEFT: "requeued after it was left to Slurm",
        JobPhase.OPENED: "requeued after an operator opened its gate",
    },
    JobPhase.REQUEUED: {
        JobPhase.WAITING: "the start monitor closes the gate again",
        JobPhase.STARTED: "Slurm starts it again before that",
        JobPhase.LEFT: "its AdminComment was overwritten, or the site removes us",
        JobPhase.ENDED: "cancelled",
    },
    JobPhase.LEFT: {JobPhase.STARTED: "Slurm starts it", JobPhase.ENDED: "cancelled"},
    JobPhase.OPENED: {JobPhase.STARTED: "Slurm starts it", JobPhase.ENDED: "cancelled"},
    JobPhase.ENDED: {},
}
"""Phase -> phases that may follow, each with its cause."""
