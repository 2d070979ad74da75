"""Checks of doctor on the nodes: Prolog, Epilog and ResvProlog, their files, their clock agents."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from slurm_gpu_aware.agent_reports import last_report, spool_file
from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.deploy import render
from slurm_gpu_aware.deploy.distribution import not_read_since
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, skipped, warning
from slurm_gpu_aware.deploy.files import shipped
from slurm_gpu_aware.deploy.install import SCRIPT_KEYS
from slurm_gpu_aware.deploy.node_files import ask_nodes, digest, idle_nodes
from slurm_gpu_aware.deploy.site_scripts import calls, hook_line, read_script, scripts_of
from slurm_gpu_aware.slurm.conffile import BEGIN_RECORD, read_conf
from slurm_gpu_aware.slurm.hostlist import hostlist

_ON_NODES = ("Prolog", "Epilog")
_SILENT_S = 180.0
"""Agents report once a minute."""
_START_AGENT = "'systemctl enable --now gpu-aware-clockd' there; 'journalctl -u gpu-aware-clockd'"
_COPY = "copy {} to all nodes that have their own, then 'scontrol reconfigure'"


def _scripts(g: DoctorContext) -> Iterator[Check]:
    """Slurm runs our Prolog, Epilog (clocks) and ResvProlog (empties the holding pool)."""
    for kind, key in SCRIPT_KEYS.items():
        scripts = _scripts_of(g, key)
        for source in shipped(kind):
            yield _script(g, key, source, scripts)


def _scripts_of(g: DoctorContext, key: str) -> list[Path]:
    """Scripts of a setting, on this host."""
    return [path for value in _values_of(g, key) for path in scripts_of(value)]


def _values_of(g: DoctorContext, key: str) -> list[str]:
    """Values of a setting that may occur often: ``Prolog[0]``, ``Prolog[1]``, ..."""
    return [v for k, v in g.slurm.items() if k.split("[")[0] == key and v != "(null)"]


def _script(g: DoctorContext, key: str, source: Path, scripts: list[Path]) -> Check:
    name, without = key.lower(), render.WITHOUT[key]
    installed = g.folder / source.parent.name / source.name
    direct = next((path for path in scripts if path.name == source.name), None)
    by = next((path for path in scripts if calls(read_script(path) or "", installed)), None)
    install = f"'gpu-aware setup --install'; without it {without}"
    if direct is None and by is None:
        found = f"{key} does not run {source.name}: {without}"
        values = _values_of(g, key)
        if not values:
            return warning(name, found, "'gpu-aware setup --install', then 'scontrol reconfigure'")
        copy = ", and copy it to all nodes" if key in _ON_NODES else ""
        named = next((p for p in scripts if str(installed) in (read_script(p) or "")), None)
        if named is not None:
            found = f"{named} names {source.name} only where it never runs: {without}"
        where = named or [*scripts, *values][0]
        cure = f"add the line below to {where}, after its first line{copy}"
        return warning(name, found, cure, lines=(hook_line(installed),))
    have = direct or installed
    if not have.exists():
        return warning(name, f"{by} runs {have}, which is missing", install)
    if have.read_bytes() != source.read_bytes():
        return warning(name, f"{have} is of another release", install)
    if not os.access(have, os.X_OK):
        return failed(name, f"{have} is not executable", f"chmod 755 {have}")
    if (lacks := _unseen_scontrol(have)) is not None:
        return warning(name, f"{have} does not find {lacks}", f"link it; {without}")
    where = "" if key not in _ON_NODES else "controller: "
    return ok(name, f"{where}{have}" if direct else f"{where}{by} runs {have}")


def _unseen_scontrol(script: Path) -> str | None:
    """Path of scontrol, if the script calls it and its PATH lacks it."""
    text = script.read_text(encoding="utf-8", errors="replace")
    path = re.search(r"^PATH=(\S+)$", text, re.MULTILINE)
    if path is None or "scontrol" not in text or shutil.which("scontrol", path=path[1]):
        return None
    return shutil.which("scontrol")


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
        yield ok(name, f"{len(here)} files as on the controller: {hostlist(there)}")


def _conf_files(g: DoctorContext) -> tuple[Path, ...]:
    """slurm.conf of this host with its includes; none if it has none. Raises SourceError."""
    conf = g.folder / "slurm.conf"
    return read_conf(conf).files if conf.exists() else ()


def _files_of_nodes(g: DoctorContext) -> list[Path]:
    """Files of this host that the nodes read: slurm.conf, gres.conf, prolog and epilog."""
    scripts = [path for key in _ON_NODES for path in _scripts_of(g, key)]
    ours = [
        g.folder / kind / source.name
        for kind, key in SCRIPT_KEYS.items()
        if key in _ON_NODES
        for source in shipped(kind)
    ]
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
        cure = "'gpu-aware selectd' writes them; see docs/power.md on owners and modes"
        yield warning("clockd", f"{node} obeys no orders: {why}", cure)
    if not silent and not troubled:
        yield ok("clockd", "the agents of all nodes with GPUs report")


CHECKS = (
    ("prolog, epilog", True, True, _scripts),
    ("files of nodes", True, True, _nodes),
    ("clockd", True, True, _agents),
)
"""See `doctor.Checks`."""
