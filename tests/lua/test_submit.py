"""Which submissions are parked, left to Slurm, refused, or not touched, and how."""

import dataclasses
import itertools
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cpu_time import least_cpu_s
from luafilter import ALICE, CONF, ERROR, LUA, OPERATOR, SUCCESS, Filter, MakeFilter, Outcome

from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.filter_rules import WHOLE_NODES
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, parse
from slurm_gpu_aware.gate.request_forms import form_of, kept_tasks
from slurm_gpu_aware.slurm.words import understood

NODE = {"tres_per_node": "gres/gpu:2"}
TASK = {"tres_per_task": "gres/gpu=1"}
PLACES = {"req_nodes": "n2", "exc_nodes": "n[3-4]"}
TWO_NODES, TO_FOUR = {"min_nodes": 2, "max_nodes": 2}, {"min_nodes": 2, "max_nodes": 4}

KNOWN_GLOBALS = frozenset(
    (
        *("debug", "dofile", "error", "io", "ipairs", "loadfile", "math", "os", "pairs", "pcall"),
        *("rawget", "setfenv", "setmetatable", "slurm", "string", "table", "tonumber"),
        *("tostring", "type"),
    )
)

PARKED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("--gres=gpu:2", NODE, {}),
    ("--gres=gpu", {"tres_per_node": "gres/gpu"}, {}),
    ("old spelling", {"tres_per_node": "gpu:2"}, {}),
    ("=count", {"tres_per_node": "gres/gpu=1"}, {}),
    ("-N2 --gpus-per-node=2", {**NODE, **TWO_NODES}, {}),
    ("--gpus=3", {"tres_per_job": "gres/gpu:3"}, {}),
    ("--gpus=6 spreads over two nodes of 4", {"tres_per_job": "gres/gpu:6"}, {}),
    ("-N2-4 --gpus=6", {"tres_per_job": "gres/gpu:6", **TO_FOUR}, {}),
    (
        "-n4 --gpus-per-task=1",
        {**TASK, "tres_bind": "gres/gpu:per_task:1", "num_tasks": 4, "min_cpus": 4},
        {},
    ),
    (
        "-n2 -c2 --gpus-per-task=1 where -c is a TRES",
        {"tres_per_task": "cpu=2,gres/gpu=1", "num_tasks": 2, "cpus_per_task": 2},
        {},
    ),
    (
        "--cpus-per-gpu --mem-per-gpu",
        {**NODE, "cpus_per_tres": "gres/gpu:4", "mem_per_tres": "gres/gpu:100"},
        {},
    ),
    (
        "--cpus-per-gpu with tasks that share evenly",
        {**NODE, **TWO_NODES, "cpus_per_tres": "gres/gpu:4", "ntasks_per_node": 2},
        {},
    ),
    (
        "-c 16 --mem=64000, all of a node",
        {**NODE, "cpus_per_task": 16, "pn_min_cpus": 16, "min_mem_per_node": 64000},
        {"min_cpus_node": 16, "memory": True},
    ),
    (
        "--mincpus=6 --mem-per-cpu=500",
        {**NODE, "pn_min_cpus": 6, "min_mem_per_cpu": 500},
        {"min_cpus_node": 6, "memory": True},
    ),
    ("--mem=0", {**NODE, "min_mem_per_node": 0}, {"memory": True}),
    (
        "options that are off",
        {**NODE, "contiguous": 0, "req_switch": 0, "pn_min_tmp_disk": 0, "threads_per_core": 1},
        {},
    ),
    ("no memory given", {**NODE, "min_mem_per_node": float(2**64 - 2)}, {}),
    (
        "own licences, -w, -x, constraint, clock",
        {**NODE, **PLACES, "licenses": "matlab:2", "features": "big&ib", "tres_freq": "gpu:900"},
        {},
    ),
    ("--exclusive", {**NODE, "shared": 0}, {"exclusive": True}),
    ("salloc --gres", {**NODE, "script": None}, {}),
    ("srun -N2 --gpus", {"tres_per_job": "gres/gpu:4", **TWO_NODES, "script": None}, {}),
    ("srun --gpus-per-task", {**TASK, "num_tasks": 2, "script": None}, {}),
    (
        "--cpus-per-gpu per task",
        {**TASK, "num_tasks": 2, "cpus_per_tres": "gres/gpu:2", "cpus_per_task": 2},
        {},
    ),
    (
        "--cpus-per-gpu, tasks by node, any nodes",
        {**NODE, **TO_FOUR, "ntasks_per_node": 2, "cpus_per_tres": "gres/gpu:3"},
        {},
    ),
    (
        "--ntasks-per-gpu",
        {"tres_per_job": "gres/gpu:2", "ntasks_per_tres": 2, "cpus_per_tres": "gres/gpu:4"},
        {},
    ),
    ("--gpus-per-socket", {"tres_per_socket": "gres/gpu:1", "sockets_per_node": 2}, {}),
    ("a site's own admin comment is kept", {**NODE, "admin_comment": "cost; 5% é"}, {}),
    (
        "model",
        {"tres_per_node": "gres/gpu:a100:2", "features": "ib"},
        {"tres_per_node": "gres/gpu:2", "features": "ib&gpu_a100", "model": "a100"},
    ),
    (
        "model and alternatives",
        {"tres_per_node": "gres/gpu:a100:2", "features": "x|y|z-1"},
        {"tres_per_node": "gres/gpu:2", "features": "(x|y|z-1)&gpu_a100", "model": "a100"},
    ),
    (
        "model without a count, other case",
        {"tres_per_node": "gres/gpu:A100"},
        {"tres_per_node": "gres/gpu", "features": "gpu_a100", "model": "a100"},
    ),
    (
        "model per task",
        {"tres_per_task": "gres/gpu:v100=1", "num_tasks": 2},
        {**TASK, "features": "gpu_v100", "model": "v100"},
    ),
    ("foreign comment", {**NODE, "comment": "my run, see wiki"}, {}),
    ("comment of ours", {**NODE, "comment": "class=A,gpus=1-4"}, {"resizable": "nodes"}),
]
"""Name, fields, and what the record has otherwise than they are (`recorded`)."""


def record_of(fields: dict[str, Any], more: dict[str, Any]) -> OriginalRequest:
    """The record of a job with these fields."""
    same = {one.name for one in dataclasses.fields(OriginalRequest)} - {"nodes"}
    kept = {name: value for name, value in fields.items() if name in same}
    if "max_nodes" in fields:
        kept["nodes"] = fields["min_nodes"], fields["max_nodes"]
    return OriginalRequest(**{**kept, "interactive": "script" in fields, **more})


LEFT: list[tuple[str, dict[str, Any], str]] = [
    (
        "--ntasks-per-gpu without GPUs",
        {"num_tasks": 4, "ntasks_per_tres": 2},
        "--ntasks-per-gpu without a number of GPUs",
    ),
    ("heterogeneous", {**NODE, "het_job_offset": 0}, "heterogeneous"),
    ("place=off", {**NODE, "comment": "place=off"}, "place=off"),
    ("shard", {"tres_per_node": "gres/gpu:1,gres/shard:4"}, "shards"),
    ("per socket", {"tres_per_socket": "gres/gpu:1"}, "without --sockets-per-node"),
    (
        "too many per socket",
        {"tres_per_socket": "gres/gpu:3", "sockets_per_node": 2},
        "more GPUs than a node has",
    ),
    (
        "per socket, and cores",
        {"tres_per_socket": "gres/gpu:1", "sockets_per_node": 2, "cores_per_socket": 4},
        "--cores-per-socket",
    ),
    ("sockets", {**NODE, "sockets_per_node": 2}, "--sockets-per-node"),
    (
        "srun --gpus with a type",
        {"tres_per_job": "gres/gpu:a100:2", "script": None},
        "--gpus with a GPU type with salloc or srun",
    ),
    ("two forms", {**NODE, "tres_per_job": "gres/gpu:4"}, "several"),
    ("two types", {"tres_per_node": "gres/gpu:a100:1,gres/gpu:v100:1"}, "several"),
    ("unknown type", {"tres_per_node": "gres/gpu:1g.5gb:1"}, "1g.5gb"),
    ("count with unit", {"tres_per_node": "gres/gpu:1K"}, "plain number"),
    ("8 GPUs to Slurm", {"tres_per_job": "gres/gpu:2066035336255469781kB"}, "plain number"),
    (
        "--ntasks-per-gpu and --ntasks-per-node",
        {**NODE, "ntasks_per_tres": 2, "ntasks_per_node": 4},
        "--ntasks-per-gpu together with --ntasks-per-node",
    ),
    (
        "--ntasks-per-gpu and --gpus-per-task",
        {"tres_per_task": "gres/gpu=1", "num_tasks": 2, "ntasks_per_tres": 2},
        "--ntasks-per-gpu together with --gpus-per-task",
    ),
    (
        "--ntasks-per-gpu=2 --cpus-per-gpu=3",
        {**NODE, "ntasks_per_tres": 2, "cpus_per_tres": "gres/gpu:3"},
        "share the CPUs",
    ),
    (
        "--ntasks-per-gpu=9",
        {**NODE, "ntasks_per_tres": 9},
        "more CPUs than a node has",
    ),
    ("--ntasks-per-socket", {**NODE, "ntasks_per_socket": 1}, "ntasks-per-socket"),
    ("map_gpu", {**NODE, "tres_bind": "gres/gpu:map_gpu:0,1"}, "--gpu-bind by GPU number"),
    ("mask_gpu", {**NODE, "tres_bind": "gres/gpu:mask_gpu:0x1"}, "--gpu-bind by GPU number"),
    ("--spread-job", {**NODE, "bitflags": 503333120}, "spread-job"),
    ("-n 6 on nodes of 4", {**NODE, "num_tasks": 6, "ntasks_per_node": 4}, "no multiple"),
    (
        "-N2 -n 4 on nodes of 4",
        {**NODE, **TWO_NODES, "num_tasks": 4, "ntasks_per_node": 4},
        "no multiple",
    ),
    ("more than a node has", {"tres_per_node": "gres/gpu:5"}, "more GPUs than a node has"),
    ("-c 17", {**NODE, "cpus_per_task": 17}, "more CPUs than a node has"),
    ("--mincpus=17", {**NODE, "pn_min_cpus": 17}, "more CPUs than a node has"),
    (
        "--ntasks-per-node=9 -c 2",
        {**NODE, "ntasks_per_node": 9, "cpus_per_task": 2},
        "more CPUs than a node has",
    ),
    ("--cpus-per-gpu=9", {**NODE, "cpus_per_tres": "gres/gpu:9"}, "more CPUs than a node has"),
    (
        "salloc --mem=65000",
        {**NODE, "script": None, "min_mem_per_node": 65000},
        "more memory than a node has",
    ),
    (
        "-c 2 --mem-per-cpu=33000",
        {**NODE, "cpus_per_task": 2, "min_mem_per_cpu": 33000},
        "more memory than a node has",
    ),
    ("--mem-per-gpu", {**NODE, "mem_per_tres": "gres/gpu:33000"}, "more memory than a node has"),
    ("--exclusive=user", {**NODE, "shared": 2}, "exclusive=user"),
    ("uneven 5 on nodes of 4", {"tres_per_job": "gres/gpu:5"}, "evenly"),
    ("uneven -N2 --gpus=3", {"tres_per_job": "gres/gpu:3", **TWO_NODES}, "evenly"),
    ("task without tasks", {"tres_per_task": "gres/gpu=1"}, "--ntasks"),
    ("uneven tasks", {"tres_per_task": "gres/gpu=1", "num_tasks": 3, **TWO_NODES}, "evenly"),
    ("task wider than a node", {"tres_per_task": "gres/gpu=5", "num_tasks": 1}, "evenly"),
    ("cpus-per-gpu of a type", {**NODE, "cpus_per_tres": "gres/gpu:a100:2"}, "with a type"),
    (
        "cpus-per-gpu and -c",
        {**NODE, "cpus_per_tres": "gres/gpu:2", "cpus_per_task": 2},
        "cpus-per-task",
    ),
    (
        "cpus-per-gpu uneven",
        {**NODE, "cpus_per_tres": "gres/gpu:1", "num_tasks": 3},
        "share the CPUs",
    ),
    (
        "model and a mixture",
        {"tres_per_node": "gres/gpu:a100:2", "features": "x|y&z"},
        "groups or mixtures",
    ),
    (
        "model and counts",
        {"tres_per_node": "gres/gpu:a100:2", "features": "[x*2&y*1]"},
        "counts, brackets",
    ),
    ("negation", {**NODE, "features": "!slow"}, "negation"),
    (
        "other gres",
        {"tres_per_node": "gres/gpu:2,gres/tmp:10"},
        "--gres together with other TRES",
    ),
    ("other gres by task", {**NODE, "tres_per_task": "gres/nic=1"}, "together with other TRES"),
    ("--contiguous", {**NODE, "contiguous": 1}, "--contiguous"),
    ("--switches", {**NODE, "req_switch": 1}, "--switches"),
    ("--tmp", {**NODE, "pn_min_tmp_disk": 65534}, "--tmp"),
    ("-B 1", {**NODE, "sockets_per_node": 1}, "(-B)"),
    ("-B *:2", {**NODE, "cores_per_socket": 2}, "(-B)"),
    ("--core-spec=0", {**NODE, "core_spec": 0}, "--core-spec"),
    ("--thread-spec=1", {**NODE, "thread_spec": 1}, "--thread-spec"),
    ("--segment", {**NODE, **TWO_NODES, "segment_size": 2}, "--segment"),
    ("--prefer", {**NODE, "prefer": "fast"}, "--prefer"),
    ("--batch", {**NODE, "batch_features": "fast"}, "--batch"),
    ("--bb", {**NODE, "burst_buffer": "capacity=1"}, "--bb"),
    ("too long", {**NODE, "req_nodes": "n" * 960}, "too long"),
    ("MPS", {"tres_per_node": "gres/mps:50", "comment": "class=A"}, "shards and MPS"),
]

PASSES_GATE: list[tuple[str, dict[str, Any], str]] = [
    *(
        (f"component {n}", {**NODE, "het_job_offset": n, "comment": comment}, "heterogeneous")
        for n, comment in ((1, None), (2, "class=A"), (127, "place=off"))
    ),
    ("scrontab", {**NODE, "cron_job": True}, "scrontab"),
    ("-M a,b", {**NODE, "clusters": "a,b"}, "several clusters"),
    ("-M all", {**NODE, "clusters": "all"}, "several clusters"),
    ("--immediate", {**NODE, "script": None, "immediate": 1}, "immediate"),
    ("licences or", {**NODE, "licenses": "a|b"}, "licences"),
    ("licences or, place=off", {**NODE, "licenses": "a|b", "comment": "place=off"}, "licences"),
    ("--immediate of shards", {"tres_per_node": "gres/shard:2", "immediate": 1}, "immediate"),
]
"""The only jobs of a managed partition that start without the gate's licence, and why."""

UNTOUCHED: list[tuple[str, dict[str, Any]]] = [
    ("no gpu", {}),
    ("no gpu, our comment", {"comment": "class=A"}),
    ("no gpu, our comment and wrong", {"comment": "class=D"}),
    ("other gres", {"tres_per_node": "gres/tmp:10"}),
    ("shards=0", {"tres_per_node": "gres/shard:0"}),
    ("shards=0 of a type", {"tres_per_node": "gres/shard:a100:0"}),
    ("MPS=0", {"tres_per_node": "gres/mps=0"}),
    ("later component without gpu", {"het_job_offset": 1}),
    ("scrontab without gpu", {"cron_job": True}),
    ("gpus=0", {"tres_per_node": "gres/gpu:0"}),
    ("only cpus per task", {"tres_per_task": "cpu=4"}),
    ("a gres whose name begins alike", {"tres_per_node": "gres/gpumem:4"}),
]

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("class", {**NODE, "comment": "class=D"}, "A, B, C, auto"),
    ("in a longer text", {**NODE, "comment": "run 7 gpu:class=D"}, "A, B, C, auto"),
    ("also where it would be left", {"tres_per_socket": "gres/gpu:1", "comment": "bw=9"}, "high"),
    ("index", {"tres_per_node": "gres/gpu:g1:1"}, "a100, v100"),
    ("index in a list", {"tres_per_node": "gres/tmp:1,gres/gpu:g0"}, "g0"),
    ("index per job", {"tres_per_job": "gres/gpu:g1:1,gres/gpu:g3:1"}, "g1"),
    ("index per task", {"tres_per_task": "gres/gpu:g1=1"}, "g1"),
    ("index without a count", {"tres_per_node": "gres/gpu:g1:"}, "g1"),
    ("index with more behind it", {"tres_per_node": "gpu:g1:1:x"}, "g1"),
    ("our record", {**NODE, "admin_comment": "gpuaware/1;tn=gres/gpu:4"}, "AdminComment"),
    ("our record without gpus", {"admin_comment": "gpuaware/1;sel=released:0:1"}, "AdminComment"),
    ("our licence", {**NODE, "licenses": "a:1,gpuaware:1"}, "--licenses"),
    ("our licence without gpus", {"licenses": "gpuaware"}, "--licenses"),
    ("our licence with or", {"licenses": "x|gpuaware:2"}, "--licenses"),
    ("our licence at a cluster", {"licenses": " gpuaware@cl:2"}, "--licenses"),
    ("the gate", {"reservation": "gpuaware_gate"}, "--reservation"),
    ("the gate among others", {**NODE, "reservation": "r1,gpuaware_gate"}, "--reservation"),
    ("clock by extra", {**NODE, "extra": "a=1,freq=1530"}, "--comment=freq=MHz"),
    ("gpus too few", {**NODE, "comment": "gpus=1"}, "does not hold 2,"),
    ("gpus range", {**NODE, **TWO_NODES, "comment": "gpus=1-3"}, "gpus=1-3 does not hold 4,"),
]


@pytest.mark.parametrize(("name", "fields", "more"), PARKED, ids=[p[0] for p in PARKED])
def test_parked(filter_: Filter, name: str, fields: dict[str, Any], more: dict[str, Any]) -> None:
    expected, out = record_of(fields, more), filter_.submit(**fields)
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    assert parse(out.job["admin_comment"]) == expected
    own = fields.get("licenses")
    assert out.job["licenses"] == (f"{own},gpuaware:1" if own else "gpuaware:1")
    for field in ("tres_per_node", "tres_per_job", "tres_per_task", "features"):
        assert out.job.get(field) == getattr(expected, field)
    assert form_of(expected) is not None, "the selector has no row for it"
    assert understood(expected.features)
    changed = {"licenses", "admin_comment", "tres_per_node", "tres_per_task", "features"}
    assert set(out.written) <= changed
    assert " " not in out.job["admin_comment"]
    assert out.job["admin_comment"].isascii()


BY_SLURM = r"more [A-Za-z]+ than a node has|GPU type |with a GPU type with salloc or srun"


def is_parked_and_left(out: Outcome, asked: dict[str, Any]) -> OriginalRequest:
    """The record of a job that waits at the gate, and is otherwise as its user asked."""
    assert (out.rc, out.log) == (SUCCESS, [])
    own = asked.get("licenses")
    assert out.job["licenses"] == (f"{own},gpuaware:1" if own else "gpuaware:1")
    assert {"licenses", "admin_comment"} <= set(out.written)
    assert out.job["admin_comment"].isascii()
    record = parse(out.job["admin_comment"])
    assert record is not None
    assert record.left is not None
    return record


@pytest.mark.parametrize(("name", "fields", "reason"), LEFT, ids=[p[0] for p in LEFT])
def test_left_to_slurm(filter_: Filter, name: str, fields: dict[str, Any], reason: str) -> None:
    out = filter_.submit(**fields)
    if re.search(BY_SLURM, out.messages[-1]):  # at the gate it would wait; Slurm refuses it at once
        assert (out.rc, "licenses" in out.written, len(out.messages)) == (SUCCESS, False, 1)
        assert reason in out.messages[0]
        return
    record = is_parked_and_left(out, fields)
    assert sorted(out.written) == ["admin_comment", "licenses"]
    (sentence,) = out.messages
    told = f"gpu-aware: this job is left to Slurm, which chooses its GPUs: {record.left}"
    assert sentence.split(";")[0] == told
    assert reason in sentence
    assert record.partial == (name == "too long")
    if not record.partial:
        for field in ("tres_per_node", "tres_per_job", "tres_per_task", "features", "req_nodes"):
            assert getattr(record, field) == fields.get(field)
        assert record.exclusive is False
        assert record.interactive == ("script" in fields)


@pytest.mark.parametrize(("name", "fields", "reason"), PASSES_GATE, ids=[p[0] for p in PASSES_GATE])
def test_what_passes_the_gate(
    filter_: Filter, name: str, fields: dict[str, Any], reason: str
) -> None:
    out = filter_.submit(**fields)
    assert (out.rc, out.written, out.log) == (SUCCESS, [], [])
    # It wakes the selector, so that it gets no GPU that is kept for the first job that waits.
    assert (filter_.folder / "submitted").exists()
    if "het_job_offset" in fields:
        assert out.messages == []  # its first component has told
        return
    (sentence,) = out.messages
    assert sentence.startswith("gpu-aware: this job is left to Slurm, which chooses its GPUs: ")
    assert reason in sentence


@pytest.mark.parametrize("more", [{}, {"comment": "class=A"}, {"partition": "cpu"}, NODE], ids=str)
def test_the_first_component_of_a_heterogeneous_job_is_parked(
    make_filter: MakeFilter, more: dict[str, Any]
) -> None:
    """Slurm starts all components at once, so the gate of the first one holds those with GPUs."""
    filter_ = make_filter(more='partitions = {"gpu"}')
    asked = {"het_job_offset": 0, "partition": "gpu", **more}
    out = filter_.submit(**asked)
    assert is_parked_and_left(out, asked).left == "a heterogeneous job"
    assert len(out.messages) == ("tres_per_node" in more or "comment" in more)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("fields", "on_node"),
    [
        ({**NODE, **TWO_NODES}, 4),  # 2 GPUs on each node
        ({"tres_per_job": "gres/gpu:6", **TWO_NODES}, 6),
        ({"tres_per_job": "gres/gpu:3", **TWO_NODES}, None),
        ({"tres_per_job": "gres/gpu:6"}, None),  # on a number of nodes that Slurm chooses
        ({"tres_per_node": "gres/gpu:a100:1,gres/gpu:v100:1"}, None),
        ({"tres_per_node": "gres/gpu:40000"}, None),  # more than Slurm's field holds
    ],
    ids=str,
)
def test_tasks_by_gpu_of_a_component_are_written_by_node(
    make_filter: MakeFilter, fields: dict[str, Any], on_node: int | None, offset: int
) -> None:
    """No update need repeat their number, which it would write into all components."""
    out = make_filter().submit(**fields, ntasks_per_tres=2, het_job_offset=offset)
    assert out.written.count("ntasks_per_node") == (on_node is not None)
    assert on_node is None or out.job["ntasks_per_node"] == on_node
    if offset == 0:
        original = parse(out.job["admin_comment"])
        assert original is not None
        assert (original.ntasks_per_node, kept_tasks(original)) == (on_node, ())


@pytest.mark.parametrize(
    ("long", "value"),
    [
        ("req_nodes", "n[1-9]," * 200),
        ("exc_nodes", "n" * 3_000_000),
        ("licenses", ",".join(f"tool{i}:1" for i in range(108))),
    ],
)
@pytest.mark.parametrize("comment", [None, "place=off"])
def test_a_request_that_no_record_holds_is_parked_with_a_part_of_it(
    filter_: Filter, long: str, value: str, comment: str | None
) -> None:
    asked = {**NODE, long: value, "comment": comment, "admin_comment": "of the site"}
    out = filter_.submit(**asked)
    record = is_parked_and_left(out, asked)
    reason = "place=off" if comment else "a request too long to be recorded"
    assert record == OriginalRequest(left=reason, partial=True, admin_comment="of the site")
    assert out.job[long].removesuffix(",gpuaware:1") == value
    assert len(out.job["admin_comment"]) < 200


def test_a_long_text_of_the_site_is_not_kept_beside_a_part(filter_: Filter) -> None:
    asked = {**NODE, "req_nodes": "n" * 2000, "admin_comment": "x" * 2000}
    record = is_parked_and_left(filter_.submit(**asked), asked)
    assert record == OriginalRequest(left="a request too long to be recorded", partial=True)


GPU_FORMS: list[dict[str, Any]] = [
    {field: f"{prefix}{what}"}
    for field in ("tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket")
    for prefix in ("gres/", "gres:", "")
    for what in (
        *("gpu", "gpu:2", "gpu=2", "gpu:a100:2", "gpu:a100=2", "gpu:A100", "gpu:other:1", "gpu:1K"),
        *("gpu:g1:1", "gpu:2,gres/tmp:1", "gpu:a100:1,gres/gpu:v100:1", "gpu:1,gres/shard:1"),
        *("shard:2", "shard=2", "shard:a100:2", "shard:g1:2", "mps:50", "gpu:99999", "gpu:x:y:z"),
    )
]
BESIDE: list[dict[str, Any]] = [
    {},
    {"script": None},
    {"comment": "place=off"},
    {"comment": "class=A"},
    {"comment": "class=A,gpus=1-4"},
    {"comment": "see wiki"},
    {"num_tasks": 3, "min_nodes": 2, "max_nodes": 2},
    {"contiguous": 1, "shared": 0},
    {"features": "[a*2&b]", "licenses": "matlab:1"},
    {"req_nodes": "n," * 700},
    {"het_job_offset": 0},
    {"array_inx": "0-9%2"},
]


@pytest.mark.parametrize("more", ["", "park_uncommented = false", "models = {}"])
def test_each_form_of_gpus_is_parked_or_refused(make_filter: MakeFilter, more: str) -> None:
    """Whatever a user types: what asks for GPUs waits at the gate, or passes by a rule."""
    filter_ = make_filter(more=more)
    ends = {"parked": 0, "refused": 0}
    for form, beside in itertools.product(GPU_FORMS, BESIDE):
        asked = form | beside
        out = filter_.submit(**asked)
        assert out.log == []
        if out.rc == ERROR:
            assert out.written == []
            ends["refused"] += 1
            continue
        if "licenses" not in out.written:
            assert re.search(BY_SLURM, out.messages[-1]), asked
            continue  # Slurm refuses it at once
        assert out.job["licenses"].endswith("gpuaware:1"), asked
        record = parse(out.job["admin_comment"])
        assert record is not None, asked
        if record.left is None:
            assert form_of(record) is not None, asked
        ends["parked"] += 1
        for passing in ({"cron_job": True}, {"immediate": 1}, {"clusters": "a,b"}):
            assert "licenses" not in filter_.submit(**asked, **passing).written
    assert min(ends.values()) > 30, ends


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_tasks": 2**31 - 1, "min_nodes": 1, "max_nodes": 2**31 - 1},
        {"num_tasks": 4294967291, "min_nodes": 1, "max_nodes": 4294967291},
    ],
)
@pytest.mark.parametrize("widest", ["", "max_gpus_per_node = nil"])
def test_no_number_holds_slurmctld_up(
    make_filter: MakeFilter, numbers: dict[str, int], widest: str
) -> None:
    """The time of the filter is slurmctld's; the largest primes are the longest way."""
    filter_ = make_filter(more=widest)
    submit = lambda: filter_.submit(tres_per_task="gres/gpu=1", **numbers)  # noqa: E731
    assert least_cpu_s(submit, 0.1) < 0.1


@pytest.mark.parametrize("widest", [4, None])
def test_even_splits_are_those_that_counting_finds(
    make_filter: MakeFilter, widest: int | None
) -> None:
    filter_ = make_filter(more=f"max_gpus_per_node = {widest or 'nil'}")
    for total, least, most in itertools.product(range(1, 14), (1, 2, 3), (2, 3, 5, 8)):
        if most < least:
            continue
        start = max(least, -(-total // widest) if widest else 1)
        expected = any(total % n == 0 for n in range(start, min(most, total) + 1))
        out = filter_.submit(tres_per_job=f"gres/gpu:{total}", min_nodes=least, max_nodes=most)
        record = parse(out.job["admin_comment"])
        assert record is not None
        assert (record.left is None) is expected, (total, least, most)


def test_a_model_becomes_a_feature_also_where_slurm_picks(filter_: Filter) -> None:
    """The GRES type is gone from a node that is indexed; the feature is there before and after."""
    asked = {"tres_per_node": "gres/gpu:a100:2", "features": "ib", "comment": "place=off"}
    out = filter_.submit(**asked)
    assert out.rc == SUCCESS
    assert "place=off" in out.messages[0]
    assert set(out.written) == {"tres_per_node", "features", "licenses", "admin_comment"}
    assert out.job["tres_per_node"] == "gres/gpu:2"
    assert out.job["features"] == "ib&gpu_a100"
    record = is_parked_and_left(out, asked)
    assert (record.tres_per_node, record.features) == ("gres/gpu:2", "ib&gpu_a100")


@pytest.mark.parametrize(
    "fields",
    [
        {"tres_per_job": "gres/gpu:a100:2", "script": None},  # the step of this srun has the type
        {"tres_per_node": "gres/gpu:a100:2", "comment": "place=off", "features": "[r1*2&r2*1]"},
        {"tres_per_node": "gres/gpu:a100:1,gres/gpu:v100:1"},
        {"tres_per_node": "gres/gpu:other:1", "comment": "place=off"},
    ],
)
def test_a_type_that_stays(filter_: Filter, fields: dict[str, Any]) -> None:
    out = filter_.submit(**fields)
    if out.messages and re.search(BY_SLURM, out.messages[-1]):
        assert (out.rc, out.written) == (SUCCESS, [])
        return
    is_parked_and_left(out, fields)
    assert sorted(out.written) == ["admin_comment", "licenses"]


@pytest.mark.parametrize(("name", "fields"), UNTOUCHED, ids=[p[0] for p in UNTOUCHED])
def test_untouched(filter_: Filter, name: str, fields: dict[str, Any]) -> None:
    out = filter_.submit(**fields)
    assert (out.rc, out.written, out.messages, out.log) == (SUCCESS, [], [], [])


@pytest.mark.parametrize(
    ("asked", "default", "managed"),
    [
        ("gpu", "cpu", True),
        ("gpu,big", "cpu", True),
        ("gpu,cpu", "gpu", True),  # or it would pass the jobs that wait
        pytest.param("gpu," * 300, "gpu", False, id="longer than Slurm allows"),
        ("cpu", "gpu", False),
        (None, "gpu", True),
        (None, "cpu", False),
    ],
)
def test_only_managed_partitions_are_touched(
    make_filter: MakeFilter, asked: str | None, default: str, managed: bool
) -> None:
    filter_ = make_filter(more='partitions = {"gpu", "big"}')
    for comment in (None, "class=D"):
        out = filter_.submit(
            **NODE, partition=asked, comment=comment, default_partition=default, uid=ALICE
        )
        assert (out.rc == ERROR) == (managed and comment is not None)
        assert ("licenses" in out.written) == (managed and comment is None)
        assert managed or out.messages == []


def test_a_model_finds_indexed_nodes_in_a_partition_that_is_not_managed(
    make_filter: MakeFilter,
) -> None:
    filter_ = make_filter(more='partitions = {"big"}')
    out = filter_.submit(tres_per_node="gres/gpu:a100:2", partition="gpu")
    assert (out.rc, out.messages) == (SUCCESS, [])
    assert (out.job["tres_per_node"], out.job["features"]) == ("gres/gpu:2", "gpu_a100")
    assert "licenses" not in out.written


def test_a_comment_of_others_is_told_and_kept(filter_: Filter) -> None:
    asked = {**NODE, "comment": "https://host/x,class=A"}
    out = filter_.submit(**asked)
    assert out.rc == SUCCESS
    assert "licenses" in out.written
    assert "comment" not in out.written
    (told,) = out.messages
    assert "gpu:class=A" in told
    assert told.endswith(f"valid keys: {', '.join(hint.key for hint in HINTS)}")


@pytest.mark.parametrize(
    ("text", "comment", "recorded"),
    [
        ("class=A,bw=high", None, "class=A,bw=high"),
        ("class=A", "nextflow run 7", "class=A"),
        ("class=A", "class=B", None),
        ("class=A", "lr=1,class=B", "class=A"),
    ],
)
def test_hints_of_the_environment_are_recorded(
    filter_: Filter, text: str, comment: str | None, recorded: str | None
) -> None:
    fields = {**NODE, "comment": comment} if comment else NODE
    out = filter_.submit(environment={"GPU_AWARE": text}, **fields)
    assert (out.rc, out.messages) == (SUCCESS, [])
    original = parse(out.job["admin_comment"])
    assert original is not None
    assert original.environment == recorded


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class=D", "A, B, C, auto"),
        ("class=A,lr=1", "GPU_AWARE=class=A,lr=1 is not a list of key=value; valid keys: class"),
        ("fast", "valid keys: class"),
        ("class=A," * 200, "valid keys: class"),
        ("gpus=4-8", "does not hold 2,"),
    ],
)
def test_a_wrong_environment_is_refused(filter_: Filter, text: str, said: str) -> None:
    out = filter_.submit(environment={"GPU_AWARE": text}, **NODE)
    assert (out.rc, out.written) == (ERROR, [])
    assert said in out.messages[0]
    assert filter_.submit(environment={"GPU_AWARE": text}, **NODE, script=None).rc == SUCCESS


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, False),
        ({"requeue": 1}, False),
        ({"requeue": 0}, True),
        ({"script": None}, True),
        ({"array_inx": "0-3"}, True),
    ],
)
@pytest.mark.parametrize("move", ["ok", "90s", "no"])
def test_a_job_that_cannot_be_moved_is_told(
    filter_: Filter, fields: dict[str, Any], told: bool, move: str
) -> None:
    out = filter_.submit(**NODE, **fields, comment=f"class=A,move={move}")
    assert out.rc == SUCCESS
    assert "licenses" in out.written
    assert [f"move={move} has no effect" in text for text in out.messages] == (
        [True] if told and move != "no" else []
    )


@pytest.mark.parametrize(
    ("due", "late"), [("2020-02-29T08:00", True), ("2098-12-01T08:00:00", False), ("1m", False)]
)
def test_a_due_date_that_has_passed_is_told_at_once(filter_: Filter, due: str, late: bool) -> None:
    out = filter_.submit(**NODE, comment=f"class=A,due={due}")
    assert out.rc == SUCCESS
    assert "licenses" in out.written
    assert [f"due={due} has passed" in text for text in out.messages] == [True] * late


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone in which no hour comes twice a year: a date in that hour means the later one."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("due", "gpus", "late"),
    [
        ("59m", "", True),
        ("2h", "", False),
        ("28m", ",gpus=1-8", False),
        ("28m", ",gpus=1-4", True),
        ("soon", ",gpus=1-4", True),
        ("2098-12-01T08:00", ",gpus=1-4", False),
    ],
)
def test_a_due_date_before_the_end_of_one_epoch_is_told_at_once(
    filter_: Filter, utc: None, due: str, gpus: str, late: bool
) -> None:
    """An epoch takes 1 h with the 2 GPUs of Slurm's options, and 15 min with 8 at best."""
    if due == "soon":
        due = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 28 * 60))
    out = filter_.submit(**NODE, comment=f"class=A,due={due},epochs=9x1h{gpus}")
    assert out.rc == SUCCESS
    assert "licenses" in out.written
    assert ["no time for one epoch of 3600 s" in text for text in out.messages] == [True] * late


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("run 7 class=A", "gpu:class=A"),
        ("run 7, class=A", "gpu:class=A"),
        ("my due=36h, or so", "gpu:due=36h"),
        ("run 7 subclass=A", None),
        ("run 7 time-due=3", None),
        ("run=7", None),
        ("class", None),
    ],
)
def test_a_comment_that_only_looks_like_ours_is_told(
    filter_: Filter, comment: str, told: str | None
) -> None:
    out = filter_.submit(**NODE, comment=comment)
    assert (out.rc, "licenses" in out.written) == (SUCCESS, True)
    assert [told in text for text in out.messages if told] == [True] * bool(told)
    assert bool(out.messages) == bool(told)


def test_two_hints_are_two_lines(filter_: Filter) -> None:
    out = filter_.submit(**NODE, array_inx="1-4", comment="class=A,move=ok,due=2020-02-29T08:00")
    assert out.rc == SUCCESS
    (text,) = out.messages
    move, due = text.split("\n")
    assert move.startswith("gpu-aware: move=ok has no effect")
    assert due == "gpu-aware: due=2020-02-29T08:00 has passed, so it plays no part"


def test_place_off_in_the_environment(filter_: Filter) -> None:
    out = filter_.submit(environment={"GPU_AWARE": "place=off"}, **NODE)
    assert is_parked_and_left(out, NODE).left == "place=off"
    assert "place=off" in out.messages[0]


@pytest.mark.parametrize(("name", "fields", "hint"), REFUSED, ids=[p[0] for p in REFUSED])
def test_refused(filter_: Filter, name: str, fields: dict[str, Any], hint: str) -> None:
    out = filter_.submit(**fields)
    assert (out.rc, out.written, out.log) == (ERROR, [], [])
    (sentence,) = out.messages
    assert sentence.startswith("gpu-aware: ")
    assert hint in sentence
    assert "\n" not in sentence


def test_components_of_a_heterogeneous_job_are_told_once(filter_: Filter) -> None:
    assert len(filter_.submit(**NODE, het_job_offset=0).messages) == 1
    assert filter_.submit(**NODE, het_job_offset=1).messages == []


@pytest.mark.parametrize("uid", [0, OPERATOR])
@pytest.mark.parametrize(
    "fields", [{"tres_per_node": "gres/gpu:g1:1"}, {**NODE, "licenses": "gpuaware:1"}]
)
def test_operator_may_name_an_index_or_the_gate(
    filter_: Filter, uid: int, fields: dict[str, Any]
) -> None:
    out = filter_.submit(uid, **fields)
    assert (out.rc, out.written, out.messages) == (SUCCESS, [], [])


def test_jobs_of_root_are_parked_like_others(filter_: Filter) -> None:
    assert filter_.submit(0, **NODE).job["licenses"] == "gpuaware:1"


def test_park_uncommented_false_leaves_jobs_without_our_comments(make_filter: MakeFilter) -> None:
    """They wait for their turn like others, and Slurm chooses their GPUs; sbatch says nothing."""
    filter_ = make_filter(more="park_uncommented = false")
    plain = OriginalRequest(**NODE, left="a job without a comment of ours")
    for comment in (None, "see wiki"):
        out = filter_.submit(**NODE, comment=comment)
        assert (is_parked_and_left(out, NODE), out.messages) == (plain, [])
    shards = filter_.submit(tres_per_node="gres/shard:2")
    assert is_parked_and_left(shards, {}).left == plain.left
    ours = filter_.submit(**NODE, comment="class=A").job
    assert ours["licenses"] == "gpuaware:1"
    assert parse(ours["admin_comment"]) == OriginalRequest(**NODE)
    meant = filter_.submit(**NODE, comment="class=A, run 7")
    assert is_parked_and_left(meant, NODE) == plain
    assert "gpu:class=A" in meant.messages[0]
    typed = filter_.submit(tres_per_node="gres/gpu:a100:2")  # no indexed node has the type
    assert typed.messages == []
    assert is_parked_and_left(typed, {}).features == "gpu_a100"
    assert typed.job["tres_per_node"] == "gres/gpu:2"
    assert typed.job["features"] == "gpu_a100"


def test_without_max_gpus_per_node_one_node_is_assumed(make_filter: MakeFilter) -> None:
    filter_ = make_filter(more="max_gpus_per_node = nil")
    assert "licenses" in filter_.submit(tres_per_job="gres/gpu:5").job


def test_without_sizes_of_nodes_nothing_is_too_large(make_filter: MakeFilter) -> None:
    filter_ = make_filter(more="max_cpus_per_node = nil, max_memory_mb_per_node = nil")
    assert "licenses" in filter_.submit(**NODE, cpus_per_task=999, min_mem_per_node=10**9).job


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"SLURM_GPUS": "a100:2"}, {"SLURM_GPUS": "2"}),
        ({"SLURM_GPUS_PER_NODE": "a100"}, {"SLURM_GPUS_PER_NODE": "1"}),
        ({"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu:a100=1"}, None),
        ({"SLURM_GPUS": "2", "HOME": "a100:2"}, {"SLURM_GPUS": "2", "HOME": "a100:2"}),
    ],
)
def test_model_leaves_the_environment_of_srun(
    filter_: Filter, before: dict[str, str], after: dict[str, str] | None
) -> None:
    """sbatch --gpus=a100:2 exports SLURM_GPUS=a100:2; srun inside would ask for that type."""
    out = filter_.submit(environment=before, tres_per_node="gres/gpu:a100:2")
    assert out.environment == (after or {"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu=1"})


@pytest.mark.parametrize("script", ["#!/bin/sh\n", None])
def test_a_type_stays_where_only_nodes_are_chosen(
    make_filter: MakeFilter, script: str | None
) -> None:
    """In the environment, too, where srun inside finds it; one that no node has is not parked."""
    filter_ = make_filter(more='models = {}, types = { "a100" }')
    before = {"SLURM_GPUS": "A100:2"}
    out = filter_.submit(environment=before, tres_per_job="gres/gpu:A100:2", script=script)
    assert (out.rc, out.messages, out.environment) == (SUCCESS, [], before)
    record = parse(out.job["admin_comment"])
    assert record is not None
    assert not record.left
    assert (record.tres_per_job, form_of(record) is not None) == ("gres/gpu:A100:2", True)
    assert "licenses" in out.written
    other = filter_.submit(tres_per_node="gres/gpu:v100:2", comment="class=A")
    assert "licenses" not in other.written
    assert "GPU type v100" in other.messages[0]


PLAIN = {"more": "models = {}"}
"""A site before its first node has one GRES type per GPU."""
TYPED_JOB = {"tres_per_node": "gres/gpu:a100:2"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100:2"}, {"SLURM_GPUS_PER_NODE": "2"}),
        ({"SLURM_GPUS_PER_SOCKET": "a100"}, {"SLURM_GPUS_PER_SOCKET": "1"}),
        (
            {"SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:a100:1"},
            {"SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:1"},
        ),
        ({"SLURM_GRES": "gpu:a100:1,nic:1"}, {"SLURM_GRES": "gpu:1,nic:1"}),
        ({"SLURM_GPUS": "v100:2", "SBATCH_GPUS": "a100:2"}, None),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        TYPED_JOB,
        {"tres_per_job": "gres/gpu:a100:2"},
        {**TYPED_JOB, "comment": "place=off"},
        {**TYPED_JOB, "features": "[r1*2&r2*1]"},
        {**TYPED_JOB, "tres_per_task": "gres/gpu:a100=1"},
    ],
)
def test_before_there_are_models_only_the_environment_loses_a_type(
    make_filter: MakeFilter,
    fields: dict[str, Any],
    before: dict[str, str],
    after: dict[str, str] | None,
) -> None:
    """Pending jobs can then change with their nodes; without a comment they hear nothing."""
    out = make_filter(**PLAIN).submit(environment=before, **fields)
    reason = "place=off" if "comment" in fields else "a GPU type"
    assert is_parked_and_left(out, fields).left == reason
    assert len(out.messages) == ("comment" in fields)
    others = {name for name in out.written if not name.startswith("environment.")}
    assert others == {"licenses", "admin_comment"}
    assert out.environment == (before if after is None else after)


@pytest.mark.parametrize("models", ["", '"a100"'], ids=["no model yet", "some nodes changed"])
@pytest.mark.parametrize("script", ["#!/bin/sh", None], ids=["batch", "interactive"])
def test_a_type_that_nodes_have_waits_at_the_gate(
    make_filter: MakeFilter, models: str, script: str | None
) -> None:
    """Slurm refuses one that no node has."""
    filter_ = make_filter(more=f'models = {{ {models} }}, node_types = {{ "A100", "Tesla" }}')
    for kind in ("Tesla", *(["A100"] if script is None or not models else [])):
        asked = {"tres_per_job": f"gres/gpu:{kind}:2", "comment": "class=A", "script": script}
        is_parked_and_left(filter_.submit(**asked), asked)
    for kind in ("b200", "tesla"):
        asked = {"tres_per_job": f"gres/gpu:{kind}:2", "comment": "class=A", "script": script}
        assert "licenses" not in filter_.submit(**asked).written


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("srun --gres=gpu:a100:1 ./x", True),
        ("mpirun; srun --gpus a100 ./x", True),
        ("srun -Ga100:1 ./x", True),
        ("#SBATCH --gpus-per-node=a100:2", False),
        ("srun --gpus=a1000:1 ./x", False),
        ("echo a100:1", False),
        ("a100 " * 1001, True),
        ("gpu" * 30_000, False),
    ],
)
def test_a_script_that_names_the_type_keeps_it_in_its_environment(
    make_filter: MakeFilter, line: str, kept: bool
) -> None:
    """srun refuses a typed step beside a variable without a type."""
    before = {"SLURM_GPUS": "a100:2"}
    script = f"#!/bin/bash\n{line}\n"
    out = make_filter(**PLAIN).submit(environment=before, script=script, **TYPED_JOB)
    assert out.environment == (before if kept else {"SLURM_GPUS": "2"})


def test_a_hostile_script_is_searched_quickly(make_filter: MakeFilter) -> None:
    filter_ = make_filter(**PLAIN)
    for script in ("x" * 4_000_000, "gpu:" * 1_000_000, "# gpu:x " * 500_000):
        asked = {"script": script, "tres_per_node": "gres/gpu:x:1"}
        submit = partial(filter_.submit, environment={"SLURM_GPUS": "x:1"}, **asked)
        assert least_cpu_s(submit, 0.3) < 0.3


def test_before_there_are_models_salloc_keeps_its_type(make_filter: MakeFilter) -> None:
    out = make_filter(**PLAIN).submit(
        script=None, environment={"SLURM_GPUS": "a100:2"}, **TYPED_JOB
    )
    record = is_parked_and_left(out, TYPED_JOB)
    assert record == OriginalRequest(**TYPED_JOB, left="a GPU type", interactive=True)
    assert (out.messages, sorted(out.written)) == ([], ["admin_comment", "licenses"])
    assert out.environment == {"SLURM_GPUS": "a100:2"}


def test_a_model_in_two_options_becomes_one_feature(filter_: Filter) -> None:
    out = filter_.submit(tres_per_job="gres/gpu:a100:4", tres_per_task="gres/gpu:a100=1")
    assert "several GPU requests" in out.messages[0]
    assert out.job["tres_per_job"] == "gres/gpu:4"
    assert out.job["tres_per_task"] == "gres/gpu=1"
    assert out.job["features"] == "gpu_a100"


def test_a_model_becomes_a_feature_where_only_comments_park(make_filter: MakeFilter) -> None:
    out = make_filter(more="park_uncommented = false").submit(**TYPED_JOB)
    assert (out.rc, out.messages) == (SUCCESS, [])
    assert (out.job["tres_per_node"], out.job["features"]) == ("gres/gpu:2", "gpu_a100")


def test_srun_with_a_model_is_told_how_to_ask(filter_: Filter) -> None:
    out = filter_.submit(script=None, tres_per_job="gres/gpu:a100:1")
    assert (out.rc, out.written) == (SUCCESS, [])  # Slurm refuses it, unless a node has the type
    assert "--constraint=gpu_a100" in out.messages[0]


def test_the_mark_of_scrontab_is_refused_where_there_is_none(make_filter: MakeFilter) -> None:
    """Slurm removes the mark behind the filter, and the job would be any other."""
    filter_ = make_filter(more="scrontab = false")
    for asked in (NODE, NODE | {"het_job_offset": 0}, {"tres_per_node": "gres/shard:1"}):
        out = filter_.submit(cron_job=True, **asked)
        assert (out.rc, out.written) == (ERROR, [])
        assert "scrontab is not enabled" in out.messages[0]
    assert filter_.submit(cron_job=True).rc == SUCCESS  # it asks for no GPU


def test_where_there_is_one_cluster_a_job_of_several_waits(make_filter: MakeFilter) -> None:
    """sbatch does not ask it first."""
    filter_ = make_filter(more="several_clusters = false")
    for clusters in ("all", "a,a", "a"):
        assert filter_.submit(clusters=clusters, **NODE).job["licenses"] == "gpuaware:1"


def test_each_parked_job_appends_one_byte(filter_: Filter) -> None:
    file = filter_.folder / "submitted"
    filter_.submit(**NODE)
    assert file.read_bytes() == b"."
    filter_.submit(**NODE)
    filter_.submit()
    filter_.submit(**NODE, comment="class=D")
    assert file.read_bytes() == b".."


def test_a_large_event_file_does_not_grow(filter_: Filter) -> None:
    file = filter_.folder / "submitted"
    file.write_bytes(b"x" * 1_048_577)
    filter_.submit(**NODE)
    content = file.read_bytes()
    assert len(content) == 1_048_577
    assert content[:2] == b".x"


@pytest.mark.parametrize("script", sorted(p.name for p in LUA.glob("*.lua")))
def test_syntax_by_luac(script: str) -> None:
    """A syntax error would keep slurmctld from starting."""
    subprocess.run(["luac5.1", "-p", str(LUA / script)], check=True, timeout=300)


@pytest.mark.parametrize("script", sorted(p.name for p in LUA.glob("*.lua")))
def test_no_unwanted_globals(script: str) -> None:
    """Our names must not meet those of the site's script, nor a misspelt name pass for nil."""
    listing = subprocess.run(
        ["luac5.1", "-l", "-p", str(LUA / script)], check=True, capture_output=True, text=True
    ).stdout
    read = set(re.findall(r"GETGLOBAL.*; (\w+)", listing))
    written = set(re.findall(r"SETGLOBAL.*; (\w+)", listing))
    hooks = {"slurm_job_submit", "slurm_job_modify"}  # the site's, taken in by load
    if script == "gpu_aware_cli_filter.lua":
        hooks = {f"slurm_cli_{name}" for name in ("setup_defaults", "pre_submit", "post_submit")}
    assert read <= KNOWN_GLOBALS | hooks, read - KNOWN_GLOBALS
    assert written <= hooks


def test_example_configuration_is_valid(make_filter: MakeFilter) -> None:
    filter_ = make_filter(conf=None)
    conf, reason = filter_.module[b"read_conf"](str(LUA / "gpu_aware_conf.lua").encode())
    assert reason is None
    assert list(conf[b"classes"].values()) == [b"A", b"B", b"C"]


def test_job_submit_script_parks_and_refuses(make_filter: MakeFilter, tmp_path: Path) -> None:
    """The script for sites that have none: its own return values are slurmctld's."""
    filter_ = make_filter()
    (tmp_path / "job_submit.lua").write_text((LUA / "job_submit.lua").read_text())
    assert filter_.dofile(tmp_path / "job_submit.lua") == SUCCESS
    submit, modify = (
        filter_.lua.globals()[f"slurm_job_{n}".encode()] for n in ("submit", "modify")
    )
    make = filter_.harness[b"job"]
    job, values, _ = make(filter_.table({**NODE, "script": "x"}))
    assert submit(job, None, ALICE) == SUCCESS
    assert values[b"licenses"] == b"gpuaware:1"
    assert submit(make(filter_.table({**NODE, "comment": "class=D"}))[0], None, ALICE) == ERROR
    record = make(filter_.table({"licenses": "gpuaware:1"}))[0]
    assert modify(make(filter_.table({"licenses": ""}))[0], record, None, ALICE) == ERROR
    assert modify(make(filter_.table({"time_limit": 5}))[0], record, None, ALICE) == SUCCESS


def test_job_submit_script_works_without_the_module(
    make_filter: MakeFilter, tmp_path: Path
) -> None:
    filter_ = make_filter()
    (tmp_path / "gpu_aware_request.lua").write_text("this is no Lua")
    (tmp_path / "job_submit.lua").write_text((LUA / "job_submit.lua").read_text())
    assert filter_.dofile(tmp_path / "job_submit.lua") == SUCCESS
    job, _values, writes = filter_.harness[b"job"](filter_.table(NODE))
    assert filter_.lua.globals()[b"slurm_job_submit"](job, None, ALICE) == SUCCESS
    assert len(list(writes.values())) == 0
    assert any(b"pass unmodified" in line for line in filter_.harness[b"log"].values())


# Shards -------------------------------------------------------------------------------------------

SHARDS = {"tres_per_node": "gres/shard:2"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tres_per_task": "cpu=2", "cpus_per_task": 2},
        {"comment": "class=B"},
        {"min_nodes": 1, "max_nodes": 1, "num_tasks": 4},
        {"tres_per_node": "gres/shard=2"},
    ],
    ids=str,
)
def test_a_job_of_shards_is_parked(filter_: Filter, more: dict[str, Any]) -> None:
    out = filter_.submit(environment={"A": "1"}, **(SHARDS | more))
    assert (out.rc, out.messages, out.log) == (SUCCESS, [], [])
    assert out.job["licenses"] == "gpuaware:1"
    assert out.environment == {"A": "1"}
    original = parse(out.job["admin_comment"])
    assert original is not None
    form = form_of(original)
    assert form is not None
    assert (form.kind, form.item.count, form.shards) == ("node", 1, 2)


OF_SHARDS = (
    "gpu-aware: a job of shards has its GPU and clock in common with other jobs, so these play no"
    " part: {}"
)


@pytest.mark.parametrize(
    ("comment", "keys", "parked"),
    [
        ("class=A,due=1h", "due=", True),
        ("freq=900,move=ok,due=2020-01-01T08:00", "freq=, move=, due=", True),
        ("class=A,model=bert,epochs=2x1h", "model=, epochs=", True),
        ("class=A,gpus=2-4", "gpus=", True),
        ("class=A,bw=low,move=no", None, True),
    ],
)
def test_what_plays_no_part_for_a_job_of_shards_is_told(
    filter_: Filter, comment: str, keys: str | None, parked: bool
) -> None:
    out = filter_.submit(**SHARDS, comment=comment)
    assert out.messages == ([] if keys is None else [OF_SHARDS.format(keys)])
    assert (out.rc, "licenses" in out.written) == (SUCCESS, parked)


@pytest.mark.parametrize(("number", "told"), [(4, False), (5, True)])
def test_more_shards_than_a_gpu_has_are_told(
    make_filter: MakeFilter, number: int, told: bool
) -> None:
    filter_ = make_filter(more="max_shards_per_gpu = 4")
    out = filter_.submit(tres_per_node=f"gres/shard:{number}")
    sentence = "gpu-aware: no GPU has 5 shards, the most is 4"
    assert (out.rc, out.messages) == (SUCCESS, [sentence] if told else [])


@pytest.mark.parametrize(
    "more",
    [
        {"script": None},
        {"min_nodes": 2, "max_nodes": 2},
        {"min_nodes": 1, "max_nodes": 4},
        {"shared": 0},
        {"ntasks_per_tres": 2},
        {"cpus_per_tres": "gres/gpu:2"},
        {"mem_per_tres": "gres/gpu:200"},
        {"tres_bind": "gres/gpu:single:1"},
        {"tres_freq": "gpu:900"},
        {"tres_per_task": "gres/shard=1"},
        {"tres_per_job": "gres/shard:2"},
        {"tres_per_node": "gres/shard:2,gres/tmp:1"},
        {"tres_per_node": "gres/shard:a100:2"},
        {"tres_per_node": "gres/shard"},
        {"tres_per_node": "gres/shard:1K"},
        {"tres_per_node": "gres/shard:-1"},
        {"tres_per_node": "gres/shard:999999"},
        {"tres_per_node": "gres/shard:" + "9" * 500},
        {"tres_per_node": "gres/mps:50"},
        {"comment": "place=off"},
    ],
    ids=lambda more: str(more)[:60],
)
def test_other_jobs_of_shards_are_parked_and_left(
    make_filter: MakeFilter, more: dict[str, Any]
) -> None:
    filter_ = make_filter(more='partitions = {"gpu"}')
    asked = SHARDS | {"partition": "gpu"} | more
    out = filter_.submit(environment={"A": "1"}, **asked)
    record = is_parked_and_left(out, asked)
    reason = "place=off" if "comment" in more else "shards and MPS share GPUs"
    assert (record.left, record.tres_per_node) == (reason, asked["tres_per_node"])
    assert len(out.messages) == ("comment" in more)  # who asked nothing of us hears nothing
    assert out.environment == {"A": "1"}


@pytest.mark.parametrize("text", ["gres/shard:0", "gres/shard=0", "shard:a100:0", "gres/mps:00"])
def test_no_shards_are_no_request(filter_: Filter, text: str) -> None:
    out = filter_.submit(tres_per_node=text, comment="class=A")
    assert (out.rc, out.messages, out.log, out.written) == (SUCCESS, [], [], [])


def test_shards_of_an_unmanaged_partition_are_not_touched(make_filter: MakeFilter) -> None:
    filter_ = make_filter(more='partitions = {"gpu"}')
    for text in ("gres/shard:2", "gres/shard:a100:2", "gres/mps:50"):
        out = filter_.submit(tres_per_node=text, partition="debug")
        assert (out.rc, out.messages, out.log, out.written) == (SUCCESS, [], [], [])


def test_another_number_of_gpus_plays_no_part_for_shards(filter_: Filter) -> None:
    for comment in ("class=A,gpus=2-4", "class=A,gpus=1-4,due=1h"):
        out = filter_.submit(**SHARDS, comment=comment)
        assert out.rc == SUCCESS
        assert "these play no part: gpus=" in out.messages[0]
        assert parse(out.job["admin_comment"]) == OriginalRequest(**SHARDS)


WHOLE = {"shared": 0}
TURN = (
    "gpu-aware: this job waits for its turn like GPU jobs: it gets whole nodes with all their GPUs"
)


@pytest.mark.parametrize(
    ("fields", "exclusive"),
    [
        (WHOLE, ()),
        ({**WHOLE, "comment": "class=nosuch"}, ()),
        ({**WHOLE, "comment": "due=1h,gpus=2-4"}, ()),
        ({**WHOLE, "comment": "place=off"}, ()),
        ({**WHOLE, "script": None, "array_inx": "0-3"}, ()),
        ({}, {"gpu"}),
        ({"partition": "cpu,gpu"}, {"gpu"}),
        ({**WHOLE, "partition": "cpu"}, ()),
        ({"core_spec": 0}, ()),
        ({"thread_spec": 2}, ()),
        ({**WHOLE, "cpus_per_task": 17}, ()),  # held, its owner could make it fit
    ],
)
@pytest.mark.parametrize("more", ["", "place_off = false", "park_uncommented = false"])
def test_a_job_of_whole_nodes_without_gpus_waits_for_its_turn(
    make_filter: MakeFilter, more: str, fields: dict[str, Any], exclusive: set[str]
) -> None:
    outcome = make_filter(more=more).submit(**fields, exclusive=exclusive)
    assert (outcome.rc, outcome.messages) == (SUCCESS, [TURN])
    record = parse(outcome.job["admin_comment"])
    assert record is not None
    assert record.left == WHOLE_NODES
    assert record.exclusive == (fields.get("shared") == 0)
    assert outcome.job["licenses"] == "gpuaware:1"


@pytest.mark.parametrize(
    ("fields", "exclusive"),
    [
        ({"shared": 2}, ()),  # --exclusive=user
        ({"shared": 3}, ()),
        ({"shared": 4}, ()),
        ({"cpus_per_task": 16}, ()),
        ({"partition": "cpu"}, {"gpu"}),
        ({**WHOLE, "partition": "elsewhere"}, ()),
        ({**WHOLE, "licenses": "a|b", "script": None}, ()),
        ({**WHOLE, "immediate": 1}, ()),
        ({**WHOLE, "het_job_offset": 1}, ()),
        ({**WHOLE, "clusters": "a,b"}, ()),
    ],
)
def test_other_jobs_without_gpus_are_not_touched(
    make_filter: MakeFilter, fields: dict[str, Any], exclusive: set[str]
) -> None:
    lists = 'partitions = { "cpu", "gpu", "mixed" }, partitions_with_others = { "mixed" }'
    outcome = make_filter(more=lists).submit(**fields, exclusive=exclusive)
    assert (outcome.rc, outcome.messages, outcome.written) == (SUCCESS, [], [])


def test_a_test_of_whole_nodes_is_held(make_filter: MakeFilter) -> None:
    outcome = make_filter().submit(**WHOLE, comment="gpu:test-only")
    assert (outcome.rc, outcome.messages, outcome.written) == (SUCCESS, [], ["priority"])


@pytest.mark.parametrize(
    ("partition", "waits"),
    [
        *(("mixed", True), ("gpu,mixed", True), ("elsewhere,mixed", True), ("cpu,mixed", True)),
        *(("elsewhere", False), ("cpu", False)),
    ],
)
@pytest.mark.parametrize("fields", [{}, {"priority": 0}, {"dependency": "afterok:7"}])
def test_whole_nodes_that_may_have_no_gpus_wait_at_the_gate(
    make_filter: MakeFilter, fields: dict[str, Any], partition: str, *, waits: bool
) -> None:
    """The selector opens it for nodes without GPUs at once, so nothing is told."""
    lists = (
        'partitions = { "cpu", "gpu", "mixed" }, partitions_with_others = { "cpu", "mixed" },'
        ' partitions_without_gpus = { "cpu" }'
    )
    filter_ = make_filter(more=lists)
    outcome = filter_.submit(**WHOLE, **fields, partition=partition)
    assert (outcome.rc, outcome.messages) == (SUCCESS, [])
    assert sorted(outcome.written) == (["admin_comment", "licenses"] if waits else [])
    assert (filter_.folder / "submitted").exists() == waits


def test_without_a_list_of_partitions_with_other_nodes_whole_nodes_pass(
    make_filter: MakeFilter,
) -> None:
    """The configuration is older than the filter: the job may be one of a partition of CPUs."""
    filter_ = make_filter(conf=CONF.replace("partitions_with_others = {{}}, ", ""))
    for fields, exclusive in ((WHOLE, ()), ({}, {"gpu"})):
        outcome = filter_.submit(**fields, exclusive=exclusive)
        assert (outcome.rc, outcome.messages, outcome.written) == (SUCCESS, [], [])
        assert filter_.modify({"partition": "gpu"}, min_nodes=2, exclusive=exclusive).rc == SUCCESS
    assert filter_.submit(**NODE).job["licenses"] == "gpuaware:1"
