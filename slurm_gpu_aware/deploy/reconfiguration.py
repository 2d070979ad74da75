"""How a change of slurm.conf reaches slurmctld and the nodes, without losing jobs.

A job that slurmctld allocates just before it restarts is never launched: it stays RUNNING with
reason Prolog. The same happens to a job whose launch reaches a slurmd while it reads its files. A
reservation of all nodes therefore prevents starts until the slurmds have restarted; it ends by
itself if this process is killed.

Some releases of Slurm may hang on a reconfigure (docs/internals/slurm.md). After an administrator
restarts slurmctld, the slurmds still have their old files, so the reconfigure is repeated.

Which files the nodes have is asked by short jobs on idle ones.
"""

import contextlib
import hashlib
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slurm_gpu_aware.bounds import ROLLOUT_HOLD
from slurm_gpu_aware.config.settings import SetupConfig
from slurm_gpu_aware.errors import FileFault, SourceError, StoppedError
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.records import SlurmNode
from slurm_gpu_aware.slurm.updates import NewReservation
from slurm_gpu_aware.slurm.words import hostlist

log = logging.getLogger(__name__)

_AWAY = re.compile(r"DOWN|NOT_RESPONDING|POWER")
_LOST = re.compile(
    r"no answer within|timed out|unable to contact|zero bytes|missing socket|header lengths"
    r"|connection (?:refused|reset|timed)|communication (?:connection|shutdown)"
    r"|message (?:send|receive) failure",
    re.IGNORECASE,
)
"""Errors that are not a refusal: slurmctld is slow, hangs, or has died."""
_HANGS = (
    "slurmctld has not answered for {silent:.0f} s, since 'scontrol reconfigure' ({error}). Look at"
    " its log: if it ended, repair the error and start it. If it runs and its log has stopped, it"
    " hangs, as some releases may (24.11 before 24.11.6): kill -9 it and start it again. Running"
    " jobs continue, and so does this command."
)
WANTED = (
    "name the command that copies {folder} to all nodes in the configuration, for example"
    ' distribute = ["/root/push-slurm-conf"] in [setup]'
)
"""What a site with a folder on each host needs."""
_ASK_S = 60.0
_LOOK = """echo "$SLURMD_NODENAME" $(
    for file; do
        case $file in *.conf) ;; *) [ -x "$file" ] || continue ;; esac
        sha256sum "$file"
    done 2>/dev/null)"""
_SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_NODES = 256  # Nodes of one job.
_SILENT = re.compile(r"DOWN|NOT_RESPONDING|POWER|UNKNOWN|FUTURE")


class Reconfiguration:
    """``scontrol reconfigure``, repeated if slurmctld dies before it reaches the slurmds.

    ``say`` takes a line of progress; ``stopping``, asked while slurmctld is silent, gives up.
    """

    HOLD_S = 60.0
    LONGER_S = 120.0  # Duration of the reservation; its duration from the reconfigure on.
    TRIES = 3
    COMMAND_S = 120.0  # Time limit of ``scontrol reconfigure``.
    LAUNCH_S = 20.0  # Longest wait for jobs that are being launched; shorter than the reservation.
    QUIET_S = 1.0  # Time without such a job after which none is expected.
    SLURMDS_S = 20.0
    """Longest wait for slurmds to read their files, and to register with a new slurmctld."""
    ANSWER_S = 30.0  # Silence of slurmctld before a message.
    REPEAT_S = 60.0  # Interval between such messages.
    RELEASE_S = 30.0  # Time limit for deleting the reservation.
    POLL_S = 0.25

    def __init__(
        self, client: SlurmClient, say: Callable[[str], None], stopping: Callable[[], bool]
    ) -> None:
        self._client = client
        self._say = say
        self._stopping = stopping
        self._silent = False
        """slurmctld did not answer the last call."""

    def run(self, ready: Callable[[], None] = lambda: None, node: str | None = None) -> None:
        """Reconfigure. ``ready`` is called before each try and may raise to prevent it.

        ``node``: the node that must read its files, if it answers; None: any. Raises SourceError if
        Slurm refuses or the slurmds have not read their files after three tries, StoppedError if
        ``stopping`` is true while slurmctld does not answer.
        """
        before: Mapping[str, float] | None = None
        for _ in range(self.TRIES):
            ready()
            with self._no_starts() as held:
                self._await_launched()
                try:
                    before = self._starts() if before is None else before
                except SourceError as exc:
                    log.warning("cannot tell when slurmd has read its files: %s", exc)
                if held:  # a large slurmctld reads its files for up to a minute
                    longer = time.time() + self.LONGER_S
                    self._warned(partial(self._client.move_reservation, ROLLOUT_HOLD, longer))
                asked = time.monotonic()
                lost = self._tell()
                since = asked if lost else time.monotonic()
                silent, anew = self._await_slurmds(before or {}, since)
            told = before == {} or (node in anew if node in (before or {}) else bool(anew))
            if told or not (lost or silent):
                return
            self._say("slurmctld answers again, but the slurmds have not read their files")
        raise SourceError(
            f"'scontrol reconfigure' was given up after {self.TRIES} tries: the slurmds did not"
            f" read their files{f' ({lost})' if lost else ''}"
        )

    def _tell(self) -> SourceError | None:
        """Reconfigure; return the error if the answer is lost. Raises SourceError on a refusal."""
        self._silent = True
        try:
            run_command(["scontrol", "reconfigure"], self.COMMAND_S)
        except SourceError as exc:
            if _LOST.search(str(exc)):
                return exc
            self._silent = False
            raise
        self._silent = False
        return None

    def _await_slurmds(
        self, before: Mapping[str, float], silent_since: float
    ) -> tuple[bool, frozenset[str]]:
        """(whether slurmctld was silent, the nodes whose slurmd has restarted).

        Ends when all have restarted, or when slurmctld has answered for ``SLURMDS_S``.
        """
        silent = False
        answered_s = 0.0
        began = silent_since
        told = -math.inf
        while True:
            asked = time.monotonic()
            try:
                starts = self._starts()
            except SourceError as exc:
                self._silent = silent = True
                now = time.monotonic()
                if now - silent_since >= self.ANSWER_S and now - told >= self.REPEAT_S:
                    self._say(_HANGS.format(silent=now - silent_since, error=exc))
                    told = now
                if now - began >= self.ANSWER_S and self._stopping():
                    raise StoppedError("slurmctld does not answer") from exc
            else:
                self._silent = False
                silent_since = time.monotonic()
                answered_s += silent_since - asked + self.POLL_S
                anew = frozenset(n for n, start in before.items() if starts.get(n, start) != start)
                if len(anew) == len(before) or answered_s >= self.SLURMDS_S:
                    return silent, anew
            time.sleep(self.POLL_S)

    def _starts(self) -> dict[str, float]:
        """Node that has registered and answers -> start of its slurmd."""
        return {
            node.name: node.slurmd_start_s
            for node in self._client.nodes()
            if node.slurmd_start_s is not None and not any(map(_AWAY.search, node.states))
        }

    @contextlib.contextmanager
    def _no_starts(self) -> Iterator[bool]:
        self._silent = False
        held = self._warned(self._hold_starts)
        try:
            yield held
        finally:
            if held and not self._silent:
                self._let_start(self.RELEASE_S)

    def _warned(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except SourceError as exc:
            log.warning("jobs may start while Slurm is reconfigured: %s", exc)
            return False
        return True

    def _hold_starts(self) -> None:
        flags = frozenset({"IGNORE_JOBS", "OVERLAP"})
        wanted = NewReservation(ROLLOUT_HOLD, time.time() + self.HOLD_S, nodes="ALL", flags=flags)
        try:
            self._client.create_reservation(wanted)
        except SourceError:
            self._let_start(0.0)  # the reservation of a killed run
            self._client.create_reservation(wanted)

    def _let_start(self, within_s: float) -> None:
        """Delete the reservation; slurmctld may not answer for a moment."""
        end = time.monotonic() + within_s
        while True:
            try:
                return self._client.delete_reservation(ROLLOUT_HOLD)
            except SourceError as exc:
                if time.monotonic() >= end:
                    text = "reservation %s is left; it ends within two minutes: %s"
                    return log.warning(text, ROLLOUT_HOLD, exc)
            time.sleep(self.POLL_S)

    def _await_launched(self) -> None:
        """Wait until no job has been launching for ``QUIET_S``; at most ``LAUNCH_S``."""
        quiet = time.monotonic()
        end = quiet + self.LAUNCH_S
        while time.monotonic() - quiet < self.QUIET_S and time.monotonic() < end:
            if any(
                job.state == "CONFIGURING" or (job.state == "RUNNING" and job.reason == "Prolog")
                for job in self._client.jobs()
            ):
                quiet = time.monotonic()
            time.sleep(self.POLL_S)


@dataclass(frozen=True)
class Delivery:
    """Whether the nodes get a change of the folder of slurm.conf when Slurm is reconfigured."""

    arrives: bool | None  # None: it is not known.
    why: str


def find_delivery(
    setup: SetupConfig, client: SlurmClient, slurm_dir: Path, nodes: Collection[str] | None = None
) -> Delivery:
    """Find out how the nodes get the files.

    By a command, from slurmctld (configless), or from a shared folder: a job on one idle node
    of ``nodes`` (None: of all) looks for a file that is made here. Raises SourceError if
    ``setup.distribute`` cannot be run, or Slurm does not answer.
    """
    if setup.distribute:
        if shutil.which(setup.distribute[0]) is None:
            raise SourceError(
                f"setup.distribute: {setup.distribute[0]!r} is not a command that can be run on"
                " this host"
            )
        return Delivery(True, f"setup.distribute: {' '.join(setup.distribute)}")
    if "enable_configless" in client.settings().get("SlurmctldParameters", ""):
        return Delivery(True, "configless: nodes get the files from slurmctld")
    seen = _seen_by_a_node(client, slurm_dir, nodes)
    if seen is None:
        return Delivery(
            None,
            f"it is not known whether the nodes share {slurm_dir}: no idle node could be asked",
        )
    node, there = seen
    if there:
        return Delivery(True, f"the nodes share {slurm_dir} ({node} was asked)")
    return Delivery(False, f"{node} has a {slurm_dir} of its own, and setup.distribute is not set")


def not_read_since(nodes: Collection[SlurmNode], changed_s: float) -> list[str]:
    """Nodes that answer and whose slurmd has not started anew since then (Unix seconds)."""
    return [
        node.name
        for node in nodes
        if node.slurmd_start_s is not None
        and not any(map(_SILENT.search, node.states))
        and node.slurmd_start_s < int(changed_s)
    ]


def _seen_by_a_node(
    client: SlurmClient, slurm_dir: Path, nodes: Collection[str] | None
) -> tuple[str, bool] | None:
    """(a node, whether it sees a file that is made here); None: no node could be asked."""
    free = [(part, name) for part, names in idle_nodes(client, nodes).items() for name in names]
    marker = slurm_dir / f".gpu-aware-{os.getpid()}.conf"
    with FileFault(marker, "written"):
        marker.touch()
    try:
        for partition, name in free[:2]:
            if found := ask_nodes(partition, [name], [marker]):
                return name, str(marker) in found[name]
    finally:
        marker.unlink(missing_ok=True)
    return None


def digest(path: Path) -> str | None:
    """SHA-256 of a file of this host; None: there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def idle_nodes(client: SlurmClient, among: Collection[str] | None = None) -> dict[str, list[str]]:
    """Partition -> those of the nodes (None: all) on which a job can start at once."""
    partition = {name: one.name for one in reversed(client.partitions()) for name in one.nodes}
    found: dict[str, list[str]] = {}
    for node in client.nodes():
        name, wanted = node.name, among is None or node.name in among
        if wanted and name in partition and node.states <= {"IDLE", "MIXED"}:
            found.setdefault(partition[name], []).append(name)
    return found


def _look_on(partition: str, nodes: Sequence[str], paths: Sequence[Path]) -> str:
    """What `_LOOK` prints on idle nodes, run once on each; empty if it could not be run."""
    words = ["srun", f"--nodelist={hostlist(nodes)}", f"--partition={partition}"]
    words += [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    words += ["--immediate=10", "--time=1", "--mem=1", "--chdir=/", "--job-name=gpu-aware-look"]
    words += ["sh", "-c", _LOOK, "sh", *map(str, paths)]
    try:
        return run_command(words, _ASK_S, check=False)[0]
    except SourceError:
        return ""


def ask_nodes(
    partition: str, nodes: Sequence[str], paths: Sequence[Path]
) -> dict[str, dict[str, str]]:
    """Node -> path -> SHA-256 of the files that it has; without nodes that could not be asked.

    A script counts only if it is executable.
    """
    found: dict[str, dict[str, str]] = {}
    for first in range(0, len(nodes), MAX_NODES):
        some = nodes[first : first + MAX_NODES]
        for line in _look_on(partition, some, paths).splitlines():
            name, *rest = line.split() or [""]
            pairs = zip(rest[::2], rest[1::2], strict=False)
            if name in some:
                found[name] = {path: value for value, path in pairs if _SHA256.fullmatch(value)}
    return found
