"""Orders for the clock agents: one file NODE.orders per node, in a folder of SlurmUser.

A file is the whole state of its node: a head line ``gpu-aware-orders/1 SEQ VALID_UNTIL`` and one
line ``JOBID MHZ INDEX+INDEX`` for each running job whose clock the selector has chosen (MHZ 0: the
default clock). The sequence number rises with every change, also over restarts; a file is renewed
before it expires. An agent that sees no valid file goes back to the clock of the job's start.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.names import is_node_name
from slurm_gpu_aware.text_file import open_plain, replaced_file

log = logging.getLogger(__name__)

SCHEMA = "gpu-aware-orders/1"
VALID_S = 600.0
"""Time for which an order holds if the selector is away."""
_LEFT_S = 400.0  # a file is renewed when less of its time is left
_MOST_BYTES = 1 << 20
_HEAD = re.compile(rf"{SCHEMA} ([1-9][0-9]{{0,15}}) ([1-9][0-9]{{0,11}})")
_LINE = re.compile(r"([1-9][0-9]{0,11}) (0|[1-9][0-9]{1,4}) ([0-9]{1,4}(?:\+[0-9]{1,4})*)")


@dataclass(frozen=True, order=True)
class Order:
    """The clock of one job on one node."""

    job: int
    """Slurm's number of the job."""
    mhz: int
    """SM clock; 0: the default clock."""
    gpus: tuple[int, ...]
    """Slurm's indices on the node, ascending."""

    def __str__(self) -> str:
        return f"{self.job} {self.mhz} {'+'.join(map(str, self.gpus))}"


def parse_orders(text: str) -> tuple[int, float, tuple[Order, ...]]:
    """(Sequence number, time of validity, orders) of a file. Raises ValueError."""
    head, *lines = text.splitlines()
    found = _HEAD.fullmatch(head)
    if found is None:
        raise ValueError("no head line")
    orders = []
    for line in lines:
        entry = _LINE.fullmatch(line)
        if entry is None:
            raise ValueError("a line is no order")
        gpus = tuple(int(index) for index in entry[3].split("+"))
        orders.append(Order(int(entry[1]), int(entry[2]), gpus))
    return int(found[1]), float(found[2]), tuple(orders)


@dataclass
class _File:
    seq: int
    """0: it is damaged."""
    valid_until: float
    orders: tuple[Order, ...]


@dataclass
class ClockOrders:
    """The files of all nodes."""

    folder: Path
    failed: dict[str, str] = field(default_factory=dict)
    """Node -> why its file could not be written the last time."""
    _files: dict[str, _File] = field(default_factory=dict)

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
                self._files[node] = _File(*parse_orders(_read(path)))
            except (OSError, ValueError) as exc:
                log.warning("%s is written anew: %s", path, exc)
                if is_node_name(node):
                    self._files[node] = _File(0, math.inf, ())

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
            file = _File(seq, now + VALID_S, orders)
            if self._put(node, file):
                self._files[node] = file
                written[node] = file.seq
        return written

    def _put(self, node: str, file: _File) -> bool:
        lines = [f"{SCHEMA} {file.seq} {math.ceil(file.valid_until)}", *map(str, file.orders)]
        path = self.folder / f"{node}.orders"
        try:
            self.folder.mkdir(mode=0o755, exist_ok=True)
            with replaced_file(path) as stream:
                stream.write("\n".join(lines) + "\n")
                os.fchmod(stream.fileno(), 0o644)
        except OSError as exc:
            why = f"{path}: cannot be written: {exc.strerror}"
            if self.failed.get(node) != why:
                log.warning("%s", why)
            self.failed[node] = why
            return False
        self.failed.pop(node, None)
        return True


def _read(path: Path) -> str:
    stream, _ = open_plain(path)
    with stream:
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB")
    return data.decode("ascii")
