"""Runs on the login host of the foreign site, as a user: submits jobs of all forms, until told.

Standard library only. ``site_load.py FOLDER INTERVAL_S``; in the folder, which all hosts see:

- ``phase``: written by the test, ``NUMBER HOLD_S``: the step of the walk. Where ``HOLD_S`` is not 0
  the forms that are held are submitted; their jobs are released two steps later, or after so long
- ``stop``: once it is there nothing more is submitted
- ``submitted``: one JSON object per submission, with its job id or what the tool said
- ``seen``: what the jobs themselves saw: one line at their begin, per task, at their end
"""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from site_forms import FORMS

QUEUE_LIMIT = 24
TRIES = 8
A_WHILE_S = 30.0
PLAIN_REFUSALS = (
    "Requested node configuration is not available",
    "Unable to contact slurm controller",
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
)
"""What plain Slurm says around its own reconfigures and restarts: users submit again."""

NOTE = """#!/bin/bash
note() {
    echo "$1 ${SLURM_JOB_NAME:--} $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} ${SLURMD_NODENAME:-?}" \\
        "$(date +%s.%N) ${SLURM_PROCID:--} ${CUDA_VISIBLE_DEVICES:--}" >>FOLDER/seen
}
"""
TASK = """
export SLURM_JOB_NAME=${LOAD_NAME:-$SLURM_JOB_NAME}
note task
[ -z "$1" ] || { sleep "$1"; note last; }
"""
JOB = """
note begin
LOAD_NAME=$SLURM_JOB_NAME srun $LOAD_STEP FOLDER/task
status=$?
if [ "$LOAD_ALSO.${SLURM_RESTART_COUNT:-0}" = requeue.0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
fi
sleep $((RANDOM % 3 + 1))
note end
exit $status
"""


class Load:
    """The submissions of one user."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.lock = threading.Lock()
        self.last = ""
        self.held: list[tuple[int, float, str]] = []
        self.interactive: list[threading.Thread] = []
        (folder / "out").mkdir(parents=True, exist_ok=True)
        for name, text in (("task", TASK), ("job", JOB)):
            (folder / name).write_text((NOTE + text).replace("FOLDER", str(folder)))
            (folder / name).chmod(0o755)

    def phase(self) -> tuple[int, float]:
        """Number of the step, and how long jobs are held in it."""
        try:
            words = (self.folder / "phase").read_text().split()
        except OSError:
            return 0, 0.0
        return int(words[0]), float(words[1])

    def stopped(self) -> bool:
        return (self.folder / "stop").exists()

    def submit(self, form, number):
        """One submission, repeated where plain Slurm itself would refuse."""
        name = f"{form.name}.{os.environ['USER'][0]}{number}"
        argv = [form.tool, "-t", "2", "-J", name, *form.words]
        env = {**os.environ, "LOAD_STEP": form.step, "LOAD_ALSO": form.also, "LOAD_NAME": name}
        if form.tool == "sbatch":
            argv += ["--parsable", "-o", f"{self.folder}/out/{name}.%a", f"{self.folder}/job"]
            if form.also.startswith("held"):
                argv.insert(1, "--hold")
            if form.also == "after" and self.last:
                argv.insert(1, f"--dependency=afterany:{self.last}")
        elif form.tool == "salloc":
            argv += ["srun", f"{self.folder}/task", "1"]
        else:
            argv += [f"{self.folder}/task", "1"]
        phase, hold_s = self.phase()
        entry = {"name": name, "phase": phase, "again": [], "argv": argv}
        for _ in range(TRIES):
            entry["at"] = time.time()
            done = subprocess.run(
                argv, env=env, cwd=self.folder, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=600, check=False,
            )  # fmt: skip
            entry |= {"status": done.returncode, "said": done.stderr, "stdout": done.stdout}
            if done.returncode == 0 or not any(text in done.stderr for text in PLAIN_REFUSALS):
                break
            entry["again"].append(done.stderr)
            time.sleep(1.5)
        entry["took_s"] = time.time() - entry["at"]
        if form.tool == "sbatch" and done.returncode == 0:
            entry["id"] = done.stdout.split()[-1].split(";")[0]
            if form.also in ("", "after"):
                self.last = entry["id"]
            if form.also.startswith("held"):
                hold_s = hold_s if form.also == "held" else min(hold_s, A_WHILE_S)
                self.held.append((phase, entry["at"] + hold_s, entry["id"]))
        elif form.tool != "sbatch" and (match := re.search(r"allocation (\d+)", done.stderr)):
            entry["id"] = match[1]
        with self.lock, open(self.folder / "submitted", "a") as out:
            out.write(json.dumps(entry) + "\n")

    def release(self, *, everything=False):
        """Release what has been held for two steps of the walk, or for a while."""
        number, _ = self.phase()
        for entry in list(self.held):
            phase, until, job_id = entry
            if everything or number >= phase + 2 or time.time() > until:
                done = subprocess.run(["scontrol", "release", job_id], check=False)
                if done.returncode == 0:
                    self.held.remove(entry)

    def run(self, interval_s):
        """Submit until told to stop, at most ``QUEUE_LIMIT`` jobs in the queue."""
        rng = random.Random(os.environ["USER"])
        numbers = itertools.count(1)
        held_in = -1
        turn: list = []
        while not self.stopped():
            began = time.monotonic()
            self.release()
            number, hold_s = self.phase()
            if hold_s and held_in < number:
                held_in = number
                for form in FORMS:
                    if form.also.startswith("held"):
                        self.submit(form, next(numbers))
            if not turn:
                turn = [form for form in FORMS if not form.also.startswith("held")]
                rng.shuffle(turn)
            if self.waiting() < QUEUE_LIMIT:
                self.start(turn.pop(), next(numbers))
            time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
        for _ in range(TRIES):
            self.release(everything=True)
            time.sleep(0.5)
        for thread in self.interactive:
            thread.join()

    def start(self, form, number):
        """Submit a batch job; one that is waited for, beside others."""
        if form.tool == "sbatch":
            self.submit(form, number)
            return
        self.interactive = [thread for thread in self.interactive if thread.is_alive()]
        if len(self.interactive) < 4:
            thread = threading.Thread(target=self.submit, args=(form, number))
            thread.start()
            self.interactive.append(thread)

    def waiting(self):
        done = subprocess.run(
            ["squeue", "-h", "-u", os.environ["USER"], "-o", "%i %r"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return QUEUE_LIMIT
        return sum("JobHeldUser" not in line for line in done.stdout.splitlines())


if __name__ == "__main__":
    Load(Path(sys.argv[1])).run(float(sys.argv[2]))
