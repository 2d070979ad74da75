"""Checks of doctor on Slurm: release, settings, licence, gate, filter, GRES types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from slurm_gpu_aware import filter_rules as rules
from slurm_gpu_aware.clock_conf import ACCOUNTS, NO_ACCOUNTS, conf_path, read_clock_conf
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, skipped, warning
from slurm_gpu_aware.deploy.files import CLI_FILTER, LUA_CONF, OUR_CLI_FILTER, OWN_FILTER
from slurm_gpu_aware.deploy.filter_answer import filter_answer
from slurm_gpu_aware.deploy.install import filter_files
from slurm_gpu_aware.deploy.site_scripts import (
    LUA_PLACE,
    join_fault,
    join_lines,
    loads_cli_filter,
    loads_filter,
    read_script,
)
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.gate.gate_holder import gate_reservation, holder_of
from slurm_gpu_aware.gate.holding_pool import LICENCE, LICENCE_COUNT
from slurm_gpu_aware.gate.index_types import gpu_slots
from slurm_gpu_aware.gate.licence_gate import (
    held_licences,
    lease_for_takeover_s,
    longest_silence_s,
)
from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types
from slurm_gpu_aware.slurm.accounting import OFF, gaps_of
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.conffile import read_conf
from slurm_gpu_aware.slurm.controllers import Controllers
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.time_text import duration

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
    held = gate_reservation(g.client, gate)
    if held is None:
        with suppress(StoreError), open_store(g.config.store.path, readonly=True) as store:
            if why := Ledger(store).why_open:
                cure = "the selector tries again within an hour, and at once if it is restarted"
                yield failed("gate", f"open: jobs start as usual: {why}", cure)
                return
        yield failed("gate", "open: jobs start as usual", start)
        return
    left = held.end_s - g.now
    count = held_licences(g.client, held, gate) if left > 0 else None
    if count is not None and count < gate.licence_count:
        yield failed(
            "gate",
            f"reservation {held.name} holds {count} of {gate.licence_count} licences: some jobs"
            " pass the gate",
            f"scontrol delete reservationname={held.name}; the selector makes it again",
        )
    holder = holder_of(held, Controllers(g.slurm).only)
    by = "" if holder is None else f", held by the selector of host {holder.host}"
    yield ok("gate", f"closed by reservation {held.name}{by}")
    if left <= 0:
        yield failed("heartbeat", f"the gate ended {duration(-left)} ago", start)
    elif gate.lease_s - left > longest_silence_s(g.config):
        yield failed("heartbeat", f"overdue: the gate opens in {duration(left)}", start)
    yield ok("heartbeat", f"the gate holds for {duration(left)} more")


def _controllers(g: DoctorContext) -> Iterator[Check]:
    """With several slurmctld, the gate stays closed until another has taken over."""
    controllers = Controllers(g.slurm)
    if len(controllers.hosts) < 2:
        return
    needed_s = lease_for_takeover_s(controllers.timeout_s, g.config)
    if g.config.gate.lease_s < needed_s:
        yield warning(
            "controllers",
            f"SlurmctldTimeout is {controllers.timeout_s:.0f} s: the gate opens before another"
            " slurmctld has taken over, and Slurm starts the parked jobs",
            f"set gate.lease_s = {needed_s:.0f} in config.toml of each controller, restart the"
            " selectors",
        )
    if controllers.in_control() is None:
        yield warning(
            "controllers",
            f"{controllers.heartbeat_file} cannot be read: the selector does not see which"
            " slurmctld is in control",
            "run doctor as SlurmUser; it must be able to read StateSaveLocation on each controller",
        )
    yield ok("controllers", f"{', '.join(controllers.hosts)}; run doctor on each of them")


def _filter(g: DoctorContext) -> Iterator[Check]:
    """slurmctld runs the filter of this release with this configuration."""
    install = "run 'gpu-aware setup --install', then restart slurmctld"
    if "lua" not in g.plugins("JobSubmitPlugins"):
        found = f"JobSubmitPlugins={g.slurm.get('JobSubmitPlugins')} lacks lua"
        yield failed("filter", found, install)
        return
    if g.elsewhere:  # only slurmctld reads the files
        yield skipped("filter", "this host is no controller", "run doctor on the controller")
        yield _check_filter_answers(g)
        return
    script = g.folder / OWN_FILTER
    text = read_script(script)
    if text is not None and (fault := join_fault(text)):
        cure = f"the lines below belong {LUA_PLACE}"
        yield failed("filter", f"{script} {fault}", cure, lines=join_lines(g.folder))
        return
    if (text is None or not loads_filter(text)) and not filter_answer(g.config)[0]:
        found = f"{script} does not load gpu_aware.lua"
        if text is None:
            yield failed("filter", found, "run 'gpu-aware setup --install'")
        else:
            cure = f"add the lines below to {script} {LUA_PLACE}"
            yield failed("filter", found, cure, lines=join_lines(g.folder))
        return
    there = {p.name: p.read_bytes() for p in g.folder.glob("*.lua")}
    stale = [p.name for p in filter_files() if there.get(p.name) != p.read_bytes()]
    if stale:
        found = f"{g.folder}: missing, or of another release: {', '.join(stale)}"
        yield failed("filter", found, install)
    yield ok("filter", f"{script} loads gpu_aware.lua of this release")
    yield _check_filter_conf(g, g.folder / LUA_CONF)
    yield _check_filter_answers(g)


def _cli_filter(g: DoctorContext) -> Iterator[Check]:
    """Slurm's commands find the script that slurm.conf makes them load. On this host only."""
    script, conf = g.folder / CLI_FILTER, g.folder / "slurm.conf"
    if "lua" not in g.plugins("CliFilterPlugins"):
        if not g.config.setup.cli_filter:
            yield ok(
                "test-only", "off: --test-only refuses what would be parked (setup.cli_filter)"
            )
        elif _lists_lua(conf):
            found = f"slurmctld has not read CliFilterPlugins=lua in {conf}"
            yield failed("test-only", found, "scontrol reconfigure")
        else:
            found = f"CliFilterPlugins={g.slurm.get('CliFilterPlugins')} lacks lua"
            cure = "run 'gpu-aware setup --install' on the controller, then 'scontrol reconfigure'"
            yield failed("test-only", found, cure)
    elif not script.exists():
        cure = "copy gpu_aware_cli_filter.lua there, or remove lua from CliFilterPlugins"
        yield failed("test-only", f"{script} is missing: sbatch and srun fail", cure)
    elif g.config.setup.cli_filter:
        if not loads_cli_filter(script.read_text(errors="replace")):
            cure = f'add {LUA_PLACE}: pcall(dofile, "{g.folder / OUR_CLI_FILTER}")'
            yield failed("test-only", f"{script} does not load {OUR_CLI_FILTER}", cure)
        yield ok("test-only", f"{script} marks tests; other hosts need it, too")


def _lists_lua(conf: Path) -> bool:
    """Whether a slurm.conf lists Lua among CliFilterPlugins; False: no, or it cannot be read."""
    with suppress(SourceError):
        listed = read_conf(conf).get("CliFilterPlugins") or ""
        return "lua" in {word.rpartition("/")[2] for word in listed.split(",")}
    return False


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
    works, line = filter_answer(g.config)
    if works:
        return ok("filter answers", "slurmctld refuses a wrong comment")
    if works is None:
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
    note = f"; unsupported (MPS, MIG, shards that Slurm counts by node): {shared}" if shared else ""
    mixed = hostlist(n.name for n in with_gpus if n.gpus_used & n.shared_gpus)
    if mixed:
        found = f"{mixed}: Slurm has given the same GPU as a whole and in shards"
        yield warning("gres types", found, "add File= to the lines Name=shard of gres.conf")
    whole = [n for n in with_gpus if not n.shared_gres]
    plain = [n.name for n in whole if not gpu_slots(n)[1]]
    lines = "'gpu-aware setup --roll' changes nodes one by one, each while it has no job"
    if len(plain) == len(whole):
        found = f"no node has one GRES type per GPU: only the node is chosen, not the GPU{note}"
        yield warning("gres types", found, lines)
    elif plain:
        found = f"{hostlist(plain)}: only the node is chosen, not the GPU{note}"
        yield warning("gres types", found, lines)
    yield ok("gres types", f"{len(whole)} nodes with one GRES type per GPU{note}")


def _typed_jobs(g: DoctorContext) -> Iterator[Check]:
    """No pending job asks for a GPU type that went when nodes got one type per GPU."""
    models = {name for n in g.nodes if gpu_slots(n)[1] for name in n.features}
    stranded = [
        job.id
        for job in g.client.jobs()
        if job.state == "PENDING"
        and any(render.feature_of(kind) in models for kind in gpu_types(job))
        and not can_start(job, g.nodes)
    ]
    if stranded:
        yield failed(
            "typed jobs",
            f"jobs {', '.join(stranded[:10])} ask for a GPU type which is gone, and cannot start",
            "'gpu-aware setup --roll' changes their requests where it can; the others have to be"
            " cancelled and submitted again",
        )
    yield ok("typed jobs", "no pending job asks for a GPU type which is gone")


def _accounting(g: DoctorContext) -> Iterator[Check]:
    """The accounting has what estimates, tune and simulate read, and sacct answers."""
    if not g.elsewhere and not read_clock_conf().accounts:
        cure = f"add accounts = {ACCOUNTS} to clock.conf here and on all nodes"
        yield warning("energy", f"{conf_path()} {NO_ACCOUNTS}", cure)
    gaps = list(gaps_of(g.slurm.get))
    for gap in gaps:
        yield warning("accounting", f"{gap.found}: {gap.cost}", gap.cure)
    if OFF in gaps:
        return
    try:
        asked = ["sacct", "-nXP", "--starttime=now-1minutes", "-o", "JobIDRaw"]
        run_command(asked, g.config.selector.command_timeout_s)
    except SourceError as exc:
        cure = "look at slurmdbd, or install sacct here; until then the ledger alone tells of runs"
        yield warning("accounting", str(exc), cure)
    private = "jobs" in g.words("PrivateData")
    whose = "; users see their own jobs only (PrivateData)" if private else ""
    yield ok("accounting", f"sacct answers; GPUs and comments of jobs are recorded{whose}")


CHECKS = (
    ("release", True, False, _release),
    ("settings", True, False, _settings),
    ("licence", True, False, _licence),
    ("gate", True, False, _gate),
    ("controllers", True, False, _controllers),
    ("filter", True, False, _filter),
    ("test-only", True, False, _cli_filter),
    ("gres types", True, False, _types),
    ("typed jobs", True, False, _typed_jobs),
    ("accounting", True, False, _accounting),
)
"""See `doctor.Checks`."""
