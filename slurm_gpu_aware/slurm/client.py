"""Slurm client: one RPC per call, and structured records without text to parse."""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slurm_gpu_aware.slurm import libslurm_fields as kinds
from slurm_gpu_aware.slurm.libslurm import SlurmError, decode, records
from slurm_gpu_aware.slurm.reader import PER_CALL_S, SlurmReader
from slurm_gpu_aware.slurm.updates import (
    JobUpdate,
    NewReservation,
    Update,
    check_job_ids,
    lanes_of,
    one_line,
    refused_id,
)
from slurm_gpu_aware.slurm.words import check_node_names

log = logging.getLogger(__name__)

_UNLIMITED = 0xFFFFFFFF  # INFINITE: as a priority, Slurm computes it, which releases a held job.


def open_client(timeout_s: float) -> SlurmClient:
    """The client of the Slurm that this host belongs to; see `SlurmClient`."""
    return SlurmClient(timeout_s)


class SlurmClient(SlurmReader):
    """The Slurm that this host belongs to; `SlurmReader` is the half that changes nothing."""

    # -- jobs ----------------------------------------------------------------------------------

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        """Send updates, one RPC each; return refused job id -> Slurm's message.

        Those of one job or array are sent in order, others at the same time. Not atomic: a refused
        update can change some fields; after an error any one can still be applied. Read back.
        """
        return self._update([(update.job_id, *update.descriptor()) for update in updates])

    @property
    def ended(self) -> frozenset[str]:
        """Slurm's sentences for an update of a job that has started or ended meanwhile."""
        codes = (getattr(self._slurm.lib, name) for name in kinds.ENDED)
        return frozenset(map(self._slurm.text_of, codes))

    def submit_held(self, user: int, group: int, name: str, partition: str, comment: str) -> str:
        """Submit a held job of one GPU; return its id. Only SlurmUser may submit for others.

        ``partition``: empty for Slurm's default. Raises SlurmError if refused.
        """
        number = self._slurm.ffi.new("int64_t *")
        texts = map(self._text, (name, partition, comment))
        self._slurm.call("aware_submit_held", user, group, *texts, number)
        return str(number[0])

    def cancel_job(self, number: int) -> None:
        """Cancel the job of Slurm's number, if it has not ended."""
        try:
            self._slurm.call("aware_cancel_job", self._text(str(number)))
        except SlurmError as exc:
            if self._slurm.text_of(exc.code) not in self.ended:
                raise

    def release_jobs(self, ids: Sequence[str]) -> None:
        """Release jobs that Slurm itself holds; a refusal is logged."""
        check_job_ids(ids)
        released = {"priority": _UNLIMITED}
        for job_id, why in self._update([(job_id, {}, released) for job_id in ids]).items():
            log.warning("job %s could not be released: %s", job_id, why)

    def requeue_job(self, job_id: str) -> str | None:
        """Put a running batch job back into the queue; return why Slurm refuses, None: it does not.

        Slurm sends SIGCONT and SIGTERM to script and steps, and SIGKILL after its KillWait. A job
        that does not run any more stays as it is. Raises SourceError if Slurm is silent.
        """
        check_job_ids([job_id])
        try:
            self._slurm.call("aware_requeue_job", self._text(job_id))
        except SlurmError as exc:
            if not exc.refused:
                raise
            return self._slurm.text_of(exc.code)
        return None

    def _update(self, updates: Sequence[Update]) -> dict[str, str]:
        """Send updates, those of a job or an array in order. Raises SourceError without answer."""
        if not updates:
            return {}
        given_up = threading.Event()

        def send(lane: Sequence[Update]) -> dict[str, str]:
            refused: dict[str, str] = {}
            for update in lane:
                if given_up.is_set():
                    break  # the caller has gone on, and a later round may decide otherwise
                refused |= self._send(*update)
            return refused

        works = [partial(send, lane) for lane in lanes_of(updates, lambda one: one[0])]
        done = partial(self._slurm.together, works, PER_CALL_S * len(updates), given_up)
        return self.counts.updated(len(updates), done)

    def _send(
        self, job_id: str, texts: Mapping[str, str], numbers: Mapping[str, int]
    ) -> dict[str, str]:
        slurm, ffi = self._slurm, self._slurm.ffi
        c_texts = {name: self._text(text, clears=True) for name, text in texts.items()}
        reply = ffi.new("aware_reply *")
        code = slurm.lib.aware_update_job(
            ffi.new("char[]", job_id.encode()),
            ffi.new("char *[]", [c_texts.get(name, ffi.NULL) for name in kinds.UPDATE_TEXTS]),
            ffi.new("int64_t[]", [numbers.get(name, -1) for name in kinds.UPDATE_NUMBERS]),
            reply,
        )
        results = [decode(kinds.RESULT, record) for record in records(slurm.take(reply))]
        refused = {
            refused_id(result["job_id"], job_id): one_line(
                result["message"] or slurm.text_of(result["error_code"])
            )
            for result in results
            if result["error_code"]
        }
        if refused or not code:
            return refused
        try:
            slurm.check(code, f"update of job {job_id}")
        except SlurmError as exc:
            if not exc.refused:
                raise
        return {job_id: slurm.text_of(code)}

    # -- reservations and nodes ----------------------------------------------------------------

    def create_reservation(self, wanted: NewReservation) -> None:
        """Create a reservation."""
        flags = 0
        for name in wanted.flag_names:
            flags |= getattr(self._slurm.lib, name)
        holds = (wanted.licenses, wanted.nodes, wanted.tres)
        texts = (wanted.name, wanted.users, *holds, wanted.comment)
        self._slurm.call(
            "aware_create_reservation",
            *map(self._text, texts),
            int(time.time() if wanted.start_s is None else wanted.start_s),
            int(wanted.end_s),
            flags,
        )

    def move_reservation(
        self, name: str, end_s: float, start_s: float | None = None, comment: str | None = None
    ) -> bool:
        """Move a reservation's end, and its start if it has not begun.

        ``comment``: also write it; empty: remove it; None: it stays.

        False if there is none of that name, or its start cannot be moved any more.
        """
        lib, start = self._slurm.lib, -1 if start_s is None else int(start_s)
        text = self._text(comment or "", clears=comment == "")
        gone = (lib.ESLURM_RESERVATION_INVALID, lib.ESLURM_RSV_ALREADY_STARTED)
        return self._done(gone, "aware_move_reservation", self._text(name), text, start, int(end_s))

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation if there is one."""
        gone = (self._slurm.lib.ESLURM_RESERVATION_INVALID,)
        self._done(gone, "aware_delete_reservation", self._text(name))

    def _done(self, errors: Sequence[int], function: str, *arguments: object) -> bool:
        """Whether a call succeeds; False: it ends in one of the errors. Raises SourceError."""
        try:
            self._slurm.call(function, *arguments)
        except SlurmError as exc:
            if exc.code not in errors:
                raise
            return False
        return True

    def drain_node(self, name: str, reason: str) -> None:
        """Drain a node: no new jobs, running ones go on."""
        self._update_node(name, self._slurm.lib.NODE_STATE_DRAIN, reason)

    def resume_node(self, name: str) -> None:
        """Let a node take jobs again."""
        self._update_node(name, self._slurm.lib.NODE_RESUME, "")

    def _update_node(self, name: str, state: int, reason: str) -> None:
        check_node_names([name])
        self._slurm.call("aware_update_node", self._text(name), state, self._text(reason))

    def _text(self, text: str, *, clears: bool = False) -> object:
        """A C string; NULL for the empty one unless that ``clears`` a field."""
        ffi, data = self._slurm.ffi, text.encode("utf-8", "surrogateescape")
        return ffi.new("char[]", data) if text or clears else ffi.NULL


_HOST = re.compile(r"SlurmctldHost\[([0-9]+)\]\Z")
_HEARTBEAT = struct.Struct("!QQ")
"""Content of slurmctld's heartbeat file: Unix time, number of the SlurmctldHost."""
_LONGEST_BEAT_S = 30.0  # slurmctld writes the file after a quarter of SlurmctldTimeout, or this
_LATE_S = 5.0


class Controllers:
    """Hosts that ``SlurmctldHost`` names; ``settings``: Slurm's configuration."""

    def __init__(
        self, settings: Mapping[str, str], timer: Callable[[], float] = time.monotonic
    ) -> None:
        found = {int(m[1]): settings[m[0]] for m in map(_HOST.match, settings) if m}
        self.hosts = [found[number].partition("(")[0] for number in sorted(found)]
        """In the order of slurm.conf: the first is the primary."""
        self.heartbeat_file = Path(settings.get("StateSaveLocation", ""), "heartbeat")
        """Written by the slurmctld in control, if there are several; SlurmUser can read it."""
        seconds = re.match(r"[0-9]+", settings.get("SlurmctldTimeout", ""))
        self.timeout_s = float(seconds[0]) if seconds else 120.0
        """SlurmctldTimeout."""
        self._timer = timer
        self._beat: tuple[int, int] | None = None
        self._changed = timer()

    def in_control(self) -> str | None:
        """Host of the slurmctld in control, or of the last one; None: not known."""
        if len(self.hosts) < 2:
            return next(iter(self.hosts), None)
        try:
            with self.heartbeat_file.open("rb") as file:
                at, number = _HEARTBEAT.unpack(file.read(_HEARTBEAT.size))
        except (OSError, struct.error):  # slurmctld replaces it, or it is not there
            return None
        if (at, number) != self._beat and number < len(self.hosts):
            self._beat, self._changed = (at, number), self._timer()
        return self.hosts[number] if number < len(self.hosts) else None

    @property
    def only(self) -> str | None:
        """The host, if there is one only."""
        return self.hosts[0] if len(self.hosts) == 1 else None

    @property
    def elsewhere(self) -> bool:
        """Whether this host runs no slurmctld; False: it does, or its hosts are not known."""
        return bool(self.hosts) and len(self.others) == len(self.hosts)

    @property
    def others(self) -> list[str]:
        """Hosts beside this one."""
        here = socket.gethostname()
        return [host for host in self.hosts if not same_host(host, here)]

    def here(self) -> bool:
        """Whether the slurmctld of this host is in control; False: not, or not known."""
        host = self.in_control()
        return host is not None and same_host(host, socket.gethostname())

    @property
    def gone(self) -> bool:
        """Whether none is in control, so that a call to Slurm would hang; by `in_control`."""
        beat_s = min(self.timeout_s / 4, _LONGEST_BEAT_S)
        return self._beat is not None and self._timer() - self._changed > beat_s + _LATE_S


def same_host(one: str, other: str) -> bool:
    """Whether two names, with or without domain, are of one host."""
    return one.partition(".")[0].lower() == other.partition(".")[0].lower()
