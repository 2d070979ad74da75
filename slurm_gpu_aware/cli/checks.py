"""What ``gpu-aware doctor`` looks at: one function per thing that can be wrong, with its cure."""

from __future__ import annotations

import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import glob
from pathlib import Path

from slurm_gpu_aware.cli.install import LUA_CONF, OWN_FILTER, filter_files, shipped
from slurm_gpu_aware.cli.live import open_gateway
from slurm_gpu_aware.cli.output import age
from slurm_gpu_aware.config import Config
from slurm_gpu_aware.errors import AwareError, StoreError
from slurm_gpu_aware.slurm import render
from slurm_gpu_aware.slurm.cli_gateway import run_command
from slurm_gpu_aware.slurm.gateway import SlurmNode, SlurmReservation
from slurm_gpu_aware.slurm.gres import gpu_slots
from slurm_gpu_aware.store.database import check_integrity, open_store, published_path
from slurm_gpu_aware.store.profiles import Profile, load_profile

__all__ = ["CHECKS", "Check", "Ground", "run_checks"]

OLDEST, NEWEST = (24, 11), (26, 5)
PROFILE_OLD_S = 90 * 86_400.0
FILTER = "gpu_aware.lua"
_SETTING = re.compile(r"([A-Za-z]\w*(?:\[\d+\])?)\s*=\s(.*)\Z")


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    status: str
    """``ok``, ``warning`` (works, but not as well as it could), ``failed``, ``skipped``."""
    found: str
    cure: str = ""
    """What to do; empty for ``ok``."""


def ok(name: str, found: str) -> Check:
    """Nothing to do."""
    return Check(name, "ok", found)


def failed(name: str, found: str, cure: str) -> Check:
    """Must be cured."""
    return Check(name, "failed", found, cure)


def warning(name: str, found: str, cure: str) -> Check:
    """Works, but not as well as it could."""
    return Check(name, "warning", found, cure)


def skipped(name: str, found: str, cure: str = "") -> Check:
    """Cannot be seen from here."""
    return Check(name, "skipped", found, cure)


@dataclass
class Ground:
    """What the checks look at; each part is read once, when a check asks for it.

    Properties raise AwareError where the thing cannot be read.
    """

    config: Config
    now: float = field(default_factory=time.time)

    @cached_property
    def slurm(self) -> Mapping[str, str]:
        """``scontrol show config``: key -> value as Slurm spells them."""
        text, _ = run_command(
            ["scontrol", "show", "config"], self.config.selector.command_timeout_s
        )
        matches = (_SETTING.match(line.strip()) for line in text.splitlines())
        return {m.group(1): m.group(2).strip() for m in matches if m}

    @cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """Slurm's nodes."""
        return open_gateway(self.config).nodes()

    @cached_property
    def reservations(self) -> Sequence[SlurmReservation]:
        """Slurm's reservations."""
        return open_gateway(self.config).reservations()

    @cached_property
    def folder(self) -> Path:
        """Folder of slurm.conf on the controller."""
        return Path(self.slurm.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent

    @cached_property
    def profile(self) -> Profile:
        """Newest profile in the store."""
        with open_store(self.config.store.path, readonly=True) as store:
            return load_profile(store)

    @cached_property
    def slurm_user(self) -> str:
        """SlurmUser's name."""
        return self.slurm.get("SlurmUser", "root").split("(")[0]


def run_checks(config: Config) -> list[Check]:
    """Run all checks; one that cannot be carried out counts as failed."""
    ground = Ground(config)
    found: list[Check] = []
    answering = True
    for name, needs_slurm, check in CHECKS:
        if needs_slurm and not answering:
            found.append(skipped(name, "Slurm does not answer"))
            continue
        try:
            found.extend(check(ground))
        except StoreError as exc:
            found.append(skipped(name, str(exc), "see the store check"))
        except AwareError as exc:
            first = check is check_release
            cure = "start slurmctld, and run this on a host with Slurm's commands on PATH"
            found.append(failed(name, str(exc), cure if first else "cure this, then run it again"))
            answering = answering and not first
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            found.append(
                skipped(name, f"{where}{exc.strerror}", "run it as root on the controller")
            )
    return found


def check_release(g: Ground) -> Iterable[Check]:
    """Slurm's release is one that we were tested with."""
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


def check_settings(g: Ground) -> Iterable[Check]:
    """Settings of slurm.conf without which nothing works."""
    setup = "run 'gpu-aware setup --install', then restart slurmctld"
    if "cons_tres" not in g.slurm.get("SelectType", ""):
        yield failed("settings", f"SelectType={g.slurm.get('SelectType')}", "use select/cons_tres")
    elif "gpu" not in _words(g.slurm.get("GresTypes")):
        yield failed("settings", f"GresTypes={g.slurm.get('GresTypes')} lacks gpu", setup)
    else:
        yield ok("settings", "select/cons_tres, GresTypes has gpu")
    parameters = _words(g.slurm.get("SchedulerParameters"))
    if "bf_licenses" in parameters:
        yield warning(
            "scheduler",
            "SchedulerParameters has bf_licenses",
            "remove it: many parked jobs then delay other jobs by many seconds",
        )
    elif not any(p.startswith("default_queue_depth=") for p in parameters):
        yield warning(
            "scheduler",
            "default_queue_depth is Slurm's own (100)",
            f"set it to {render.QUEUE_DEPTH}: many parked jobs delay other jobs otherwise",
        )
    else:
        yield ok("scheduler", "no setting that lets parked jobs delay others")


def check_licence(g: Ground) -> Iterable[Check]:
    """The gate's licence is configured."""
    name, wanted = g.config.gate.licence, g.config.gate.licence_count
    for word in _words(g.slurm.get("Licenses")):
        parts = re.split(r"[:*=]", word)
        if parts[0] == name:
            count = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 1
            if count == wanted:
                yield ok("licence", f"{name}: {count}")
            else:
                yield failed(
                    "licence",
                    f"slurm.conf has {count} of {name}, the configuration {wanted}",
                    f"set Licenses={name}:{wanted} in slurm.conf ('gpu-aware setup --install')",
                )
            return
    yield failed(
        "licence",
        f"slurm.conf has no licence {name}: nothing can be parked",
        f"add Licenses={name}:{wanted} ('gpu-aware setup --install'), scontrol reconfigure",
    )


def check_gate(g: Ground) -> Iterable[Check]:
    """The gate's reservation is there, holds the licence, and its end is being pushed ahead."""
    gate = g.config.gate
    start = "start the selector: systemctl start gpu-aware-selectd"
    held = next((r for r in g.reservations if r.name == gate.reservation), None)
    if held is None:
        yield failed("gate", "open: jobs start as if we were not installed", start)
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
    elif left < gate.lease_s - 3 * g.config.selector.heartbeat_s:
        yield failed("heartbeat", f"none lately: the gate opens in {age(left)}", start)
    else:
        yield ok("heartbeat", f"the gate holds for {age(left)} more")


def check_filter(g: Ground) -> Iterable[Check]:
    """slurmctld runs our filter, of this release, with this configuration."""
    install = "run 'gpu-aware setup --install', then restart slurmctld"
    if "lua" not in _words(g.slurm.get("JobSubmitPlugins")):
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
    yield from _check_filter_conf(g.config, conf)
    yield _check_filter_answers(g)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _check_filter_conf(config: Config, path: Path) -> Iterable[Check]:
    cure = "run 'gpu-aware setup --install' after every change of config.toml"
    if not path.exists():
        yield failed("filter config", f"{path} is missing: jobs pass unmodified", cure)
        return
    have = _squeeze(path.read_text(errors="replace"))
    allowed = list(dict.fromkeys([config.placement.policy, *config.placement.allowed]))
    wanted = _squeeze(render.lua_conf(config, policies=allowed, models=[], max_gpus_per_node=0))
    wrong = [
        key
        for key in ("classes", "licence", "submit_file", "park_uncommented")
        if _entry(have, key) != _entry(wanted, key)
    ]
    if not have.startswith("return{"):
        yield failed("filter config", f"{path} does not return a table: jobs pass unmodified", cure)
    elif wrong:
        yield failed("filter config", f"{path} differs from config.toml: {', '.join(wrong)}", cure)
    else:
        yield ok("filter config", f"{path} agrees with config.toml")


def _squeeze(lua: str) -> str:
    """Lua source without comments and blanks; good enough for a table of plain values."""
    return re.sub(r"\s+", "", re.sub(r"--.*", "", lua))


def _entry(table: str, key: str) -> str | None:
    match = re.search(rf"[{{,]{key}=(\{{[^}}]*\}}|[^,}}]*)", table)
    return match.group(1) if match else None


def _check_filter_answers(g: Ground) -> Check:
    """Ask slurmctld itself, with a job that our filter must refuse; nothing is submitted."""
    _, said = run_command(
        ["sbatch", "--test-only", "--gres=gpu:1", "--comment=class=gpu-aware-doctor", "--wrap=:"],
        g.config.selector.command_timeout_s,
        check=False,
    )
    if "gpu-aware:" in said:
        return ok("filter answers", "slurmctld refuses a wrong comment as it should")
    line = " ".join(said.split())[-160:] or "the job was accepted"
    if "class" not in said and re.search(r"account|association|root|denied", said, re.IGNORECASE):
        return skipped("filter answers", line, "run doctor as a user who may submit jobs")
    return failed(
        "filter answers",
        f"a wrong comment is not refused: {line}",
        f"look for gpu_aware in slurmctld's log; touch {g.folder / OWN_FILTER} to load it again",
    )


def check_types(g: Ground) -> Iterable[Check]:
    """Every GPU has a GRES type of its own."""
    with_gpus = [n for n in g.nodes if n.gpus]
    if not with_gpus:
        yield failed("gres types", "Slurm knows no node with GPUs", "add Gres= to the node lines")
        return
    plain = [n.name for n in with_gpus if not gpu_slots(n)[1]]
    lines = "drain a node, then change its lines ('gpu-aware setup --output DIR' writes them)"
    if len(plain) == len(with_gpus):
        yield failed("gres types", "no node has one GRES type per GPU", lines)
    elif plain:
        names = render.hostlist(plain)
        yield warning("gres types", f"{names}: only the node is chosen, not the GPU", lines)
    else:
        yield ok("gres types", f"{len(with_gpus)} nodes with one GRES type per GPU")


def check_selector(g: Ground) -> Iterable[Check]:
    """The daemon runs, if this is its host: its lock names a process that is one."""
    lock = g.config.store.path.parent / "selectd.lock"
    # Only read: taking the lock to test it could keep a starting selector out.
    text = lock.read_text() if lock.exists() else ""
    number = text.strip()
    command = Path("/proc") / number / "cmdline"
    if number.isdigit() and command.exists() and b"selectd" in command.read_bytes().split(b"\0"):
        yield ok("selector", f"process {number}")
    else:
        yield failed(
            "selector",
            "no selector runs on this host",
            "on the controller: systemctl enable --now gpu-aware-selectd",
        )


def check_store(g: Ground) -> Iterable[Check]:
    """The store opens, is sound, is recent, and others can read the copy."""
    path = g.config.store.path
    try:
        with open_store(path, readonly=True) as store:
            complaints = check_integrity(store)
    except StoreError as exc:
        cure = f"as {g.config.store.path.parent}'s owner: 'gpu-aware-profile sweep' makes a store"
        yield failed("store", str(exc), cure)
        return
    if complaints:
        yield failed("store", f"{path} is damaged: {complaints[0]}", "restore it, or move it away")
        return
    yield ok("store", f"{path}, schema up to date")
    copy = published_path(path)
    if not copy.exists():
        yield warning("public copy", f"{copy} is not there", "the selector writes it when it runs")
    elif not copy.stat().st_mode & stat.S_IROTH or not _passable(copy.parent):
        yield warning(
            "public copy",
            f"{copy} cannot be read by ordinary users",
            f"chmod o+rx {copy.parent}, so that users can run explain and queue",
        )
    else:
        yield ok("public copy", f"{age(g.now - copy.stat().st_mtime)} old, readable by all")


def _passable(folder: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (folder, *folder.parents))


def check_profile(g: Ground) -> Iterable[Check]:
    """GPUs were measured, not too long ago, and are those that Slurm has."""
    sweep = "run 'gpu-aware-profile sweep'"
    profile = g.profile
    if not profile.scores:
        yield failed("profile", "no GPU was measured: all count as equal", sweep)
        return
    oldest = min(profile.taken_at.values(), default=g.now)
    classes = [c for c in g.config.site.classes if c not in profile.scores]
    if classes:
        yield failed("profile", f"classes without scores: {', '.join(classes)}", sweep)
    elif g.now - oldest > PROFILE_OLD_S:
        yield warning("profile", f"the oldest node was measured {age(g.now - oldest)} ago", sweep)
    else:
        yield ok("profile", f"{len(profile.gpus)} GPUs, oldest {age(g.now - oldest)}")
    if profile.faults:
        names = render.hostlist(profile.faults)
        yield warning("faults", f"probes failed on {names}", "look at 'gpu-aware-profile show'")


def check_coverage(g: Ground) -> Iterable[Check]:
    """Slurm's GPUs and the profile's are the same ones."""
    known = {node for node, _ in g.profile.gpus}
    missing = [n.name for n in g.nodes if n.gpus and n.name not in known]
    if missing:
        yield warning(
            "coverage",
            f"never profiled: {render.hostlist(missing)} (their GPUs count as average)",
            "run 'gpu-aware-profile sweep'",
        )
    different = [
        n.name
        for n in g.nodes
        if n.name in known
        and sum(count for _, count in n.gpus) != sum(node == n.name for node, _ in g.profile.gpus)
    ]
    if different:
        yield warning(
            "coverage",
            f"Slurm and the profile count GPUs differently on {render.hostlist(different)}",
            "run 'gpu-aware-profile sweep', then compare gres.conf",
        )
    if not missing and not different:
        yield ok("coverage", "every GPU node of Slurm is in the profile")


def check_scripts(g: Ground) -> Iterable[Check]:
    """Prolog and epilog set and reset clocks."""
    for kind, key in (("prolog.d", "Prolog"), ("epilog.d", "Epilog")):
        files = [Path(f) for value in _values(g.slurm, key) for f in glob(value)]
        install = "'gpu-aware setup --install'; without it clocks stay at their default"
        for source in shipped(kind):
            have = next((f for f in files if f.name == source.name), None)
            if have is None:
                yield warning(key.lower(), f"{key} does not run {source.name}", install)
            elif have.read_bytes() != source.read_bytes():
                yield warning(key.lower(), f"{have} is of another release", install)
            elif not os.access(have, os.X_OK):
                yield failed(key.lower(), f"{have} is not executable", f"chmod 755 {have}")
            else:
                yield ok(key.lower(), str(have))


def check_events(g: Ground) -> Iterable[Check]:
    """Submissions and ends of jobs start a round at once."""
    folder = g.config.events.submit_file.parent
    if not folder.is_dir():
        yield warning(
            "events",
            f"{folder} is missing: a submission waits for the next round",
            f"install -d -o {g.slurm_user} {folder}",
        )
    elif not _writable(folder, g.slurm_user):
        yield warning(
            "events", f"{g.slurm_user} cannot write to {folder}", f"chown {g.slurm_user} {folder}"
        )
    else:
        yield ok("events", f"submissions: {g.config.events.submit_file}")
    wanted = g.config.events.jobcomp_file
    if wanted is None:
        yield ok("job ends", f"by timer, every {g.config.selector.round_s:g} s")
    elif g.slurm.get("JobCompType") == "jobcomp/filetxt" and g.slurm.get("JobCompLoc") == str(
        wanted
    ):
        yield ok("job ends", str(wanted))
    else:
        yield warning(
            "job ends",
            f"JobCompType={g.slurm.get('JobCompType')}, JobCompLoc={g.slurm.get('JobCompLoc')}:"
            f" {wanted} is never written",
            "set jobcomp/filetxt and the same file in slurm.conf, or remove events.jobcomp_file",
        )


def check_permissions(g: Ground) -> Iterable[Check]:
    """SlurmUser, who runs the selector, can write the store."""
    path, user = g.config.store.path, g.slurm_user
    if not path.parent.is_dir():
        cure = f"install -d -o {user} {path.parent}"
        yield failed("permissions", f"{path.parent} is missing", cure)
        return
    # SQLite writes beside the file, too; a sweep run as root leaves files that are root's.
    files = [path.with_name(path.name + end) for end in ("", "-wal", "-shm")]
    wrong = [p for p in (path.parent, *files) if p.exists() and not _writable(p, user)]
    if wrong:
        cure = f"chown -R {user} {path.parent}"
        yield failed("permissions", f"{user} cannot write to {wrong[0]}", cure)
    else:
        yield ok("permissions", f"{user} can write to {path.parent}")


def _writable(path: Path, user: str) -> bool:
    """Whether the mode bits let a user write; groups beside the primary one are looked up too."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return False
    if entry.pw_uid == 0:
        return True
    status = path.stat()
    if status.st_uid == entry.pw_uid:
        return bool(status.st_mode & stat.S_IWUSR)
    if status.st_gid in os.getgrouplist(user, entry.pw_gid):
        return bool(status.st_mode & stat.S_IWGRP)
    return bool(status.st_mode & stat.S_IWOTH)


def _words(value: str | None) -> list[str]:
    return [w for w in (value or "").split(",") if w and w != "(null)"]


def _values(settings: Mapping[str, str], key: str) -> list[str]:
    """Values of a setting that may stand several times: ``Prolog`` or ``Prolog[0]``, ..."""
    found = [v for k, v in settings.items() if k.split("[")[0] == key]
    return [v for v in found if v != "(null)"]


CHECKS: tuple[tuple[str, bool, Callable[[Ground], Iterable[Check]]], ...] = (
    ("release", True, check_release),
    ("settings", True, check_settings),
    ("licence", True, check_licence),
    ("gate", True, check_gate),
    ("selector", False, check_selector),
    ("filter", True, check_filter),
    ("gres types", True, check_types),
    ("store", False, check_store),
    ("permissions", True, check_permissions),
    ("profile", False, check_profile),
    ("coverage", True, check_coverage),
    ("prolog, epilog", True, check_scripts),
    ("events", True, check_events),
)
"""Name, whether it needs Slurm to answer, and the check; in the order in which they are shown."""
