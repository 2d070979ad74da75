"""Output of ``nvidia-smi topo -m``: the GPUs of a node and the class of the path of each pair.

The matrix has the GPUs in NVML's order, which is that of their PCI addresses. Lines of
``nvidia-smi -L`` in the same file add their names.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from gpu_aware_profile.imports.formats.reader import (
    ONE_RUN_A_FILE,
    Measured,
    ReadOptions,
    Source,
    node_of,
)
from slurm_gpu_aware.bounds import MAX_GPUS_PER_NODE, quoted
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.model.hardware_graph import class_gbps, direct_links, model_word, nvlink_gbps
from slurm_gpu_aware.store.report import SCHEMA, parse_report
from slurm_gpu_aware.text_file import Table

BACKEND = "nvidia-smi topo"  # Backend of the reports made here.
_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,8}m")
_HEADER = re.compile(r"^[ \t]+GPU0\b(?![ \t]+X\b).*$", re.MULTILINE)
_ROW = re.compile(r"^[ \t]*GPU0[ \t]+X\b", re.MULTILINE)
_GPU = re.compile(r"GPU[0-9]{1,4}\Z")
_NIC = re.compile(r"(?:NIC[0-9]{1,3}|[a-z][a-z0-9_]{1,31})\Z")
_MOST_COLUMNS = 2 * MAX_GPUS_PER_NODE
_LISTED = re.compile(
    r"^[ \t]*GPU (\d{1,4}): (?P<name>.{1,100}) \(UUID: (?P<uuid>GPU-[\w-]{1,60})\)", re.MULTILINE
)
_NUMBERS = re.compile(r"([0-9]{1,4})(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?){0,1023}\Z")
_OLD_WORDS = {"SOC": "SYS"}  # Of drivers before release 384.


def matches(source: Source) -> bool:
    """Whether a text has a line of columns that begins with GPU0, and a row of it."""
    text = _ESCAPE.sub("", source.text[: 1 << 20])
    return bool(_HEADER.search(text) and _ROW.search(text))


def read(source: Source, options: ReadOptions) -> Measured:
    """Read the matrix as a report of the node at an unknown time (0). Raises SourceError."""
    if options.value is not None:
        raise SourceError(f"{source.name}: a matrix has no values; leave --value out")
    text = _ESCAPE.sub("", source.text)
    headers = list(_HEADER.finditer(text))
    if len(headers) != 1:
        raise SourceError(f"{source.name}: {len(headers)} matrices; {ONE_RUN_A_FILE}")
    header = headers[0][0].partition("CPU Affinity")[0].split()
    listed = {int(match[1]): match for match in _LISTED.finditer(text)}
    try:
        rows = _rows(text[headers[0].end() :], header)
        raw = _report(header, rows, listed)
    except ValueError as exc:
        raise SourceError(f"{source.name}: {exc}") from None
    report = parse_report({**raw, "node": node_of(source, options)})
    nics = [name for name in header if not _GPU.match(name)]
    left_out = tuple("path of a NIC" for _ in nics)
    return Measured(Table(source.name, (), (), ()), report=report, left_out=left_out)


def _rows(text: str, header: Sequence[str]) -> dict[str, list[str]]:
    """Row -> its cells, then what tells its CPUs, up to the first empty line. Raises ValueError."""
    if wrong := [name for name in header if not _GPU.match(name) and not _NIC.match(name)]:
        raise ValueError(f"column {quoted(wrong[0])} is neither a GPU nor a NIC")
    if (count := sum(map(bool, map(_GPU.match, header)))) > MAX_GPUS_PER_NODE:
        raise ValueError(f"{count} GPUs; a node may have up to {MAX_GPUS_PER_NODE}")
    if len(header) > _MOST_COLUMNS:
        raise ValueError(f"{len(header)} columns, more than {_MOST_COLUMNS}")
    rows: dict[str, list[str]] = {}
    for line in map(str.strip, text.strip("\r\n").split("\n")):
        if not line:
            break
        words = re.split(r"\t+ *" if "\t" in line else r" +", line)
        name, *cells = (_OLD_WORDS.get(word.strip(), word.strip()) for word in words)
        if _GPU.match(name) and (name in rows or name not in header):
            raise ValueError(f"row {name} {'occurs twice' if name in rows else 'has no column'}")
        rows[name] = cells
    return rows


def _report(
    header: Sequence[str], rows: Mapping[str, list[str]], listed: Mapping[int, re.Match[str]]
) -> dict[str, Any]:
    """A report of the probe, without the node. Raises ValueError."""
    names = [name for name in header if _GPU.match(name)]
    if header[: len(names)] != [f"GPU{i}" for i in range(len(names))]:
        raise ValueError(f"columns {quoted(' '.join(names))}: not GPU0 and those after it")
    for own, name in enumerate(names):
        cells = rows.get(name, [])[: len(header)]
        if len(cells) < len(header) or cells[own] != "X":
            raise ValueError(f"no whole row of {name}")
        for column, word in zip(header, cells, strict=True):
            try:
                direct_links(word if column != name else "SYS")
            except ValueError as exc:
                raise ValueError(f"row {name}, column {column}: {exc}") from None
    if listed and listed.keys() != set(range(len(names))):
        raise ValueError(f"{len(listed)} GPUs by name, {len(names)} in the matrix")
    gpus = [
        {"index": i, **_named(listed.get(i)), **_affinity(name, rows[name][len(header) :])}
        for i, name in enumerate(names)
    ]
    links = []
    for a, b in combinations(range(len(names)), 2):
        word, back = rows[names[a]][b], rows[names[b]][a]
        if back != word:
            raise ValueError(f"GPU{a} to GPU{b} is {quoted(word)}, GPU{b} to GPU{a} {quoted(back)}")
        links_gbps = direct_links(word) * nvlink_gbps(gpus[a].get("model"))
        gbps = links_gbps if word.startswith("NV") else class_gbps(word)
        links.append({"a": a, "b": b, "class": word, "gbps": gbps})
    return {"schema": SCHEMA, "taken_at": 0.0, "backend": BACKEND, "gpus": gpus, "links": links}


def _named(match: re.Match[str] | None) -> dict[str, Any]:
    if match is None:
        return {}
    return {"name": match["name"], "uuid": match["uuid"], "model": model_word(match["name"])}


def _affinity(gpu: str, words: Sequence[str]) -> dict[str, Any]:
    """CPUs and NUMA node of a GPU, as far as the matrix has them. Raises ValueError.

    Of several NUMA nodes the first counts, as in the probe; the others are the GPU's own memory.
    """
    found: dict[str, Any] = {}
    for what, word in zip(("cpus", "numa"), words, strict=False):
        if word in ("", "N/A"):
            continue
        if not (match := _NUMBERS.match(word)):
            raise ValueError(f"{what} of {gpu}: {quoted(word)} is not a list of numbers")
        found[what] = word if what == "cpus" else int(match[1])
    return found
