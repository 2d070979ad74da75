"""Checks of doctor on Slurm: release, settings, licence, gate, filter, GRES types."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.doctor_context import (
    Check,
    DoctorContext,
    failed,
    ok,
    skipped,
    warning,
    words,
)
from slurm_gpu_aware.deploy.install import LUA_CONF, OWN_FILTER, filter_files, operators
from slurm_gpu_aware.deploy.lua_files import lua_conf
from slurm_gpu_aware.gate.holding_pool import LICENCE, LICENCE_COUNT
from slurm_gpu_aware.gate.index_types import gpu_slots
from slurm_gpu_aware.gate.liveness import longest_silence_s
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.time_text import age

__all__ = [
    "check_filter",
    "check_gate",
    "check_licence",
    "check_release",
    "check_settings",
    "check_types",
]

OLDEST, NEWEST = (24, 11), (26, 5)
FILTER = "gpu_aware.lua"
_ROOT = "0"
_MIRRORED = {
    "classes": None,
    "licence": f'"{rules.LICENCE}"',
    "reservation": f'"{rules.RESERVATION}"',
    "submit_file": None,
    "park_uncommented": "true",
}
"""Key that the filter's configuration takes from config.toml -> default of the filter."""


def check_release(g: DoctorContext) -> Iterable[Check]:
    """Slurm's release is a supported one."""
    text = g.slurm.get("SLURM_VERSION", "")
    match = re.match(r"(\d+)\.(\d+)", text)
    release = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if OLDEST <= release <= NEWEST:
        yield ok("release", f"Slurm {text}")
    else:
        yield failed(
            "release",
            f"Slurm {text or 'of unknown version'}",
            "supported are Slurm 24.11 to 26.05; upgrade, or remove slurm-gpu-aware",
        )


def check_settings(g: DoctorContext) -> Iterable[Check]:
    """slurm.conf has the required settings."""
    setup = "run 'gpu-aware setup --install', then restart slurmctld"
    if "cons_tres" not in g.slurm.get("SelectType", ""):
        yield failed("settings", f"SelectType={g.slurm.get('SelectType')}", "use select/cons_tres")
    elif "gpu" not in words(g.slurm.get("GresTypes")):
        yield failed("settings", f"GresTypes={g.slurm.get('GresTypes')} lacks gpu", setup)
    else:
        yield ok("settings", "select/cons_tres, GresTypes has gpu")
    parameters = words(g.slurm.get("SchedulerParameters"))
    given = {p.partition("=")[0] for p in parameters}
    lacking = {k: v for k, v in render.SCHEDULER.items() if k not in given}
    if "bf_licenses" in parameters:
        yield warning(
            "scheduler",
            "SchedulerParameters has bf_licenses",
            "remove it: many parked jobs then delay other jobs by many seconds",
        )
    for name, (value, why) in lacking.items():
        yield warning(
            "scheduler",
            f"SchedulerParameters has no {name}: {why}",
            f"add {name}={value} ('gpu-aware setup --install'), then 'scontrol reconfigure'",
        )
    if "bf_licenses" not in parameters and not lacking:
        yield ok("scheduler", "no setting that makes jobs wait for each other")


def check_licence(g: DoctorContext) -> Iterable[Check]:
    """The licences of the gate and of the holding pool are configured."""
    name, wanted = g.config.gate.licence, g.config.gate.licence_count
    licences = words(g.slurm.get("Licenses"))
    if LICENCE not in [re.split(r"[:*=]", word)[0] for word in licences]:
        yield warning(
            "holding pool",
            f"slurm.conf has no licence {LICENCE}: on large clusters many parked jobs slow down"
            " slurmctld",
            f"add {LICENCE}:{LICENCE_COUNT} to Licenses ('gpu-aware setup"
            " --install'), scontrol reconfigure",
        )
    for word in licences:
        parts = re.split(r"[:*=]", word)
        if parts[0] == name:
            count = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 1
            if count == wanted:
                yield ok("licence", f"{name}: {count}")
            else:
                yield failed(
                    "licence",
                    f"slurm.conf has {count} of {name}, but the configuration has {wanted}",
                    f"set Licenses={name}:{wanted} in slurm.conf ('gpu-aware setup --install')",
                )
            return
    yield failed(
        "licence",
        f"slurm.conf has no licence {name}: nothing can be parked",
        f"add Licenses={name}:{wanted} ('gpu-aware setup --install'), scontrol reconfigure",
    )


def check_gate(g: DoctorContext) -> Iterable[Check]:
    """The gate's reservation exists, holds the licence, and is being renewed."""
    gate = g.config.gate
    start = "start the selector: systemctl start gpu-aware-selectd"
    held = next((r for r in g.reservations if r.name == gate.reservation), None)
    if held is None:
        yield failed("gate", "open: jobs start as usual", start)
        return
    if dict(held.licenses).get(gate.licence, 0) < gate.licence_count:
        yield failed(
            "gate",
            f"reservation {held.name} holds {dict(held.licenses).get(gate.licence, 0)} of"
            f" {gate.licence_count} licences: some jobs pass the gate",
            f"scontrol delete reservationname={held.name}; the selector makes it again",
        )
    else:
        yield ok("gate", f"closed by reservation {held.name}")
    left = held.end_s - g.now
    if left <= 0:
        yield failed("heartbeat", f"the gate ended {age(-left)} ago", start)
    elif gate.lease_s - left > longest_silence_s(g.config):
        yield failed("heartbeat", f"overdue: the gate opens in {age(left)}", start)
    else:
        yield ok("heartbeat", f"the gate holds for {age(left)} more")


def check_filter(g: DoctorContext) -> Iterable[Check]:
    """slurmctld runs the filter of this release with this configuration."""
    install = "run 'gpu-aware setup --install', then restart slurmctld"
    if "lua" not in words(g.slurm.get("JobSubmitPlugins")):
        yield failed(
            "filter", f"JobSubmitPlugins={g.slurm.get('JobSubmitPlugins')} lacks lua", install
        )
        return
    script, ours, conf = (g.folder / name for name in (OWN_FILTER, FILTER, LUA_CONF))
    if not script.exists() or "gpu_aware" not in script.read_text(errors="replace"):
        yield failed(
            "filter",
            f"{script} does not load gpu_aware.lua",
            "add the lines of the administrator's guide, or 'gpu-aware setup --install'",
        )
        return
    stale = [p.name for p in filter_files() if not _same(p, g.folder / p.name)]
    if not ours.exists():
        yield failed("filter", f"{ours} is missing", install)
    elif stale:
        yield failed(
            "filter", f"{g.folder}: missing, or of another release: {', '.join(stale)}", install
        )
    else:
        yield ok("filter", f"{script} loads {FILTER} of this release")
    yield from _check_filter_conf(g, conf)
    yield _check_filter_answers(g)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _check_filter_conf(g: DoctorContext, path: Path) -> Iterable[Check]:
    config = g.config
    cure = "run 'gpu-aware setup --install' after every change of config.toml"
    if not path.exists():
        yield failed("filter config", f"{path} is missing: jobs pass unmodified", cure)
        return
    have = _squeeze(path.read_text(errors="replace"))
    allowed = list(dict.fromkeys([config.placement.policy, *config.placement.allowed]))
    uids = operators(config, g.slurm_user)
    wanted = _squeeze(
        lua_conf(config, policies=allowed, models=[], max_gpus_per_node=0, operators=uids)
    )
    wrong = [
        key
        for key, default in _MIRRORED.items()
        if (_entry(have, key) or default) != _entry(wanted, key)
    ]
    wrong += [key for key in ("policies", "operators") if _set(have, key) != _set(wanted, key)]
    if not have.startswith("return{"):
        yield failed("filter config", f"{path} does not return a table: jobs pass unmodified", cure)
    elif wrong:
        yield failed("filter config", f"{path} differs from config.toml: {', '.join(wrong)}", cure)
    else:
        yield ok("filter config", f"{path} agrees with config.toml")


def _squeeze(lua: str) -> str:
    """Lua source of a table of plain values without comments and blanks."""
    return re.sub(r"\s+", "", re.sub(r"--.*", "", lua))


def _set(table: str, key: str) -> set[str]:
    """Values of a list, in any order; without root, which is always an operator."""
    return set((_entry(table, key) or "").strip("{}").split(",")) - {"", _ROOT}


def _entry(table: str, key: str) -> str | None:
    match = re.search(rf"[{{,]{key}=(\{{[^}}]*\}}|[^,}}]*)", table)
    return match.group(1) if match else None


def _check_filter_answers(g: DoctorContext) -> Check:
    """Test slurmctld with a job that the filter must refuse; no job is submitted."""
    _, output = run_command(
        ["sbatch", "--test-only", "--gres=gpu:1", "--comment=class=gpu-aware-doctor", "--wrap=:"],
        g.config.selector.command_timeout_s,
        check=False,
    )
    if "gpu-aware:" in output:
        return ok("filter answers", "slurmctld refuses a wrong comment")
    line = " ".join(output.split())[-160:] or "the job was accepted"
    if "class" not in output and re.search(
        r"account|association|root|denied", output, re.IGNORECASE
    ):
        return skipped("filter answers", line, "run doctor as a user who may submit jobs")
    return failed(
        "filter answers",
        f"a wrong comment is not refused: {line}",
        f"look for gpu_aware in slurmctld's log; touch {g.folder / OWN_FILTER} to reload it",
    )


def check_types(g: DoctorContext) -> Iterable[Check]:
    """Every GPU has its own GRES type."""
    with_gpus = [n for n in g.nodes if n.gpus]
    if not with_gpus:
        yield failed("gres types", "Slurm knows no node with GPUs", "add Gres= to the node lines")
        return
    shared = [n.name for n in with_gpus if n.shared_gres]
    note = f"; unsupported (shards, MPS, MIG): {hostlist(shared)}" if shared else ""
    with_gpus = [n for n in with_gpus if not n.shared_gres]
    plain = [n.name for n in with_gpus if not gpu_slots(n)[1]]
    lines = "'gpu-aware setup --roll' changes nodes one by one, each while it has no job"
    if len(plain) == len(with_gpus):
        yield failed("gres types", f"no node has one GRES type per GPU{note}", lines)
    elif plain:
        names = hostlist(plain)
        yield warning("gres types", f"{names}: only the node is chosen, not the GPU{note}", lines)
    else:
        yield ok("gres types", f"{len(with_gpus)} nodes with one GRES type per GPU{note}")
