"""Checks of doctor on slurm-gpu-aware: selector, store, profile, scripts, events."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from glob import glob
from pathlib import Path

from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.doctor_context import Check, DoctorContext, failed, ok, warning, words
from slurm_gpu_aware.deploy.files import shipped
from slurm_gpu_aware.deploy.install import SCRIPT_KEYS
from slurm_gpu_aware.errors import AwareError, StoreError
from slurm_gpu_aware.instance_lock import SELECTOR_LOCK
from slurm_gpu_aware.model.profile import gpu_names
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.store.database import check_integrity, open_store, published_path
from slurm_gpu_aware.store.ownership import of_selector
from slurm_gpu_aware.time_text import age

__all__ = [
    "check_coverage",
    "check_events",
    "check_permissions",
    "check_profile",
    "check_scripts",
    "check_selector",
    "check_store",
]

PROFILE_OLD_S = 90 * 86_400.0


def check_selector(g: DoctorContext) -> Iterable[Check]:
    """The selector runs on this host: the instance lock names its process."""
    lock = g.config.store.path.parent / SELECTOR_LOCK
    # Taking the lock could prevent the start of a selector.
    text = lock.read_text() if lock.exists() else ""
    number = text.strip()
    process = Path("/proc") / number
    if (
        number.isdigit()
        and process.exists()
        and process.stat().st_uid == lock.stat().st_uid  # a user's process may have this name
        and b"selectd" in (process / "cmdline").read_bytes().split(b"\0")
    ):
        yield ok("selector", f"process {number}")
    else:
        yield failed(
            "selector",
            "no selector runs on this host",
            "on the controller: systemctl enable --now gpu-aware-selectd",
        )


def check_store(g: DoctorContext) -> Iterable[Check]:
    """The store is sound, and users can read the published copy."""
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
    elif _jobs_are_private(g):
        if copy.stat().st_mode & stat.S_IRWXO:
            cure = "restart the selector, which makes it again for its group only"
            found = f"all users can read {copy}, but PrivateData has jobs"
            yield warning("public copy", found, cure)
        else:
            found = f"{age(g.now - copy.stat().st_mtime)} old, for its group (PrivateData)"
            yield ok("public copy", found)
    elif not copy.stat().st_mode & stat.S_IROTH or not _passable(copy.parent):
        yield warning(
            "public copy",
            f"{copy} cannot be read by ordinary users",
            f"chmod o+rx {copy.parent}, so that users can run explain and queue",
        )
    else:
        yield ok("public copy", f"{age(g.now - copy.stat().st_mtime)} old, readable by all")


def _jobs_are_private(g: DoctorContext) -> bool:
    with suppress(AwareError):
        return "jobs" in words(g.slurm.get("PrivateData"))
    return False


def _passable(folder: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (folder, *folder.parents))


def check_profile(g: DoctorContext) -> Iterable[Check]:
    """GPUs are measured, and the measurements are recent."""
    times = "measure, then 'gpu-aware-profile import FILE' (a sweep takes no times of real GPUs)"
    profile = g.profile
    if not profile.scores:
        yield failed("profile", "no times of any GPU: all GPUs count as equal", times)
        return
    oldest = min(profile.taken_at.values(), default=g.now)
    classes = [c for c in g.config.site.classes if c not in profile.scores]
    if classes:
        yield failed("profile", f"classes without scores: {', '.join(classes)}", times)
    elif g.now - oldest > PROFILE_OLD_S:
        again = f"run 'gpu-aware-profile sweep'; {times}"
        yield warning("profile", f"the oldest node was measured {age(g.now - oldest)} ago", again)
    else:
        yield ok("profile", f"{len(profile.gpus)} GPUs, oldest {age(g.now - oldest)}")
    if profile.faults:
        names = hostlist(profile.faults)
        yield warning("faults", f"probes failed on {names}", "look at 'gpu-aware-profile show'")


def check_coverage(g: DoctorContext) -> Iterable[Check]:
    """The GPUs of Slurm and of the profile agree."""
    known = {node for node, _ in g.profile.gpus}
    missing = [n.name for n in g.nodes if n.gpus and n.name not in known]
    if missing:
        yield warning(
            "coverage",
            f"never profiled: {hostlist(missing)} (their GPUs count as average)",
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
            f"Slurm and the profile count GPUs differently on {hostlist(different)}",
            "run 'gpu-aware-profile sweep', then compare gres.conf",
        )
    absent = sorted(known - {n.name for n in g.nodes})
    if absent:
        yield warning(
            "coverage",
            f"in the profile, but no node of Slurm: {hostlist(absent)}",
            f"'gpu-aware-profile forget {' '.join(absent[:8])}'"
            + (" and so on" if len(absent) > 8 else ""),
        )
    unseen = sorted(gpu for gpu in g.profile.unseen if gpu[0] not in absent)
    if unseen:
        yield warning(
            "coverage",
            f"times were imported for GPUs that no sweep has seen: {gpu_names(unseen)}",
            "run 'gpu-aware-profile sweep', or 'gpu-aware-profile forget NODE:INDEX'",
        )
    if not (missing or different or absent or unseen):
        yield ok("coverage", "every GPU node of Slurm is in the profile")


def check_scripts(g: DoctorContext) -> Iterable[Check]:
    """Slurm runs our Prolog, Epilog (clocks) and ResvProlog (empties the holding pool)."""
    for kind, key in SCRIPT_KEYS.items():
        files = [Path(f) for value in _values(g.slurm, key) for f in glob(value)]
        without = "clocks stay at their default"
        if key == "ResvProlog":
            without = render.WITHOUT[key]
        install = f"'gpu-aware setup --install'; without it {without}"
        for source in shipped(kind):
            have = next((f for f in files if f.name == source.name), None)
            if have is None:
                yield warning(key.lower(), f"{key} does not run {source.name}", install)
            elif have.read_bytes() != source.read_bytes():
                yield warning(key.lower(), f"{have} is of another release", install)
            elif not os.access(have, os.X_OK):
                yield failed(key.lower(), f"{have} is not executable", f"chmod 755 {have}")
            elif (lacks := _unseen_scontrol(have)) is not None:
                yield warning(key.lower(), f"{have} does not find {lacks}", f"link it; {without}")
            else:
                yield ok(key.lower(), str(have))


def _unseen_scontrol(script: Path) -> str | None:
    """Path of scontrol, if the script calls it and its PATH lacks it."""
    text = script.read_text(encoding="utf-8", errors="replace")
    path = re.search(r"^PATH=(\S+)$", text, re.MULTILINE)
    ours = shutil.which("scontrol")
    if path is None or ours is None or "scontrol" not in text:
        return None
    return None if shutil.which("scontrol", path=path[1]) else ours


def check_events(g: DoctorContext) -> Iterable[Check]:
    """Submissions and ends of jobs trigger a round at once."""
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


def check_permissions(g: DoctorContext) -> Iterable[Check]:
    """SlurmUser can write the store."""
    path, user = g.config.store.path, g.slurm_user
    if not path.parent.is_dir():
        cure = f"install -d -o {user} {path.parent}"
        yield failed("permissions", f"{path.parent} is missing", cure)
        return
    # SQLite also writes files beside it; a sweep run by root may leave files of root.
    files = [p for p in of_selector(path) if p != published_path(path)]
    wrong = [p for p in (path.parent, *files) if p.exists() and not _writable(p, user)]
    if wrong:
        cure = f"'gpu-aware setup --install' as root, or chown {user} {' '.join(map(str, wrong))}"
        yield failed("permissions", f"{user} cannot write to {wrong[0]}", cure)
    else:
        yield ok("permissions", f"{user} can write to {path.parent}")


def _writable(path: Path, user: str) -> bool:
    """Whether a user may write by owner, group (all groups of the user) and mode."""
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


def _values(settings: Mapping[str, str], key: str) -> list[str]:
    """Values of a setting that may occur several times: ``Prolog`` or ``Prolog[0]``, ..."""
    return [v for k, v in settings.items() if k.split("[")[0] == key and v != "(null)"]
