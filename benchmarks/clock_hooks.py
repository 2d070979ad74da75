"""Cost of the prolog and epilog of a compute node for a job, against ``/bin/true``.

    python benchmarks/clock_hooks.py [--turns 50]

Needs no cluster: it installs the package as pip does, runs the two hooks as slurmd does, on
the fake NVML library (gcc, make) as real drivers take times of their own, and prints the median
time of each case. Turns of all cases alternate, so that a busy machine slows all of them.
"""

import argparse
import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAKE = ROOT / "docker" / "fake_nvml"
ASKED = {"SLURM_JOB_EXTRA": "freq=900@1+3"}
OTHER = {"SLURM_JOB_ID": "18", "SLURM_JOB_GPUS": "2"}
"""A job that asks for no clock, beside one that has one."""
Taken = tuple[float, float]
"""(elapsed, CPU time). Units: s."""


def install(folder: Path) -> Path:
    """Make a virtual environment with the package as pip would; return its gpu-aware-clock."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python3"
    site = next((folder / "lib").glob("python3*")) / "site-packages"
    shutil.copytree(
        ROOT / "slurm_gpu_aware",
        site / "slurm_gpu_aware",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    compileall.compile_dir(site, quiet=1)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["gpu-aware-clock"].partition(":")
    command = folder / "bin" / "gpu-aware-clock"
    command.write_text(
        f"#!{python}\nimport re\nimport sys\nfrom {module} import {function}\n"
        f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    )
    command.chmod(0o755)
    return command


def machine(folder: Path) -> dict[str, str]:
    """Build the fake library and a machine of four GPUs; return its environment variables."""
    subprocess.run(["make", "-s", "-C", FAKE, f"OUT={folder}"], check=True)
    file = folder / "machine.json"
    words = ["write", "--kind", "two-socket-4", "--node", "n1", "--out", str(file)]
    subprocess.run([sys.executable, FAKE / "machines.py", *words], check=True)
    file.write_text(file.read_text().replace("{", '{"unprivileged_clocks": true,', 1))
    return {
        "LD_LIBRARY_PATH": str(folder),
        "FAKE_NVML_MACHINE": str(file),
        "FAKE_NVML_STATE": str(folder / "state"),
    }


class Node:
    """A node with our hooks, called as slurmd calls them."""

    def __init__(self, folder: Path) -> None:
        conf = folder / "clock.conf"
        command = install(folder / "venv")
        self.python = str(command.with_name("python3"))
        conf.write_text(f"command={command}\nspool={folder}/spool\nlocks={folder}/locks\n")
        self.env = {
            **machine(folder),
            "GPU_AWARE_CLOCK_CONFIG": str(conf),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "SLURMD_NODENAME": "n1",
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_GPUS": "3",
        }
        self.accounts = folder / "accounts.conf"
        self.accounts.write_text(conf.read_text() + f"accounts={folder}/accounts\n")
        self.clock = folder / "state" / "gpu3.locked_clocks"
        (folder / "gres.conf").write_text(
            "".join(f"NodeName=n[1-4] Name=gpu Type=g{i} File=/dev/nvidia{i}\n" for i in range(4))
        )

    def hook(self, kind: str, **env: str) -> Taken:
        """Time of a hook."""
        return taken([str(ROOT / "etc" / f"{kind}.d" / "50-gpu-aware")], {**self.env, **env})


def taken(command: list[str], env: dict[str, str]) -> Taken:
    """Time from starting a process to its end, and CPU time of it and its children."""
    start = time.perf_counter()
    _, _, usage = os.wait4(os.posix_spawn(command[0], command, env), 0)
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def measure(node: Node, turns: int) -> dict[str, list[Taken]]:
    """Time of each case, in turns. Stops if a clock is not set or not reset."""
    cases: dict[str, list[Taken]] = {}
    for _ in range(turns):
        found = {
            "/bin/true": taken(["/bin/true"], node.env),
            "/bin/sh -c :": taken(["/bin/sh", "-c", ":"], node.env),
            "python3 -IS -c pass": taken([node.python, "-IS", "-c", "pass"], node.env),
            "prolog, no clock asked": node.hook("prolog"),
            "epilog, no clock asked": node.hook("epilog"),
            "prolog, clock asked": node.hook("prolog", **ASKED),
        }
        if not node.clock.exists():
            sys.exit("the prolog set no clock")
        energy = {"GPU_AWARE_CLOCK_CONFIG": str(node.accounts), "SLURM_JOB_EXTRA": "freq=0@2"}
        found["prolog, energy account"] = node.hook("prolog", **OTHER, **energy)
        found["epilog, energy account"] = node.hook("epilog", **OTHER, **energy)
        found["another job's prolog"] = node.hook("prolog", **OTHER)
        found["another job's epilog"] = node.hook("epilog", **OTHER)
        found["epilog, clock reset"] = node.hook("epilog", **ASKED)
        if node.clock.exists():
            sys.exit("the epilog reset no clock")
        for case, value in found.items():
            cases.setdefault(case, []).append(value)
    return cases


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=50, help="repeats of each case (50)")
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as folder:
        cases = measure(Node(Path(folder)), turns)
    true = statistics.median(elapsed for elapsed, _ in cases["/bin/true"])
    print(f"{f'median of {turns}':<24} {'ms':>8} {'x /bin/true':>12} {'CPU ms':>8}")
    for case, values in cases.items():
        elapsed, cpu = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"{case:<24} {elapsed * 1e3:8.1f} {elapsed / true:12.1f} {cpu * 1e3:8.1f}")


if __name__ == "__main__":
    main()
