"""The page of requests: what is left to Slurm, what differs, and how many requests did what.

The page holds counts and examples of both releases; `full_table` is the file with a row for each
request, which is not committed.
"""

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from requests_cells import LANES, Cell
from requests_seen import Seen
from requests_table import HEADER, judge, row_of

__all__ = ["SUITES", "Count", "Summary", "full_table", "left_row", "page", "read_page", "summary"]

SUITES = {"trixie": "24.11", "sid": "26.05"}

INTRODUCTION = """# Requests: with us and without

Written by `make requests`, which submits each request of a matrix to real Slurm twice, once with
slurm-gpu-aware and once without, on idle nodes (four of 16 CPUs, 64000 MB and 4 GPUs), and
compares: nodes, CPUs, memory, GPUs, exit codes, what is said, and the whole `SLURM_` environment
and the visible GPUs of each task of each `srun` inside. Only which nodes and which GPUs may differ;
every other difference is in the table of known differences, or the test fails.

## How a request is placed

The filter parks a job whose form can be rewritten and records the request. The selector writes the
GPUs that it chose into the job, by a type for each GPU, and opens the gate
(`slurm_gpu_aware/gate/request_forms.py`). A job on several nodes gets the same GPU indices on each.

"""
FORMS = (
    (
        "`--gres`, `--gpus-per-node`, `--gpus`, `--gpus-per-task`, `--gpus-per-socket`",
        "instead of the request the GPUs of each node (`TresPerNode`)",
    ),
    ("the same with `salloc`", "the same: its steps ask as those of a batch job"),
    (
        "the same with a direct `srun`",
        "the GPUs of the job (`TresPerJob`): `srun` repeats a `TresPerNode` in its step, beside its"
        " own request, and the step is refused. `srun` and `salloc` are told apart by the command"
        " line in Slurm's record (25.11 and later); on one node both can be placed this way",
    ),
    ("`--ntasks-per-gpu`", "the tasks of each node, their number, and the CPUs for them"),
    ("`--cpus-per-gpu`, `DefCpuPerGPU`", "the same CPUs as CPUs of each task"),
    (
        "`gpus=MIN-MAX` of the comment",
        "for [another number of GPUs](../sizes.md) the tasks and CPUs, too"
        " (`slurm_gpu_aware/gate/resizing.py`)",
    ),
    ("a GPU model (`gpu:v100:2`)", "a node feature"),
    (
        "`--gres=shard:N` of a batch script",
        "[shards of a GPU that the selector chooses](../shards.md)",
    ),
    (
        "`--exclusive`, nodes that are not indexed",
        "the nodes only: Slurm chooses the GPUs",
    ),
)
"""(request, what is written beside the nodes)."""

SELECTOR = "the selector"
"""Stands for the reason of a job that the selector left to Slurm."""
LEFT: tuple[tuple[str, str, str], ...] = (
    (
        "heterogeneous jobs, `scrontab`",
        "which components get which nodes together is not planned; no update changes a job of a"
        " crontab",
        r"a heterogeneous job|a scrontab job",
    ),
    (
        "several GPU requests or types in one job; other GRES beside GPUs; shards beside GPUs; MPS",
        "one typed line stands for one request of whole GPUs; the rest Slurm alone counts",
        r"several GPU requests|.* together with other TRES|shards and MPS",
    ),
    (
        "GPUs or tasks that do not spread evenly over the nodes (`-N2 --gpus=3`); `--gpus-per-task`"
        " without `-n`",
        "a job has one line of GRES for all its nodes",
        r"GPUs that do not spread|tasks that do not spread|--gpus-per-task without",
    ),
    (
        "`--gpu-bind=map_gpu` and `mask_gpu`",
        "they name GPUs by number, so the job must get those that plain Slurm would choose",
        r"--gpu-bind by GPU number",
    ),
    (
        "`-n` that is no multiple of `--ntasks-per-node`; `--ntasks-per-gpu` beside it",
        "Slurm counts the tasks anew, all of them on each node, when a job is changed",
        r"--ntasks that is no multiple|--ntasks-per-gpu together",
    ),
    (
        "`--cpus-per-gpu` with `-c`, with a type, or with tasks that do not share the CPUs evenly",
        "it is written as CPUs of each task; typed, it never starts",
        r"--cpus-per-gpu (together|with)",
    ),
    (
        "a direct `srun` on several nodes with `--cpus-per-gpu` or `DefCpuPerGPU`; before 25.11"
        " `salloc` and `srun` on several nodes",
        "its step asks for more CPUs than the rewritten job has, and is refused; the two need"
        " different fields, and older releases do not say which of them it is",
        r"a direct srun on several nodes",
    ),
    (
        "`salloc` and `srun` with a GPU model in another option than `--gres`",
        "their steps ask for the model again",
        r".* with a GPU type with salloc or srun",
    ),
    (
        "`--gpus-per-socket` with `--gres-flags=enforce-binding`, or where a GPU is not bound to"
        " exactly one socket",
        "24.11 refuses GPUs that are named on two sockets; what counts for a socket is not known",
        r"--gpus-per-socket",
    ),
    (
        "`-n N --ntasks-per-gpu=T` without a number of GPUs",
        "Slurm counts the GPUs after the filter",
        r"--ntasks-per-gpu without",
    ),
    (
        "`--contiguous`, `--switches`, `--segment`, `--tmp`, `--bb`, `-B` and its parts,"
        " `--core-spec`, `--thread-spec`, `--prefer`, `--batch`, `--ntasks-per-socket`,"
        " `--spread-job`; counts, brackets and negation in `--constraint`; licences with `\\|`",
        "they bound the nodes in ways that are not planned: the job would get the same impossible"
        " node again and again",
        r"--(contiguous|switches|segment|tmp|bb|core-spec|thread-spec|prefer|batch|spread-job)"
        r"|--(sockets-per-node|cores-per-socket|ntasks-per-socket)|counts, brackets|licences with",
    ),
    (
        "`--oversubscribe`, `--exclusive=user`, `mcs`, `topo`",
        "with which jobs a node is shared is not planned",
        r"--oversubscribe",
    ),
    ("`--immediate`", "it starts at once or fails, so it cannot wait", r"--immediate"),
    (
        "more GPUs, CPUs or memory than a node has",
        "so that Slurm refuses it at once",
        r"more (GPUs|CPUs|memory) than",
    ),
    ("`place=off`", "so the user asks", r"place=off"),
    ("a GPU type that the site does not know", "Slurm knows it, or refuses it", r"GPU type"),
    (
        "what only the selector sees: the direct `srun`, options that Slurm hides from the filter,"
        " nodes whose sockets or topology are not clear, more nodes in `-w` than `-N` allows",
        "`gpu-aware explain` says why",
        SELECTOR,
    ),
)
"""(request, why, pattern of the filter's reasons): what is left to Slurm."""

TITLES = {"differences": "difference", "groups": "requests", "left": "left to Slurm"}
"""Section -> heading of the first column of its table; the second is an example or a reason."""
HEADS = ("such as", "why")
LEFT_NOTE = """The job waits for its turn like any other; then Slurm starts it as without us. Until
its start it is kept off the nodes (`ExcNodeList`) whose GPUs are chosen or reserved for others. A
message at submission names the reason. What cannot wait, and what Slurm refuses at once, passes
the gate ([which](slurm.md#jobs-that-slurm-places-and-the-queue)). The numbers count requests of
the matrix.

"""
GROUPS = {
    "gpus": "the same, GPUs chosen",
    "nodes": "the same, nodes chosen and GPUs by Slurm",
    "parked": "NOT CHOSEN",
    "left": "the same, left to Slurm",
    "": "the same, not a job of ours (refused, or no GPUs)",
    "known": "a known difference",
    "differs": "DIFFERS",
}


@dataclass(frozen=True)
class Count:
    """How many requests, and one of them."""

    number: int
    example: str


Summary = dict[str, dict[str, Count]]
"""Section of the page -> row -> count: ``groups``, ``left`` and ``differences``."""


def left_row(reason: str) -> str | None:
    """The row of `LEFT` for the filter's reason; None: the page does not name it."""
    return next((asked for asked, _, pattern in LEFT if re.match(pattern, reason)), None)


def summary(pairs: Iterable[tuple[Cell, Seen, Seen]]) -> Summary:
    """Counts of one release."""
    found: dict[str, dict[str, list[str]]] = {
        name: collections.defaultdict(list) for name in ("groups", "left", "differences")
    }
    for cell, plain, ours in pairs:
        reasons, rest = judge(cell, plain, ours)
        request = f"{cell.tool} {cell.request}".replace("|", "\\|")
        for reason in reasons:
            found["differences"][reason].append(request)
        is_left = ours.left is not None or ours.placed == "slurm"
        if is_left:
            reason = ours.left or SELECTOR
            found["left"][left_row(reason) or reason].append(request)
        group = "differs" if rest else "known" if reasons else "left" if is_left else ours.placed
        found["groups"][GROUPS[group]].append(request)
    return {
        name: {row: Count(len(requests), requests[0]) for row, requests in rows.items()}
        for name, rows in found.items()
    }


def page(summaries: Mapping[str, Summary]) -> str:
    """The page; ``summaries``: suite -> its counts."""
    forms = [f"| {asked} | {written} |" for asked, written in FORMS]
    differences = (
        "Each is right, or Slurm's own. The numbers count requests of the matrix; one may have"
        " several differences.\n\n"
    )
    matrix = (
        "Requests for two nodes at most ran in partitions of two nodes"
        f" (`-p {LANES[0][0]}`, `-p {LANES[1][0]}`). `make requests` writes a row for each request"
        " to `build/requests-24.11.md` and `build/requests-26.05.md`.\n\n"
    )
    parts = [
        INTRODUCTION + _table("asked | written", forms),
        "## What is left to Slurm\n\n" + LEFT_NOTE + _counted(summaries, "left"),
        "## Known differences\n\n" + differences + _counted(summaries, "differences"),
        "## The matrix\n\n" + matrix + _counted(summaries, "groups"),
    ]
    return "\n".join(parts)


def _table(head: str, rows: Sequence[str]) -> str:
    line = "| --- " * (head.count("|") + 1)
    return "".join(f"{row}\n" for row in (f"| {head} |", f"{line}|", *rows))


def _counted(summaries: Mapping[str, Summary], section: str) -> str:
    """The table of a section, most requests first; what is left to Slurm with all its rows."""
    columns = [summaries.get(suite, {}).get(section, {}) for suite in SUITES]
    why = {asked: why for asked, why, _ in LEFT} if section == "left" else {}
    rows = dict.fromkeys([*why, *(row for column in columns for row in column)])
    order = sorted(rows, key=lambda row: -sum(c[row].number for c in columns if row in c))
    lines = []
    for row in rows if why else order:
        counts = [str(column[row].number) if row in column else "" for column in columns]
        shown = why.get(row) or "`" + next(c[row].example for c in columns if row in c) + "`"
        lines.append(f"| {row} | {shown} | {' | '.join(counts)} |")
    return _table(f"{TITLES[section]} | {HEADS[bool(why)]} | 24.11 | 26.05", lines)


def read_page(text: str) -> dict[str, Summary]:
    """Suite -> counts of a page; the example is that of the first suite that has the row."""
    found: dict[str, Summary] = {suite: {} for suite in SUITES}
    for section, title in TITLES.items():
        head = f"| {title} | {HEADS[section == 'left']} | 24.11 | 26.05 |\n"
        _, _, table = text.partition(head)
        for line in table.splitlines()[1:]:
            words = re.split(r"(?<!\\) \| |(?<!\\) \|$|^\| ", line)[1:5]
            if len(words) < 4:
                break
            for suite, number in zip(SUITES, words[2:4], strict=True):
                if number.strip():
                    row = Count(int(number), words[1].strip("`"))
                    found[suite].setdefault(section, {})[words[0]] = row
    return found


def full_table(pairs: Iterable[tuple[Cell, Seen, Seen]]) -> str:
    """One row for each request: what plain Slurm does, and how we differ."""
    columns = (
        "CPUs, MB and GPUs of the nodes (`2x3`: three on each of two); then for each kind of `srun`"
        " inside the job, tasks x GPUs that a task sees; last: with us.\n\n"
    )
    return columns + _table(" | ".join(HEADER), [row_of(*pair) for pair in pairs])
