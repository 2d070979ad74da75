"""Reading half of the Slurm client: nothing here changes anything in Slurm."""

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm import libslurm_fields as kinds
from slurm_gpu_aware.slurm import read_cluster as read
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.libslurm import Call, Libslurm, SlurmError, decode, records
from slurm_gpu_aware.slurm.read_cluster import MigNodes
from slurm_gpu_aware.slurm.read_jobs import job_of, settled
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmLicense,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    SlurmSwitch,
)
from slurm_gpu_aware.slurm.topology import parse_topology, yaml_topology
from slurm_gpu_aware.slurm.updates import check_job_ids, lanes_of
from slurm_gpu_aware.slurm.words import expand_hostlist

log = logging.getLogger(__name__)
_T = TypeVar("_T")

PER_CALL_S = 0.02  # Time of one of many requests that go together.
_AGAIN_S = 30.0
"""After this time all jobs are read again, even if slurmctld says that none changed."""


class SlurmReader:
    """The Slurm that this host belongs to, as far as it can be read.

    Each call takes at most ``timeout_s``; it raises SourceError if Slurm refuses or is silent. So
    does the constructor if the library cannot be used here; the message says what is missing. It
    has no call that writes: a program that only looks is given this type (`features.shadow`).
    """

    def __init__(self, timeout_s: float) -> None:
        self._slurm = Libslurm(timeout_s)
        self.counts = self._slurm.counts
        self._timeout_s = timeout_s
        self.parking_licence = ""
        """`jobs` does not tell when Slurm last tried a job that asks for this licence: Slurm
        tries it in each pass, and the record would never stay the same."""
        self._known: defaultdict[str, dict[bytes, Any]] = defaultdict(dict)
        """Kind -> record as last read -> its value; None: it could not be read."""
        self._read_at = -math.inf
        self._since = 0
        """Time of the last change of jobs, from Slurm's last answer; 0: read them all."""
        self._complained: dict[str, str] = {}
        """Record that could not be read the last time -> why."""
        self._mig_nodes = MigNodes()
        self._reading = threading.Lock()
        """Held by the thread that reads all jobs."""
        self._last = threading.local()

    def settings(self) -> Mapping[str, str]:
        """Slurm's configuration: key -> value as ``scontrol show config`` spells them."""
        return read.parse_settings(self._slurm.reply("aware_settings").decode(errors="replace"))

    def config(self) -> SlurmConfig:
        """The part of Slurm's configuration that matters to placing."""
        config = read.config_of(self.settings())
        if not config.conf_file:
            return config
        path = Path(config.conf_file)
        self._mig_nodes.gres_conf = path.with_name("gres.conf")
        topology = yaml_topology(path.with_name("topology.yaml"))
        by = config.exclusive_kinds | ({"topo"} if topology.blocks else set())
        return replace(config, default_topology=topology.default, exclusive_kinds=by)

    def jobs(self) -> list[SlurmJob]:
        """All job records of slurmctld, also of jobs that have ended.

        While no job is pending, slurmctld is asked only for changes. It compares by its clock,
        which can be set, so all jobs are read now and then, and after every failure.
        """
        with self._reading:
            last_update = self._slurm.ffi.new("int64_t *")
            fresh = time.monotonic() - self._read_at < _AGAIN_S
            since, self._since = self._since if fresh else 0, 0
            try:
                jobs = self._values(kinds.JOB, job_of, since, last_update)
            except SlurmError as exc:
                if exc.code != self._slurm.lib.SLURM_NO_CHANGE_IN_DATA:
                    raise
                self._since = since
                self._last.unread = frozenset()  # otherwise all jobs would have been read
                return list(self._known[kinds.JOB.name].values())
            self._read_at = time.monotonic()
            known = self._known[kinds.JOB.name]
            unread = (decode(kinds.JOB, record) for record in known if known[record] is None)
            self._last.unread = frozenset(int(fields["job_id"]) for fields in unread)
            waits = self._last.unread or any(job.state == "PENDING" for job in jobs)
            self._since = 0 if waits else last_update[0]
            return jobs

    @property
    def unread(self) -> frozenset[int]:
        """Slurm's numbers of existing records that this thread's last `jobs` could not read."""
        return frozenset(getattr(self._last, "unread", ()))

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        """These jobs, one request for each job or array; a job that is gone is left out.

        Behind them, the later components of the heterogeneous ones.
        """
        check_job_ids(ids)
        numbers = list(dict.fromkeys(int(job_id.partition("_")[0]) for job_id in ids))
        works = [partial(self._records_of, lane) for lane in lanes_of(numbers, str)]
        known: dict[str, SlurmJob] = {}
        for answers in self._slurm.together(works, PER_CALL_S * len(numbers)):
            jobs = (self._value(kinds.JOB, record, job_of) for record in answers)
            known |= {job.id: job for job in jobs if job is not None}
        parts = [job for job in known.values() if job.het and job.id not in ids]
        return [*(known[job_id] for job_id in ids if job_id in known), *parts]

    def _records_of(self, numbers: Sequence[int]) -> list[bytes]:
        """Records of jobs and arrays that exist, one request for each. Raises SlurmError."""
        found: list[bytes] = []
        for number in numbers:
            try:
                found += records(self._slurm.ask("aware_job", number))
            except SlurmError as exc:
                if exc.code != self._slurm.lib.ESLURM_INVALID_JOB_ID:
                    raise
        return found

    def nodes(self) -> list[SlurmNode]:
        """All nodes."""
        return self._mig_nodes.mark(self._values(kinds.NODE, read.node_of))

    def partitions(self) -> list[SlurmPartition]:
        """All partitions, also hidden ones."""
        return self._values(kinds.PARTITION, read.partition_of)

    def qos(self) -> list[SlurmQos]:
        """All QOS, from slurmdbd by sacctmgr."""
        columns = "format=name,preempt,preemptmode,priority,preemptexempttime,gracetime"
        command = ["sacctmgr", "-n", "-P", "show", "qos", columns]
        return read.parse_qos(run_command(command, self._timeout_s)[0])

    def reservations(self) -> list[SlurmReservation]:
        """All reservations."""
        return self._values(kinds.RESERVATION, read.reservation_of)

    def topology(self) -> list[SlurmSwitch]:
        """Switches or blocks of the default topology, by scontrol: libslurm cannot unpack them."""
        command = ["scontrol", "-o", "show", "topology"]
        return parse_topology(run_command(command, self._timeout_s)[0])

    def licenses(self) -> list[SlurmLicense]:
        """All licences; one that Slurm counts for groups of nodes stands once for each group."""
        # Slurm counts a reservation's licences as available until its jobs take them.
        return [
            SlurmLicense(
                lic["name"],
                max(0, lic["available"] - lic["reserved"]),
                lic["reserved"],
                frozenset(expand_hostlist(lic["nodes"])),
            )
            for lic in self._values(kinds.LICENSE, dict)
        ]

    def ask_ahead(self, *names: str) -> None:
        """Ask for ``nodes``, ``partitions`` or ``reservations`` now, without waiting.

        The next reading of each in this thread takes the answer.
        """
        ask, ahead = self._slurm.ask, self._ahead
        for name in names:
            ahead[name] = self._slurm.begin(partial(ask, f"aware_{name}"))

    @property
    def _ahead(self) -> dict[str, Call[bytes]]:
        """What this thread has asked for: kind of records -> call under way."""
        found: dict[str, Call[bytes]] = self._last.__dict__.setdefault("ahead", {})
        return found

    def _values(
        self,
        kind: kinds.RecordKind,
        value_of: Callable[[Mapping[str, Any]], _T],
        *arguments: object,
    ) -> list[_T]:
        """Values of the records that can be read; an unchanged record is not read again."""
        name = f"{kind.name}s"
        call = self._ahead.pop(name, None)
        reply = call.result() if call else self._slurm.reply(f"aware_{name}", *arguments)
        before = self._known[kind.name]
        found = records(reply)
        if kind is kinds.JOB and self.parking_licence:
            found = settled(found, self.parking_licence)
        known = self._known[kind.name] = {
            record: before[record] if record in before else self._value(kind, record, value_of)
            for record in found
        }
        return [value for value in known.values() if value is not None]

    def _value(
        self, kind: kinds.RecordKind, record: bytes, value_of: Callable[[Mapping[str, Any]], _T]
    ) -> _T | None:
        """Value of a record; None, and a warning, if it cannot be read."""
        fields = decode(kind, record)
        try:
            return value_of(fields)
        except (SourceError, ValueError, LookupError) as exc:
            what = f"{kind.name} {fields.get('job_id') or fields['name']}"
            if self._complained.get(what) != str(exc):
                log.warning("%s is left out: %s", what, exc)
            self._complained[what] = str(exc)
            return None
