"""The process that measures kernels, with NumPy in place of a GPU, and its parent."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_nvml import FakeNode

from gpu_aware_profile.backends import process_timing
from gpu_aware_profile.backends.process_timing import KernelTiming
from gpu_aware_profile.backends.timing import RunSpec, SickGpuError, timing_backend
from gpu_aware_profile.child import Child, LateError
from gpu_aware_profile.links import link_runs
from slurm_gpu_aware.errors import SourceError

PROGRAM = [sys.executable, str(Path(__file__).parents[2] / "numpy_engine.py")]


class Control:
    """Counts what the backend tells."""

    def __init__(self):
        self.stopped = threading.Event()
        self.done = threading.Event()
        self.done.set()
        self.told = []

    def warm_up(self):
        self.told.append("warm")

    @contextmanager
    def window(self):
        self.told.append("begin")
        yield
        self.told.append("end")

    def company(self):
        self.told.append("company")
        return self.done


def run_kernels(what, control=None, limit_s=300.0):
    run = RunSpec(0, "GPU-7", {"CUDA_VISIBLE_DEVICES": "GPU-7"}, "C", "idle", 0)
    return KernelTiming([*PROGRAM, what], limit_s).measure(run, control or Control())


def test_a_class_is_the_geometric_mean_of_its_kernels_per_unit_of_work():
    control = Control()
    reading = run_kernels("right", control)
    assert [kernel.name for kernel in reading.kernels] == ["pagerank", "triad"]
    times = [1e3 / kernel.rate for kernel in reading.kernels]
    assert reading.value_ms == pytest.approx((times[0] * times[1]) ** 0.5)
    assert {kernel.unit for kernel in reading.kernels} == {"GB/s"}
    assert all(kernel.share == pytest.approx(kernel.rate / 20) for kernel in reading.kernels)
    assert reading.samples >= 10  # a busy machine leaves no time for more
    assert control.told == ["warm", "begin", "end", "begin", "end", "company"]


def test_the_gpu_works_until_the_others_are_measured():
    control = Control()
    control.done.clear()
    readings = []
    thread = threading.Thread(target=lambda: readings.append(run_kernels("right", control)))
    thread.start()
    while "company" not in control.told:
        assert thread.is_alive()
        time.sleep(0.02)
    assert readings == []
    control.done.set()
    thread.join(300)
    assert len(readings) == 1


def test_the_process_ends_by_itself(monkeypatch):
    """The driver reports an error of the GPU for one that is killed while it computes."""
    codes = []

    class Watched(Child):
        def __exit__(self, *error):
            codes.append(self._process.poll())
            super().__exit__(*error)

    monkeypatch.setattr("gpu_aware_profile.backends.process_timing.Child", Watched)
    run_kernels("right")
    assert codes == [0]


def test_a_wrong_result_is_a_sick_gpu():
    with pytest.raises(SickGpuError, match=r"wrong result .* 1 of \d+ numbers differ") as error:
        run_kernels("stuck")
    assert error.value.call == "result"


def test_a_gpu_that_hangs_is_sick():
    with pytest.raises(LateError, match="no end within 1 s") as error:
        run_kernels("hang", limit_s=1.0)
    assert error.value.call == "timeout"


def test_a_process_that_crashes_says_why():
    with pytest.raises(SourceError, match=r"ended with 1: .*cudaErrorECCUncorrectable"):
        run_kernels("crash")


def test_a_signal_ends_the_process():
    control = Control()
    control.stopped.set()
    with pytest.raises(SourceError, match="stopped by a signal"):
        run_kernels("hang", control)


def test_without_cupy_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_NVML_MACHINE", str(tmp_path / "absent.json"))
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("gpu_aware_profile.backends.timing.find_spec", lambda name: None)
    monkeypatch.setattr("gpu_aware_profile.backends.process_timing.find_spec", lambda name: None)
    assert timing_backend() is None
    with pytest.raises(SourceError, match=r"CuPy is not installed; .*pip install '.\[gpu\]'"):
        timing_backend("kernels")


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"])
def test_no_variable_changes_the_precision(name):
    """cuBLAS would compute in TF32, or float32 by products of bf16."""
    code = (
        "import os\n"
        "from gpu_aware_profile.kernels.program import main\n"
        "main([])\n"
        f"print({name!r} in os.environ)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, name: "1"}, capture_output=True, text=True
    )
    assert done.stdout.endswith("False\n"), done.stderr


@pytest.mark.parametrize("program", [process_timing._PROGRAM, link_runs._PROGRAM])
def test_no_module_is_taken_from_the_working_directory(tmp_path, program):
    """Slurm starts a probe in /tmp where the folder of the sweep does not exist."""
    (tmp_path / "cupy.py").write_text("open('ran', 'w').close()\n")
    subprocess.run(program, cwd=tmp_path, input=b'{"pair": [0, 1]}\n', check=True, timeout=300)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("home", ["home", "file/home"])
def test_cupy_gets_a_folder_that_can_be_written(tmp_path, home):
    (tmp_path / "file").write_text("")
    code = (
        "import os\n"
        "from gpu_aware_profile.backends.timing import ensure_compile_cache\n"
        "ensure_compile_cache()\n"
        "print(os.environ['CUPY_CACHE_DIR'])\n"
        "open(os.environ['CUPY_CACHE_DIR'] + '/kernel', 'x').close()\n"
    )
    env = {**os.environ, "HOME": str(tmp_path / home), "TMPDIR": str(tmp_path)}
    env.pop("CUPY_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    usual = tmp_path / "home" / ".cupy" / "kernel_cache"
    if home == "home":
        assert done.stdout.strip() == str(usual)
        assert [file.name for file in usual.iterdir()] == ["kernel"]
    else:
        assert Path(done.stdout.strip()).parent == tmp_path
        assert not Path(done.stdout.strip()).exists()  # it ends with the process


def test_the_command_says_in_one_sentence_what_is_missing(library, tmp_path):
    """Where CuPy is there, but no CUDA, it is CuPy's sentence."""
    (tmp_path / "cupy").mkdir()
    text = "def __getattr__(name):\n    raise ImportError('libcublas.so.12: cannot open')\n"
    makes = "import os\nos.makedirs(os.environ['CUPY_CACHE_DIR'], exist_ok=True)\n"  # as CuPy does
    (tmp_path / "cupy" / "__init__.py").write_text(f"{makes}from cupy import cuda\n")
    (tmp_path / "cupy" / "cuda.py").write_text(text)
    node = FakeNode(library, tmp_path)
    done = node.run(
        *["gpu_aware_profile.cli", "node", "--backend", "kernels"],
        PYTHONPATH=str(tmp_path),
        HOME="/dev/null",
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "CuPy finds no CUDA libraries: load the site's CUDA 12 module" in done.stderr
    assert "libcublas.so.12" in done.stderr
