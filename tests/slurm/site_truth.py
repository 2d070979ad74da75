"""Whether doctor tells the truth: each of its checks is compared with what is seen without it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from foreign_site import GPU_NODES, ForeignSite

__all__ = ["untrue"]

WRONG_CLASS = "sbatch --test-only --gres=gpu:1 --comment=class=nonsense --wrap=: 2>&1 || true"
HOOKS = {"prolog": "/etc/slurm/prolog.sh", "epilog": "/etc/slurm/epilog.sh"}


def untrue(
    site: ForeignSite, status: int, checks: Sequence[Mapping[str, str]], done: str
) -> Iterator[str]:
    """Say what doctor gets wrong; ``done`` holds the commands of all steps so far."""
    truth = _truth(site, done)
    nodes = [check["status"] for check in checks if check["name"] == "files of nodes"]
    if nodes == ["ok"] and not all(_hooks(site, GPU_NODES).values()):
        yield "doctor says ok to the files of nodes, which lack prolog or epilog"
    for name, right in truth.items():
        found = [check["status"] for check in checks if check["name"] == name]
        if found and (set(found) == {"ok"}) != right:
            yield f"doctor says {found} to {name!r}; really {'well' if right else 'not well'}"
        if not found and not right and name != "filter answers":  # asked only if it is loaded
            yield f"doctor is silent about {name!r}"
    for check in checks:
        if check["status"] != "ok" and not check["cure"]:
            yield f"doctor knows no cure for {check['name']!r}: {check['found']}"
    failed = any(check["status"] == "failed" for check in checks)
    if status != (3 if failed else 0):
        yield f"doctor exits with {status}, failed checks: {failed}"


def _hooks(site: ForeignSite, hosts: Sequence[str]) -> dict[str, bool]:
    """Whether the site's own scripts call ours, which are there."""
    return {
        name: all(
            not site.run(host, f"grep -q 50-gpu-aware {path} && test -x {ours}").returncode
            for host in hosts
        )
        for name, path in HOOKS.items()
        for ours in [path.replace(".sh", ".d/50-gpu-aware")]
    }


def _truth(site: ForeignSite, done: str) -> dict[str, bool]:
    config = site.sh("ctl", ["scontrol", "show", "config"])
    licences = set(re.findall(r"LicenseName=(\S+)", site.sh("ctl", ["scontrol", "show", "lic"])))
    gate = site.run("ctl", ["scontrol", "show", "reservation", "gpuaware_gate"])
    types = site.sh("ctl", ["sinfo", "-hN", "-n", ",".join(GPU_NODES), "-o", "%N %G"])
    indexed = {line.split()[0] for line in types.splitlines() if "gpu:g0:1" in line}
    selector = site.sh("ctl", 'kill -0 "$(services pid gpu-aware-selectd)" 2>&1 || echo gone')
    return {
        **_hooks(site, ["ctl"]),
        "licence": "gpuaware" in licences,
        "holding pool": "gpuaware_pool" in licences,
        "gate": gate.returncode == 0,
        "selector": "gone" not in selector,
        "filter answers": "gpu-aware:" in site.sh("login", WRONG_CLASS, "alice"),
        "gres types": indexed == set(GPU_NODES),
        "store": "gpu-aware-profile sweep" in done,
        "profile": "gpu-aware-profile sweep" in done,  # which takes times of fake GPUs
        "filter": not site.run("ctl", "grep -q gpu_aware /etc/slurm/job_submit.lua").returncode,
        "scheduler": "default_queue_depth" in config and "batch_sched_delay" in config,
        "resvprolog": "50-gpu-aware-pool" in config,
    }
