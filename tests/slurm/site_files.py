"""Configuration files that a test changes, and the restart with which all daemons read them."""

import contextlib
from collections.abc import Iterator

from cluster import NODES, Cluster

__all__ = [
    "CONFIG",
    "FILTER_CONF",
    "GRES_CONF",
    "SLURM_CONF",
    "TOPOLOGY",
    "configured",
    "filter_says",
    "kept",
    "mixed_partition",
    "new_store",
    "restart",
    "several_clusters",
]

SLURM_CONF = "/etc/slurm/slurm.conf"
GRES_CONF = "/etc/slurm/gres.conf"
TOPOLOGY = "/etc/slurm/topology.conf"
FILTER_CONF = "/etc/slurm/gpu_aware_conf.lua"
CONFIG = "/etc/slurm-gpu-aware/config.toml"

STORE = "/var/lib/slurm-gpu-aware/store.db"
KEPT_STORE = "/tmp/kept-store"


def restart(cluster: Cluster, *, slurm: bool = True) -> None:
    """Restart the selector, and all of Slurm; ends all jobs, and waits until nodes are idle."""
    slurms = [*((node, "slurmd") for node in NODES), ("ctl", "slurmctld")] if slurm else []
    for container, service in [*slurms, ("ctl", "selectd")]:
        cluster.service_down(container, service)
        cluster.service_up(container, service)
    cluster.await_answer()
    cluster.reset()


@contextlib.contextmanager
def kept(cluster: Cluster, *paths: str) -> Iterator[None]:
    """After the block these files are as before, or gone again, and the daemons know it.

    Slurm is restarted only for files of its own.
    """
    for path in paths:
        cluster.sh("ctl", f"rm -f {path}.kept; [ ! -e {path} ] || cp -p {path} {path}.kept")
    try:
        yield
    finally:
        cluster.cancel_all()
        for path in paths:
            back = f"if [ -e {path}.kept ]; then mv {path}.kept {path}; else rm -f {path}; fi"
            cluster.sh("ctl", back)
        restart(cluster, slurm=any(path.startswith("/etc/slurm/") for path in paths))


@contextlib.contextmanager
def configured(cluster: Cluster, settings: str, *paths: str) -> Iterator[None]:
    """In the block the selector has these settings at the end of its file; `kept` for ``paths``."""
    with kept(cluster, CONFIG, *paths):
        cluster.sh("ctl", f"cat >>{CONFIG}", stdin=f"\n{settings}")
        cluster.kill("ctl", "selectd", "TERM")
        yield


@contextlib.contextmanager
def filter_says(cluster: Cluster, **entries: str) -> Iterator[None]:
    """In the block the filter's configuration has these entries in place of its own."""
    script = "/etc/slurm/job_submit.lua"
    again = f"touch -d @$(($(stat -c %Y {script})+1)) {script}"  # slurmctld looks at the second
    turns = " ".join(f"-e 's/^  {name} = .*/  {name} = {text},/'" for name, text in entries.items())
    cluster.sh("ctl", f"cp {FILTER_CONF} {FILTER_CONF}.kept; sed -i {turns} {FILTER_CONF}; {again}")
    try:
        yield
    finally:
        cluster.sh("ctl", f"mv {FILTER_CONF}.kept {FILTER_CONF}; {again}")


def several_clusters(cluster: Cluster) -> contextlib.AbstractContextManager[None]:
    """In the block the filter lets jobs of ``sbatch -M`` pass, as a site with a second cluster."""
    return filter_says(cluster, several_clusters="true")


CPU_NODE = """
NodeName=c1 NodeHostname=ctl NodeAddr=ctl Port=6999 Sockets=2 CoresPerSocket=8 RealMemory=64000
PartitionName=mixed Nodes=n[1-4],c1 DefaultTime=60
PartitionName=cpus Nodes=c1 DefaultTime=60
"""


@contextlib.contextmanager
def mixed_partition(cluster: Cluster) -> Iterator[None]:
    """In the block there is a node without GPUs, c1; ``mixed`` has all nodes, ``cpus`` only this.

    Running jobs go on.
    """
    begin = "setsid nohup slurmd -D -N c1 >/var/log/cluster/c1.log 2>&1 </dev/null &"
    cluster.sh("ctl", f"cp -p {SLURM_CONF} {SLURM_CONF}.kept; cat >>{SLURM_CONF}", stdin=CPU_NODE)
    cluster.sh("ctl", f"scontrol reconfigure; mkdir -p /var/spool/slurmd; {begin}")
    idle = lambda: "idle" in cluster.sh("ctl", "sinfo -h -n c1 -o %T -p cpus")  # noqa: E731
    lists = {"with_others": '{ "mixed", "cpus" }', "without_gpus": '{ "cpus" }'}
    try:
        cluster.wait_until(idle, 60, lambda: cluster.sh("ctl", "cat /var/log/cluster/c1.log"))
        with filter_says(cluster, **{f"partitions_{name}": text for name, text in lists.items()}):
            yield
    finally:
        cluster.end_all()
        cluster.sh("ctl", "pkill -f 'slurmd -D -N c[1]'", check=False)
        cluster.sh("ctl", f"mv {SLURM_CONF}.kept {SLURM_CONF}; scontrol reconfigure")
        cluster.await_answer()


@contextlib.contextmanager
def new_store(cluster: Cluster) -> Iterator[None]:
    """In the block the selector has a new store, without what sweeps of other tests have found."""
    made = f"test -e {STORE}"  # by the first selector of a cluster
    cluster.wait_until(lambda: cluster.run("ctl", made).returncode == 0, 60, "a store")
    cluster.service_down("ctl", "selectd")
    cluster.sh("ctl", f"rm -rf {KEPT_STORE}; mkdir {KEPT_STORE}; mv {STORE}* {KEPT_STORE}/")
    cluster.service_up("ctl", "selectd")
    try:
        yield
    finally:
        cluster.cancel_all()
        cluster.service_down("ctl", "selectd")
        cluster.sh("ctl", f"rm -f {STORE}*; mv {KEPT_STORE}/* $(dirname {STORE})/")
        cluster.service_up("ctl", "selectd")
