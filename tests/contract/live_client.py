"""Runs `client_contract` where Slurm is: ``python live_client.py`` prints JSON, check -> failure.

Copied into the controller's container with `client_contract`, and run there as SlurmUser.
"""

import getpass
import json
import subprocess
import sys
import time
import traceback

from client_contract import CHECKS

from slurm_gpu_aware.slurm.client import open_client


class LiveHands:
    """See `client_contract.Hands`; jobs are held by their user, and released to run."""

    node, other_node = "n1", "n2"

    def __init__(self) -> None:
        self.client = open_client(20.0)
        self.user = getpass.getuser()

    def park(self, *, tasks: int = 0, name: str = "parked", comment: str = "") -> str:
        """By ``sbatch --hold``."""
        options = ["-H", "-J", name, "-o", "/dev/null", "--gres=gpu:1", "-t10"]
        options += [f"--comment={comment}"] if comment else []
        options += [f"--array=0-{tasks - 1}"] if tasks else []
        said = command("sbatch", "--parsable", *options, "--wrap", "sleep 600")
        return said.strip()

    def run(self, job_id: str) -> None:
        """By ``scontrol release``."""
        command("scontrol", "release", job_id)
        self._await(job_id, "RUNNING")

    def finish(self, job_id: str) -> None:
        """By ``scancel``."""
        command("scancel", job_id)
        self._await(job_id, "CANCELLED")

    def _await(self, job_id: str, state: str) -> None:
        seen = ""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            seen = command("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").strip()
            if seen == state:
                return
            time.sleep(0.2)
        raise TimeoutError(f"job {job_id} is {seen}, not {state}")


def command(*argv: str) -> str:
    """What a command of Slurm's says."""
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def run_checks() -> None:
    """Run the checks that are named, or all."""
    hands = LiveHands()
    found = {}
    for check in CHECKS:
        if len(sys.argv) > 1 and check.__name__ not in sys.argv[1:]:
            continue
        try:
            check(hands)
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
        command("scancel", "--me", "--quiet")
    print(json.dumps(found))


if __name__ == "__main__":
    run_checks()
