"""Checks of doctor on slurm-gpu-aware: selector, store, profile, events, missed NVLinks."""

import json
import os
import pwd
import re
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from slurm_gpu_aware.bounds import slot_of
from slurm_gpu_aware.config.load import read_tuned, tuned_path
from slurm_gpu_aware.config.settings import DEFAULT_PATH
from slurm_gpu_aware.deploy.doctor import (
    Check,
    DoctorContext,
    answer_of,
    failed,
    ok,
    skipped,
    warning,
)
from slurm_gpu_aware.deploy.rollout_site import removal_waits
from slurm_gpu_aware.deploy.setup import checks_of
from slurm_gpu_aware.deploy.site_scripts import read_script
from slurm_gpu_aware.errors import AwareError, ConfigError, SourceError, StoreError
from slurm_gpu_aware.files import SELECTOR_LOCK
from slurm_gpu_aware.gate import trial
from slurm_gpu_aware.gate.licence_gate import gate_reservation, working_elsewhere
from slurm_gpu_aware.model.hardware_graph import direct_links
from slurm_gpu_aware.model.profile import Profile, gpu_names
from slurm_gpu_aware.slurm.client import Controllers
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import check_integrity, open_store
from slurm_gpu_aware.store.files import published_path
from slurm_gpu_aware.time_text import counted, duration

_KNOWN = re.compile(r"^[^#\n]*\b(?:autodetect\s*=\s*(?:nvml|full)\b|links\s*=)", re.I | re.M)
"""Lines of gres.conf by which slurmctld gets to know links."""
_PAGE = "docs/internals/slurm-links.md"
PROFILE_OLD_S = 90 * 86_400.0
_BEHIND_S = 600.0


def slurm_links(g: DoctorContext) -> Iterator[Check]:
    """Where slurmctld knows links, ``--gres=gpu:2`` gets the pair with the fewest of them."""
    conf = g.folder / "gres.conf"
    text = read_script(conf)
    if text is not None and not _KNOWN.search(text):
        yield ok("links", f"{conf} names no links: Slurm gives the lowest indices")
        return
    uneven = nodes_with_unequal_pairs(g.profile)
    by_slurm = g.config.placement.gpus == "nodes"
    plain = [n.name for n in g.nodes if by_slurm or any(slot_of(k) is None for k, _ in n.gpus)]
    left = sorted(uneven & set(plain))
    if left:
        cure = f"let us choose the GPUs (setup --roll), or let users ask by --gpus; {_PAGE}"
        found = f"Slurm gives --gres=gpu:2 pairs with fewer NVLinks than others on {hostlist(left)}"
        yield warning("links", found, cure)
        return
    exact = sorted(uneven & {n.name for n in g.nodes})
    if exact:
        yield ok(
            "links", f"exact GPUs on {hostlist(exact)}; Slurm would give pairs with few NVLinks"
        )
        return
    yield ok("links", "on no node does Slurm's choice among links matter")


def nodes_with_unequal_pairs(profile: Profile) -> frozenset[str]:
    """Nodes of which some GPUs beside the same CPUs have more NVLinks to each other than others."""
    groups: dict[str, dict[str | None, list[int]]] = {}
    for (node, slot), record in profile.gpus.items():
        groups.setdefault(node, {}).setdefault(record.cpus, []).append(slot)
    return frozenset(
        node
        for node, beside in groups.items()
        if _unequal(
            {(k.a, k.b): k.link_class for k in profile.links.get(node, ())}, list(beside.values())
        )
    )


def _unequal(words: Mapping[tuple[int, int], str], groups: Sequence[Sequence[int]]) -> bool:
    """Whether NVLinks of pairs differ within a group. slurmd counts no links of other makers."""
    for slots in groups:
        pairs = [words.get(pair, "SYS") for pair in combinations(sorted(slots), 2)]
        if len({direct_links(word) if word.startswith("NV") else 0 for word in pairs}) > 1:
            return True
    return False


def _removal(g: DoctorContext) -> Iterator[Check]:
    """A removal is under way: what it takes away is no fault, and goes on."""
    waits = "; ".join(removal_waits(g.config) or [])
    found = f"a removal is under way{f'; it waits for {waits}' if waits else ''}"
    yield warning("removal", found, "run 'gpu-aware setup --remove' again, until it exits with 0")


def _selector(g: DoctorContext) -> Iterator[Check]:
    """The selector runs on this host: the instance lock names its process."""
    lock = g.config.store.path.parent / SELECTOR_LOCK
    # Taking the lock could prevent the start of a selector.
    number = lock.read_text().strip() if lock.exists() else ""
    process = Path("/proc") / number
    if (
        number.isdigit()
        and process.exists()
        and process.stat().st_uid == lock.stat().st_uid  # a user's process may have this name
        and b"selectd" in (process / "cmdline").read_bytes().split(b"\0")
    ):
        yield ok("selector", f"process {number}{_standing_by(g)}")
    else:
        cure = "on the controller: systemctl enable --now gpu-aware-selectd"
        yield failed("selector", "no selector runs on this host", cure)


def _standing_by(g: DoctorContext) -> str:
    with suppress(AwareError):  # without Slurm
        held = gate_reservation(g.client, g.config.gate)
        other = working_elsewhere(held, Controllers(g.slurm).only, g.config, g.now)
        if other is not None:
            return f", stands by for the one of host {other.host}"
    return ""


def _changes(g: DoctorContext) -> Iterator[Check]:
    """SlurmUser may change jobs as the selector does: a held test job is changed and cancelled."""
    name = "changes of jobs"
    if unknown := g.no_user(name):
        yield unknown
        return
    user = pwd.getpwnam(g.slurm_user)
    if os.geteuid() not in (0, user.pw_uid):
        yield skipped(name, "only SlurmUser may try them", "run doctor as root")
        return
    command = [sys.executable, "-m", trial.__name__, str(g.config.source or DEFAULT_PATH)]
    limit_s = 6 * g.config.selector.command_timeout_s
    # root may often do what SlurmUser may not.
    if os.geteuid() != user.pw_uid:
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
        command = ["setpriv", *ids, *command]
    found = trial.Trial(**json.loads(run_command(command, limit_s)[0]))
    if found.passed is None:
        yield skipped(name, found.why, found.cure)
    elif not found.passed:
        yield failed(name, found.why, f"{found.cure}; until then the gate stays open")
    else:
        yield ok(name, "a held test job could be changed as the selector changes jobs")


def _store(g: DoctorContext) -> Iterator[Check]:
    """The store is sound, and users can read the published copy."""
    path = g.config.store.path
    try:
        with open_store(path, readonly=True) as store:
            complaints = check_integrity(store)
    except StoreError as exc:
        cure = f"as {path.parent}'s owner: 'gpu-aware-profile sweep' makes a store"
        yield failed("store", str(exc), cure)
        return
    if complaints:
        yield failed("store", f"{path} is damaged: {complaints[0]}", "restore it, or move it away")
        return
    yield ok("store", f"{path}, schema up to date")
    copy = published_path(path)
    if not copy.exists():
        yield warning("public copy", f"{copy} is not there", "the selector writes it when it runs")
        return
    mode = copy.stat().st_mode
    private = False
    with suppress(AwareError):  # without Slurm
        private = "jobs" in g.words("PrivateData")
    passable = all(folder.stat().st_mode & stat.S_IXOTH for folder in copy.parents)
    if private and mode & stat.S_IRWXO:
        cure = "restart the selector, which makes it again for its group only"
        found = f"all users can read {copy}, but PrivateData has jobs"
        yield warning("public copy", found, cure)
    elif not private and not (mode & stat.S_IROTH and passable):
        cure = f"chmod o+rx {copy.parent}, so that users can run explain and queue"
        yield warning("public copy", f"{copy} cannot be read by ordinary users", cure)
    readers = "for its group (PrivateData)" if private else "readable by all"
    yield ok("public copy", f"{duration(g.now - copy.stat().st_mtime)} old, {readers}")
    if g.config.store.published is not None:
        yield _shared_copy(g.config.store.published, copy)


def _shared_copy(shared: Path, copy: Path) -> Check:
    """The copy for other hosts is as new as the one here; its file system may hang."""
    why = "the selector's log says why; its folder must belong to SlurmUser and be writable for it"
    try:
        changed_s = float(answer_of("stat", "-c", "%Y", str(shared)))
    except (SourceError, ValueError) as exc:
        return warning("shared copy", f"{shared}: {exc}", f"{why} alone")
    behind_s = copy.stat().st_mtime - changed_s
    if behind_s > _BEHIND_S:
        return warning("shared copy", f"{shared} is {duration(behind_s)} behind", f"{why} alone")
    return ok("shared copy", f"{shared}, for other hosts")


def _profile(g: DoctorContext) -> Iterator[Check]:
    """GPUs are measured, and the measurements are recent."""
    times = "'gpu-aware-profile sweep' where nodes have CuPy, or with --bench; or import times"
    profile = g.profile
    if not profile.scores:
        yield failed("profile", "no times of any GPU: all GPUs count as equal", times)
        return
    oldest_s = g.now - min(profile.taken_at.values(), default=g.now)
    classes = [c for c in g.config.site.classes if c not in profile.scores]
    if classes:
        yield failed("profile", f"classes without scores: {', '.join(classes)}", times)
    elif oldest_s > PROFILE_OLD_S:
        again = f"measure again: {times}"
        yield warning("profile", f"the oldest node was measured {duration(oldest_s)} ago", again)
    yield ok("profile", f"{counted(len(profile.gpus), 'GPU')}, oldest {duration(oldest_s)}")
    if profile.faults:
        names = hostlist(profile.faults)
        yield warning("faults", f"probes failed on {names}", "look at 'gpu-aware-profile show'")


def _policy(g: DoctorContext) -> Iterator[Check]:
    """The policy is that of the configuration, or what tune has set can be used."""
    own, path = g.config.placement.policy, tuned_path(g.config)
    try:
        tuned = read_tuned(g.config)
    except ConfigError as exc:
        yield warning("policy", f"{own}: {exc}", f"'gpu-aware tune --apply', or delete {path}")
        return
    if tuned is None and path.exists():
        cure = f"delete {path}, or set tune.apply = true in config.toml"
        yield warning("policy", f"{own}, because tune.apply is false: {path} does not count", cure)
    yield ok("policy", own if tuned is None else str(tuned))


def _coverage(g: DoctorContext) -> Iterator[Check]:
    """The GPUs of Slurm and of the profile agree."""
    sweep = "run 'gpu-aware-profile sweep'"
    forget = "'gpu-aware-profile forget"
    profiled = Counter(node for node, _ in g.profile.gpus)
    in_slurm = {n.name: sum(count for _, count in n.gpus) for n in g.nodes}
    missing = hostlist(n for n, count in in_slurm.items() if count and n not in profiled)
    if missing:
        found = f"never profiled: {missing} (their GPUs count as average)"
        yield warning("coverage", found, sweep)
    different = hostlist(n for n, count in in_slurm.items() if profiled.get(n, count) != count)
    if different:
        found = f"Slurm and the profile count GPUs differently on {different}"
        yield warning("coverage", found, f"{sweep}, then compare gres.conf")
    absent = sorted(profiled.keys() - in_slurm.keys())
    if absent:
        cure = f"{forget} {' '.join(absent[:8])}'{' and so on' if len(absent) > 8 else ''}"
        yield warning("coverage", f"in the profile, but no node of Slurm: {hostlist(absent)}", cure)
    unseen = gpu_names(sorted(gpu for gpu in g.profile.unseen if gpu[0] not in absent))
    if unseen:
        found = f"times were imported for GPUs that no sweep has seen: {unseen}"
        yield warning("coverage", found, f"{sweep}, or {forget} NODE:INDEX'")
    yield ok("coverage", "every GPU node of Slurm is in the profile")


OF_US = (
    ("selector", False, True, _selector),
    ("store", False, True, _store),
    ("permissions", True, True, checks_of("permissions")),
    ("changes of jobs", True, True, _changes),
    ("profile", False, True, _profile),
    ("policy", False, True, _policy),
    ("coverage", True, True, _coverage),
    ("links", True, True, slurm_links),
    ("events", True, True, checks_of("events")),
    ("units", False, True, checks_of("units")),
)
"""See `doctor.Checks`."""
REMOVAL = (("removal", False, False, _removal),)  # The only check while a removal is under way.
