"""Lines of a site's own scripts that run ours: found, and taken out again."""

from pathlib import Path

import pytest

from slurm_gpu_aware.deploy.files import OWN_FILTER, shipped, shipped_lua
from slurm_gpu_aware.deploy.site_scripts import (
    calls,
    hook_line,
    join_fault,
    join_lines,
    loads_cli_filter,
    loads_filter,
    names_us,
    read_script,
    without_calls,
    without_join,
)

HOOK = Path("/etc/slurm/epilog.d/50-gpu-aware")
POOL = Path("/etc/slurm/resv.d/50-gpu-aware-pool")


@pytest.mark.parametrize(
    "line",
    [
        hook_line(HOOK),
        str(HOOK),
        f"  {HOOK} || true",
        f'"{HOOK}" "$@"',
        "for file in /etc/slurm/epilog.d/*; do $file; done",
        "run-parts /etc/slurm/epilog.d",
    ],
)
def test_a_call_is_found(line: str):
    assert calls(f"#!/bin/sh\n{line}\nexit 0\n", HOOK)


@pytest.mark.parametrize("line", ["", f"# {HOOK}", f"true # {HOOK}", "/etc/slurm/prolog.d/50-x"])
def test_no_call_is_found(line: str):
    assert not calls(f"#!/bin/sh\n{line}\nexit 0\n", HOOK)


@pytest.mark.parametrize("script", [HOOK, POOL])
def test_the_line_of_the_guide_is_taken_out(script: Path):
    before = "#!/bin/sh\nsite\nexit 0\n"
    after = before.replace("exit", f"{hook_line(script)}\nexit")
    assert names_us(after, ".sh") == []
    assert without_calls(after) == before


def test_lines_of_another_form_are_named_by_their_numbers():
    text = f"#!/bin/sh\n{hook_line(HOOK)}\nnice {HOOK}\n# gpu-aware\n"
    assert names_us(text, ".sh") == [3]
    assert without_calls(text) == f"#!/bin/sh\nnice {HOOK}\n# gpu-aware\n"


def test_the_join_is_taken_out_of_the_sites_lua():
    before = "--[[ gpu_aware\n]]\nfunction slurm_job_submit() end -- gpu_aware\nreturn 0\n"
    lines = "\n".join(join_lines(Path("/etc/slurm")))
    assert without_join(before.replace("return 0", f"{lines}\nreturn 0")) == before
    assert names_us(before, ".lua") == []
    assert names_us(f'{before}dofile("/etc/slurm/gpu_aware.lua")\n', ".lua") == [5]


def test_our_own_filter_passes_jobs_without_its_join():
    text = next(path for path in shipped("lua") if path.name == OWN_FILTER).read_text()
    rest = without_join(text)
    assert "gpu_aware.join" not in rest
    assert "function slurm_job_submit()" in rest
    assert rest.endswith("return slurm.SUCCESS\n")
    assert names_us(text, ".lua") == []


def test_a_file_too_long_for_a_script_is_not_read(tmp_path: Path):
    (tmp_path / "big").write_bytes(b"x" * (1 << 21))
    assert read_script(tmp_path / "big") is None
    assert read_script(tmp_path / "absent") is None


JOIN = "\n".join(join_lines(Path("/etc/slurm"))) + "\n"
CLI = 'pcall(dofile, "/etc/slurm/gpu_aware_cli_filter.lua")\n'
OWN = """local function check(job_desc) return slurm.SUCCESS end

function slurm_job_submit(job_desc, part_list, submit_uid)
    for i = 1, 2 do if i == 1 then check() elseif i == 2 then check() else check() end end
    repeat local text = "]] end -- '" until true
    return check(job_desc)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    while false do end
    return check(job_desc)
end
"""
LAST_RETURN = "    return check(job_desc)\nend\n"
"""Of the script without a return of its own: it stands in slurm_job_modify."""


@pytest.mark.parametrize(
    "text",
    [
        OWN + JOIN,
        OWN + JOIN + "return slurm.SUCCESS\n",
        OWN + "rules = '--[['\n" + JOIN,
        OWN + 'rules = "\\"--[["\n' + JOIN,
        OWN + 'dofile("/etc/slurm/gpu_aware.lua").join()\n',
        OWN + 'pcall(function() dofile("/etc/slurm/gpu_aware.lua").join() end)\n',
        OWN + JOIN + "if slurm_job_modify == nil then error() end\n",
        OWN + f"(function()\n{JOIN}end)()\n",
        f"local function list(t) return names.join(t) end\n{OWN}{JOIN}",
        OWN
        + JOIN
        + "local ours = slurm_job_modify\nfunction slurm_job_modify(...) return ours(...) end\n",
    ],
)
def test_a_script_that_joins_when_it_is_loaded(text: str):
    assert loads_filter(text)
    assert join_fault(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        OWN,
        OWN + "".join(f"-- {line}\n" for line in JOIN.splitlines()),
        f"{OWN}--[==[ ]]\n{JOIN}]==]\n",
        f"{OWN}local text = [[\n{JOIN}]]\n",
        f"{OWN}local gpu_aware = 'join()'\n",
        "function list(t) return names.join(t) .. util.join() end\n" + OWN,
        "local gpu_aware = 1 names.join(gpu_aware)\n" + OWN,
        "local gpu_aware = {} function gpu_aware.join(t) end\n" + OWN,
    ],
)
def test_a_join_in_a_comment_or_a_string_is_none(text: str):
    assert not loads_filter(text)
    assert join_fault(text) == ""


def test_a_join_inside_a_function_has_no_effect_when_the_script_is_loaded():
    inside = OWN.removesuffix(LAST_RETURN) + JOIN + LAST_RETURN
    assert "inside a function" in join_fault(inside)
    assert not loads_filter(inside)


def test_a_function_after_the_join_replaces_what_was_joined():
    assert "defines slurm_job_submit after join()" in join_fault(JOIN + OWN)
    assert "slurm_job_modify" in join_fault(JOIN + "slurm_job_modify = function() end\n")
    assert not loads_filter(JOIN + OWN)


def test_a_long_bracket_without_an_end_takes_no_quadratic_time():
    assert not loads_filter("[[" * 250_000 + "--[=[" * 100_000 + JOIN)


CHECK = "local function check(j)\n  if j then return slurm.SUCCESS end\nend\n"


@pytest.mark.parametrize(
    ("text", "loads", "late"),
    [
        (CHECK + JOIN, True, False),
        (CHECK + JOIN + "return slurm.SUCCESS\n", True, False),
        (f"function slurm_job_modify(j)\n{JOIN}  return check(j)\nend\n", False, True),
        (f"x = function()\n for i = 1, 2 do\n{JOIN} end\nend\n{JOIN}", True, False),
        (f"repeat\n f()\nuntil true\nwhile a do b() end\n{JOIN}", True, False),
        (
            "-- function\n--[[ function f( ]]\ns = 'function ' .. \"end\" .. [[ end ]]\n" + JOIN,
            True,
            False,
        ),
        ("s = '--'; function f()\n" + JOIN + "end\n", False, True),
        ("--[==[\n" + JOIN + "]==]\n", False, False),
        ('log("gpu_aware.join()")\n', False, False),
        ("", False, False),
    ],
)
def test_where_the_filter_is_joined(text: str, loads: bool, late: bool) -> None:
    assert (loads_filter(text), "inside a function" in join_fault(text)) == (loads, late)


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        (OWN + CLI, True),
        (shipped_lua("gpu_aware_cli_filter.lua"), True),
        (OWN + shipped_lua("gpu_aware_cli_filter.lua"), True),
        (OWN + "dofile(here .. 'gpu_aware_cli_filter.lua')\n", True),
        (OWN + CLI + "return slurm.SUCCESS\n", True),
        (OWN.removesuffix(LAST_RETURN) + CLI + LAST_RETURN, False),
        (OWN + "-- " + CLI, False),
        (OWN + f"--[[\n{CLI}]]\n", False),
        (OWN, False),
    ],
)
def test_where_the_filter_of_commands_is_loaded(text: str, loads: bool) -> None:
    """In a function it would replace the functions of Slurm's commands only once they are asked."""
    assert loads_cli_filter(text) == loads
