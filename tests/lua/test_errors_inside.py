"""Whatever breaks inside: the job goes on as if we were not there, and the log says why."""

import os
from pathlib import Path
from typing import Any

import pytest
from luafilter import CONF, ERROR, SUCCESS, Filter, MakeFilter

NODE: dict[str, Any] = {"tres_per_node": "gres/gpu:a100:2", "licenses": "matlab:1"}
RECORD = {"licenses": "gpuaware:1"}

BROKEN = {
    "missing": None,
    "syntax": "return {{",
    "no table": "return 7",
    "raises": "error('no')",
    "calls": "os.exit(3)",
    "no classes": "return {{}}",
    "empty classes": "return {{ classes = {{}} }}",
    "class no name": "return {{ classes = {{'A B'}} }}",
    "class a number": "return {{ classes = {{1}} }}",
    "policies": "return {{ classes = {{'A'}}, policies = 'pal' }}",
    "licence": "return {{ classes = {{'A'}}, licence = 'a:b' }}",
    "submit_file": "return {{ classes = {{'A'}}, submit_file = 'relative' }}",
    "models": "return {{ classes = {{'A'}}, models = {{'A100'}} }}",
    "model is an index": "return {{ classes = {{'A'}}, models = {{'g1'}} }}",
    "widest": "return {{ classes = {{'A'}}, max_gpus_per_node = 0 }}",
    "cpus": "return {{ classes = {{'A'}}, max_cpus_per_node = 'many' }}",
    "memory": "return {{ classes = {{'A'}}, max_memory_mb_per_node = 0 }}",
    "operators": "return {{ classes = {{'A'}}, operators = {{'root'}} }}",
    "operators no list": "return {{ classes = {{'A'}}, operators = 7 }}",
    "byte code": "\x1bLua garbage",
}


@pytest.mark.parametrize("version", ["5.1", "5.4"])
@pytest.mark.parametrize("conf", BROKEN.values(), ids=BROKEN.keys())
def test_broken_configuration(make_filter: MakeFilter, conf: str | None, version: str) -> None:
    filter_ = make_filter(version, conf)
    assert any(b"pass unmodified" in line for line in filter_.harness[b"log"].values())
    out = filter_.submit(**NODE)
    assert (out.rc, out.written, out.messages) == (SUCCESS, [], [])
    assert "passes unmodified" in out.log[0]
    assert "gpu_aware_conf.lua" in out.log[0]
    assert filter_.modify(RECORD, licenses="").rc == SUCCESS


@pytest.mark.parametrize("field", ["licenses", "admin_comment", "tres_per_node", "features"])
def test_no_field_stays_changed_if_one_cannot_be_set(filter_: Filter, field: str) -> None:
    out = filter_.submit(fail_at=field, environment={"SLURM_GPUS": "a100:2"}, **NODE)
    assert out.rc == SUCCESS
    assert out.job == {**NODE, "script": "#!/bin/sh\n"}
    assert out.environment == {"SLURM_GPUS": "a100:2"}
    assert "passes unmodified" in out.log[0]


@pytest.mark.parametrize("name", ["string", "table", "math", "io", "ipairs", "pairs", "tonumber"])
def test_a_library_is_gone(filter_: Filter, name: str) -> None:
    filter_.lua.globals()[name.encode()] = None
    out = filter_.submit(**NODE, comment="class=A,gpus=2")
    assert out.rc == SUCCESS
    assert len(out.written) in (0, 4)
    assert filter_.modify(RECORD, time_limit=3).rc == SUCCESS


@pytest.mark.parametrize("name", ["log_user", "user_msg", "log_error", "error", "SUCCESS"])
def test_a_slurm_function_is_gone(filter_: Filter, name: str) -> None:
    filter_.lua.globals()[b"slurm"][name.encode()] = None
    assert filter_.submit(**NODE).rc == SUCCESS
    out = filter_.submit(**NODE, comment="class=D")
    assert out.rc == ERROR
    assert out.messages or name == "user_msg"
    filter_.module[b"conf"] = None
    assert filter_.submit(**NODE).rc == SUCCESS


def test_slurm_itself_is_gone(filter_: Filter) -> None:
    filter_.lua.globals()[b"slurm"] = None
    out = filter_.submit(**NODE)
    assert out.rc == SUCCESS
    assert filter_.modify(RECORD, time_limit=3).rc == SUCCESS


@pytest.mark.parametrize("function", ["submit", "modify"])
@pytest.mark.parametrize("job", [b"no table", 7, None])
def test_nonsense_instead_of_a_job(filter_: Filter, function: str, job: Any) -> None:
    assert filter_.module[function.encode()](job, job, None, 1000) == SUCCESS


@pytest.mark.parametrize(
    ("field", "value"), [("tres_per_node", 7), ("comment", 7), ("min_nodes", "two"), ("script", 1)]
)
def test_fields_of_another_type(filter_: Filter, field: str, value: Any) -> None:
    assert filter_.submit(**{**NODE, field: value}).rc == SUCCESS


@pytest.mark.parametrize("kind", ["fifo", "directory", "no folder", "device"])
def test_event_file_is_no_regular_file(filter_: Filter, tmp_path: Path, kind: str) -> None:
    """A FIFO without a reader would block open(..., "a") and with it slurmctld."""
    path = tmp_path / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/full")
    else:
        path = path / "below"
    filter_.module[b"conf"][b"submit_file"] = str(path).encode()
    out = filter_.submit(**NODE)
    assert (out.rc, out.log) == (SUCCESS, [])
    assert out.job["licenses"] == "matlab:1,gpuaware:1"


def test_configuration_cannot_call_anything(make_filter: MakeFilter, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    filter_ = make_filter(conf=f"io.open('{trap}', 'w'); " + CONF)
    assert not trap.exists()
    assert filter_.submit(**NODE).written == []
