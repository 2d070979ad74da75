"""Check of doctor on the agents of the nodes (``gpu-aware clockd``): what they said last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_gpu_aware.clock_conf import read_clock_conf
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, controller_only, ok, warning
from slurm_gpu_aware.slurm.hostlist import hostlist
from slurm_gpu_aware.text_file import open_plain

_SILENT_S = 180.0
"""Agents report once a minute."""
_TAIL = 1 << 18  # bytes at the end of a spool file
_START = "'systemctl enable --now gpu-aware-clockd' there; 'journalctl -u gpu-aware-clockd'"


def _agents(g: DoctorContext) -> Iterator[Check]:
    """Each node with GPUs has an agent that reports, if clock.conf names a folder for orders."""
    conf = read_clock_conf()
    if not conf.orders:
        return
    silent, troubled = [], {}
    for node in sorted(node.name for node in g.nodes if node.gpus):
        report = _newest(Path(conf.spool) / f"{node}.jsonl")
        at = report.get("at")
        if not isinstance(at, int | float) or g.now - at > _SILENT_S:
            silent.append(node)
        elif report.get("error"):
            troubled[node] = str(report["error"])[:200]
    if silent:
        found = f"no report for {_SILENT_S:.0f} s from {hostlist(silent)}: clocks stay as at start"
        yield warning("clockd", found, _START)
    for node, why in list(troubled.items())[:3]:
        cure = "'gpu-aware selectd' writes them; see docs/clockd.md on owners and modes"
        yield warning("clockd", f"{node} obeys no orders: {why}", cure)
    if not silent and not troubled:
        yield ok("clockd", "the agents of all nodes with GPUs report")


def _newest(file: Path) -> Mapping[str, Any]:
    """The newest report of an agent in a spool file; empty: there is none."""
    try:
        stream, status = open_plain(file)
        with stream:
            start = max(0, status.st_size - _TAIL)
            lines = os.pread(stream.fileno(), _TAIL, start).splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if b'"agent"' not in line:
            continue
        try:
            raw = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(raw, dict) and raw.get("event") == "agent":
            return raw
    return {}


CHECKS = (("clockd", True, controller_only("clockd", _agents)),)
"""See `doctor.Checks`."""
