"""State of each GPU as ``gpu-aware-profile watch`` last saw it: a JSON file that others may read.

One file per site (beside the store), or per host (``watch --local``). It has one writer; readers
need no store, no database and no Slurm.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from msgspec import DecodeError, Struct, field, json

from slurm_gpu_aware import records
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, MAX_TIME_S, NODE_NAME, printable
from slurm_gpu_aware.errors import FileFault, SourceError
from slurm_gpu_aware.files import ReplacedFile, open_plain
from slurm_gpu_aware.model.profile import GpuHealth
from slurm_gpu_aware.records import Text, number, text, whole, words

SCHEMA = "gpu-aware-watch/1"
FILE = "watch.json"  # Its name beside the store.
WELL, SLOW, DRIFTED, ILL, UNKNOWN = "well", "slow", "drifted", "ill", "unknown"
STATES = (ILL, SLOW, DRIFTED, UNKNOWN, WELL)  # Worst first.
BAD = frozenset({ILL, SLOW, DRIFTED})
PREFIX = "gpu-aware: "
"""Start of the reason of each node that watch drains. It touches no other drained node."""
UNDER_JOB = "job"
"""Kind of a trouble that was seen while a job ran: a user's program may be its cause."""
_MOST_BYTES = 256 << 20

Name = Annotated[str, text(NODE_NAME, "a node name")]
When = Annotated[float, number(0, MAX_TIME_S)]
Counter = Annotated[int, whole(0, 10**6)]


class Named(Struct, frozen=True):
    """A class for which the sweeps name a GPU: see `gpu_aware_profile.watch.slow_gpus`."""

    state: Annotated[str, words(SLOW, DRIFTED)]
    since: When  # Unix time of the first sweep that was beyond.
    before: float = 0.0
    """Of a drifted one: its level before, as a logarithm, relative to its peers."""


class Trouble(Struct, frozen=True):
    """Something wrong with a GPU's hardware."""

    kind: Text
    text: Text
    since: When
    clean: Counter = 0  # Probes, or readings while jobs ran, since then that did not find it.
    at: When = 0.0  # Unix time of the newest of these readings.


class Reading(Struct, frozen=True):
    """What the newest probe read of the hardware."""

    name: Text = ""  # Product name; empty: not known.
    health: GpuHealth | None = None  # None: the GPU could not be read.
    faults: tuple[tuple[Text, Text], ...] = ()  # (call, error) of calls that failed.
    throttled: tuple[Text, ...] = ()
    """Reasons for a lower clock while the probe measured it, by name."""
    at: When = 0.0  # Unix time of the probe.


class GpuState(Struct, frozen=True):
    """State of a GPU."""

    node: Name
    gpu: Annotated[int, whole(0, MAX_GPUS_PER_NODE - 1)]
    state: Annotated[str, words(*STATES)] = UNKNOWN
    by: float | None = None
    """Relative: 0.03 = 3% slower than its peers (drifted: than before), in its worst class. None:
    not known."""
    since: When | None = None  # Unix time since which it is not well; None: it is.
    why: Text = ""  # One short sentence without a full stop.
    named: dict[Text, Named] = {}  # Class -> what the sweeps say.
    troubles: tuple[Trouble, ...] = ()
    reading: Reading = Reading()
    told: Annotated[str, words(*STATES)] = WELL
    """The state that the command of the site heard of last."""

    @property
    def only_under_jobs(self) -> bool:
        """Whether it is ill for throttling under jobs alone: no reason to take its node away."""
        kinds = {one.kind for one in self.troubles}
        return self.state == ILL and kinds == {UNDER_JOB}


class Drained(Struct, frozen=True):
    """A node that watch drained."""

    at: When
    left: bool = False
    """An admin resumed it while it was not well: it is not drained again until it is."""


class WatchState(Struct, frozen=True):
    """State of all GPUs."""

    schema: Annotated[str, words(SCHEMA)] = SCHEMA
    at: When = 0.0  # Unix time of the newest pass; 0: there was none.
    gpus: list[GpuState] = []
    drained: dict[Name, Drained] = {}
    on_trial: tuple[Name, ...] = ()
    """Drained nodes that watch itself let take its jobs, and has not surely drained again."""
    notes: list[Text] = field(default_factory=list)  # Sentences about the whole fleet.

    def bad(self) -> list[GpuState]:
        """GPUs that are not well, worst first."""
        found = [one for one in self.gpus if one.state in BAD]
        return sorted(found, key=lambda g: (STATES.index(g.state), -(g.by or 0.0), g.node, g.gpu))


def read_state(path: Path) -> WatchState | None:
    """The state in a file; None: there is no file. Raises SourceError."""
    try:
        stream, status = open_plain(path)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror}") from None
    with stream:
        if status.st_uid not in {0, os.geteuid(), path.parent.stat().st_uid}:
            raise SourceError(f"{path}: belongs to neither root nor the owner of its folder")
        if status.st_size > _MOST_BYTES:
            raise SourceError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
        try:
            return records.read(json.decode(stream.read()), WatchState)
        except (DecodeError, UnicodeDecodeError, RecursionError):
            raise SourceError(f"{path}: not JSON") from None
        except ValueError as exc:
            raise SourceError(f"{path}: {exc}") from None


def valid_gpus(states: Iterable[GpuState]) -> tuple[list[GpuState], list[str]]:
    """(states that `read_state` takes, a sentence for each other one).

    msgspec checks nothing when a record is made, and one wrong GPU makes the file unreadable.
    """
    kept: list[GpuState] = []
    dropped: list[str] = []
    for one in states:
        try:
            records.read(json.decode(json.encode(one)), GpuState)
        except ValueError as exc:
            dropped.append(printable(f"{one.node}: GPU {one.gpu} is left out: {exc}"))
        else:
            kept.append(one)
    return kept, dropped


def write_state(path: Path, state: WatchState) -> None:
    """Replace the file, which every user may read. Raises SourceError."""
    with FileFault(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with ReplacedFile(path) as stream:
            stream.write(json.encode(state).decode())
            os.fchmod(stream.fileno(), 0o644)
            owner = path.parent.stat()
            if os.geteuid() == 0:  # or SlurmUser could not replace it
                os.fchown(stream.fileno(), owner.st_uid, owner.st_gid)
