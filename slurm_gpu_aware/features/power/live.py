"""Power on the site: the records of its nodes, moved into the ledger, and what it keeps of them."""

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from slurm_gpu_aware.agent_reports import (
    LATEST,
    LONGEST,
    MOST_SEQ,
    agent_report,
    last_report,
    open_spool,
    parse_record,
)
from slurm_gpu_aware.features.energy.live import JobEnergies
from slurm_gpu_aware.features.power.declared import OF_NODES
from slurm_gpu_aware.features.power.metrics import PowerReading, reading_text
from slurm_gpu_aware.features.power.site_power import SitePower
from slurm_gpu_aware.selector.isolation import contained
from slurm_gpu_aware.selector.ledger_writer import LedgerWriter
from slurm_gpu_aware.selector.live import Live, Site

log = logging.getLogger(__name__)

_JOB = re.compile(r"[1-9][0-9]{0,11}\Z")
_KEYS = (
    *("gpus", "asked_mhz", "mhz", "seq", "call", "error", "during"),
    *("restarts", "seconds", "energy_j", "counter_mj", "limit_w", "asked_limit_w"),
)
Heard = Callable[[str, str, Mapping[str, Any]], object]  # (job id, kind, detail) of a record.
_MOST = 1 << 18  # bytes read from one file at a time
_RATE = 5.0  # records a second that the ledger takes from a node for long: clocks of 16 GPUs move
_BURST = 50_000.0  # records that it takes at once: the files of a node whose records waited
_HEAD = 256  # bytes at the start of a file that identify it


class ClockSpool:
    """Reads new lines of NODE.jsonl files, and keeps the offsets across restarts.

    A file that grew too large becomes NODE.jsonl.1; it is read to its end first. Lines come from
    other hosts: anything but a record of the known form is skipped, and so is a file that neither
    root, the selector nor the folder's owner owns. A file speaks for its node alone, whatever node
    its records name. A node that writes more than any node does fills neither the ledger nor the
    time of the selector: what is too much is left out. If the selector dies before it saves the
    offsets, lines are written to the ledger twice.
    """

    def __init__(
        self, folder: Path, note: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._note = note
        self._clock = clock
        self._room: dict[str, tuple[float, float]] = {}
        """Node -> (time of its last record, records that the ledger took at once after it)."""
        self._told: set[str] = set()
        """Nodes that have written too many."""
        self._offsets = self._read_note()
        self.agents = {
            name.removesuffix(".jsonl"): report
            for name in self._names()
            if name in self._offsets and (report := last_report(folder / name)) is not None
        }
        """Node -> the newest report of its agent."""

    def collect(self, ledger: LedgerWriter, id_of: Callable[[int], str], heard: Heard) -> None:
        """Write new records to the ledger, and tell them. ``id_of``: Slurm's number to job id."""
        before = dict(self._offsets)
        for name in self._names():
            node = name.removesuffix(".jsonl")
            for line in self._new_lines(name):
                raw = parse_record(line)
                report = agent_report(raw)
                if report is not None:
                    self.agents[node] = report
                record = _record(raw, node)
                if record is not None and self._has_room(node):
                    job_id = id_of(int(record.pop("job_id")))
                    kind, at = record.pop("event"), record.pop("at")
                    ledger.event(job_id, kind, record, at)
                    heard(job_id, kind, record)
        if self._offsets != before:
            self._write_note()

    def _has_room(self, node: str) -> bool:
        """Count a record of a node; False: it has written too many."""
        now = self._clock()
        at, room = self._room.get(node, (now, _BURST))
        room = min(_BURST, room + _RATE * (now - at))
        if room < 1.0:
            if node not in self._told:
                self._told.add(node)
                log.warning("%s writes more records than a node has; some are left out", node)
            return False
        self._room[node] = now, room - 1.0
        return True

    def _names(self) -> list[str]:
        try:
            names = {p.name.removesuffix(".1") for p in self._folder.iterdir()}
        except OSError:
            return []
        return sorted(name for name in names if name.endswith(".jsonl"))

    def _new_lines(self, name: str) -> Iterator[bytes]:
        """Complete new lines of a node's two files; moves their offsets."""
        known = self._offsets.get(name, {})
        seen: dict[str, int] = {}
        for file in (self._folder / f"{name}.1", self._folder / name):
            try:
                key, lines, offset, more = self._read(file, known)
            except FileNotFoundError:
                continue
            except OSError:
                seen = known | seen  # the offset of an unreadable file stays
                continue
            seen[key] = offset
            yield from lines
            if more:
                seen = known | seen  # the other file is read when this one is done
                break
        self._offsets[name] = seen

    def _read(self, file: Path, known: Mapping[str, int]) -> tuple[str, list[bytes], int, bool]:
        """(Key of a file, its new lines, offset behind them, whether it goes on), or OSError."""
        with open_spool(file) as stream:
            handle = stream.fileno()
            stat = os.fstat(handle)
            # A new file can have the inode of a deleted one, but not its first record.
            first = os.pread(handle, _HEAD, 0).partition(b"\n")[0]
            key = f"{stat.st_ino}:{crc32(first):x}"
            offset = known.get(key, 0)
            if stat.st_size < offset:
                offset = 0  # the file was truncated
            data = os.pread(handle, _MOST, offset)
        end = data.rfind(b"\n") + 1
        more = offset + len(data) < stat.st_size
        if not end and len(data) == _MOST:
            return key, [], offset + _MOST, more  # no record is this long
        return key, data[:end].splitlines(), offset + end, more

    def _read_note(self) -> dict[str, dict[str, int]]:
        try:
            raw = json.loads(self._note.read_text(encoding="utf-8"))
            return {name: {k: int(at) for k, at in noted.items()} for name, noted in raw.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write_note(self) -> None:
        fresh = self._note.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(self._offsets), encoding="utf-8")
            fresh.replace(self._note)
        except OSError as exc:
            log.warning("%s: cannot be written: %s", self._note, exc.strerror)


def _record(raw: Mapping[str, Any], node: str) -> dict[str, Any] | None:
    """A record of a node that the ledger takes; None for anything else."""
    if raw.get("event") not in OF_NODES or not _JOB.match(str(raw.get("job_id", ""))):
        return None
    detail = {key: _plain(raw[key]) for key in _KEYS if key in raw}
    of = {"event": raw["event"], "at": float(raw["at"]), "job_id": raw["job_id"]}
    return of | {"node": node} | detail


def _plain(value: Any) -> object:
    """The value if it is short and of an expected type, else the name of its type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:LONGEST]
    if type(value) in (int, float) and abs(value) < LATEST:
        return value
    if type(value) is int and 0 <= value < MOST_SEQ:
        return value  # a number of orders
    if isinstance(value, list) and len(value) <= LONGEST:
        return [v for v in value if isinstance(v, int) and 0 <= v < LATEST]
    return type(value).__name__


_AGAIN_S = 60.0  # longest time between two records of power under a limit


class NodeRecords(Live):
    """Takes the records of the nodes; tells the power of a round."""

    name = "records of nodes"

    def __init__(self, site: Site) -> None:
        self.site, self._power, self._energies = site, site.of(SitePower), site.of(JobEnergies)
        note = site.config.store.path.parent / "clocks.offsets"
        self._spool = None if site.spool is None else ClockSpool(site.spool, note)
        self._last: object = "unknown"
        self._written = -math.inf

    def load(self) -> None:
        """Take what the agents have reported so far."""
        if self._spool is not None:
            self._power.clocks.reported(self._spool.agents)

    def before_round(self) -> None:
        """Take new records while an answer is awaited."""
        if self._power.awaits:
            self._collect()

    def after_round(self) -> Mapping[str, float | None]:
        """Take new records; the power of the site under a limit."""
        with contained("records of clocks"):
            self._collect()
        power = self._power.reading()
        self._tell(power)
        if power is None:
            return {}
        watts = power.limit_w, power.planned_w, power.all_measured_w
        return dict(zip(("limit_w", "planned_w", "measured_w"), watts, strict=True))

    def _tell(self, power: PowerReading | None) -> None:
        """Write it for ``gpu-aware status``: a change, or now and then while there is a limit."""
        changed = _kept(power) != self._last
        again = changed or (power is not None and time.monotonic() - self._written >= _AGAIN_S)
        if again:
            self._last, self._written = _kept(power), time.monotonic()
            self.site.ledger.power(reading_text(power))
            self.site.news |= power is not None

    def _collect(self) -> None:
        if self._spool is not None:
            ids = self.site.ids
            self._spool.collect(self.site.ledger, lambda raw: ids.get(raw, str(raw)), self._heard)
            self._power.clocks.reported(self._spool.agents)

    def _heard(self, job_id: str, kind: str, detail: Mapping[str, Any]) -> None:
        self._power.clocks.heard(job_id, kind, detail)
        if kind == "energy":
            self._energies.heard(job_id)


def _kept(power: PowerReading | None) -> object:
    """What of a reading is recorded at once when it changes; the measured power is not."""
    return power and (
        *(power.limit, power.limit_w, power.planned_w, power.keeps_clock),
        *(power.agents, power.no_model),
    )


LIVES = (SitePower, NodeRecords)
