"""The foreign site (docker/site) as the walk sees it: steps of its admin, load, files."""

import json
import shlex
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

from cluster import Cluster, ClusterError, CommandFailed
from guide import Step, insert

__all__ = ["GPU_NODES", "USERS", "ForeignSite"]

HERE = Path(__file__).parent
GPU_NODES = ("a1", "a2", "v1", "v2")
PLACES = {"controller": ("ctl",), "GPU nodes": GPU_NODES, "other hosts": ("c1", "login")}
USERS = ("alice", "bob")
SOURCES = "/root/slurm-gpu-aware"
# doctor's exit code 3 (a check failed) is no failed step: what it says is judged apart. That of
# setup (it waits) is the guide's loop's; any other ends the step also where the loop ends well.
PRELUDE = f"""set -e
cd {SOURCES}
gpu-aware() {{
    command gpu-aware "$@" && return
    status=$?
    case $1.$status in doctor.3) return 0 ;; setup.3) return 3 ;; esac
    exit $status
}}
"""
# Where nothing of Slurm's and of the containers' own changes from minute to minute
LOOKED_AT = "/etc /opt /root /usr /var /home /srv /run"
PASSING = (
    "/var/log|/var/lib/mysql|/var/cache|/var/spool/slurmctld|/var/spool/slurmd|/var/tmp|/run"
    "|/etc/gpu-aware-fake|/home/[^/]*/(load|slurm-[0-9]+\\.out)|/root/.cache|/usr/lib/python3[^/]*"
    "|/usr/lib/python3/.*__pycache__|/root/slurm-gpu-aware"
)


class ForeignSite(Cluster):
    """One compose project of ``docker/site``: controller, four GPU nodes, a CPU node, a login."""

    KIND = "foreign"
    CONTAINERS = ("ctl", *GPU_NODES, "c1", "login")
    HOMES = "/home"

    # -- the admin -----------------------------------------------------------------------------

    def take(self, step: Step, timeout: float = 900) -> str:
        """Do one step of the guide as root; return what its commands print.

        Raises
        ------
        CommandFailed
            A command of the step ended with another status than 0.
        """
        if step.path:
            old = self.sh("ctl", f"cat {step.path} 2>/dev/null || true")
            self.sh("ctl", f"cat >{step.path}", stdin=insert(old, step))
            return ""
        hosts = [host for place in step.places for host in PLACES[place]]
        done: dict[str, subprocess.CompletedProcess[bytes] | Exception] = {}

        def there(host: str) -> None:
            try:
                script = ["bash", "-c", PRELUDE + step.text]
                done[host] = self.run(host, script, timeout=timeout)
            except subprocess.TimeoutExpired as exc:
                done[host] = exc

        threads = [threading.Thread(target=there, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = []
        for host, result in done.items():
            if isinstance(result, Exception):
                raise ClusterError(f"{step.where} on {host}: not done in {timeout:g} s")
            out = result.stdout.decode(errors="replace")
            if result.returncode:
                err = result.stderr.decode(errors="replace")
                raise CommandFailed(f"{step.where} on {host}", result.returncode, out, err)
            said.append(out + result.stderr.decode(errors="replace"))
        return "".join(said)

    def doctor(self, *options: str) -> tuple[int, list[dict[str, str]]] | None:
        """Exit code and checks of ``gpu-aware doctor``; None where it is not installed."""
        if self.run("ctl", "command -v gpu-aware").returncode:
            return None
        done = self.run("ctl", ["gpu-aware", "doctor", "--json", *options])
        return done.returncode, json.loads(done.stdout)["checks"]

    # -- the users -----------------------------------------------------------------------------

    def start_load(self, interval_s: float) -> list[subprocess.Popen[bytes]]:
        """Let both users submit from the login host, each a job in so many seconds."""
        self.sh("login", "mkdir -p /tmp/load")
        for name in ("site_forms.py", "site_load.py"):
            text = (HERE / name).read_text(encoding="utf-8")
            self.sh("login", f"cat >/tmp/load/{name}", stdin=text)
        running = []
        for user in USERS:
            self.sh("login", f"rm -rf /home/{user}/load; mkdir /home/{user}/load", user)
            words = ["python3", "/tmp/load/site_load.py", f"/home/{user}/load"]
            running.append(self.start_command("login", [*words, str(interval_s)], user))
        return running

    def tell_load(self, phase: int, hold_s: float = 0) -> None:
        """Tell the load which step of the walk begins, and how long to hold jobs in it."""
        for user in USERS:
            # At once as a whole: the load reads it meanwhile
            there = f"/home/{user}/load/phase"
            self.sh("login", f"echo {phase} {hold_s} >{there}.new && mv {there}.new {there}", user)

    def stop_load(self, running: Iterable[subprocess.Popen[bytes]], deadline: float) -> list[str]:
        """Let the users submit no more; wait until no job is left. Return what does not end."""
        for user in USERS:
            self.sh("login", f"touch /home/{user}/load/stop", user)
        left = ""

        def over() -> bool:
            nonlocal left
            left = self.sh("ctl", ["squeue", "-h", "-o", "%i %u %j %T %r"], check=False)
            return not left.strip() and all(process.poll() is not None for process in running)

        wrong = []
        try:
            self.wait_until(over, deadline)
        except ClusterError:
            jobs = self.sh(
                "ctl", "squeue -h -o %i | xargs -r -n1 scontrol -o show job", check=False
            )
            wrong = [f"left in the queue: {line}" for line in jobs.splitlines() if line.strip()]
            wrong = wrong or ["the load does not end"]
            self.cancel_all()
        for process in running:
            _, said = self.finish(process, 30)
            if process.returncode:
                wrong.append(f"the load ended with {process.returncode}: {said.decode()}")
        return wrong

    def output_of(self, name: str) -> str:
        """What a batch job of the load wrote."""
        return self.sh("login", f"cat /home/*/load/out/{name}.* 2>&1 || true").strip()

    def load_file(self, user: str, name: str) -> list[str]:
        """Lines of a file of the load."""
        return self.sh("login", f"cat /home/{user}/load/{name}").splitlines()

    # -- the files -----------------------------------------------------------------------------

    def files(self) -> dict[str, dict[str, str]]:
        """Host -> path -> kind, owner, mode and, below /etc, a checksum of what stays."""
        look = (
            f"find {LOOKED_AT} -regextype posix-extended -xdev \\( -regex {shlex.quote(PASSING)}"
            " -prune \\) -o -printf '%p\\t%y %u %m %l\\n'; "
            "find /etc -xdev -type f -print0 | xargs -0 sha256sum"
        )
        found: dict[str, dict[str, str]] = {}
        for host in self.CONTAINERS:
            paths = found.setdefault(host, {})
            for line in self.sh(host, look).splitlines():
                if "\t" in line:
                    path, kind = line.split("\t", 1)
                    paths[path] = kind
                else:
                    digest, path = line.split(None, 1)
                    if path in paths:
                        paths[path] += f" {digest}"
        return found
