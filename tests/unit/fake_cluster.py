"""Slurm's commands as small programs on PATH, and one fake machine per node.

The fake srun really runs the probe, on the fake GPUs of the node that was asked for.
"""

import json
import os
import sys
import textwrap

from command_server import RUNNER, run_command
from fake_nvml import FakeNode, machines
from memory_slurm import opened
from store_samples import profile_of

GRES = "gpu:g0:1(S:0),gpu:g1:1(S:0),gpu:g2:1(S:1),gpu:g3:1(S:1)"

# What the fake srun does on a node stands in FOLDER/NODE.does; "ok" if there is no such file.
SRUN = """
import json, os, re, subprocess, sys, time
folder = os.environ["FAKE_SLURM"]
words = sys.argv[1:]
with open(f"{folder}/srun.log", "a") as log:
    log.write(" ".join(words) + "\\n")
node = words[words.index("-w") + 1]
name = next(w for w in words if w.startswith("--job-name=")).partition("=")[2]
does = f"{folder}/{node}.does"
does = open(does).read() if os.path.exists(does) else "ok"
command = words[next(i for i, w in enumerate(words) if w.endswith("profile")):]
if does == "busy":
    sys.exit("srun: error: Unable to allocate resources: Requested nodes are busy")
if does == "garbage":
    print("{not json")
elif does == "flood":
    while True:
        print("x" * 65536)
elif does == "preempted":
    print(f"slurmstepd: error: *** STEP 12.0 ON {node} CANCELLED AT 2026-11-24T06:00:00"
          " DUE TO PREEMPTION ***", file=sys.stderr)
    sys.exit("srun: error: n2: task 0: Terminated")
elif does == "hang":
    open(f"{folder}/{node}.started", "w").close()
    while not os.path.exists(f"{folder}/cancelled.{name}"):
        time.sleep(0.02)
    sys.exit(143)
else:
    print("a line of the site's task prolog", flush=True)
    env = {**os.environ, "SLURMD_NODENAME": node,
           "FAKE_NVML_MACHINE": f"{folder}/{node}.json",
           "FAKE_NVML_STATE": f"{folder}/{node}.state"}
    if does != "partial":
        sys.exit(subprocess.run(command, env=env).returncode)
    report = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE).stdout)
    report["timings"] = [t for t in report["timings"] if t["index"] < 2]
    print(json.dumps(report))
    print(f"slurmstepd: error: *** STEP 12.0 ON {node} CANCELLED AT 2026-11-24T06:00:00"
          " DUE TO JOB REQUEUE ***", file=sys.stderr)
    sys.exit(130)
"""
SQUEUE = """
import os
folder = os.environ["FAKE_SLURM"]
if os.path.exists(f"{folder}/pending"):
    print(open(f"{folder}/pending").read(), end="")
"""
SINFO = """
import os
print(open(os.environ["FAKE_SLURM"] + "/sinfo.txt").read(), end="")
"""
SCANCEL = """
import os, sys
name = next(w for w in sys.argv if w.startswith("--name=")).partition("=")[2]
open(os.environ["FAKE_SLURM"] + "/cancelled." + name, "w").close()
"""


class FakeCluster:
    """Fake Slurm commands and one fake machine per node."""

    def __init__(self, library, folder, nodes=("n1", "n2", "n3")):
        self.folder = folder
        self.store = folder / "store.db"
        self.bin = folder / "bin"
        self.bin.mkdir()
        commands = {"srun": SRUN, "sinfo": SINFO, "scancel": SCANCEL, "squeue": SQUEUE}
        for name, body in commands.items():
            self._program(name, f"#!{sys.executable}\n{body}")
        probe = "from gpu_aware_profile.cli import main; main()"
        self._program("profile", f'#!/bin/sh\nexec {sys.executable} -c "{probe}" "$@"\n')
        for k, node in enumerate(nodes):
            machine = machines.build("two-socket-4", node, seed=k)
            machines.write_json(folder / f"{node}.json", machine)
        self.sinfo(**dict.fromkeys(nodes, "idle"))
        fake = FakeNode(library, folder)  # for its loader path
        self.env = {
            **fake.env,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "FAKE_SLURM": str(folder),
            "GPU_AWARE_CONFIG": str(folder / "config.toml"),
        }
        (folder / "config.toml").write_text(f'[store]\npath = "{self.store}"\n')
        self.slurm = folder / "slurm"
        self.slurm.mkdir()
        self.slurm_says(silent="Unable to contact slurm controller")

    def slurm_says(self, **values):
        with opened(self.slurm) as state:
            state.update(values)

    def _program(self, name, text):
        file = self.bin / name
        file.write_text(textwrap.dedent(text))
        file.chmod(0o755)

    def sinfo(self, *lines, **states):
        """What sinfo prints: nodes with these states, and lines as they are."""
        lines += tuple(f"{node}|gpu*|{state}|{GRES}|infinite" for node, state in states.items())
        (self.folder / "sinfo.txt").write_text("\n".join(lines) + "\n")

    def let(self, node, does):
        (self.folder / f"{node}.does").write_text(does)

    def sweep(self, *options, code=0):
        done = run_command([str(self.slurm), *self._words(*options)], self.env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def argv(self, *options):
        return [sys.executable, str(RUNNER), str(self.slurm), *self._words(*options)]

    def _words(self, *options):
        command = ["--command", str(self.bin / "profile")]
        return ["gpu-aware-profile", "sweep", "--json", *command, *options]

    def profile(self):
        """What placement loads of the store."""
        return profile_of(self.store)

    def serve(self, monkeypatch):
        """This process finds Slurm's commands and the GPUs, too."""
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)

    def slow(self, node, slowness=None, slow_runs=()):
        """``slowness``: GPU -> class -> factor; ``slow_runs``: as in the file of the machine."""
        state = self.folder / f"{node}.state"
        state.mkdir(exist_ok=True)
        override = {"slowness": slowness or {}, "slow_runs": list(slow_runs)}
        (state / "override.json").write_text(json.dumps(override))

    def own_slowness(self, node, gpu, app_class):
        """Factor of a GPU as its machine has it."""
        machine = json.loads((self.folder / f"{node}.json").read_text())
        return next(g for g in machine["gpus"] if g["minor"] == gpu)["slowness"][app_class]

    def probed(self):
        """Nodes that srun was called for, in order."""
        log = self.folder / "srun.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.split()[1] for line in lines]


def states(done):
    return {n["node"]: n["state"] for n in json.loads(done.stdout)["nodes"]}


def told_of(done, node):
    """What a sweep tells of a node."""
    return next(n for n in json.loads(done.stdout)["nodes"] if n["node"] == node)
