"""The gateway over Slurm's own commands: ``scontrol`` as text, one process per question.

One function runs commands: an argv list, never a shell, a time limit, an environment without the
variables by which Slurm's commands take options. Many updates go through one ``scontrol`` that
reads them from its standard input (2 ms each; a process of its own costs 20).
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.fabric import default_topology
from slurm_gpu_aware.slurm.gateway import JOB_ID, JobUpdate
from slurm_gpu_aware.slurm.job_reader import JobReader, parse_jobs
from slurm_gpu_aware.slurm.parse_cluster import (
    parse_config,
    parse_free_licenses,
    parse_nodes,
    parse_partitions,
    parse_qos,
    parse_reservations,
)
from slurm_gpu_aware.slurm.parse_json import parse_jobs_json
from slurm_gpu_aware.slurm.records import (
    SlurmConfig,
    SlurmJob,
    SlurmNode,
    SlurmPartition,
    SlurmQos,
    SlurmReservation,
    SlurmSwitch,
)
from slurm_gpu_aware.slurm.slices import SlicedNodes
from slurm_gpu_aware.slurm.topology import parse_topology

__all__ = ["CliGateway", "clean_environment", "run_command"]

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}\Z")
_ERROR_FOR_JOB = re.compile(r"(?:for|of) job ([0-9]+(?:_[0-9]+)?)\b")
_ERROR_OF_RECORD = re.compile(r"([0-9]+)(_[0-9]+|_\[[^]]*\])?: (.+)\Z")
"""How array tasks are refused: ``98_3: text``, ``98_[4-9]: text``."""
_NO_ERROR = "No error"
"""Said of each record that an update of several records did change."""
_PROMPT = re.compile(r"^(?:scontrol: )+", re.MULTILINE)
_NO_JSON = re.compile(r"serializer|json|plugin|parser", re.IGNORECASE)
_ZONE = MappingProxyType({"TZ": "UTC0"})
"""Times come as Unix seconds. In a zone of a file, the C library looks at that file for each one:
a quarter of the CPU time of reading all jobs."""
_MOST_DOUBTFUL = 20
"""Doubtful jobs that one reading looks at anew, whoever they are; the others wait for the next."""


def clean_environment() -> dict[str, str]:
    """Our environment without what would change the answers of Slurm's commands."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key == "SLURM_CONF"
        or not key.startswith(("SLURM_", "SBATCH_", "SALLOC_", "SQUEUE_", "SINFO_", "SCONTROL_"))
    }
    # Times as Unix seconds, task lists of arrays in full, texts in English.
    return kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"}


def run_command(
    argv: Sequence[str],
    timeout_s: float,
    *,
    stdin: str | None = None,
    check: bool = True,
    extra: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, str]:
    """Run a command, with ``extra`` in its environment; return (stdout, stderr).

    Raises
    ------
    SourceError
        It is not there, ran past ``timeout_s``, or (with ``check``) exited other than 0.
    """
    what = " ".join(argv[:4])
    try:
        done = subprocess.run(
            list(argv),
            input=None if stdin is None else stdin.encode("utf-8", "surrogateescape"),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
            env=clean_environment() | dict(extra),
            process_group=0,  # Ctrl-C is for us: a command that was begun ends by itself
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(f"{what}: no answer within {timeout_s:g} s") from None
    except OSError as exc:
        raise SourceError(f"{what}: cannot be run: {exc.strerror}") from None
    stdout = done.stdout.decode("utf-8", "surrogateescape")
    stderr = done.stderr.decode("utf-8", "surrogateescape")
    if check and done.returncode != 0:
        said = (stderr.strip() or stdout.strip()).splitlines()
        raise SourceError(f"{what}: {said[-1][:200] if said else f'exit {done.returncode}'}")
    return stdout, stderr


class CliGateway:
    """`Gateway` by ``scontrol``."""

    def __init__(self, timeout_s: float = 20.0, scontrol: str = "scontrol") -> None:
        self._timeout_s = timeout_s
        self._scontrol = scontrol
        self._sacctmgr = "sacctmgr"
        self._doubted: dict[int, tuple[int, list[SlurmJob] | None]] = {}
        """Doubtful record -> (digest of its text, the job by JSON); None: not understood."""
        self._looked_at: dict[int, int] = {}
        """Doubtful record -> number of the reading that looked at it last."""
        self._readings = 0
        self._reader = JobReader()
        self._sliced = SlicedNodes()
        self._left_out: dict[str, str] = {}
        """Nodes that the last reading could not understand, and why."""
        self.unread: frozenset[int] = frozenset()

    def config(self) -> SlurmConfig:
        """Read Slurm's configuration."""
        found = parse_config(self._ask("show", "config"))
        if not found.conf_file:
            return found
        path = Path(found.conf_file)
        self._sliced.beside(path)
        return replace(found, default_topology=default_topology(path.with_name("topology.yaml")))

    def jobs(self) -> list[SlurmJob]:
        """All job records; those whose text is doubtful are read again as JSON.

        A user may change such a text all the time. So the number of looks is bounded, and whoever
        was looked at longest ago comes first; the rest is in ``unread``.
        """
        found = self._reader.read(self._ask("-o", "-d", "show", "job"))
        self._readings += 1
        self._looked_at = {n: self._looked_at.get(n, 0) for n in found.doubtful}
        known = self._doubted
        self._doubted = {
            n: known[n] for n in found.doubtful if n in known and known[n][0] == found.digests[n]
        }
        changed = [n for n in found.doubtful if n not in self._doubted]
        for number in sorted(changed, key=self._looked_at.__getitem__)[:_MOST_DOUBTFUL]:
            self._looked_at[number] = self._readings
            self._doubted[number] = (found.digests[number], self._job_json(number))
        for _, by_json in self._doubted.values():
            found.jobs.extend(by_json or ())
        self.unread = frozenset(
            n for n in found.doubtful if n not in self._doubted or self._doubted[n][1] is None
        )
        if len(changed) > _MOST_DOUBTFUL:
            log.warning(
                "%d jobs have texts that look like forged records and wait for a later look",
                len(changed) - _MOST_DOUBTFUL,
            )
        return found.jobs

    def jobs_of(self, ids: Sequence[str]) -> list[SlurmJob]:
        """A few jobs, each asked for by itself (10 to 20 ms), whatever the length of the queue."""
        found: list[SlurmJob] = []
        for job_id in ids:
            if not JOB_ID.match(job_id):
                raise ValueError(f"{job_id!r} is not a job id")
            try:
                answer = parse_jobs(self._ask("-o", "-d", "show", "job", job_id))
            except SourceError as exc:
                if "Invalid job id" not in str(exc):
                    raise
                continue
            one = next((job for job in answer.jobs if job.id == job_id), None)
            # The number of an array's last task brings all records of the array; anything else
            # beside it is what a user typed.
            if one is not None and not answer.doubtful and all(_kin(one, j) for j in answer.jobs):
                found.append(one)
        return found

    def nodes(self) -> list[SlurmNode]:
        """All nodes but those that cannot be understood, which costs nobody else his place."""
        unreadable: dict[str, str] = {}
        found = parse_nodes(self._ask("-o", "-d", "show", "node"), unreadable)
        for name, why in unreadable.items():
            if self._left_out.get(name) != why:
                log.warning("node %s is left out: %s", name, why)
        self._left_out = unreadable
        return self._sliced.mark(found)

    def partitions(self) -> list[SlurmPartition]:
        """All partitions, hidden ones too."""
        return parse_partitions(self._ask("-o", "-a", "show", "partition"))

    def qos(self) -> list[SlurmQos]:
        """All QOS, by slurmdbd."""
        columns = "format=name,preempt,preemptmode,priority,preemptexempttime,gracetime"
        command = [self._sacctmgr, "-n", "-P", "show", "qos", columns]
        return parse_qos(run_command(command, self._timeout_s)[0])

    def reservations(self) -> list[SlurmReservation]:
        """All reservations."""
        return parse_reservations(self._ask("-o", "-a", "show", "reservation"))

    def topology(self) -> list[SlurmSwitch]:
        """Switches or blocks of the default topology; empty if Slurm has none."""
        return parse_topology(self._ask("-o", "show", "topology"))

    def free_licenses(self) -> dict[str, int]:
        """Licences that nobody holds or reserves."""
        return parse_free_licenses(self._ask("-o", "show", "license"))

    def update_jobs(self, updates: Sequence[JobUpdate]) -> dict[str, str]:
        """Carry out updates in order through one process; complaints by job id."""
        if not updates:
            return {}
        lines = [
            " ".join(["update", f"jobid={u.job_id}", *(f"{k}={v}" for k, v in u.fields)])
            for u in updates
        ]
        return self._feed(lines, {u.job_id for u in updates})

    def release_jobs(self, ids: Sequence[str]) -> None:
        """``scontrol release`` of jobs; a refusal is logged."""
        for job_id in ids:
            if not JOB_ID.match(job_id):
                raise ValueError(f"{job_id!r} is not a job id")
        refused = self._feed([f"release {job_id}" for job_id in ids], set(ids))
        for job_id, why in refused.items():
            log.warning("job %s could not be released: %s", job_id, why)

    def create_licence_reservation(
        self,
        name: str,
        licence: str,
        count: int,
        users: str,
        end_s: float,
        start_s: float | None = None,
    ) -> None:
        """Create a reservation that holds licences and no node."""
        for word in (name, licence, users.removeprefix("-")):
            if not _NAME.match(word):
                raise ValueError(f"{word!r} is not a plain name")
        self._ask(
            "create",
            "reservation",
            f"reservationname={name}",
            f"licenses={licence}:{int(count)}",
            f"starttime={'now' if start_s is None else _slurm_time(start_s)}",
            f"endtime={_slurm_time(end_s)}",
            f"users={users}",
            "flags=ANY_NODES" + ("" if start_s is None else ",NO_HOLD_JOBS_AFTER,PURGE_COMP"),
            "nodecnt=0",
        )

    def extend_reservation(self, name: str, end_s: float) -> bool:
        """Move a reservation's end; False if there is none of that name."""
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not a plain name")
        try:
            self._ask("update", f"reservationname={name}", f"endtime={_slurm_time(end_s)}")
        except SourceError as exc:
            if _no_reservation(exc):
                return False
            raise
        return True

    def put_off_reservation(self, name: str, start_s: float, end_s: float) -> bool:
        """Move start and end; False if there is none of that name, or it has begun."""
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not a plain name")
        try:
            self._ask(
                "update",
                f"reservationname={name}",
                f"starttime={_slurm_time(start_s)}",
                f"endtime={_slurm_time(end_s)}",
            )
        except SourceError as exc:
            if "already started" in str(exc).lower() or _no_reservation(exc):
                return False
            raise
        return True

    def delete_reservation(self, name: str) -> None:
        """Delete a reservation if there is one."""
        if not _NAME.match(name):
            raise ValueError(f"{name!r} is not a plain name")
        try:
            self._ask("delete", f"reservationname={name}")
        except SourceError as exc:
            if "reservation is invalid" not in str(exc):
                raise

    def _job_json(self, number: int) -> list[SlurmJob] | None:
        """A job as JSON; empty if there is no such job, None if it cannot be understood.

        A job that a user made unreadable costs himself his place, and not all others theirs.
        Raises SourceError if Slurm does not answer.
        """
        try:
            answer = self._ask("show", "job", str(number), "--json", "-d")
        except SourceError as exc:
            if "Invalid job id" in str(exc):
                log.info("job %d does not exist: a user's text looks like its record", number)
                return []
            if _NO_JSON.search(str(exc)):
                log.error("job %d: this Slurm gives no JSON, install its plugin: %s", number, exc)
                return None
            raise
        try:
            return [job for job in parse_jobs_json(answer) if job.raw_id == number]
        except SourceError as exc:
            log.warning("job %d is passed over, cancel it or release it by hand: %s", number, exc)
            return None

    def _feed(self, lines: Sequence[str], ids: Set[str]) -> dict[str, str]:
        """Commands through one process, on its standard input; complaints by job id."""
        limit = self._timeout_s + 0.02 * len(lines)
        text = "\n".join([*lines, "quit"]) + "\n"
        # What it prints on stdout is the echo of what was sent.
        _, stderr = run_command([self._scontrol], limit, stdin=text, check=False, extra=_ZONE)
        return _complaints(stderr, ids)

    def _ask(self, *arguments: str) -> str:
        return run_command([self._scontrol, *arguments], self._timeout_s, extra=_ZONE)[0]


def _no_reservation(exc: SourceError) -> bool:
    return "reservation is invalid" in str(exc) or "reservation not found" in str(exc).lower()


def _kin(one: SlurmJob, other: SlurmJob) -> bool:
    """Whether these are one job, or of one array."""
    return other.id == one.id or (one.array_id is not None and other.array_id == one.array_id)


def _complaints(stderr: str, sent: Set[str]) -> dict[str, str]:
    """Complaints by the ids that were sent, as far as these can be told; the rest is logged."""
    refused: dict[str, str] = {}
    for line in _PROMPT.sub("", stderr).splitlines():
        text = line.strip()
        record, named = _ERROR_OF_RECORD.match(text), _ERROR_FOR_JOB.search(text)
        if record is not None and record[3] == _NO_ERROR:
            continue
        if record is not None:
            array, task = record[1], record[2] or ""
            refused[array if "[" in task or array in sent else array + task] = record[3]
        elif named is not None:
            refused[named[1]] = text
        elif text:
            log.warning("scontrol: %s", text[:200])
    return refused


def _slurm_time(unix_s: float) -> str:
    """``uts`` is Slurm's own word for Unix seconds in a time."""
    return f"uts{int(unix_s)}"
