"""Checks of doctor on Slurm: release, gate, GRES types, accounting; files and agents of nodes."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from slurm_gpu_aware.agent_reports import last_report, spool_file
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, skipped, warning
from slurm_gpu_aware.deploy.owned_files import HOOKS
from slurm_gpu_aware.deploy.reconfiguration import ask_nodes, digest, idle_nodes, not_read_since
from slurm_gpu_aware.deploy.setup import checks_of
from slurm_gpu_aware.deploy.site import feature_of
from slurm_gpu_aware.deploy.site_scripts import calls, read_script
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.gate.licence_gate import (
    gate_reservation,
    held_licences,
    holder_of,
    lease_for_takeover_s,
    longest_silence_s,
)
from slurm_gpu_aware.gate.typed_requests import can_start, gpu_types
from slurm_gpu_aware.slurm.accounting import OFF, gaps_of
from slurm_gpu_aware.slurm.client import Controllers
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.conffile import BEGIN_RECORD, read_conf
from slurm_gpu_aware.slurm.gres import gpu_slots
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.time_text import counted, duration

OLDEST, NEWEST = (24, 11), (26, 5)
_SILENT_S = 180.0  # Agents report once a minute.
_START_AGENT = "'systemctl enable --now gpu-aware-clockd' there; 'journalctl -u gpu-aware-clockd'"
_COPY = "copy {} to all nodes that have their own, then 'scontrol reconfigure'"


def _release(g: DoctorContext) -> Iterator[Check]:
    """Slurm's release is a supported one."""
    text = g.slurm.get("SLURM_VERSION", "")
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None or not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        cure = "supported are Slurm 24.11 to 26.05; upgrade, or remove slurm-gpu-aware"
        yield failed("release", f"Slurm {text or 'of unknown version'}", cure)
    yield ok("release", f"Slurm {text}")


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


def _typed_jobs(g: DoctorContext) -> Iterator[Check]:
    """No pending job asks for a GPU type that went when nodes got one type per GPU."""
    models = {name for n in g.nodes if gpu_slots(n)[1] for name in n.features}
    stranded = [
        job.id
        for job in g.client.jobs()
        if job.state == "PENDING"
        and any(feature_of(kind) in models for kind in gpu_types(job))
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


def _nodes(g: DoctorContext) -> Iterator[Check]:
    """The nodes have read slurm.conf since it was changed, and have the files of this host."""
    conf = g.folder / "slurm.conf"
    name = "files of nodes"
    with_gpus = [node for node in g.nodes if node.gpus]
    if files := _conf_files(g):
        changed_s = max(path.stat().st_mtime for path in files)
        behind = hostlist(not_read_since(with_gpus, changed_s))
        if behind:
            found = f"slurmd has not read {conf} since it was changed: {behind}"
            yield warning(name, found, _COPY.format(g.folder))
    if not g.ask_nodes:
        cure = "'gpu-aware doctor --nodes' starts a job of a second on each idle one"
        yield skipped(name, f"not asked whether they have the files of {g.folder}", cure)
        return
    here = {str(path): value for path in _files_of_nodes(g) if (value := digest(path))}
    there: dict[str, dict[str, str]] = {}
    for partition, names in idle_nodes(g.client, {node.name for node in with_gpus}).items():
        there |= ask_nodes(partition, names, [Path(path) for path in here])
    for path, value in here.items():
        absent = hostlist(node for node, files in there.items() if path not in files)
        other = hostlist(n for n, files in there.items() if files.get(path, value) != value)
        if absent:
            what = "missing" if path.endswith(".conf") else "missing, or not executable,"
            yield failed(name, f"{path} is {what} on {absent}", _COPY.format(g.folder))
        if other:
            found = f"{path} differs from the controller's on {other}"
            yield warning(name, found, _COPY.format(g.folder))
    busy = hostlist(node.name for node in with_gpus if node.name not in there)
    if busy:
        yield skipped(name, f"could not be asked now: {busy}", "try again when they are idle")
    if there:
        yield ok(name, f"{counted(len(here), 'file')} as on the controller: {hostlist(there)}")


def _conf_files(g: DoctorContext) -> tuple[Path, ...]:
    """slurm.conf of this host with its includes; none if it has none. Raises SourceError."""
    conf = g.folder / "slurm.conf"
    return tuple(read_conf(conf).texts) if conf.exists() else ()


def _files_of_nodes(g: DoctorContext) -> list[Path]:
    """Files of this host that the nodes read: slurm.conf, gres.conf, prolog and epilog."""
    hooks = [hook for hook in HOOKS if hook.on_nodes]
    scripts = [path for hook in hooks for path in hook.scripts(g)]
    ours = [hook.path(g.folder) for hook in hooks]
    called = [path for path in ours if any(calls(read_script(s) or "", path) for s in scripts)]
    gres = g.folder / "gres.conf"
    # That of a site may differ from node to node; moved nodes have ours.
    ours_in_gres = [gres] if BEGIN_RECORD in (read_script(gres) or "") else []
    return list(dict.fromkeys([*_conf_files(g), *ours_in_gres, *scripts, *called]))


def _agents(g: DoctorContext) -> Iterator[Check]:
    """Each node with GPUs has an agent that reports, if clock.conf names a folder for orders."""
    conf = read_clock_conf()
    if not conf.orders:
        return
    silent, troubled = [], {}
    for node in sorted(node.name for node in g.nodes if node.gpus):
        report = last_report(spool_file(Path(conf.spool), node))
        if report is None or abs(g.now - report.at) > _SILENT_S:
            silent.append(node)
        elif report.trouble:
            troubled[node] = report.trouble
    if silent:
        found = f"no report for {_SILENT_S:.0f} s from {hostlist(silent)}: clocks stay as at start"
        yield warning("clockd", found, _START_AGENT)
    for node, why in list(troubled.items())[:3]:
        cure = "'gpu-aware selectd' writes them; see docs/clockd.md on owners and modes"
        yield warning("clockd", f"{node} obeys no orders: {why}", cure)
    if not silent and not troubled:
        yield ok("clockd", "the agents of all nodes with GPUs report")


OF_SLURM = (
    ("release", True, False, _release),
    ("settings", True, False, checks_of("settings")),
    ("licence", True, False, checks_of("licence")),
    ("gate", True, False, _gate),
    ("controllers", True, False, _controllers),
    ("filter", True, False, checks_of("filter")),
    ("test-only", True, False, checks_of("test-only")),
    ("gres types", True, False, checks_of("gres types")),
    ("typed jobs", True, False, _typed_jobs),
    ("accounting", True, False, lambda g: chain(checks_of("accounting")(g), _accounting(g))),
)
"""See `doctor.Checks`."""
OF_NODES = (
    ("prolog, epilog", True, True, checks_of("prolog, epilog")),
    ("files of nodes", True, True, _nodes),
    ("clockd", True, True, _agents),
)
"""The checks after those of slurm-gpu-aware."""
OF_GATE = frozenset(
    (
        *("licence", "gate", "controllers", "filter", "test-only", "gres types", "selector"),
        *("permissions", "changes of jobs", "events", "prolog, epilog", "files of nodes", "clockd"),
    )
)
"""Checks of a site whose jobs we place, or are to place."""
