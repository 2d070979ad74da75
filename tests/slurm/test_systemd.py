"""Our units under a systemd that runs: they start, work within their fences, and come back.

A container boots Debian's systemd (docker/systemd.sh), which starts munge, slurmctld and slurmd of
one host with fake GPUs, by Debian's units.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from idle_clock import idle_s

pytestmark = pytest.mark.skipif(
    os.environ.get("GPU_AWARE_SYSTEMD") != "1",
    reason="boots systemd in a container that may mount file systems: make test-systemd",
)
ROOT = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup")
SLURM = """\
ClusterName=one
SlurmctldHost=n1
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=8000 Gres=gpu:4
PartitionName=gpu Nodes=n1 Default=YES
"""
GRES = "NodeName=n1 Name=gpu File=/dev/nvidia[0-3]\n"
BOOT = f"""\
tar -x --skip-old-files -C / -f /systemd.tar
ln -s /dev/null /etc/systemd/system/systemd-networkd-wait-online.service
rm -rf /etc/systemd/system/*.wants/* /var/spool/slurmctld/* /etc/slurm-gpu-aware/*
mkdir -p /etc/slurm
cp /opt/cluster/etc/cgroup.conf /opt/cluster/etc/job_submit_plain.lua /etc/slurm
mv /etc/slurm/job_submit_plain.lua /etc/slurm/job_submit.lua
printf %s '{SLURM}' >/etc/slurm/slurm.conf
printf %s '{GRES}' >/etc/slurm/gres.conf
for i in 0 1 2 3; do mknod -m 666 /dev/nvidia$i c 195 $i; done
install -d -m 1777 /shared/fakegpu/n1
ln -s /opt/slurm-gpu-aware/bin/gpu-aware* /usr/local/bin/
exec /sbin/init
"""
LONG = ("clockd", "selectd", "metrics")
"""Services that go on, but for the shadow, which does not run beside the selector."""
ONCE = ("watch", "sweep", "page")


class Host:
    """The container."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A shell command there as root, and how it ended."""
        argv = ["docker", "exec", self.name, "sh", "-c", command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)

    def sh(self, command: str) -> str:
        """What a command prints that must succeed."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def log(self) -> str:
        logs = "journalctl --no-pager -o cat -u 'gpu-aware-*' | tail -n 40"
        return self.run(f"systemctl --failed --no-pager; {logs}").stdout

    def show(self, unit: str, what: str) -> str:
        """A property of a unit of ours."""
        return self.sh(f"systemctl show -P {what} gpu-aware-{unit}").strip()

    def wait(self, command: str, seconds: float = 30) -> None:
        """Until a command succeeds."""
        until = idle_s() + seconds
        while self.run(command).returncode:
            assert idle_s() < until, f"{command}: not in {seconds:g} s\n{self.log()}"
            time.sleep(0.5)


@pytest.fixture(autouse=True, scope="module", name="clean_first")
def nothing_first() -> None:
    """Nothing to clean: there is no cluster."""


@pytest.fixture(autouse=True, name="clean")
def no_cluster() -> None:
    """The same."""


@pytest.fixture(name="host", scope="module")
def booted_host(new_project: str, suite: str) -> Iterator[Host]:
    """A host with Slurm and our units, which `gpu-aware setup` has installed."""
    for script in (("docker/image.sh", suite), ("docker/systemd.sh", suite)):
        subprocess.run(script, cwd=ROOT, check=True, timeout=600)
    naming: list[str | Path] = [ROOT / "docker/image-name.sh", suite]
    image = subprocess.run(naming, capture_output=True, text=True, check=True).stdout.strip()
    groups = CGROUPS
    if not (CGROUPS / "cgroup.controllers").exists():  # systemd takes version 2 only
        groups = ROOT / "build/cgroup2"
        groups.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "cgroup2", "none", groups], check=True)
    host = Host(f"{new_project}-systemd")
    command = [
        *("docker", "run", "-d", "--name", host.name, "--hostname", "n1", "--cgroupns=host"),
        *(
            "--cap-add=SYS_ADMIN",
            "--cap-add=NET_ADMIN",
            "--cap-add=SYS_PTRACE",
            "--security-opt=seccomp=unconfined",
            "-e",
            "container=docker",
        ),
        *("--security-opt=apparmor=unconfined", "--tmpfs=/run", "--tmpfs=/tmp"),
        *("-v", f"{groups}:/sys/fs/cgroup", "--entrypoint=/bin/sh"),
        *("-v", f"{ROOT}/build/systemd/{suite}.tar:/systemd.tar:ro", image, "-c", BOOT),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
        host.wait("systemctl is-active -q basic.target", 60)
        host.sh("systemctl start munge slurmctld slurmd")
        host.wait("sinfo -h -t idle | grep -q n1")
        host.sh("gpu-aware setup --install --yes && systemctl daemon-reload")
        host.sh("systemctl restart slurmctld slurmd")
        host.wait("sinfo -h -t idle | grep -q n1")
        yield host
    finally:
        subprocess.run(["docker", "rm", "-f", host.name], check=False, capture_output=True)
        if groups != CGROUPS:
            subprocess.run(["umount", groups], check=False)
            shutil.rmtree(groups, ignore_errors=True)


def test_units_start_and_work_without_a_configuration(host: Host) -> None:
    for unit in ONCE:
        host.sh(f"systemctl start gpu-aware-{unit}")
        assert host.show(unit, "Result") == "success"
    assert "4 GPUs" in host.sh("journalctl --no-pager -o cat -u gpu-aware-watch")
    assert host.sh("ls -A /var/lib/gpu-aware-page").split()[:1] == [".gpu-aware-page"]
    host.sh(f"systemctl start {' '.join(f'gpu-aware-{unit}' for unit in LONG)}")
    host.wait("gpu-aware status | grep -q 'selector'")
    read = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9836/metrics').read())"
    host.wait(f'python3 -c "{read}" | grep -q gpu_aware_gpu_pm_score_ratio')
    assert [host.show(unit, "ActiveState") for unit in LONG] == ["active"] * len(LONG)
    assert [host.show(unit, "NRestarts") for unit in LONG] == ["0"] * len(LONG)


def test_fences_stand(host: Host) -> None:
    host.sh(f"systemctl start {' '.join(f'gpu-aware-{unit}' for unit in LONG)}")
    store = "/var/lib/slurm-gpu-aware"
    for unit, writes, sees_gpus in (
        ("clockd", True, True),
        ("selectd", True, False),
        ("metrics", False, False),
    ):
        inside = f"nsenter -m -t {host.show(unit, 'MainPID')}"
        for path in ("/etc/x", "/usr/x", "/opt/slurm-gpu-aware/x"):
            refused = host.run(f"{inside} touch {path}")
            assert "Read-only file system" in refused.stderr, (unit, path, refused)
        wrote = host.run(f"{inside} touch {store}/x").returncode == 0
        assert (unit, wrote) == (unit, writes)
        assert (unit, "nvidia0" in host.sh(f"{inside} ls /dev")) == (unit, sees_gpus)


def test_a_service_that_hangs_is_started_again(host: Host) -> None:
    for unit in LONG:
        folder = f"/etc/systemd/system/gpu-aware-{unit}.service.d"
        host.sh(f"mkdir {folder} && printf '[Service]\\nWatchdogSec=20\\n' >{folder}/soon.conf")
    every = " ".join(f"gpu-aware-{unit}" for unit in LONG)
    host.sh(f"systemctl daemon-reload && systemctl restart {every}")
    time.sleep(22)
    for unit in LONG:
        assert host.show(unit, "NRestarts") == "0"  # its signs of life come in time
        host.sh(f"kill -STOP {host.show(unit, 'MainPID')}")
    for unit in LONG:
        host.wait(f"systemctl show -P NRestarts gpu-aware-{unit} | grep -qx 1", 60)
        host.wait(f"systemctl is-active -q gpu-aware-{unit}")


def test_the_shadow_runs_where_the_selector_does_not(host: Host) -> None:
    user = "id -u gpu-aware || useradd --system gpu-aware"
    host.sh(f"systemctl start gpu-aware-selectd; {user}")
    host.sh("systemctl start gpu-aware-shadow")
    assert host.show("shadow", "ActiveState") == "inactive"
    host.sh("systemctl stop gpu-aware-selectd && chown -R gpu-aware: /var/lib/slurm-gpu-aware")
    host.sh("systemctl start gpu-aware-shadow")
    host.wait("gpu-aware report --shadow --json | grep -q '\"until\": [0-9]'")
    assert host.show("shadow", "ActiveState") == "active"
