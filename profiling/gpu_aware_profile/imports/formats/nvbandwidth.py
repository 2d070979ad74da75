"""Output of nvbandwidth 0.5 to 0.10, as text or as JSON (``-j``): bandwidths of pairs of GPUs.

Only copies between GPUs of one node count; those to the host, latencies and tests across nodes have
no place in the store. In a *read* test the GPU of the row reads from the GPU of the column, in a
*write* test it writes to it (``testcases_ce.cpp``; the arrow of the description points the other
way). The bidirectional tests give both directions, whose sum is the matrix named ``Total``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from gpu_aware_profile.imports.formats.reader import (
    PAIR_COLUMNS,
    Measured,
    ReadOptions,
    Source,
    node_name,
    node_of,
    objects,
)
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import Row, Table

_ONE_WAY = re.compile(r"device_to_device_memcpy_(?P<what>read|write)_(ce|sm)\Z")
_BOTH_WAYS = re.compile(r"device_to_device_bidirectional_memcpy_(read|write)_(ce|sm)\Z")
_DEVICE = re.compile(
    r"(Device )?(?P<number>\d{1,3}): .{0,200}\((?P<pci>[0-9a-fA-F]{1,8}(:[0-9a-fA-F]{1,2}){2})\)"
    r"(: \((?P<host>[\w.-]{1,252})\))?\Z"
)
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,251}\Z")
_START = re.compile(r"^[ \t]*nvbandwidth Version:", re.MULTILINE)
_RUNNING = re.compile(r"Running (?P<name>\w{1,100})\.\Z")

Matrix = Sequence[Sequence[float]]
"""GB/s by row and column; 0: not measured."""


class _Test(NamedTuple):
    name: str
    description: str
    matrix: Matrix


class Nvbandwidth:
    """Reader of the output of one node."""

    name = "nvbandwidth"

    def matches(self, source: Source) -> bool:
        """Say whether a file is output of nvbandwidth."""
        if isinstance(source.content, Mapping):
            return isinstance(source.content.get("nvbandwidth"), Mapping)
        return _START.search(source.text) is not None

    def read(self, source: Source, options: ReadOptions) -> Measured:
        """Read the pairs. Of several tests the fastest counts for each direction.

        Raises SourceError.
        """
        if source.content is not None:
            root = source.content["nvbandwidth"]
            listed = root.get("GPU Device list")
            lines = listed if isinstance(listed, list) else []
            lines = [one for one in lines if isinstance(one, str)]
            rows = self._rows(source, options, lines, None, list(_json_tests(root)))
        else:
            starts = [match.start() for match in _START.finditer(source.text)]
            runs = [source.text[a:b].split("\n") for a, b in pairwise([*starts, len(source.text)])]
            found = [
                self._rows(source, options, lines, _host(lines), list(_text_tests(lines)))
                for lines in runs
            ]
            nodes = [run[0].cells["node"] for run in found]
            if len(set(nodes)) < len(nodes):
                raise SourceError(
                    f"{source.name}: {len(nodes)} runs, of which several are of one node, or do not"
                    " name theirs; give each run as a file of its own"
                )
            rows = [row for run in found for row in run]
        numbered = (replace(row, line=number) for number, row in enumerate(rows, 1))
        return Measured(Table(source.name, PAIR_COLUMNS, tuple(numbered), (), "pair"))

    def _rows(
        self,
        source: Source,
        options: ReadOptions,
        lines: Sequence[str],
        host: str | None,
        tests: Sequence[_Test],
    ) -> list[Row]:
        """The pairs of one run. Raises SourceError."""
        devices = {int(m["number"]): m for m in map(_DEVICE.match, map(str.strip, lines)) if m}
        rows_of = max((len(test.matrix) for test in tests if _of_pairs(test)), default=0)
        if not devices and (options.node is None or not rows_of):
            raise SourceError(
                f"{source.name}: no list of devices with their PCI addresses (nvbandwidth 0.6 to"
                " 0.9 print it, with -j since 0.8); with --node NAME the node's GPUs are taken in"
                " the order of these, as with CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
        node = next((m["host"] for m in devices.values()), None) or host
        node = options.node or (node_name(node) if node else node_of(source, options))
        names = {number: _pci(match["pci"]) for number, match in devices.items()}
        names = names or {number: f"nvml:{number}/{rows_of}" for number in range(rows_of)}
        one_way, both_ways = _fastest(tests)
        rows = [
            _row(number, node, pair, names, one_way, both_ways)
            for number, pair in enumerate(_pairs(one_way, both_ways, names), 1)
        ]
        if not rows:
            raise SourceError(f"{source.name}: no bandwidth between two GPUs")
        return rows


def _json_tests(root: Mapping[str, object]) -> Iterator[_Test]:
    for test in objects(root.get("testcases")):
        rows = test.get("bandwidth_matrix")
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            continue
        matrix = [[_gbps(value) for value in row] for row in rows]
        # The matrices of a bidirectional test follow each other; the last one is described.
        width = len(matrix[-1]) if matrix else 0
        name, description = test.get("name"), test.get("bandwidth_description")
        yield _Test(str(name), str(description), matrix[-width:] if width else [])


def _text_tests(lines: Sequence[str]) -> Iterator[_Test]:
    name = description = ""
    matrix: list[list[float]] = []
    for line in (*lines, "Running end."):
        words = line.split()
        if matrix and not (words and words[0] == str(len(matrix))):
            yield _Test(name, description, matrix)
            matrix = []
        if match := _RUNNING.match(line.strip()):
            name, description = match["name"], ""
        elif "(row)" in line:
            description = line
        elif description and words[:1] == [str(len(matrix))] and not _is_header(words):
            matrix.append([_gbps(word) for word in words[1:]])


def _is_header(words: Sequence[str]) -> bool:
    """The line of the columns' numbers, ``0 1 2``, begins like the first row."""
    return list(words) == [str(number) for number in range(len(words))]


def _gbps(value: object) -> float:
    """A bandwidth; 0: ``N/A``, or no number."""
    try:
        number = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if number > 0.0 else 0.0


def _host(lines: Sequence[str]) -> str | None:
    """The line before the first device; since nvbandwidth 0.7 it is the name of the host."""
    for before, line in pairwise(lines):
        if _DEVICE.match(line.strip()):
            return before.strip() if _HOST.match(before.strip()) else None
    return None


def _pci(address: str) -> str:
    domain, bus, device = (int(part, 16) for part in address.split(":"))
    return f"{domain:04x}:{bus:02x}:{device:02x}"


Bandwidths = dict[tuple[int, int], float]


def _fastest(tests: Sequence[_Test]) -> tuple[Bandwidths, Bandwidths]:
    """((from, to) -> GB/s, (lower, higher) -> GB/s of both directions at once)."""
    one_way: Bandwidths = {}
    both_ways: Bandwidths = {}
    for test in tests:
        one, both = _ONE_WAY.match(test.name), _BOTH_WAYS.match(test.name)
        if one is None and (both is None or "Total" not in test.description):
            continue
        for i, row in enumerate(test.matrix[:MAX_GPUS_PER_NODE]):
            for j, gbps in enumerate(row[:MAX_GPUS_PER_NODE]):
                if i == j or not gbps:
                    continue
                if one is None:
                    pair, found = (min(i, j), max(i, j)), both_ways
                else:
                    pair, found = ((j, i) if one["what"] == "read" else (i, j)), one_way
                found[pair] = max(gbps, found.get(pair, 0.0))
    return one_way, both_ways


def _of_pairs(test: _Test) -> bool:
    return bool(_ONE_WAY.match(test.name) or _BOTH_WAYS.match(test.name))


def _pairs(
    one_way: Bandwidths, both_ways: Bandwidths, names: Mapping[int, str]
) -> list[tuple[int, int]]:
    found = {(min(pair), max(pair)) for pair in (*one_way, *both_ways)}
    return sorted(pair for pair in found if names.keys() >= set(pair))


def _row(
    number: int,
    node: str,
    pair: tuple[int, int],
    names: Mapping[int, str],
    one_way: Bandwidths,
    both_ways: Bandwidths,
) -> Row:
    a, b = pair
    values = one_way.get((a, b)), one_way.get((b, a)), both_ways.get(pair)
    cells = (node, names[a], names[b], *("" if v is None else repr(v) for v in values), "")
    return Row(number, dict(zip(PAIR_COLUMNS, cells, strict=True)))
