"""Output of nvbandwidth 0.5 to 0.10, as text or as JSON (``-j``): bandwidths of pairs of GPUs.

Only copies between GPUs of one node count; those to the host, latencies and tests across nodes have
no place in the store. In a *read* test the GPU of the row reads from the GPU of the column, in a
*write* test it writes to it (``testcases_ce.cpp``; the arrow of the description points the other
way). The bidirectional tests give both directions, whose sum is the matrix named ``Total``.

A text may hold several runs. PCI addresses stand in text of 0.6 to 0.8 and in JSON since 0.8;
without them the GPUs are counted in CUDA's order.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, pairwise, permutations
from typing import NamedTuple

from gpu_aware_profile.imports.formats.reader import (
    ONE_RUN_A_FILE,
    PAIR_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    node_of,
    objects,
    row_of,
)
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import BadRow, Row, Table

_ONE_WAY = re.compile(r"device_to_device_memcpy_(?P<what>read|write)_(ce|sm)\Z")
_BOTH_WAYS = re.compile(r"device_to_device_bidirectional_memcpy_(read|write)_(ce|sm)\Z")
_DEVICE = re.compile(
    r"(Device )?(?P<number>\d{1,3}): .{0,200}\((?P<pci>[0-9a-fA-F]{1,8}(:[0-9a-fA-F]{1,2}){2})\)"
    r"(: \((?P<host>[\w.-]{1,252})\))?\Z"
)
_START = re.compile(r"^[ \t]*nvbandwidth Version:", re.MULTILINE)
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,251}\Z")
_FAILED = re.compile(
    r"\[?(Error\b|CUDA_?ERROR)|NVML_ERROR|ASSERT in expression|Invalid value when checking",
    re.IGNORECASE,
)
_BAD_STATUS = ("error", "failed")
_SAID = "failed, says the program"
_RUNNING = re.compile(r"Running (?P<name>\w{1,100})\.\Z")

Matrix = Sequence[Sequence[float]]  # GB/s by row and column; 0: not measured; NaN: not a number.


class _Test(NamedTuple):
    name: str
    description: str
    matrix: Matrix
    failed: str = ""  # Why its values do not count; there may be a matrix or none.

    @property
    def problem(self) -> str:
        """Why its bandwidths of pairs of GPUs do not count; empty: they do."""
        if self.failed:
            return self.failed
        if any(len(row) != len(self.matrix) for row in self.matrix):
            return "was cut off: its matrix is not whole"
        wrong = any(map(math.isnan, chain(*self.matrix)))
        return "has a value that is not a bandwidth" if wrong else ""


class _Run(NamedTuple):
    host: str | None
    gpus: Mapping[int, str]  # CUDA's number -> PCI address; empty: not listed.
    tests: Sequence[_Test]


def matches(source: Source) -> bool:
    """Whether a file is output of nvbandwidth."""
    if _START.search(source.text):
        return True
    return source.content is not None and isinstance(source.content.get("nvbandwidth"), Mapping)


def read(source: Source, options: ReadOptions) -> Measured:
    """Read the pairs. Of several tests the fastest counts for each direction.

    Raises SourceError.
    """
    runs = _runs(source)
    hosts = [run.host for run in runs if run.host]
    if len(runs) > 1 and len(hosts) < len(runs):
        raise SourceError(
            f"{source.name}: {len(runs)} runs that do not all name their node; {ONE_RUN_A_FILE}"
        )
    given = options.node_or(hosts, source.name)
    rows: list[Row] = []
    bad: list[BadRow] = []
    left_out: list[str] = []
    for run in runs:
        node = options.node or options.named(run.host or "") or given
        node = node or node_of(source, options)
        pairs = [test for test in run.tests if _place(test.name) is None]
        failed = {test.name: test.problem for test in pairs if test.problem}
        bad += [
            BadRow(n, f"{name} {why}", "test")
            for n, (name, why) in enumerate(failed.items(), len(bad) + 1)
        ]
        names = dict.fromkeys(test.name for test in run.tests)
        left_out += [why for name in names if (why := _place(name))]
        totals = {test.name for test in run.tests if "Total" in test.description}
        left_out += [
            "one direction of two at once, as before 0.6"
            for name in names.keys() - totals - failed.keys()
            if _BOTH_WAYS.match(name)
        ]
        gpus = run.gpus or _counted(pairs)
        found = _fastest([test for test in pairs if test.name not in failed], gpus)
        rows += [
            row_of(PAIR_COLUMNS, number, node, gpus[a], gpus[b], *map(_cell, values), "")
            for number, ((a, b), values) in enumerate(sorted(found.items()), len(rows) + 1)
        ]
    if not rows and not bad and not left_out:
        said = filter(_FAILED.match, map(str.strip, source.text.split("\n")))
        why = next((f"nvbandwidth failed: {quoted(line)}" for line in said), None)
        raise SourceError(f"{source.name}: {why or 'no bandwidth between two GPUs'}")
    table = Table(source.name, PAIR_COLUMNS, tuple(rows), tuple(bad), "pair")
    return Measured(table, left_out=tuple(left_out))


def _runs(source: Source) -> list[_Run]:
    """The runs of a file. Raises SourceError if the program says that it failed as a whole."""
    if not _START.search(source.text):
        root = source.content["nvbandwidth"]
        if root.get("error"):
            raise SourceError(f"{source.name}: nvbandwidth failed: {quoted(root['error'])}")
        listed = root.get("GPU Device list")
        lines = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
        named = [m["host"] for m in map(_DEVICE.match, lines) if m and m["host"]]
        return [_Run(next(iter(named), None), _gpus(lines), list(_json_tests(root)))]
    texts = [text.split("\n") for text in _START.split(source.text)[1:]]
    return [_Run(_host(lines), _gpus(lines), list(_text_tests(lines))) for lines in texts]


def _gpus(lines: Sequence[str]) -> dict[int, str]:
    """CUDA's number of a GPU -> PCI address, from a list of devices."""
    found = (m for m in map(_DEVICE.match, map(str.strip, lines)) if m)
    return {int(match["number"]): _pci(match["pci"]) for match in found}


def _counted(pairs: Sequence[_Test]) -> dict[int, str]:
    """The GPUs of a run without PCI addresses, in CUDA's order, which must be all of the node."""
    count = max((len(test.matrix) for test in pairs), default=0)
    return {number: f"nvml:{number}/{count}" for number in range(min(count, MAX_GPUS_PER_NODE))}


def _place(name: str) -> str | None:
    """What a test measures for which the store has no place; None: it has one."""
    if _ONE_WAY.match(name) or _BOTH_WAYS.match(name):
        return None
    kinds = {"multinode": "across nodes", "latency": "latencies", "host": "from or to the host"}
    return next((text for word, text in kinds.items() if word in name), "not between two GPUs")


def _json_tests(root: Mapping[str, object]) -> Iterator[_Test]:
    for test in objects(root.get("testcases")):
        wrong = test.get("error") or str(test.get("status")).lower() in _BAD_STATUS
        failed = _SAID if wrong else ""
        rows = test.get("bandwidth_matrix")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            if failed:
                yield _Test(str(test.get("name")), "", [], failed)
            continue
        matrix = [[_gbps(value) for value in row] for row in rows]
        # The matrices of a bidirectional test follow each other; the last one is described.
        width = len(matrix[-1]) if matrix else 0
        name, description = test.get("name"), test.get("bandwidth_description")
        yield _Test(str(name), str(description), matrix[-width:] if width else [], failed)


def _text_tests(lines: Sequence[str]) -> Iterator[_Test]:
    name = description = ""
    matrix: list[list[float]] = []
    *whole, cut = lines  # behind the last end of line
    for line in (*whole, *filter(_FAILED.match, [cut.strip()]), "Running end."):
        words = line.split()
        if matrix and not (words and words[0] == str(len(matrix))):
            yield _Test(name, description, matrix)
            matrix = []
        if match := _RUNNING.match(line.strip()):
            name, description = match["name"], ""
        elif _FAILED.match(line.strip()) and name:
            yield _Test(name, description, [], _SAID)
        elif "(row)" in line:
            description = line
        elif description and words[:1] == [str(len(matrix))] and not _is_header(words):
            matrix.append([_gbps(word) for word in words[1:]])


def _is_header(words: Sequence[str]) -> bool:
    """The line of the columns' numbers, ``0 1 2``, begins like the first row."""
    return list(words) == [str(number) for number in range(len(words))]


def _gbps(value: object) -> float:
    """A bandwidth; 0: ``N/A``; NaN: no number."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return 0.0 if value == "N/A" else math.nan
    return number if number >= 0.0 else math.nan


def _host(lines: Sequence[str]) -> str | None:
    """The line before the first device; since nvbandwidth 0.7 it is the name of the host."""
    for before, line in pairwise(lines):
        if _DEVICE.match(line.strip()):
            return before.strip() if _HOST.match(before.strip()) else None
    return None


def _pci(address: str) -> str:
    domain, bus, device = (int(part, 16) for part in address.split(":"))
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _fastest(tests: Sequence[_Test], gpus: Collection[int]) -> dict[tuple[int, int], list[float]]:
    """(lower, higher GPU) -> GB/s to the higher one, back, and in both directions at once."""
    found: dict[tuple[int, int], list[float]] = {}
    for test in tests:
        one_way = _ONE_WAY.match(test.name)
        if one_way is None and "Total" not in test.description:
            continue
        measured = [number for number in gpus if number < len(test.matrix)]
        for i, j in permutations(measured, 2):
            if gbps := test.matrix[i][j]:
                pair = min(i, j), max(i, j)
                source = j if one_way and one_way["what"] == "read" else i
                way = pair.index(source) if one_way else 2
                values = found.setdefault(pair, [0.0, 0.0, 0.0])
                values[way] = max(values[way], gbps)
    return found


def _cell(gbps: float) -> str:
    return repr(gbps) if gbps else ""
