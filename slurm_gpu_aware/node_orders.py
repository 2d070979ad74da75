"""Orders for clocks and power limits of a node's running jobs: the file NODE.orders.

    gpu-aware-orders/1 SEQ VALID_UNTIL
    JOBID MHZ INDEX+INDEX
    JOBID MHZ:WATTS INDEX+INDEX

The selector writes it in one step, and ``gpu-aware clockd`` obeys it. A file is the whole state of
its node. While orders are valid, a lower SEQ is that of an older file. VALID_UNTIL is in Unix
seconds, MHZ 0 is the default clock, WATTS 0 the site's own power limit. Standard library only, for
the programs of `clocks`.
"""

import math
import re
from dataclasses import dataclass

MOST_BYTES = 1 << 16
MOST_ORDERS = 1024
_HEAD = re.compile(rb"gpu-aware-orders/1 ([1-9][0-9]{0,15}) ([1-9][0-9]{0,10})")
_LINE = re.compile(
    rb"([1-9][0-9]{0,11}) (0|[1-9][0-9]{2,4})(?::(0|[1-9][0-9]{1,3}))? "
    rb"((?:[0-9]{1,4})(?:\+[0-9]{1,4}){0,63})"
)


class OrderError(ValueError):
    """Orders that are not obeyed; the text says why."""


@dataclass(frozen=True, order=True)
class Order:
    """Clock and power limit of one job on one node."""

    job: int  # Slurm's number of the job.
    mhz: int  # SM clock; 0: the default clock.
    gpus: tuple[int, ...]  # Slurm's indices on the node, ascending.
    limit_w: int | None = None
    """Power limit of each GPU, W; 0: the site's own; None: that of the job's start."""

    def __str__(self) -> str:
        limit = "" if self.limit_w is None else f":{self.limit_w}"
        return f"{self.job} {self.mhz}{limit} {'+'.join(map(str, self.gpus))}"


@dataclass(frozen=True)
class Orders:
    """All orders of a node; ``str`` is the text of its file."""

    seq: int
    valid_until: float  # Unix seconds.
    orders: tuple[Order, ...]

    def __str__(self) -> str:
        head = f"gpu-aware-orders/1 {self.seq} {math.ceil(self.valid_until)}"
        return "".join(f"{line}\n" for line in (head, *self.orders))


def parse_orders(text: bytes) -> Orders:
    """Parse a file's text. Raises OrderError for anything that is not exactly orders."""
    if len(text) > MOST_BYTES:
        raise OrderError(f"more than {MOST_BYTES} bytes")
    if not text.endswith(b"\n"):
        raise OrderError("its last line is not complete")
    head, *lines = text[:-1].split(b"\n")
    start = _HEAD.fullmatch(head)
    if start is None:
        raise OrderError("its first line is not gpu-aware-orders/1 SEQ VALID_UNTIL")
    if len(lines) > MOST_ORDERS:
        raise OrderError(f"more than {MOST_ORDERS} orders")
    orders = tuple(_order(number, line) for number, line in enumerate(lines, 2))
    jobs = [order.job for order in orders]
    gpus = [gpu for order in orders for gpu in order.gpus]
    if len(set(jobs)) < len(jobs) or len(set(gpus)) < len(gpus):
        raise OrderError("a job or a GPU is named twice")
    return Orders(int(start[1]), float(start[2]), orders)


def _order(number: int, line: bytes) -> Order:
    found = _LINE.fullmatch(line)
    if found is None:
        raise OrderError(f"line {number} is not JOBID MHZ[:WATTS] INDEX+INDEX")
    gpus = tuple(sorted(int(index) for index in found[4].split(b"+")))
    limit_w = None if found[3] is None else int(found[3])
    return Order(int(found[1]), int(found[2]), gpus, limit_w)
