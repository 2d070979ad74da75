"""--test-only: the mark that Slurm's commands set, and what the filter makes of it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from luafilter import ERROR, LUA, OPERATOR, RUNTIMES, SUCCESS, Filter

from slurm_gpu_aware.filter_rules import TEST_MARK

OURS = LUA / "gpu_aware_cli_filter.lua"
NODE = {"tres_per_node": "gres/gpu:2"}
SITES_OWN = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
    if options["account"] == "closed" then return slurm.ERROR end
    if options["account"] == "broken" then error("the site's own mistake") end
    options["comment"] = "by the site"
    return slurm.SUCCESS
end
function slurm_cli_post_submit() called = true return slurm.SUCCESS end
{lines}
return slurm.SUCCESS
"""
# As cli_filter_lua.c pushes options: an empty table whose fields live behind its metatable.
OPTIONS = b"""
slurm = { SUCCESS = 0, ERROR = -1 }
return function(values)
    return setmetatable({}, {
        __index = function(_, name) return values[name] end,
        __newindex = function(_, name, value) values[name] = value end,
    })
end
"""


class Client:
    """cli_filter.lua in sbatch or srun."""

    def __init__(self, script: Path, version: str) -> None:
        self.lua: Any = RUNTIMES[version](encoding=None, unpack_returned_tuples=True)
        self.options = self.lua.execute(OPTIONS)
        assert self.lua.eval(b"dofile")(str(script).encode()) == SUCCESS

    def pre_submit(self, given: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
        values = self.lua.table_from({k.encode(): v.encode() for k, v in given.items()})
        result = self.lua.globals()[b"slurm_cli_pre_submit"](self.options(values), 0)
        return result, {k.decode(): v.decode() for k, v in values.items()}


@pytest.fixture(params=list(RUNTIMES))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, TEST_MARK),
        ("", TEST_MARK),
        ("class=A,bw=high", f"class=A,bw=high {TEST_MARK}"),
        ("run 7 gpu:class=A", f"run 7 gpu:class=A {TEST_MARK}"),
        ("x" * 1010, f"{'x' * 1010} {TEST_MARK}"),
        ("x" * 1011, TEST_MARK),
        ("x" * 1025, "x" * 1025),
    ],
)
def test_a_test_gets_the_mark(version: str, before: str | None, after: str) -> None:
    """Within Slurm's limit; Slurm itself refuses a longer comment."""
    client = Client(OURS, version)
    given = {"test-only": "set", **({} if before is None else {"comment": before})}
    assert client.pre_submit(given) == (SUCCESS, {**given, "comment": after})


@pytest.mark.parametrize("value", [{}, {"test-only": "unset"}, {"test-only": "invalid-context"}])
def test_a_submission_stays_as_it_is(version: str, value: dict[str, str]) -> None:
    given = {"comment": "class=A", **value}
    assert Client(OURS, version).pre_submit(given) == (SUCCESS, given)


@pytest.fixture
def both(tmp_path: Path, version: str) -> Client:
    """A site's own script that loads ours, as the head of our file says."""
    (line,) = re.findall(r"^ +(pcall\(dofile, .*\))$", OURS.read_text(), re.M)
    script = tmp_path / "cli_filter.lua"
    script.write_text(SITES_OWN.replace("{lines}", line.replace("/etc/slurm", str(LUA))))
    return Client(script, version)


def test_a_sites_own_script_goes_first(both: Client) -> None:
    result, values = both.pre_submit({"test-only": "set"})
    assert (result, values["comment"]) == (SUCCESS, f"by the site {TEST_MARK}")
    assert both.pre_submit({"account": "closed", "test-only": "set"})[0] == ERROR
    assert both.pre_submit({})[1]["comment"] == "by the site"
    with pytest.raises(Exception, match="the site's own mistake"):
        both.pre_submit({"account": "broken"})
    both.lua.globals()[b"slurm_cli_post_submit"](0, 1, 2)
    assert both.lua.globals()[b"called"] is True


def test_a_sites_own_script_does_not_need_ours(tmp_path: Path, version: str) -> None:
    script = tmp_path / "cli_filter.lua"
    script.write_text(SITES_OWN.replace("{lines}", 'pcall(dofile, "/nowhere/ours.lua")'))
    assert Client(script, version).pre_submit({})[0] == SUCCESS


@pytest.mark.parametrize("before", [None, "class=A", "run 7 gpu:class=A", "my own text"])
def test_a_marked_job_is_not_parked_and_nothing_is_said(
    filter_: Filter, before: str | None
) -> None:
    """It is held, as a user may have typed the mark in a submission."""
    comment = f"{before} {TEST_MARK}" if before else TEST_MARK
    out = filter_.submit(**NODE, comment=comment)
    assert (out.rc, out.written, out.messages, out.log) == (SUCCESS, ["priority"], [], [])
    assert out.job["priority"] == 0
    assert "licenses" in filter_.submit(**NODE, comment=before).written


@pytest.mark.parametrize("change", [{"priority": 0xFFFFFFFF}, {"comment": "my own text"}])
def test_a_marked_job_is_not_released(filter_: Filter, change: dict[str, Any]) -> None:
    held = {"job_state": 0, "comment": f"x {TEST_MARK}", "priority": 0, **NODE}
    out = filter_.modify(held, **change)
    assert (out.rc, out.written) == (ERROR, [])
    assert "cancel it and submit it again without" in out.messages[0]
    assert filter_.modify(held, uid=OPERATOR, **change).rc == SUCCESS
    assert filter_.modify({**held, "job_state": 1}, **change).rc == SUCCESS


@pytest.mark.parametrize("state", [0, 1], ids=["pending", "running"])
@pytest.mark.parametrize("comment", [TEST_MARK, f"class=A {TEST_MARK}"])
def test_no_update_makes_a_test_of_a_job(filter_: Filter, comment: str, state: int) -> None:
    job = {"job_state": state, "licenses": "gpuaware", "admin_comment": "gpuaware/1;tn=gpu:2"}
    out = filter_.modify({**job, **NODE}, comment=comment)
    assert (out.rc, out.written) == (ERROR, [])
    assert "is for --test-only" in out.messages[0]
    assert filter_.modify({**job, **NODE}, uid=OPERATOR, comment=comment).rc == SUCCESS


@pytest.mark.parametrize(
    "fields",
    [
        {"licenses": "gpuaware", "admin_comment": "gpuaware/1;tn=gres/gpu:2"},
        {"admin_comment": "gpuaware/1;tn=gres/gpu:2;sel=left:0:1790000000"},
        {"het_job_id": 7, "het_job_offset": 1},
    ],
    ids=["parked", "opened", "later component"],
)
def test_a_mark_that_an_operator_set_holds_no_job(filter_: Filter, fields: dict[str, Any]) -> None:
    job = {"job_state": 0, "comment": TEST_MARK, "priority": 0, **NODE, **fields}
    assert filter_.modify(job, priority=0xFFFFFFFF).rc == SUCCESS


def test_a_marked_job_hears_what_a_submission_would(filter_: Filter) -> None:
    wrong = filter_.submit(**NODE, comment=f"class=D {TEST_MARK}")
    assert (wrong.rc, len(wrong.messages)) == (ERROR, 1)
    assert "class=D is not valid" in wrong.messages[0]
    by_variable = filter_.submit(**NODE, comment=TEST_MARK, environment={"GPU_AWARE": "class=D"})
    assert by_variable.rc == ERROR
    unread = filter_.submit(**NODE, comment=f"class=A, run 7 {TEST_MARK}")
    assert (unread.rc, unread.written) == (SUCCESS, ["priority"])
    assert "gpu:class=A" in unread.messages[0]
    left = filter_.submit(tres_per_node="gres/gpu:1,gres/shard:4", comment=TEST_MARK)
    assert ("shards" in left.messages[0], left.job["priority"]) == (True, 0)
    passes = filter_.submit(**NODE, licenses="a|b", comment=TEST_MARK)
    assert passes.job["priority"] == 0
    assert filter_.submit(tres_per_node="gres/gpu:g1:1", comment=TEST_MARK).rc == ERROR


def test_a_marked_model_becomes_a_feature(filter_: Filter) -> None:
    out = filter_.submit(tres_per_node="gres/gpu:a100:2", comment=TEST_MARK)
    assert (out.job["tres_per_node"], out.job["features"]) == ("gres/gpu:2", "gpu_a100")
    assert "licenses" not in out.written


@pytest.mark.parametrize("comment", [f"x{TEST_MARK}", f"{TEST_MARK} more", "gpu:test-onl"])
def test_only_the_whole_mark_at_the_end_counts(filter_: Filter, comment: str) -> None:
    assert "licenses" in filter_.submit(**NODE, comment=comment).written


def test_both_files_have_the_same_mark() -> None:
    assert f'local MARK = "{TEST_MARK}"' in OURS.read_text()
