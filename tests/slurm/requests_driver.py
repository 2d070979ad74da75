"""Runs on the controller, as a user: submits the cells of the matrix and says what became of them.

Read as text by the test and fed to the container's Python: standard library and `idle_clock`, in
which all its bounds are. stdin is JSON:
``{"bound_s": seconds, "out": folder, "lanes": [[{"name", "tool", "options"}, ...], ...]}``. The
cells of a lane run one after the other, each on idle nodes; lanes share no node, so they run side
by side. stdout is JSON: cell name -> what was seen, all of it as it came from Slurm.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from idle_clock import idle_s

POLL_S = 0.15
RUN_S = 90.0
"""A job that has started ends within this time, or is cancelled."""

# What a task sees: one file for each, so that no lines mix.
TASK = """#!/bin/bash
{
    printf 'HOST=%s\\n' "$HOSTNAME"
    for name in CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL "${!SLURM_@}"; do
        [ -z "${!name+x}" ] || printf '%s=%s\\n' "$name" "${!name}"
    done
} >"$MATRIX_OUT/task.$MATRIX_STEP.${SLURM_PROCID:-0}"
if [ "$MATRIX_STEP.$SLURM_PROCID" = direct.0 ]; then
    scontrol -o show job -d "$SLURM_JOB_ID" >"$MATRIX_OUT/record"
fi
"""

# The job: what Slurm gave, what the batch script sees, and what each kind of srun inside sees.
JOB = """#!/bin/bash
scontrol -o show job -d "$SLURM_JOB_ID" >"$MATRIX_OUT/record"
MATRIX_STEP=batch "$MATRIX_TASK"
step() {
    name=$1
    shift
    MATRIX_STEP=$name timeout 60 srun "$@" "$MATRIX_TASK" >"$MATRIX_OUT/said.$name" 2>&1 </dev/null
    echo $? >"$MATRIX_OUT/status.$name"
}
step plain
step one -n1
step gres -n1 --gres=gpu:1
step gpus -n1 --gpus=1
step per-task -n1 --gpus-per-task=1
"""


class Queue:
    """What squeue says of the user's jobs, read for all lanes at once."""

    def __init__(self):
        self.changed = threading.Condition()
        self.jobs = {}
        self.asked = 0.0
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self):
        while True:
            asked = idle_s()
            done = subprocess.run(
                ["squeue", "-h", "-u", os.environ["USER"], "-o", "%j|%i|%T|%r"],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                with self.changed:
                    self.jobs = {
                        words[0]: words[1:]
                        for words in (line.split("|") for line in done.stdout.splitlines())
                    }
                    self.asked = asked
                    self.changed.notify_all()
            time.sleep(POLL_S)

    def of(self, name, since):
        """[id, state, reason] of a job, asked for after ``since``; None: gone, or not there yet."""
        with self.changed:
            self.changed.wait_for(lambda: self.asked > since, timeout=60)
            return self.jobs.get(name)


def run_cell(cell, queue, out, bound_s):
    name = cell["name"]
    folder = out / name
    folder.mkdir(parents=True)
    task, script = out / "task.sh", out / "job.sh"
    step = {"MATRIX_STEP": "direct"} if cell["tool"] == "srun" else {}
    env = {**os.environ, "MATRIX_OUT": str(folder), "MATRIX_TASK": str(task), **step}
    argv = [cell["tool"], f"--job-name={name}", *cell["options"]]
    argv += {
        "sbatch": ["--parsable", f"--output={folder}/log", str(script)],
        "salloc": [str(script)],
        "srun": [str(task)],
    }[cell["tool"]]
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(
            argv, env=env, cwd=out, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
        began = idle_s()
        pending, started = None, None
        seen = {"tool": cell["tool"], "verdict": "ended"}
        while True:
            ended = process.poll() is not None
            asked = idle_s()
            job = queue.of(name, asked)
            if job is not None:
                seen["id"] = job[0]
                if job[1] == "PENDING":
                    pending = job[2]
                elif started is None:
                    started = idle_s()
                waited = asked - (started or began)
                if waited > (bound_s if started is None else RUN_S):
                    seen["verdict"] = "waits" if started is None else "does not end"
                    seen["reason"] = pending
                    subprocess.run(["scancel", f"--name={name}"], timeout=60, check=False)
                    began = started = idle_s()
            elif ended:
                break
            elif asked - began > bound_s + RUN_S:
                process.kill()
        seen["status"] = process.wait()
        seen["stdout"] = process.stdout.read().decode(errors="replace")
        seen["took_s"] = round(idle_s() - began, 2)
    return seen


def run_lane(cells, queue, out, bound_s, found):
    for cell in cells:
        found[cell["name"]] = run_cell(cell, queue, out, bound_s)


def collect(found, out):
    """Add the files that the jobs wrote, and Slurm's record of each at its end."""
    done = subprocess.run(
        ["scontrol", "-o", "show", "job"],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=True,
    )
    for line in done.stdout.splitlines():
        words = dict(word.partition("=")[::2] for word in line.split())
        if words.get("JobName") in found:
            found[words["JobName"]]["end"] = line
    for name, seen in found.items():
        seen["files"] = {
            file.name: file.read_text(errors="replace")
            for file in sorted((out / name).iterdir())
            if file.name != "log"
        }


def run_order():
    order = json.load(sys.stdin)
    out = Path(order["out"])
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, text in (("task.sh", TASK), ("job.sh", JOB)):
        (out / name).write_text(text)
        (out / name).chmod(0o755)
    queue, found = Queue(), {}
    lanes = [
        threading.Thread(target=run_lane, args=(cells, queue, out, order["bound_s"], found))
        for cells in order["lanes"]
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    collect(found, out)
    json.dump(found, sys.stdout)


run_order()
