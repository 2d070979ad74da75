"""Orders for the clock agents: one file NODE.orders per node, in a folder of SlurmUser.

A file (`node_orders`) has an order for each running job whose clock the selector has chosen. The
sequence number rises with every change, also over restarts; a file is renewed before it expires. An
agent that sees no valid file goes back to the clock of the job's start.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.files import ReplacedFile, open_plain
from slurm_gpu_aware.names import is_node_name
from slurm_gpu_aware.node_orders import MOST_BYTES, Order, OrderError, Orders, parse_orders

log = logging.getLogger(__name__)

VALID_S = 600.0
"""Time for which an order holds if the selector is away."""
_LEFT_S = 400.0  # a file is renewed when less of its time is left


@dataclass
class ClockOrders:
    """The files of all nodes."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)
    """Node -> why its file could not be written the last time."""
    _files: dict[str, Orders] = field(default_factory=dict)
    """Node -> its file; number 0: it is damaged."""

    def load(self) -> None:
        """Read what a previous selector has ordered; a damaged file is written anew."""
        self._files = {}
        try:
            paths = sorted(self.folder.glob("*.orders"))
        except OSError:
            return
        for path in paths:
            node = path.name.removesuffix(".orders")
            try:
                self._files[node] = parse_orders(_read(path))
            except (OSError, OrderError) as exc:
                log.warning("%s is written anew: %s", path, exc)
                if is_node_name(node):
                    self._files[node] = Orders(0, math.inf, ())

    def ordered(self) -> Mapping[str, tuple[int, tuple[Order, ...]]]:
        """Node -> sequence number and orders of its file."""
        return {node: (file.seq, file.orders) for node, file in self._files.items()}

    def newest(self, node: object) -> int:
        """Sequence number of a node's file; 0: it has none."""
        file = self._files.get(node) if isinstance(node, str) else None
        return 0 if file is None else file.seq

    def write(self, wanted: Mapping[str, Sequence[Order]], now: float) -> dict[str, int]:
        """Write what has changed or is about to expire; return node -> its sequence number.

        ``wanted``: node -> all its orders; the file of any other node becomes empty. A node whose
        file cannot be written is left out.
        """
        written = {}
        nodes = wanted.keys() | self._files.keys()
        self.failed = {node: why for node, why in self.failed.items() if node in nodes}
        for node in sorted(nodes):
            orders = tuple(sorted(wanted.get(node, ())))
            known = self._files.get(node)
            same = known is not None and known.orders == orders
            left_s = -math.inf if known is None else known.valid_until - now
            # A file of a clock that was ahead is written anew: agents refuse it.
            valid = left_s <= VALID_S + 1.0 and (left_s > _LEFT_S or not orders)
            if known is not None and same and valid and node not in self.failed:
                written[node] = known.seq
                continue
            last = 0 if known is None else known.seq
            seq = last if same and last else max(last + 1, int(now))
            file = Orders(seq, now + VALID_S, orders)
            if self._put(node, file):
                self._files[node] = file
                written[node] = file.seq
        return written

    def _put(self, node: str, file: Orders) -> bool:
        path = self.folder / f"{node}.orders"
        try:
            self.folder.mkdir(mode=0o755, exist_ok=True)
            with ReplacedFile(path) as stream:
                stream.write(str(file))
                os.fchmod(stream.fileno(), 0o644)
        except OSError as exc:
            why = f"{path}: cannot be written: {exc.strerror}"
            if self.failed.get(node) != why:
                log.warning("%s", why)
            self.failed[node] = why
            return False
        self.failed.pop(node, None)
        return True


def _read(path: Path) -> bytes:
    stream, _ = open_plain(path)
    with stream:
        return stream.read(MOST_BYTES + 1)
