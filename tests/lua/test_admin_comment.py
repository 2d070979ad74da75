"""The record of a parked job: Python reads back what Lua and Python write."""

import re
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from luafilter import CONF, Filter, install

from slurm_gpu_aware.filter_rules import RECORD_KEYS, RECORD_SAFE, RECORD_VERSION
from slurm_gpu_aware.gate.admin_comment import OriginalRequest, is_ours, parse

text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)
names = st.text(string.ascii_letters + string.digits + "_[]-,", min_size=1, max_size=20)
count = st.integers(0, 60_000)

requests = st.builds(
    OriginalRequest,
    **dict.fromkeys(
        ["tres_per_node", "tres_per_job", "licenses", "features", "req_nodes", "admin_comment"],
        st.none() | text,
    ),
    nodes=st.none() | st.tuples(count, st.none() | count),
    **dict.fromkeys(["num_tasks", "cpus_per_task", "min_cpus"], st.none() | count),
    exclusive=st.booleans(),
    interactive=st.booleans(),
    left=st.none() | text,
    partial=st.booleans(),
)


def encode(request: OriginalRequest) -> str:
    """A record as the filter writes it."""
    values = {key: getattr(request, name) for key, name in RECORD_KEYS}
    given = {k: v for k, v in values.items() if v is not None and v is not False}
    return RECORD_VERSION + ";".join(f"{key}={_written(value)}" for key, value in given.items())


def _written(value: object) -> str:
    if value is True:
        return "1"
    if isinstance(value, tuple):
        return "-".join(str(part) for part in value if part is not None)
    raw = str(value).encode("utf-8", "surrogateescape")
    unsafe = re.compile(f"[^{RECORD_SAFE}]".encode())
    return unsafe.sub(lambda m: b"%%%02X" % m[0][0], raw).decode("ascii")


@settings(deadline=None)
@given(requests)
def test_python_round_trip(request: OriginalRequest) -> None:
    line = encode(request)
    assert parse(line) == request
    assert line.isascii()
    assert not set(line) & set(" \t\r\n\"'")


@given(st.text())
def test_parse_never_raises(line: str) -> None:
    parse(line)
    parse(RECORD_VERSION + line)


@pytest.mark.parametrize(
    "line",
    [
        None,
        "",
        "cost centre 7",
        "gpuaware/2;tn=gres/gpu:1",
        "gpuaware/1;tn",
        "gpuaware/1;tn=a b",
        "gpuaware/1;tn=%zz",
        "gpuaware/1;nt=four",
        "gpuaware/1;nn=2-",
        "gpuaware/1;ex=0",
        "gpuaware/1;nt=1;nt=2",
    ],
)
def test_not_a_record(line: str | None) -> None:
    assert parse(line) is None


def test_keys_of_others_are_skipped() -> None:
    line = "gpuaware/1;tn=gres/gpu:2;sel=released:0:1790000000;zz=%20"
    assert parse(line) == OriginalRequest(tres_per_node="gres/gpu:2")


def test_ours_by_prefix_of_any_version() -> None:
    assert is_ours("gpuaware/2;x=1")
    assert not is_ours("my gpuaware/1;")
    assert not is_ours(None)


@pytest.fixture(scope="module")
def lua_filter(tmp_path_factory: pytest.TempPathFactory) -> Filter:
    folder: Path = tmp_path_factory.mktemp("filter")
    install(folder, CONF.format(submit_file="/nonexistent", more="max_cpus_per_node = nil"))
    return Filter(folder)


fields = st.fixed_dictionaries(
    {"tres_per_node": st.sampled_from(["gres/gpu:1", "gres/gpu:4", "gres/gpu"])},
    optional={
        "min_nodes": st.integers(1, 64),
        "num_tasks": st.integers(0, 9999),
        "cpus_per_task": st.integers(1, 64),
        "ntasks_per_node": st.integers(1, 64),
        "min_cpus": count,
        "exc_nodes": names,
        "licenses": names,
        "tres_freq": text,
        "tres_bind": text,
        "mem_per_tres": text,
        "admin_comment": text,
        "script": st.just("#!/bin/sh"),
        "comment": st.sampled_from(["place=off", "class=A", "see wiki"]),
        "contiguous": st.just(1),
        "req_nodes": names | st.just("n" * 1000),
    },
)


@settings(max_examples=300, deadline=None)
@given(fields)
def test_python_reads_what_lua_writes(lua_filter: Filter, fields: dict[str, Any]) -> None:
    out = lua_filter.submit(**{"script": None, **fields})
    unread = ("script", "min_nodes", "comment", "contiguous")
    expected = {k: v for k, v in fields.items() if k not in unread}
    site = expected.pop("admin_comment", None)
    least = fields.get("min_nodes")
    tasks, per_node = fields.get("num_tasks", 0), fields.get("ntasks_per_node", 1)
    left = None
    if fields.get("comment") == "place=off":
        left = "place=off"
    elif "contiguous" in fields:
        left = "--contiguous"
    elif tasks % per_node:
        left = "--ntasks that is no multiple of --ntasks-per-node"
    record = parse(out.job["admin_comment"])
    assert record is not None
    interactive = "script" not in fields
    if len(fields.get("req_nodes", "")) == 1000:
        too_long = left or "a request too long to be recorded"
        assert record == OriginalRequest(
            left=too_long, partial=True, interactive=interactive, admin_comment=site
        )
    else:
        assert record == OriginalRequest(
            **expected,
            nodes=(least, None) if least else None,
            interactive=interactive,
            admin_comment=site,
            left=left,
        )
    assert encode(record) == out.job["admin_comment"]
    assert "gpuaware:1" in out.job["licenses"]
