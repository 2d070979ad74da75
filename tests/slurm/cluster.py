"""The container cluster as tests see it: run commands in it, submit, wait, break things.

Everything goes through ``docker exec`` (`hands`); nothing here knows the code under test. What
Slurm says is read with ``scontrol`` and parsed a second time: a test does not trust our parser.
"""

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hands import Hands
from idle_clock import idle_s

__all__ = ["ENDED", "NODES", "NO_ANSWER", "Cluster", "ClusterError", "CommandFailed"]

NODES = ("n1", "n2", "n3", "n4")
ENDED = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    )
)
ROOT = Path(__file__).resolve().parents[2]
GATE = "gpuaware_gate"
GATE_LEFT_S = 35.0
"""Time that a selector's last heartbeat leaves at least, even with the shortest lease of a test."""
HANGS = "/var/log/cluster/hangs.txt"
SLURM_COMMANDS = frozenset(
    ("sacctmgr", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue")
)
NO_ANSWER = re.compile(
    rb"Unable to contact slurm controller|Connection re(set|fused)|timed out|Zero Bytes"
)
# A field's name starts with a capital letter: a comment such as "class=A,bw=high" stays whole.
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z/:]*|JOB_GRES|GRES)=")


class ClusterError(AssertionError):
    """The cluster did not come to the state that the test waited for."""


class CommandFailed(ClusterError):  # noqa: N818 - reads as what happened
    """A command in a container ended with another status than 0."""

    def __init__(self, command: object, status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{command!r} ended with {status}\nstdout: {stdout}\nstderr: {stderr}")
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


class Cluster:
    """One compose project: controller ``ctl``, nodes ``n1`` .. ``n4``, users alice and bob.

    Parameters
    ----------
    project : name of the compose project.
    suite : ``trixie`` (Slurm 24.11) or ``sid`` (26.05).
    """

    POLL_S, LONGEST_POLL_S = 0.2, 1.0
    KIND = "own"
    """GPU_AWARE_CLUSTER of docker/cluster."""
    CONTAINERS: tuple[str, ...] = ("ctl", *NODES)
    HOMES = "/shared/home"
    gated = True
    """Whether a selector closes the gate here: not on plain Slurm."""

    def __init__(self, project: str, suite: str = "trixie") -> None:
        self.project = project
        self.suite = suite
        self.controller = "ctl"
        self._hands: dict[tuple[str, str], Hands] = {}
        self._ids: dict[str, str] = {}
        """Service -> container, of this life of the cluster."""
        self._lock = threading.Lock()

    # -- life of the cluster -------------------------------------------------------------------

    def up(self) -> None:
        """Build the image if needed, start, wait until all nodes are idle."""
        self._script("up", timeout=2400)

    def down(self) -> None:
        """Remove containers, networks and volumes."""
        for hands in self._hands.values():
            hands.close()
        self._script("down", timeout=600)

    def refresh(self) -> None:
        """Copy the changed source into the running containers and restart the selector."""
        self._script("refresh", timeout=900)

    def running(self) -> bool:
        """Whether all containers of the project are up."""
        names = self._docker(
            "ps", "--filter", f"label=com.docker.compose.project={self.project}", "-q"
        )
        return len(names.split()) == len(self.CONTAINERS)

    def mode(self, name: str) -> None:
        """``plain``: no filter, hooks and selector; ``aware``: with us, once the gate is closed."""
        self.sh(self.controller, ["services", "mode", name])
        self.gated = name == "aware"
        if self.gated:
            self.await_gate()
        else:
            gone = lambda: self.service_pid(self.controller, "selectd") is None  # noqa: E731
            self.wait_until(gone, 60, "the selector ends")

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        """Plain Slurm within the ``with`` block."""
        self.mode("plain")
        try:
            yield
        finally:
            self.mode("aware")

    # -- commands ------------------------------------------------------------------------------

    def sh(
        self,
        container: str,
        command: str | Sequence[str],
        user: str = "root",
        *,
        timeout: float = 120,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> str:
        """Run a command and return its stdout.

        Parameters
        ----------
        command : an argv list, or a string for ``sh -c`` inside the container.

        Raises
        ------
        CommandFailed
            The command failed and ``check`` is set.
        """
        return self.run(
            container, command, user, timeout=timeout, stdin=stdin, check=check
        ).stdout.decode(errors="replace")

    def run(
        self,
        container: str,
        command: str | Sequence[str],
        user: str = "root",
        *,
        timeout: float = 120,
        stdin: str | bytes | None = None,
        check: bool = False,
    ) -> subprocess.CompletedProcess[bytes]:
        """Like `sh`, but return status, stdout and stderr (bytes).

        A command of Slurm that has no answer because slurmctld hung (`hung_since`) is given again.
        """
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        given = stdin.encode() if isinstance(stdin, str) else (stdin or b"")
        began = time.time()
        done = self._hands_of(container, user).run(argv, given, timeout)
        if (
            done.returncode
            and argv[0] in SLURM_COMMANDS
            and NO_ANSWER.search(done.stderr)
            and self.hung_since(began)
        ):
            self.await_answer()
            done = self._hands_of(container, user).run(argv, given, timeout)
        if check and done.returncode != 0:
            raise CommandFailed(
                command,
                done.returncode,
                done.stdout.decode(errors="replace"),
                done.stderr.decode(errors="replace"),
            )
        return done

    def start_command(
        self, container: str, command: Sequence[str], user: str = "root"
    ) -> subprocess.Popen[bytes]:
        """Start a command that the test does not wait for yet (``salloc``, ``srun``)."""
        return subprocess.Popen(
            [*self._exec(container, user), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(self, process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
        """Wait for the end of a started command; its stdout and stderr."""
        end = idle_s() + deadline
        while True:
            try:
                return process.communicate(timeout=1)
            except subprocess.TimeoutExpired as exc:
                if idle_s() > end:
                    raise ClusterError(f"not ended within {deadline:g} s: {exc.cmd}") from exc

    # -- jobs ----------------------------------------------------------------------------------

    def submit(self, user: str, args: Sequence[str] = (), script: str = "sleep 1") -> str:
        """Submit a batch script as a user; return the job id."""
        text = f"#!/bin/bash\n{script}\n"
        out = self.sh(self.controller, ["sbatch", "--parsable", *args], user, stdin=text)
        return out.strip().splitlines()[-1].split(";")[0]

    def running_job(self, user: str, args: Sequence[str] = (), script: str = "sleep 1") -> str:
        """Submit a batch script as a user; return the job id once it runs."""
        job_id = self.submit(user, args, script)
        self.wait(job_id, "RUNNING")
        return job_id

    def jobs(self, job_id: str = "") -> list[dict[str, str]]:
        """Return what ``scontrol -o show job -d`` says, one dict per job or array part.

        ``Nodes``, ``GRES`` and the other fields that repeat per group of nodes keep their first
        value; `gpus` reads them all. The whole line is under ``""``. A line without a state is
        no record but a user's text, as `hostile_attack` writes it. A slurmctld that does not answer
        is asked again: no answer is not no jobs.
        """
        show = ["scontrol", "-o", "show", "job", "-d", *([job_id] if job_id else [])]
        said = b""

        def answered() -> bool:
            nonlocal said
            out = self.run(self.controller, show)
            said = out.stdout
            return not (out.returncode and NO_ANSWER.search(out.stderr))

        self.wait_until(answered, 90, "slurmctld answers")
        lines = said.decode(errors="replace").splitlines()
        found = [_fields(line) for line in lines if line.startswith("JobId=")]
        return [fields for fields in found if "JobState" in fields]

    def job(self, job_id: str) -> dict[str, str]:
        """Return the fields of one job (see `jobs`)."""
        found = self.jobs(job_id)
        if not found:
            raise ClusterError(f"Slurm knows no job {job_id}")
        return found[0]

    def gpus(self, job_id: str) -> dict[str, tuple[int, ...]]:
        """Return node -> GPU indices that Slurm has given to a running job (IDX)."""
        line = self.job(job_id)[""]
        given: dict[str, tuple[int, ...]] = {}
        for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", line):
            slots = tuple(
                sorted(i for text in re.findall(r"IDX:([\d,-]+)", gres) for i in _numbers(text))
            )
            for node in self.sh(self.controller, ["scontrol", "show", "hostnames", nodes]).split():
                given[node] = slots
        return given

    def wait(
        self, job_id: str, states: str | Collection[str], deadline: float = 60
    ) -> dict[str, str]:
        """Wait until the job is in one of the states; return its fields.

        Raises
        ------
        AssertionError
            The job ended in another state.
        ClusterError
            ``deadline`` seconds passed; names the last state.
        """
        wanted = {states} if isinstance(states, str) else set(states)
        last: dict[str, str] = {}

        def reached() -> bool:
            last.update(self.job(job_id))
            state = last["JobState"]
            if state in ENDED and state not in wanted:
                raise AssertionError(f"job {job_id} ended as {state}, wanted {sorted(wanted)}")
            return state in wanted

        self.wait_until(
            reached,
            deadline,
            lambda: (
                f"job {job_id} is {last.get('JobState')} ({last.get('Reason')}), "
                f"wanted {sorted(wanted)}"
            ),
        )
        return last

    def wait_all(
        self, job_ids: Iterable[str], states: str | Collection[str], deadline: float = 60
    ) -> None:
        """Wait for one job after the other (`wait`), each within the deadline."""
        for job_id in job_ids:
            self.wait(job_id, states, deadline)

    def wait_until(
        self,
        condition: Callable[[], bool],
        deadline: float,
        what: str | Callable[[], str] = "condition",
    ) -> None:
        """Poll until the condition holds; fail after ``deadline`` seconds with ``what``.

        The deadline is that of an idle machine (`idle_clock`), and the last look is after it: this
        process may have stood still. A hang of slurmctld (`hung_since`) begins it anew.
        """
        began, end = time.time(), idle_s() + deadline
        while True:
            late, asked = idle_s() > end, time.monotonic()
            if condition():
                return
            if late:
                if not self.hung_since(began):
                    text = what if isinstance(what, str) else what()
                    raise ClusterError(f"not within {deadline:g} s: {text}")
                began, end = time.time(), idle_s() + deadline
            # Commands of ours take a core while they start: at most half of the time
            took_s = time.monotonic() - asked
            time.sleep(min(max(self.POLL_S, took_s), self.LONGEST_POLL_S))

    def explained(self, job_id: str) -> dict[str, Any]:
        """The last decision about a job, as ``gpu-aware explain`` tells it.

        Users read a copy of the ledger, which is seconds old: waits until it has a decision.
        """
        found: dict[str, Any] = {}

        def told() -> bool:
            done = self.run("ctl", ["gpu-aware", "explain", job_id, "--json"])
            decisions = json.loads(done.stdout)["decisions"] if done.stdout else []
            found.update(decisions[-1] if decisions else {})
            return bool(decisions)

        self.wait_until(told, 60, f"a decision in explain {job_id}")
        return found

    def wait_told(self, job_id: str, pattern: str) -> None:
        """Wait until ``gpu-aware explain`` says something that matches ``pattern``."""
        said = ""

        def told() -> bool:
            nonlocal said
            said = self.sh("ctl", ["gpu-aware", "explain", job_id, "--details"], "alice")
            return re.search(pattern, said) is not None

        self.wait_until(told, 60, lambda: said)

    def output(self, job_id: str, user: str) -> str:
        """Return what a finished batch job of the user wrote (``slurm-JOBID.out``)."""
        return self.sh(self.controller, ["cat", f"/shared/home/{user}/slurm-{job_id}.out"])

    # -- breaking things -----------------------------------------------------------------------

    def kill(self, container: str, service: str, signal: str = "KILL") -> None:
        """Send a signal to a service, and wait until it has ended if that ends it.

        Its supervisor starts it again half a second later.
        """
        runs = lambda: self.service_pid(container, service) is not None  # noqa: E731
        self.wait_until(runs, 60, f"{service} runs, which was started again just now")
        pid = self.service_pid(container, service)
        self.sh(container, f'kill -s {signal} "$(services pid {service})"')
        if signal in ("KILL", "TERM"):
            gone = lambda: self.service_pid(container, service) != pid  # noqa: E731
            self.wait_until(gone, 60, f"{service} ends")

    def service_down(self, container: str, service: str, signal: str = "TERM") -> None:
        """Stop a service, wait until it has ended, and keep it down."""
        self.sh(container, ["services", "down", service, signal])
        self.wait_until(lambda: self.service_pid(container, service) is None, 60, f"{service} ends")

    def service_up(self, container: str, service: str) -> None:
        """Let a service run again."""
        self.sh(container, ["services", "up", service])

    def service_pid(self, container: str, service: str) -> int | None:
        """Return the process id of a service; None while it is down."""
        text = self.sh(container, f"services pid {service} 2>/dev/null || true").strip()
        return int(text) if text else None

    def stop(self, container: str) -> None:
        """Kill a container, as a machine that loses power."""
        self._docker("kill", self._id(container))

    def start(self, container: str) -> None:
        """Start a stopped container."""
        self._docker("start", self._id(container))

    def mark_down(self, node: str) -> None:
        """Set a node that is dead down, as Slurm itself does after SlurmdTimeout.

        Slurm has missed an answer then (``*``, within a ping interval): with ReturnToService=2
        an answer that was still under way would bring the node back.
        """
        self.wait_until(
            lambda: "*" in self.sh(self.controller, ["sinfo", "-h", "-n", node, "-o", "%T"]),
            60,
            f"{node} does not answer",
        )
        state = [f"nodename={node}", "state=down", "reason=test"]
        self.sh(self.controller, ["scontrol", "update", *state])

    def answers(self) -> bool:
        """Whether slurmctld does."""
        return self.run(self.controller, ["scontrol", "ping"]).stdout.count(b"UP") == 1

    def await_answer(self) -> None:
        """Until slurmctld answers; one that hangs is restarted by its supervisor meanwhile."""
        self.wait_until(self.answers, 90, "slurmctld answers")

    def slurmd_starts(self) -> dict[str, str]:
        """Node that has registered with this slurmctld -> when its slurmd started.

        Slurm knows a node's GPUs then; a job before that never learns its own.
        """
        shown = self.sh(self.controller, ["scontrol", "-o", "show", "nodes"], check=False)
        return dict(re.findall(r"^NodeName=(\S+) .* SlurmdStartTime=(\d\S+)", shown, re.M))

    def await_slurmds(self) -> None:
        """Until all nodes have registered, and their slurmds take what slurmctld sends."""
        listens = "grep -q ':1AA2 [0:]* 0A ' /proc/net/tcp*"  # SlurmdPort, 6818

        def answer() -> bool:
            known = self.slurmd_starts().keys() >= set(NODES)
            return known and all(self.run(node, listens).returncode == 0 for node in NODES)

        self.wait_until(answer, 120, lambda: f"all slurmds register: {self.slurmd_starts()}")

    def gate_closed(self) -> bool:
        """Whether jobs wait for the selector: one that has just started tries a job first."""
        shown = self.run(self.controller, ["scontrol", "-o", "show", "reservation", GATE]).stdout
        return b"State=ACTIVE" in shown

    def await_gate(self) -> None:
        """Until the gate is closed; a job before that starts as on plain Slurm.

        It stays closed for a while: what is left of an earlier gate may end at any moment.
        """
        show = ["scontrol", "-o", "show", "reservation", GATE]

        def held() -> bool:
            shown = self.run(self.controller, show).stdout.decode()
            end = re.search(r" EndTime=(\S+) .*State=ACTIVE", shown)
            return end is not None and _unix(end[1]) > time.time() + GATE_LEFT_S

        self.wait_until(held, 120, "the gate is closed")

    def resume(self, states: Mapping[str, str]) -> None:
        """Resume those of the nodes that are out of service but answer; ``states`` by ``sinfo``."""
        for node, state in states.items():
            if state.startswith(("down", "drain", "inval")) and not state.endswith("*"):
                update = ["scontrol", "update", f"nodename={node}", "state=resume"]
                self.sh(self.controller, update, check=False)

    def hung_since(self, at: float) -> bool:
        """Whether slurmctld hung since a Unix time, as 24.11.5 does now and then when it ends.

        Its slurmscriptd answers before it waits for the answer (docs/internals/slurm.md), so it
        waits for ever. Its supervisor reads that from its stack; any other hang does not count.
        """
        text = self._hands_of(self.controller, "root").run(["cat", HANGS], b"", 60).stdout.decode()
        return any(float(then) >= at for then in re.findall(r"^waits for ever, (\d+)$", text, re.M))

    def await_saved(self) -> None:
        """Until slurmctld has saved all that it knows now, as it does every five seconds."""
        name = f"saved-{time.time_ns()}"
        job = self.submit("root", ["-H", "-J", name, "-o", "/dev/null"])
        state = "$(scontrol show config | sed -n 's/^StateSaveLocation *= //p')/job_state"
        self.wait_until(
            lambda: self.run(self.controller, f"grep -q {name} {state}").returncode == 0,
            60,
            "slurmctld has saved its state",
        )
        self.sh(self.controller, ["scancel", job])

    def start_requeued(self, job_id: str) -> None:
        """Let a requeued job start now: by itself Slurm lets it wait for two minutes.

        Its first run has ended then. Before, what Slurm sends to end that one may end the next.
        """
        pending = lambda: self.job(job_id)["JobState"] == "PENDING"  # noqa: E731
        self.wait_until(pending, 60, lambda: self.job(job_id)[""])
        time.sleep(2)  # slurmd refuses credentials of the second in which it revoked the first's
        self.sh(self.controller, ["scontrol", "update", f"jobid={job_id}", "starttime=now"])

    def cancel_all(self) -> None:
        """Cancel every job, as root."""
        self.sh(self.controller, "squeue -h -r -o %i | xargs -r scancel --quiet", check=False)

    def end_all(self) -> None:
        """Cancel every job, and wait until none is left."""
        self.cancel_all()

        def none_left() -> bool:
            shown = self.run(self.controller, ["squeue", "-h"])
            return shown.returncode == 0 and shown.stdout == b""

        self.wait_until(none_left, 60, "no job is left")

    def reset(self) -> None:
        """End all jobs and bring everything up again: services, containers, nodes.

        Reservations other than the gate are deleted. Waits until all nodes are idle and registered,
        their slurmds answer (Slurm calls a node idle for a while whose slurmd is away), and the
        gate is closed, where it ever is.
        """
        ids = [self._id(name) for name in self.CONTAINERS]
        running = self._docker("inspect", "-f", "{{.State.Running}}", *ids).split()
        for name, runs in zip(self.CONTAINERS, running, strict=True):
            if runs != "true":
                self.start(name)
            self.sh(name, "rm -f /run/services/*.down; pkill -CONT .")
        self.await_answer()
        self.cancel_all()
        reservations = self.sh(
            self.controller, ["scontrol", "-o", "show", "reservation"], check=False
        )
        for name in re.findall(r"ReservationName=(\S+)", reservations):
            if name != GATE:
                self.sh(self.controller, ["scontrol", "delete", f"reservation={name}"], check=False)
        # Faults and slowness that a test has set
        self.sh(self.controller, "rm -f /shared/fakegpu/*/*")
        last = ""

        def idle() -> bool:
            nonlocal last
            last = self.sh(
                self.controller, "squeue -h; sinfo -h -N -o '%N %T' | sort -u", check=False
            )
            states = dict(re.findall(r"^(n\d) (\S+)$", last, flags=re.M))
            self.resume(states)
            lines = last.split("\n")
            return len(states) == len(NODES) == len(lines) - 1 and set(states.values()) == {"idle"}

        self.wait_until(idle, 120, lambda: f"all nodes idle, no jobs:\n{last}")
        self.await_slurmds()
        if self.gated:
            self.await_gate()

    def logs(self, lines: int = 80) -> str:
        """Return the tail of every service's log."""
        parts = []
        for name in self.CONTAINERS:
            found = self.run(name, f"tail -n {lines} /var/log/cluster/*.*", timeout=20)
            parts.append(f"---- {name} ----\n{found.stdout.decode(errors='replace')}")
        return "\n".join(parts)

    # -- plumbing ------------------------------------------------------------------------------

    def _hands_of(self, container: str, user: str) -> Hands:
        with self._lock:
            hands = self._hands.get((container, user))
            if hands is None or hands.gone:
                hands = Hands(self._exec(container, user))
                self._hands[container, user] = hands
            return hands

    def _exec(self, container: str, user: str) -> list[str]:
        where = f"{self.HOMES}/{user}" if user in ("alice", "bob") else "/"
        options = ["-i", "-u", user, "-w", where, "-e", f"USER={user}", "-e", f"HOME={where}"]
        return ["docker", "exec", *options, self._id(container)]

    def _id(self, container: str) -> str:
        if container not in self._ids:
            label = "label=com.docker.compose"
            project, service = f"{label}.project={self.project}", f"{label}.service={container}"
            found = self._docker("ps", "-aq", "--filter", project, "--filter", service).split()
            if not found:
                raise ClusterError(f"no container {container} in project {self.project}")
            self._ids[container] = found[0]
        return self._ids[container]

    def _docker(self, *args: str) -> str:
        done = subprocess.run(
            ["docker", *args], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            raise CommandFailed(args, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def _script(self, verb: str, timeout: float) -> None:
        self._ids.clear()
        done = subprocess.run(
            [str(ROOT / "docker/cluster"), verb],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={
                **os.environ,
                "GPU_AWARE_PROJECT": self.project,
                "GPU_AWARE_CLUSTER": self.KIND,
                "GPU_AWARE_SUITE": self.suite,
            },
        )
        if done.returncode != 0:
            raise CommandFailed(f"docker/cluster {verb}", done.returncode, done.stdout, done.stderr)


def _fields(line: str) -> dict[str, str]:
    marks = list(_FIELD.finditer(line))
    ends = [m.start() for m in marks[1:]] + [len(line)]
    fields: dict[str, str] = {"": line}
    for mark, end in zip(marks, ends, strict=True):
        fields.setdefault(mark.group(1), line[mark.end() : end].strip())
    return fields


def _unix(text: str) -> float:
    """Unix time of a time that Slurm shows; containers have no zone of their own."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
