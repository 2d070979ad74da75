"""Checks of doctor on Slurm: release, settings, licence, gate, filter, GRES types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, skipped, warning
from slurm_gpu_aware.deploy.files import LUA_CONF, OWN_FILTER
from slurm_gpu_aware.deploy.install import filter_files
from slurm_gpu_aware.gate.holding_pool import LICENCE, LICENCE_COUNT
from slurm_gpu_aware.gate.index_types import gpu_slots
from slurm_gpu_aware.gate.licence_gate import longest_silence_s
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.time_text import age

__all__ = ["CHECKS"]

OLDEST, NEWEST = (24, 11), (26, 5)
_ROOT = "0"
_MIRRORED = {
    "classes": None,
    "licence": f'"{rules.LICENCE}"',
    "reservation": f'"{rules.RESERVATION}"',
    "submit_file": None,
    "park_uncommented": "true",
}
"""Key that the filter's configuration takes from config.toml -> default of the filter."""


def _release(g: DoctorContext) -> Iterator[Check]:
    """Slurm's release is a supported one."""
    text = g.slurm.get("SLURM_VERSION", "")
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None or not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        cure = "supported are Slurm 24.11 to 26.05; upgrade, or remove slurm-gpu-aware"
        yield failed("release", f"Slurm {text or 'of unknown version'}", cure)
    yield ok("release", f"Slurm {text}")


def _settings(g: DoctorContext) -> Iterator[Check]:
    """slurm.conf has the required settings."""
    if "cons_tres" not in g.slurm.get("SelectType", ""):
        yield failed("settings", f"SelectType={g.slurm.get('SelectType')}", "use select/cons_tres")
    elif "gpu" not in g.words("GresTypes"):
        setup = "run 'gpu-aware setup --install', then restart slurmctld"
        yield failed("settings", f"GresTypes={g.slurm.get('GresTypes')} lacks gpu", setup)
    yield ok("settings", "select/cons_tres, GresTypes has gpu")
    given = {word.partition("=")[0] for word in g.words("SchedulerParameters")}
    if "bf_licenses" in given:
        cure = "remove it: many parked jobs then delay other jobs by many seconds"
        yield warning("scheduler", "SchedulerParameters has bf_licenses", cure)
    for name, (value, why) in render.SCHEDULER.items():
        if name not in given:
            cure = f"add {name}={value} ('gpu-aware setup --install'), then 'scontrol reconfigure'"
            yield warning("scheduler", f"SchedulerParameters has no {name}: {why}", cure)
    yield ok("scheduler", "no setting that makes jobs wait for each other")


def _licence(g: DoctorContext) -> Iterator[Check]:
    """The licences of the gate and of the holding pool are configured."""
    counts: dict[str, int] = {}
    for word in g.words("Licenses"):
        name, *rest = re.split(r"[:*=]", word)
        counts.setdefault(name, int(rest[0]) if rest and rest[0].isdigit() else 1)
    if LICENCE not in counts:
        yield warning(
            "holding pool",
            f"slurm.conf has no licence {LICENCE}: on large clusters many parked jobs slow down"
            " slurmctld",
            f"add {LICENCE}:{LICENCE_COUNT} to Licenses ('gpu-aware setup --install'), scontrol"
            " reconfigure",
        )
    name, wanted = g.config.gate.licence, g.config.gate.licence_count
    if name not in counts:
        yield failed(
            "licence",
            f"slurm.conf has no licence {name}: nothing can be parked",
            f"add Licenses={name}:{wanted} ('gpu-aware setup --install'), scontrol reconfigure",
        )
    elif counts[name] != wanted:
        yield failed(
            "licence",
            f"slurm.conf has {counts[name]} of {name}, but the configuration has {wanted}",
            f"set Licenses={name}:{wanted} in slurm.conf ('gpu-aware setup --install')",
        )
    yield ok("licence", f"{name}: {wanted}")


def _gate(g: DoctorContext) -> Iterator[Check]:
    """The gate's reservation exists, holds the licence, and is being renewed."""
    gate = g.config.gate
    start = "start the selector: systemctl start gpu-aware-selectd"
    held = next((r for r in g.client.reservations() if r.name == gate.reservation), None)
    if held is None:
        yield failed("gate", "open: jobs start as usual", start)
        return
    count = dict(held.licenses).get(gate.licence, 0)
    if count < gate.licence_count:
        yield failed(
            "gate",
            f"reservation {held.name} holds {count} of {gate.licence_count} licences: some jobs"
            " pass the gate",
            f"scontrol delete reservationname={held.name}; the selector makes it again",
        )
    yield ok("gate", f"closed by reservation {held.name}")
    left = held.end_s - g.now
    if left <= 0:
        yield failed("heartbeat", f"the gate ended {age(-left)} ago", start)
    elif gate.lease_s - left > longest_silence_s(g.config):
        yield failed("heartbeat", f"overdue: the gate opens in {age(left)}", start)
    yield ok("heartbeat", f"the gate holds for {age(left)} more")


def _filter(g: DoctorContext) -> Iterator[Check]:
    """slurmctld runs the filter of this release with this configuration."""
    install = "run 'gpu-aware setup --install', then restart slurmctld"
    if "lua" not in g.words("JobSubmitPlugins"):
        found = f"JobSubmitPlugins={g.slurm.get('JobSubmitPlugins')} lacks lua"
        yield failed("filter", found, install)
        return
    script = g.folder / OWN_FILTER
    if not script.exists() or "gpu_aware" not in script.read_text(errors="replace"):
        cure = "add the lines of the administrator's guide, or 'gpu-aware setup --install'"
        yield failed("filter", f"{script} does not load gpu_aware.lua", cure)
        return
    there = {p.name: p.read_bytes() for p in g.folder.glob("*.lua")}
    stale = [p.name for p in filter_files() if there.get(p.name) != p.read_bytes()]
    if stale:
        found = f"{g.folder}: missing, or of another release: {', '.join(stale)}"
        yield failed("filter", found, install)
    yield ok("filter", f"{script} loads gpu_aware.lua of this release")
    yield _check_filter_conf(g, g.folder / LUA_CONF)
    yield _check_filter_answers(g)


def _check_filter_conf(g: DoctorContext, path: Path) -> Check:
    cure = "run 'gpu-aware setup --install' after every change of config.toml"
    if not path.exists():
        return failed("filter config", f"{path} is missing: jobs pass unmodified", cure)
    have = _squeeze(path.read_text(errors="replace"))
    if not have.startswith("return{"):
        found = f"{path} does not return a table: jobs pass unmodified"
        return failed("filter config", found, cure)
    wanted = {
        k: _squeeze(render.lua_value(v))
        for k, v in render.filter_table(g.config, g.slurm_user).items()
    }
    wrong = [k for k, default in _MIRRORED.items() if (_entry(have, k) or default) != wanted[k]]
    lists = ("partitions", "policies", "operators")
    wrong += [key for key in lists if _items(_entry(have, key)) != _items(wanted[key])]
    if wrong:
        found = f"{path} differs from config.toml: {', '.join(wrong)}"
        return failed("filter config", found, cure)
    return ok("filter config", f"{path} agrees with config.toml")


def _squeeze(lua: str) -> str:
    """Lua source of plain values without comments and blanks."""
    return re.sub(r"\s+", "", re.sub(r"--.*", "", lua))


def _entry(table: str, key: str) -> str | None:
    match = re.search(rf"[{{,]{key}=(\{{[^}}]*\}}|[^,}}]*)", table)
    return match[1] if match else None


def _items(entry: str | None) -> set[str]:
    """Values of a list, in any order; without root, which is always an operator."""
    return set((entry or "").strip("{}").split(",")) - {"", _ROOT}


def _check_filter_answers(g: DoctorContext) -> Check:
    """Test slurmctld with a job that the filter must refuse; no job is submitted."""
    words = ["sbatch", "--test-only", "--gres=gpu:1", "--comment=class=gpu-aware-doctor"]
    words += [f"--partition={name}" for name in g.config.site.partitions[:1]]
    limit_s = g.config.selector.command_timeout_s
    _, output = run_command([*words, "--wrap=:"], limit_s, check=False)
    if "gpu-aware:" in output:
        return ok("filter answers", "slurmctld refuses a wrong comment")
    line = " ".join(output.split())[-160:] or "the job was accepted"
    if "class" not in output and re.search(r"(?i)account|association|root|denied", output):
        return skipped("filter answers", line, "run doctor as a user who may submit jobs")
    script = g.folder / OWN_FILTER
    cure = f"look for gpu_aware in slurmctld's log; touch {script} to reload it"
    return failed("filter answers", f"a wrong comment is not refused: {line}", cure)


def _types(g: DoctorContext) -> Iterator[Check]:
    """Every GPU has its own GRES type."""
    with_gpus = [n for n in g.nodes if n.gpus]
    if not with_gpus:
        yield failed("gres types", "Slurm knows no node with GPUs", "add Gres= to the node lines")
        return
    shared = hostlist(n.name for n in with_gpus if n.shared_gres)
    note = f"; unsupported (shards, MPS, MIG): {shared}" if shared else ""
    whole = [n for n in with_gpus if not n.shared_gres]
    plain = [n.name for n in whole if not gpu_slots(n)[1]]
    lines = "'gpu-aware setup --roll' changes nodes one by one, each while it has no job"
    if len(plain) == len(whole):
        yield failed("gres types", f"no node has one GRES type per GPU{note}", lines)
    elif plain:
        found = f"{hostlist(plain)}: only the node is chosen, not the GPU{note}"
        yield warning("gres types", found, lines)
    yield ok("gres types", f"{len(whole)} nodes with one GRES type per GPU{note}")


CHECKS = (
    ("release", True, _release),
    ("settings", True, _settings),
    ("licence", True, _licence),
    ("gate", True, _gate),
    ("filter", True, _filter),
    ("gres types", True, _types),
)
"""See `doctor.Checks`."""
