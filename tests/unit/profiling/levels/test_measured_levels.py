"""``gpu-aware-profile levels``: real ranks on fake GPUs, started by an srun of the test."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from command_server import RUNNER, run_command
from commands import gpu_aware_profile
from fake_cluster import SINFO
from fake_nvml import TIMES, machines
from idle_clock import Stopwatch
from memory_slurm import opened
from store_samples import ingest, report

from gpu_aware_profile.levels.level_runs import GroupId, LevelRun, LevelRuns, PlanNode, comparable
from slurm_gpu_aware.model.penalties import LevelTime
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.measurements import level_times

# Starts the tasks as srun does: variables, one standard input for all, output as it comes.
# A task is a fork, which need not import the command.
SRUN = """
import json, os, sys, time
import fake_gpus  # and the ranks' own module with it
from gpu_aware_profile.cli import main
folder = os.environ["FAKE_SLURM"]
words = sys.argv[1:]
with open(f"{folder}/srun.log", "a") as log:
    log.write(json.dumps(words) + "\\n")
nodes = words[words.index("-w") + 1].split(",")
does = f"{folder}/{nodes[-1]}.does"
does = open(does).read() if os.path.exists(does) else "ok"
per_node = int(next(w for w in words if w.startswith("--ntasks-per-node=")).partition("=")[2])
command = words[next(i for i, w in enumerate(words) if w.endswith("profile")):]
if does == "busy":
    sys.exit("srun: error: Unable to allocate resources: Requested nodes are busy")
if does == "hang":
    open(f"{folder}/hangs", "w").close()
    time.sleep(600)
if does == "hostile":
    for line in ('{"id": "../x"}', '{"rank": 99, "class": "A", "times_ms": [1, 1, 1, 1, 1]}',
                 '{"rank": 0, "class": "A", "times_ms": [1, -1, 1, 1, 1]}',
                 '{"rank": 1, "class": "A", "times_ms": [true, 1, 1, 1, 1]}',
                 '{"rank": 0, "class": "B", "times_ms": "' + "9" * 20000 + '"}', "[" * 9000,
                 '{"rank": 1, "class": "B", "times_ms": [1' + "0" * 400 + ', 1, 1, 1, 1]}',
                 '{"rank": "0", "class": "B", "times_ms": [1, 1, 1, 1, 1]}'):
        print(line)
    sys.exit(0)
print("a line of the site's task prolog", flush=True)
tasks = {}
for rank in range(per_node * len(nodes)):
    node = nodes[rank // per_node]
    given, stdin = os.pipe()
    if not (task := os.fork()):
        os.dup2(given, 0)
        os.closerange(3, 99)  # each other end of a pipe
        if does == "dies" and rank == 1:
            os._exit(1)
        os.environ.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank % per_node),
                          SLURM_NTASKS=str(per_node * len(nodes)),
                          FAKE_NVML_MACHINE=f"{folder}/{node}.json",
                          FAKE_NVML_STATE=f"{folder}/{node}.state")
        main(command[1:])
    os.close(given)
    tasks[task] = open(stdin, "wb", buffering=0)
for line in sys.stdin.buffer:
    for stdin in tasks.values():
        try:
            stdin.write(line)
        except OSError:
            pass
for stdin in tasks.values():
    stdin.close()
codes = [os.waitstatus_to_exitcode(os.waitpid(task, 0)[1]) for task in tasks]
sys.exit(f"srun: error: n2: task 1: Exited with exit code {max(codes)}" if any(codes) else 0)
"""
SCANCEL = """
import os, sys
open(os.environ["FAKE_SLURM"] + "/scancel.log", "a").write(" ".join(sys.argv[1:]) + "\\n")
"""
TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n3
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]
"""


class ThreeNodes:
    """Three nodes with four fake GPUs each, two of them behind one switch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, body in (("srun", SRUN), ("sinfo", SINFO), ("scancel", SCANCEL)):
            self._program(name, f"#!{sys.executable}\n{body}")
        self.store = folder / "store.db"
        names = ("n1", "n2", "n3")
        with open_store(self.store) as store:
            for k, node in enumerate(names):
                machine = machines.build("two-socket-4", node, seed=k)
                machine |= {"noise": 0.0, "run_noise": 0.0}
                for gpu in machine["gpus"]:
                    gpu["slowness"] = {}
                machines.write_json(folder / f"{node}.json", machine)
                ingest(store, report(node))
        lines = (f"{node}|gpu*|idle|gpu:4|infinite\n" for node in names)
        (folder / "sinfo.txt").write_text("".join(lines))
        (folder / "config.toml").write_text(f'[store]\npath = "{self.store}"\n')
        self.slurm = folder / "slurm"
        self.slurm.mkdir()
        with opened(self.slurm) as state:
            state.update(topology=TREE)
        self.env = {
            **os.environ,
            "PYTHONPATH": str(TIMES),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "FAKE_SLURM": str(folder),
            "GPU_AWARE_CONFIG": str(folder / "config.toml"),
        }

    def _program(self, name: str, text: str) -> None:
        file = self.bin / name
        file.write_text(textwrap.dedent(text))
        file.chmod(0o755)

    def argv(self, *options: str) -> list[str]:
        return [sys.executable, str(RUNNER), str(self.slurm), *self._words(*options)]

    def _words(self, *options: str) -> list[str]:
        command = ["--command", str(self.bin / "profile")]
        return ["gpu-aware-profile", "levels", "--json", *command, *options]

    def levels(self, *options: str, code: int = 0) -> Any:
        done = run_command([str(self.slurm), *self._words(*options)], self.env)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        self.said = " ".join(done.stderr.split())
        return json.loads(done.stdout) if done.stdout else None

    def stored(self) -> list[LevelTime]:
        with open_store(self.store, readonly=True) as store:
            return level_times(store)

    def sruns(self) -> list[list[str]]:
        log = self.folder / "srun.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def nodes(tmp_path: Path) -> ThreeNodes:
    return ThreeNodes(tmp_path)


def test_penalties_are_those_of_the_machines(nodes: ThreeNodes) -> None:
    answer = nodes.levels()
    assert [(run["level"], run["nodes"], run["times"]) for run in answer["runs"]] == [
        ("node", ["n1"], 15),
        ("node", ["n2"], 15),
        ("switch", ["n1", "n2"], 15),
        ("rack", ["n1", "n3"], 15),
    ]
    ratios = {(row["class"], row["level"]): row["ratio"] for row in answer["penalties"]}
    for name, factors in machines.LEVELS.items():
        assert ratios[name, "node"] == 1.0
        for level in ("switch", "rack"):
            assert ratios[name, level] == pytest.approx(factors[level], abs=1e-3)
    assert {time.model for time in nodes.stored()} == {"v100"}


def test_srun_is_asked_for_whole_nodes_that_our_filter_leaves_alone(nodes: ThreeNodes) -> None:
    nodes.levels("--class", "A", "--message", "A=7", "--srun-option=--account=ops")
    inside, *_, across = nodes.sruns()
    options = {word for word in across if word.startswith("-")}
    assert {"--exclusive", "--gres=gpu:4", "--comment=place=off", "-N2", "-n4"} <= options
    assert {"--ntasks-per-node=2", "--gpus=0,2", "--message=A=7340032", "--account=ops"} <= options
    assert {"--ntasks-per-node=4", "--gpus=0,1,2,3", "-N1", "--level=node"} <= set(inside)


def test_the_slowest_rank_counts(nodes: ThreeNodes) -> None:
    machine = json.loads((nodes.folder / "n1.json").read_text())
    machine["gpus"][2]["slowness"] = {"A": 2.0}
    machines.write_json(nodes.folder / "n1.json", machine)
    nodes.levels("--class", "A", "--node", "n1", "--node", "n2")
    of_level: dict[str, set[float]] = {}
    for time_ in nodes.stored():
        of_level.setdefault(time_.level, set()).add(round(time_.value_ms / 110.0 / 1.03, 2))
    assert of_level == {"node": {1.0, 2.0}, "switch": {2.2}}


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("busy", "Requested nodes are busy"),
        ("dies", "task 1: Exited with exit code 1"),
        ("hostile", "class A: a rank gave something else than times"),
    ],
)
def test_a_run_that_fails_is_left_out(nodes: ThreeNodes, does: str, words: str) -> None:
    (nodes.folder / "n3.does").write_text(does)
    answer = nodes.levels(code=3)
    assert words in nodes.said
    assert [run["nodes"] for run in answer["runs"] if run["reasons"]] == [["n1", "n3"]]
    assert {time_.level for time_ in nodes.stored()} == {"node", "switch"}


def test_a_run_that_hangs_is_cancelled(nodes: ThreeNodes) -> None:
    (nodes.folder / "n2.does").write_text("hang")
    process = subprocess.Popen(
        nodes.argv("--node", "n1", "--node", "n2"), env=nodes.env, stderr=subprocess.PIPE, text=True
    )
    watch = Stopwatch()
    while not (nodes.folder / "hangs").exists() and watch.idle_s < 60:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--name=gpu-aware-probe.levels." in (nodes.folder / "scancel.log").read_text()
    assert nodes.stored() == []


def test_a_class_that_the_nodes_do_not_have_is_named(nodes: ThreeNodes) -> None:
    (nodes.folder / "config.toml").write_text(
        f'[store]\npath = "{nodes.store}"\n[site]\nclasses = ["A", "Z"]\ndefault_class = "A"\n'
    )
    answer = nodes.levels(code=3)
    assert "class Z: the fake GPUs have no class 'Z'" in nodes.said
    assert {row["class"] for row in answer["penalties"]} == {"A"}


def test_the_plan_starts_nothing(nodes: ThreeNodes) -> None:
    answer = nodes.levels("--plan", "--gpus", "2")
    assert {run["gpus"] for run in answer["runs"]} == {2}
    assert nodes.sruns() == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--node", "n9"), 1, "'n9' cannot be measured: Slurm has no such GPU node"),
        (("--node", "n1"), 1, "nothing to compare: two usable nodes"),
        (("--class", "Z"), 1, "class 'Z' is not one of A, B, C"),
        (("--gpus", "3"), 1, "even number, not 3"),
        (("--message", "A"), 2, "'A' is not CLASS=NUMBER"),
        (("--message", "A=99999999"), 2, "a message has 4 bytes to 16 GiB"),
    ],
)
def test_wrong_options(nodes: ThreeNodes, options: tuple[str, ...], code: int, words: str) -> None:
    nodes.levels(*options, code=code)
    assert words in nodes.said
    assert nodes.sruns() == []


def test_a_rank_says_that_levels_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    options = ["--level", "node", "--gpus", "0", "--message", "A=4"]
    done = gpu_aware_profile("level-step", *options)
    assert "'gpu-aware-profile levels' starts it" in done.stderr
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert "starts it" in gpu_aware_profile("level-step", *options).stderr


def test_each_line_before_the_id_of_the_group_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: read.append(text) or loads(text))
    reply, output = GroupId(), bytearray()
    for number in range(100):
        output += b'{"a": %d}\n{"id": "0' % number
        assert reply(output) == ""
        del output[-len(b'{"id": "0') :]
    assert len(read) == 100
    assert reply(output + b'{"id": "0a1b"}\n') == "0a1b\n"


def test_only_what_can_be_compared_is_stored() -> None:
    times = [LevelTime("A", "node", 1.0), LevelTime("A", "switch", 2.0)]
    times += [LevelTime("B", "node", 1.0), LevelTime("C", "cluster", 1.0)]
    times += [LevelTime("A", "cluster", 3.0, "a100")]
    assert comparable(times) == times[:2]


def test_nothing_starts_after_a_stop() -> None:
    runs = LevelRuns("now", {"A": 4})
    runs.stopped.set()
    assert list(runs.run([LevelRun("node", (PlanNode("n1", 4, "v100", "gpu"),), 4)])) == []
