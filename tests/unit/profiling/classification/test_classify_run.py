"""``gpu-aware-profile classify --run``: an application under ncu, or beside dcgmi.

The tools are real programs on PATH; what they print was taken from the documentation and the
sources of the real ones. Parsing and handling of processes are those of the release.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded
from idle_clock import Stopwatch, all_end

from gpu_aware_profile import counter_tools
from slurm_gpu_aware.features.classes.store import (
    SavedClass,
    put_saved_class,
    saved_classes,
    stored_centres,
)
from slurm_gpu_aware.model.class_history import GivenClass
from slurm_gpu_aware.store.database import open_store

CENTRES = "class,dram,peak_fu\nA,30,80\nB,55,45\nC,75,8\n"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
FMA = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"
NCU_OUTPUT = (
    "==PROF== Connected to process 4242 (/usr/bin/app)\n"
    '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 8 passes\n'
    '"ID","Process ID","Process Name","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    f'"0","4242","app","gemm","{DRAM}","%","31.5"\n'
    f'"0","4242","app","gemm","{FMA}","%","78.0"\n'
    '"0","4242","app","gemm","gpu__time_duration.sum","us","12.5"\n'
    "==PROF== Disconnected from process 4242\n"
)
NCU = """#!{python}
import subprocess, sys
args = sys.argv[1:]
log = args[args.index("--log-file") + 1]
app = args[args.index("--metrics") + 2:]
status = subprocess.run(app).returncode
said = {output!r}
if status:
    said += "==ERROR== The application returned an error code (%d).\\n" % status
open(log, "w").write(said)
sys.exit(status or {status})
"""
DCGMI = """#!{python}
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # it may be ignored where tests run in the background
print("#Entity   SMACT     TENSO     DRAMA     FP64A     FP32A     FP16A", flush=True)
print("ID", flush=True)
row = "GPU 0     %.3f        0.000        0.740        0.000        0.080        0.000\\n"
for number in range({samples}):
    # An idle one comes with the first that is not, in one write, however short an application is
    idle = row % 0 if number == 0 else ""
    os.write(1, (idle + row % min(number + 1, 0.9)).encode())
    time.sleep(0.02)
{end}
"""
NO_COUNTERS = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
    " Performance Counters on the target device 0. For instructions on enabling permissions and to"
    " get more information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
)
NO_WATCH = (
    "Error setting watches. Result: -37: The third-party Profiling module returned an"
    " unrecoverable error"
)


class ClassifyFolder:
    """A folder with centres, a store, and a PATH with only the tools that a test makes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store.db"
        self.bin = folder / "bin"

    def tool(self, name: str, text: str, **values: object) -> None:
        path = self.bin / name
        path.write_text(text.format(python=sys.executable, **values))
        path.chmod(0o755)

    def ncu(self, output: str = NCU_OUTPUT, status: int = 0) -> None:
        self.tool("ncu", NCU, output=output, status=status)

    def dcgmi(self, samples: int = 10_000, end: str = "") -> None:
        self.tool("dcgmi", DCGMI, samples=samples, end=end)

    def app(self, text: str) -> str:
        (self.folder / "app.py").write_text(text)
        return f"{sys.executable} app.py"

    def classify(self, *args: str) -> Result:
        return gpu_aware_profile("classify", *args)

    def error(self, *args: str) -> str:
        done = self.classify("--centres", "centres.csv", *args)
        assert done.exit_code == 1, done.output
        assert done.stdout == ""
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture
def centres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassifyFolder:
    site = ClassifyFolder(tmp_path)
    site.bin.mkdir()
    (tmp_path / "centres.csv").write_text(CENTRES)
    (tmp_path / "config.toml").write_text(f'[store]\npath = "{site.store}"\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("PATH", str(site.bin))
    monkeypatch.chdir(tmp_path)
    return site


WRITES = "import sys; open('ran', 'w').write(' '.join(sys.argv[1:])); print('epoch 1')"


def test_an_application_under_ncu(centres: ClassifyFolder) -> None:
    centres.ncu()
    app = centres.app(WRITES)
    done = centres.classify("--centres", "centres.csv", "--run", f"{app} --name 'a b; rm x'")
    assert done.exit_code == 0, done.output
    assert (centres.folder / "ran").read_text() == "--name a b; rm x"  # no shell
    assert "Submit it with: sbatch --comment=class=A ..." in done.stdout
    assert "epoch 1" not in done.stdout
    argv = ("--centres", "centres.csv", "--run", app, "--name", "my job", "--json")
    found = json.loads(centres.classify(*argv).stdout)
    (one,) = found["applications"]
    assert (one["class"], one["dram"], one["peak_fu"]) == ("A", 31.5, 78.0)
    assert found["submit"] == "sbatch --comment=class=A --job-name='my job' ..."


def test_an_application_beside_dcgm(centres: ClassifyFolder) -> None:
    """Samples before the application, without SM activity, do not count."""
    centres.dcgmi()
    argv = ("--centres", "centres.csv", "--json", "--gpus", "0,1", "--run", centres.app(WRITES))
    (one,) = json.loads(succeeded(centres.classify(*argv)).stdout)["applications"]
    assert (one["class"], one["dram"], one["peak_fu"]) == ("C", 74.0, 8.0)


def test_ncu_goes_first_and_a_missing_tool_is_named(centres: ClassifyFolder) -> None:
    app = centres.app(WRITES)
    assert "ncu (Nsight Compute) or dcgmi (DCGM) is not on PATH" in centres.error("--run", app)
    centres.dcgmi()
    assert centres.classify("--centres", "centres.csv", "--run", app).exit_code == 0
    assert "ncu (Nsight Compute) is not on PATH" in centres.error("--tool", "ncu", "--run", app)
    centres.ncu(NO_COUNTERS, 1)
    assert "ERR_NVGPUCTRPERM" in centres.error("--run", app)
    assert not (centres.folder / "store.db").exists()


@pytest.mark.parametrize(
    ("output", "status", "why"),
    [
        (NO_COUNTERS, 1, "ncu may not read the performance counters of this GPU"),
        (NO_COUNTERS, 1, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.\n", 0, "ran no kernel on a GPU that ncu could"),
        ("==ERROR== Failed to prepare kernel for profiling\n", 9, "failed under ncu: Failed to"),
        ("", 11, "failed under ncu: exit 11"),
        ("", 0, "no Nsight Compute table"),
        (NCU_OUTPUT.replace(DRAM, "other"), 0, "no value of dram__throughput"),
    ],
)
def test_an_ncu_that_counts_nothing(
    centres: ClassifyFolder, output: str, status: int, why: str
) -> None:
    centres.ncu(output, status)
    assert why in centres.error("--run", centres.app(WRITES))


@pytest.mark.parametrize("tool", ["ncu", "dcgmi"])
def test_an_application_that_fails_has_no_class(centres: ClassifyFolder, tool: str) -> None:
    centres.ncu()
    centres.dcgmi()
    fails = centres.app("import sys; sys.exit(3)")
    said = centres.error("--tool", tool.rstrip("i"), "--run", fails)
    assert f"{sys.executable} failed " in said
    assert ("error code (3)" if tool == "ncu" else "exit 3") in said


def test_an_application_that_is_missing(centres: ClassifyFolder) -> None:
    centres.dcgmi()
    assert "./nowhere: cannot be run: No such file" in centres.error("--run", "./nowhere")


HANGS = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\n"
    "time.sleep(600)\n"
)


@pytest.mark.parametrize("tool", ["ncu", "dcgmi"])
def test_what_hangs_is_stopped_with_all_that_it_started(centres: ClassifyFolder, tool: str) -> None:
    centres.ncu()
    centres.dcgmi()
    argv = ("--tool", tool.rstrip("i"), "--time-limit", "5", "--run", centres.app(HANGS))
    said = centres.error(*argv)
    assert "did not end within 5 s; give a higher --time-limit" in said
    pids = (centres.folder / "pids").read_text().split()
    assert all_end(pids)


def test_a_dcgm_that_hangs_or_fails(
    centres: ClassifyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter_tools, "FIRST_SAMPLE_S", 0.5)
    app = centres.app(WRITES)
    centres.dcgmi(0, "time.sleep(600)")
    assert "dcgmi dmon printed no sample within 0.5 s" in centres.error("--run", app)
    monkeypatch.setattr(counter_tools, "FIRST_SAMPLE_S", 60.0)
    centres.dcgmi(0, f"print({NO_WATCH!r}); sys.exit(219)")
    assert f"dcgmi dmon counts nothing: {NO_WATCH}" in centres.error("--run", app)
    assert not (centres.folder / "ran").exists()
    centres.dcgmi(1, "print('host engine is gone'); sys.exit(1)")
    slow = centres.app("import time; time.sleep(2)")
    said = centres.error("--run", slow)
    assert f"dcgmi dmon ended before {sys.executable}: host engine is gone" in said


def test_centres_are_stored_once_for_the_site(centres: ClassifyFolder) -> None:
    centres.ncu()
    app = centres.app(WRITES)
    assert "an administrator stores them once" in refusal(centres.classify("--run", app))
    assert not (centres.folder / "ran").exists()
    succeeded(centres.classify("--centres", "centres.csv", "--save-centres"))
    with open_store(centres.store) as store:
        found = list(stored_centres(store).items())
    assert found == [("A", (30.0, 80.0)), ("B", (55.0, 45.0)), ("C", (75.0, 8.0))]
    assert "class=A" in centres.classify("--run", app).stdout
    (centres.folder / "config.toml").write_text(
        f'[store]\npath = "{centres.store}"\n[site]\nclasses = ["A", "B"]\ndefault_class = "B"\n'
    )
    other = centres.classify("--run", app)
    assert "the stored centres are of the classes A, B, C; the site has A, B" in other.stderr


def test_a_class_is_saved_for_a_user_and_a_name(centres: ClassifyFolder) -> None:
    centres.ncu()
    args = ("--centres", "centres.csv", "--run", centres.app(WRITES), "--save")
    done = succeeded(centres.classify(*args, "--name", "train", "--user", "ada"))
    assert "stored class A for the jobs of ada named train" in done.stderr
    with open_store(centres.store) as store:
        (saved,) = saved_classes(store)
    assert (saved.user, saved.name, saved.app_class) == ("ada", "train", "A")
    for wrong, why in {
        (): "--save needs --name and one application",
        ("--name", "x" * 200): "expected a job name",
        ("--name", "x", "gemm.csv"): "Invalid value for '[FILES]...'",
        ("--name", "x", "--gpus", "a"): "--gpus: expected numbers",
        ("--name", "x", "--run", "'"): "--run: No closing quotation",
    }.items():
        assert why in refusal(centres.classify(*args, *wrong), 2)


def test_who_may_not_write_the_store_is_told_another_way(
    centres: ClassifyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    centres.ncu()
    app = centres.app(WRITES)
    centres.store.mkdir()  # cannot be written as a store, even by root
    said = centres.error("--run", app, "--name", "train", "--save")
    assert "submit it once with --comment=class=A, and class=auto finds it from then on" in said


def test_one_user_keeps_a_bounded_number_of_names(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store, store.write():
        put_saved_class(store, SavedClass("bob", "a", "A", 0.0))
        for number in range(1_003):
            put_saved_class(store, SavedClass("ada", f"n{number}", "B", float(number)))
        put_saved_class(store, SavedClass("ada", "n5", "C", 2000.0))
        kept = saved_classes(store)
    assert len(kept) == 1_001
    assert kept[0] == GivenClass("bob", "A", 0.0, "a")
    assert kept[-1] == GivenClass("ada", "C", 2000.0, "n5")
    assert kept[1].name == "n3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "ncu").write_text('#!/bin/sh\necho $$ > "$PIDS"\nexec sleep 600\n')
    (tmp_path / "ncu").chmod(0o755)
    (tmp_path / "centres.csv").write_text(CENTRES)
    pids = tmp_path / "pids"
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PIDS": str(pids)}
    env |= {"TMPDIR": str(tmp_path), "GPU_AWARE_CONFIG": str(tmp_path / "none.toml")}
    (tmp_path / "none.toml").write_text("")
    words = ["classify", "--tool", "ncu", "--centres", str(tmp_path / "centres.csv"), "--run", "x"]
    program = [sys.executable, "-m", "gpu_aware_profile.cli", *words]
    with subprocess.Popen(  # nohup ignores SIGHUP, a shell's background SIGINT
        program,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (number, signal.SIGINT)],
    ) as process:
        try:
            watch = Stopwatch()
            while not (pids.exists() and pids.read_text()):
                assert process.poll() is None
                assert watch.idle_s < 100
                time.sleep(0.05)
            for _ in range(2):
                process.send_signal(number)
                time.sleep(0.1)
            # A second one that comes after the clearing up ends the process at once
            assert process.wait(300) in (130, -number)
            assert "Traceback" not in (process.stderr.read() if process.stderr else "")
        finally:
            process.kill()
    assert all_end([pids.read_text()])
    assert not list(tmp_path.glob("gpu-aware-classify-*"))


def test_a_signal_while_a_process_begins_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the tool runs before its start has returned."""
    begun: list[int] = []
    begin = subprocess.Popen

    def interrupted(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        process = begin(*args, **more)
        begun.append(process.pid)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        counter_tools._ended_by_signals(),
        counter_tools._started(["sleep", "600"], subprocess.DEVNULL),
    ):
        pass
    assert all_end(begun)
    assert len(begun) == 1
