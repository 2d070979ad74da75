"""Communication of an application, read from what NCCL or Nsight Systems prints (as in MAPA, 3.1).

NCCL connects rings and trees for every communicator, whether or not they are used. So the best
source is what ran: in this order the algorithm of each collective (``NCCL_DEBUG_SUBSYS=TUNING``),
the calls (``COLL``), or the kernels of Nsight Systems; and only without these what was connected.

========================================  ================================================
line of NCCL (after ``NCCL INFO``)         meaning
========================================  ================================================
``AllReduce: N Bytes -> Algo RING ...``    bytes by algorithm; before 2.23 without the call
``AllReduce: opCount ... count N ...``     a call; ``Send`` has the peer as ``root``
``Connected all rings``, ``... trees``     used so far (since 2.22), prepared (before)
``Ring 00 : 3 -> 0 -> 1``, ``Channel``     a ring
``Trees [0] 1/-1/-1->0->-1``               a tree
``Channel 00/1 : 0[0] -> 3[3] via P2P``    a connection; index 1 is for sends and receives
``comm 0x.. rank 0 nranks 4``              size of a communicator
========================================  ================================================
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import csv_records

_LONGEST = 4096
_MOST_PEERS = 1 << 20  # Pairs of communicator and peer that are kept.
_COUNTS = 0.1  # A pattern with less than this share of the traffic does not count.
_NCCL = re.compile(
    r"(?:(?P<process>[\w.-]{1,255}:\d{1,10}):\d{1,10} )?\[\d{1,4}\] NCCL INFO (?P<text>.*)"
)
_ALGORITHM = re.compile(
    r"(?:(?P<call>[A-Za-z]{1,20}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>\w{1,16}) proto "
)
_CALL = re.compile(
    r"(?P<call>[A-Za-z]{1,20}): opCount [0-9a-f]{1,16} .{0,120}?count (?P<count>\d{1,18}) "
    r"datatype (?P<type>\d{1,2}) op \d{1,10} root (?P<root>\d{1,7}) comm (?P<comm>\w{1,20}) "
    r"\[nranks=(?P<ranks>\d{1,7})\]"
)
_SIZE = re.compile(r".{0,80}\bcomm \w{1,20} rank \d{1,7} nranks (?P<ranks>\d{1,7}) ")
_RING = re.compile(
    r"Ring \d{1,4} : \d{1,7} -> \d{1,7} -> \d{1,7}\Z"
    r"|Channel \d{1,4}/\d{1,4} : +\d{1,7}(?: +\d{1,7})+\Z"
)
_TREE = re.compile(r"Trees( \[\d{1,4}\] (-?\d{1,7}/){2}-?\d{1,7}->-?\d{1,7}->-?\d{1,7})")
_CONNECTED = re.compile(r"Connected (?P<what>all rings|all trees|NVLS tree)\b")
_LINK = re.compile(
    r"Channel \d{1,4}/(?P<index>\d) : (?P<one>\d{1,7})\[[0-9a-f]{1,8}\] -> "
    r"(?P<other>\d{1,7})\[[0-9a-f]{1,8}\] .{0,20}?via (P2P|SHM|NET)/"
)
_KERNEL = re.compile(r"nccl(?:Dev)?Kernel_(?P<call>[A-Za-z]{1,20})(?P<rest>\w{0,64})(?:\(.*)?\Z")
_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Size of NCCL's data types by number (``ncclDataType_t``)."""
_OF_ALGORITHM = {
    **dict.fromkeys(("TREE", "NVLS_TREE", "PAT", "0", "5", "6"), "tree"),
    **dict.fromkeys(("RING", "COLLNET_CHAIN", "NVLS", "1", "3", "4"), "ring"),
    **dict.fromkeys(("COLLNET_DIRECT", "2"), "all-to-all"),
}
"""Algorithm by name or number -> pattern. NVLS (through an NVSwitch, where all links are equal)
counts as what NCCL takes on other machines."""
_POINT_TO_POINT = frozenset({"Send", "Recv", "SendRecv"})
_ALL_PAIRS = frozenset({"AlltoAll", "AllToAll", "Gather", "Scatter"})
_COLLECTIVES = frozenset({"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"})


@dataclass(frozen=True)
class Communication:
    """What was read."""

    pattern: str  # ``ring``, ``tree``, ``ring+tree``, ``all-to-all`` or ``none``.
    traffic: dict[str, float]
    """Pattern -> its share of what ran, in bytes or, of kernels, in time; empty: not known."""
    ranks: int  # Ranks of the largest communicator; 0: not known.
    source: str  # ``algorithms``, ``calls``, ``kernels`` or ``connections``.


def read_communication(lines: Iterable[str]) -> Communication:
    """Pattern of an application from NCCL's debug output or a kernel summary of Nsight Systems.

    Lines of the application itself are skipped, as are lines of more than 4096 characters. Raises
    SourceError if no line is NCCL's and there is no summary of kernels.
    """
    log, kernels = _Log(), _Kernels()
    for line in lines:
        if len(line) <= _LONGEST:
            log.read(line) if "NCCL INFO" in line else kernels.read(line)
    if log.seen:
        return log.result()
    if kernels.seen:
        return kernels.result()
    raise SourceError(
        "neither NCCL's debug output (run the application with NCCL_DEBUG=INFO) nor the CSV of "
        "'nsys stats --report cuda_gpu_kern_sum'"
    )


class _Log:
    """NCCL's debug output."""

    def __init__(self) -> None:
        self.seen = False
        self.ranks = 0
        self.algorithms: Counter[str] = Counter()
        """Pattern -> bytes of collectives, by the algorithm that NCCL took."""
        self.calls: Counter[str] = Counter()
        """Kind of call -> bytes."""
        self.peers: defaultdict[object, set[int]] = defaultdict(set)
        """Sender -> ranks that it sends to."""
        self.linked: defaultdict[int, set[int]] = defaultdict(set)
        """Rank -> ranks that it has connections to for sends."""
        self.built: set[str] = set()
        """``ring`` and ``tree`` if NCCL has built some."""
        self.connected: set[str] = set()
        self.kept = 0

    def read(self, line: str) -> None:
        """Take in one line."""
        found = _NCCL.search(line)
        if found is None:
            return
        self.seen, text = True, found["text"].rstrip()
        if match := _ALGORITHM.match(text):
            if pattern := _OF_ALGORITHM.get(match["algo"]):
                self.algorithms[pattern] += int(match["bytes"])
        elif match := _CALL.match(text):
            self._call(match, found["process"])
        elif match := _LINK.match(text):
            if match["index"] != "0":
                self._keep(self.linked[int(match["one"])], int(match["other"]))
        elif match := _CONNECTED.match(text):
            self.connected.add("ring" if match["what"] == "all rings" else "tree")
        elif _RING.match(text):
            self.built.add("ring")
        elif _TREE.match(text):
            self.built.add("tree")
        elif match := _SIZE.match(text):
            self.ranks = max(self.ranks, int(match["ranks"]))

    def _call(self, match: re.Match[str], process: str | None) -> None:
        kind, size = match["call"], int(match["type"])
        self.ranks = max(self.ranks, int(match["ranks"]))
        volume = int(match["count"]) * (_BYTES[size] if size < len(_BYTES) else 1)
        if kind == "Send":
            self._keep(self.peers[process, match["comm"]], int(match["root"]))
            self.calls[kind] += volume
        elif kind in _COLLECTIVES | _ALL_PAIRS:
            self.calls[kind] += volume

    def _keep(self, numbers: set[int], number: int) -> None:
        if self.kept < _MOST_PEERS and number not in numbers:
            self.kept += 1
            numbers.add(number)

    def result(self) -> Communication:
        """What ran, if it was printed, else what was connected."""
        known = self.connected or self.built
        several = known or {"ring"}
        traffic: Counter[str] = Counter(self.algorithms)
        source = "algorithms" if self.algorithms else "calls"
        for kind, volume in self.calls.items():
            if kind == "Send":
                traffic[_of_peers(self.peers.values())] += volume
            elif kind in _ALL_PAIRS:
                traffic["all-to-all"] += volume
            elif not self.algorithms:
                for pattern in several if kind == "AllReduce" else ("ring",):
                    traffic[pattern] += volume
        if traffic.total():
            return _of_traffic(traffic, self.ranks, source)
        names = set(known)
        if self.linked:
            names.add(_of_peers(self.linked.values()))
        return Communication(_named(names), {}, self.ranks, "connections")


class _Kernels:
    """CSV of ``nsys stats --report cuda_gpu_kern_sum``."""

    def __init__(self) -> None:
        self.seen = False
        self._time = self._name = -1
        self.traffic: Counter[str] = Counter()
        """Pattern -> time of its kernels, ns."""

    def read(self, line: str) -> None:
        """Take in one line."""
        cells = _cells(line)
        if "Name" in cells and "Total Time (ns)" in cells:
            self.seen = True
            self._time, self._name = cells.index("Total Time (ns)"), cells.index("Name")
        elif self.seen and len(cells) > max(self._time, self._name):
            kernel, time = _KERNEL.match(cells[self._name]), cells[self._time]
            if kernel is not None and re.fullmatch(r"\d{1,18}", time):
                self.traffic[_of_kernel(kernel)] += int(time)

    def result(self) -> Communication:
        """Shares of the kernels' time."""
        return _of_traffic(self.traffic, 0, "kernels")


def _cells(line: str) -> list[str]:
    return next((row for _, row in csv_records([line], strict=False)), [])


def _of_kernel(kernel: re.Match[str]) -> str:
    """Pattern of a kernel. A kernel of sends and receives does not say how many peers it has."""
    if kernel["call"] in _POINT_TO_POINT | _ALL_PAIRS:
        return "all-to-all"
    return "tree" if "_TREE" in kernel["rest"] else "ring"


def _of_peers(peers: Iterable[set[int]]) -> str:
    """A rank that sends to more than two others has more neighbours than in a ring."""
    return "all-to-all" if any(len(others) > 2 for others in peers) else "ring"


def _of_traffic(traffic: Counter[str], ranks: int, source: str) -> Communication:
    total = traffic.total()
    shares = {name: volume / total for name, volume in traffic.most_common() if volume}
    names = [name for name, share in shares.items() if share >= _COUNTS]
    return Communication(_named(names), shares, ranks, source)


def _named(names: Sequence[str] | set[str]) -> str:
    """One pattern for several."""
    if "all-to-all" in names:
        return "all-to-all"
    return "+".join(name for name in ("ring", "tree") if name in names) or "none"
