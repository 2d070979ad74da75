"""A container of the test image with slurmctld, nodes without slurmd, and programs inside.

No program: part of `benchmarks/scale.py`.
"""

import subprocess
from pathlib import Path

__all__ = ["Controller", "own_image"]

ROOT = Path(__file__).resolve().parents[1]
CONF = """\
ClusterName=scale
SlurmctldHost=ctl
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
MailProg=/bin/true
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/var/spool/slurmctld/slurmctld.pid
SlurmctldDebug=info
ReturnToService=2
MinJobAge=30
MessageTimeout=60
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=600
ResumeTimeout=36000
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=default_queue_depth=5000,batch_sched_delay=0,bf_continue,bf_max_job_test=2000,\
max_rpc_cnt=0
GresTypes=gpu
Licenses=gpuaware:100000,gpuaware_pool:8
PriorityType=priority/multifactor
PriorityWeightAge=1000
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=/var/log/slurm/jobcomp.log
JobSubmitPlugins=lua
MaxJobCount=50000
MaxArraySize=10001
DefMemPerCPU=500
NodeName=c[1-{nodes}] State=CLOUD Sockets=2 CoresPerSocket=32 RealMemory=512000 \
Gres={gres} Feature=gpu_v100
PartitionName=gpu Nodes=c[1-{nodes}] Default=YES MaxTime=INFINITE DefaultTime=60
"""
START = """\
set -eu
rm -rf /etc/slurm/job_submit.lua /var/spool/slurmctld/*
install -d /etc/slurm /shared/home/alice
printf '%s' "$CONF" >/etc/slurm/slurm.conf
for i in 0 1 2 3 4 5 6 7; do
    [ -e /dev/nvidia$i ] || mknod -m 666 /dev/nvidia$i c 195 $i
    echo "NodeName=c[1-$NODES] Name=gpu Type=g$i File=/dev/nvidia$i"
done >/etc/slurm/gres.conf
mkdir -p /run/munge /run/services && chown munge: /run/munge
setpriv --reuid munge --regid munge --init-groups munged --force
sed -i 's/max_gpus_per_node *= *[0-9]*/max_gpus_per_node = 8/' /opt/cluster/etc/gpu_aware_conf.lua
services mode plain
services down selectd
setpriv --reuid slurm --regid slurm --init-groups slurmctld
for i in $(seq 300); do scontrol ping | grep -q UP && exit 0; sleep 0.2; done
exit 1
"""


class Controller:
    """The container."""

    def __init__(self, image: str, nodes: int) -> None:
        self.nodes = nodes
        self.id = _docker(
            "run", "-d", "--rm", "--pull=never", "--init", "--hostname", "ctl",
            "--entrypoint", "sleep", image, "86400",
        ).strip()  # fmt: skip
        gres = ",".join(f"gpu:g{i}:1" for i in range(8))
        conf = CONF.format(nodes=nodes, gres=gres)
        self.sh(START, environment={"CONF": conf, "NODES": str(nodes)})

    def sh(
        self,
        script: str,
        user: str = "root",
        *,
        environment: dict[str, str] | None = None,
        timeout: float = 900,
    ) -> str:
        """Run a bash script; return its output. Raises CalledProcessError."""
        options = [f"--env={k}={v}" for k, v in (environment or {}).items()]
        return _docker(
            "exec", "-i", "-u", user, "-w", "/tmp", *options, self.id, "bash", "-s",
            stdin=script, timeout=timeout,
        )  # fmt: skip

    def python(self, path: Path, *arguments: str) -> str:
        """Run a Python file of ours inside, as the selector's user."""
        return _docker(
            "exec", "-i", "-u", "slurm", "-w", "/tmp", self.id,
            "/opt/slurm-gpu-aware/bin/python", "-", *arguments, stdin=path.read_text(), timeout=900,
        )  # fmt: skip

    def refresh(self) -> None:
        """Copy the source of this checkout over that of the image."""
        site = self.sh("echo /opt/slurm-gpu-aware/lib/python3*/site-packages").strip()
        _docker("cp", f"{ROOT}/slurm_gpu_aware", f"{self.id}:{site}/")

    def close(self) -> None:
        """Remove the container."""
        _docker("kill", self.id)


def _docker(*arguments: str, stdin: str | None = None, timeout: float = 600) -> str:
    done = subprocess.run(
        ["docker", *arguments], input=stdin, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"docker {arguments[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def own_image(suite: str) -> str:
    """Name of the image of this checkout, which another checkout never builds."""
    script = ROOT / "docker" / "image-name.sh"
    return subprocess.run(
        [script, suite], check=True, capture_output=True, text=True
    ).stdout.strip()
