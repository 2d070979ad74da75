"""Lines of a site's own scripts that run ours: found, and taken out again."""

from pathlib import Path

import pytest
from cpu_time import least_cpu_s

from slurm_gpu_aware.deploy.files import OWN_FILTER, shipped, shipped_lua
from slurm_gpu_aware.deploy.site_scripts import (
    MAX_BYTES,
    calls,
    hook_line,
    join_fault,
    join_lines,
    loads_cli_filter,
    loads_filter,
    names_us,
    read_script,
    without_lines,
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
        "for file in /etc/slurm/epilog.d/[0-9]*; do $file; done",
        "run-parts /etc/slurm/epilog.d",
    ],
)
def test_a_call_is_found(line: str):
    assert calls(f"#!/bin/sh\n{line}\nexit 0\n", HOOK)


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"# {HOOK}",
        f"true # {HOOK}",
        "/etc/slurm/prolog.d/50-x",
        "for file in /etc/slurm/epilog.d/*.sh; do $file; done",
    ],
)
def test_no_call_is_found(line: str):
    assert not calls(f"#!/bin/sh\n{line}\nexit 0\n", HOOK)


LINE = hook_line(HOOK)


@pytest.mark.parametrize(
    "text",
    [
        f"log() {{\n    logger x\n}}\n{LINE}\nexit 0\n",
        f"ours() {{\n    {LINE}\n}}\nours\n",
        f"function ours\n{{\n{LINE}\n}}\nall() {{ ours; }}\ntrap all EXIT\n",
        f"if [ -z $1 ]; then\n    echo done\n    exit 0\nfi\n{LINE}\n",
        f"case $1 in\n  a) true;;\n  b)\n    exit 0 ;;\nesac\n{LINE}\n",
        f"[ -n a ] ||\n    exit 0\n(\n    exit 0\n)\n{{ true && {{\nexit 1\n}}; }}\n{LINE}\n",
        f"[ -n a ] || \\\n    exit 0\n# not \\\n{LINE}\n",
        f"awk '\n  {{ exit }}\nexit 0\n' /x\nlogger \"job # 1\"\necho don\\'t\n{LINE}\n",
        f"cat <<EOF\ndon't\nEOF\n# as with cat <<END\n{LINE}\ncat <<-'END'\n\tx\n\tEND\n",
        f"x=$((1 << y)); read z <<<EOF\n{LINE}\nEOF\n",
        f"if false; then\n    true\nelse\n    {LINE}\nfi\n",
        f"if false || true; then {LINE}; fi\n",
        f'echo "$(ours)"\nours() {{\n    {LINE}\n}}\n',
        f"exit_code=0\n{LINE}\nexit $exit_code",
        f"if site; then log; exit 0; fi\n{LINE}\n",
        f"[ -n a ] && {{ log; exit 0; }}\n{LINE}\n",
        f"fi\n}}\n)\ndone\nelse\n{LINE}\n",
        f'f() {{\n  x="$(sed "s \' {{" y)"\n}}\n# isn\'t\n{LINE}\n',
        f'f() {{\n  x="$(sed "s \' {{" $(y))"\n}}\n# isn\'t\n{LINE}\n',
    ],
)
def test_a_call_that_runs(text: str):
    assert calls(f"#!/bin/bash\n{text}", HOOK)


@pytest.mark.parametrize(
    "text",
    [
        f"site\nexit 0\n{LINE}\n",
        f"site; exit 0\n{LINE}\n",
        f"if [ -n a ]; then\n    site\nfi\n    exit $?\nif true; then\n{LINE}\nfi\n",
        f"cat <<EOF\n{LINE}\nEOF\n",
        f": <<- 'EOF'; cat <<B\n{LINE}\n\tEOF\n{LINE}\nB\n",
        f"ours() {{\n    {LINE}\n}}\nsite\n",
        f"ours()\n{{\n    {LINE}\n    ours\n}}\nall() {{ ours; }}\n",
        f"ours() {{\nif false; then\n true\nfi\n    exit 0\n    {LINE}\n}}\nours\n",
        f"if false; then\n    if true; then {LINE}; fi\nfi\n",
        f"if false\nthen\n    {LINE}\nfi\n",
        f"echo '{LINE}'\nprintf >&2 \"%s\" {HOOK}\n",
        f"[ -x {HOOK} ] && site\n",
    ],
)
def test_a_call_that_never_runs(text: str):
    assert not calls(f"#!/bin/sh\n{text}", HOOK)


def test_a_shell_script_with_ends_of_line_of_another_system_runs_nothing():
    assert not calls(f"#!/bin/sh\r\n{LINE}\r\n", HOOK)


def test_a_script_in_another_language_is_not_read_as_shell():
    text = f"#!/usr/bin/python3\nif x:\n    exit(0)\nsubprocess.run(['{HOOK}'])\n"
    assert calls(text, HOOK)


def test_a_line_in_a_block_leaves_no_empty_block():
    """Each epilog failed by its syntax, and Slurm drained the nodes."""
    text = f"#!/bin/sh\nif true; then\n    {LINE}\nfi\n"
    assert without_lines(text, ".sh") == "#!/bin/sh\nif true; then\n    :\nfi\n"


@pytest.mark.parametrize("script", [HOOK, POOL])
def test_the_line_of_the_guide_is_taken_out(script: Path):
    before = "#!/bin/sh\nsite\nexit 0\n"
    after = before.replace("exit", f"{hook_line(script)}\nexit")
    assert names_us(after, ".sh") == []
    assert without_lines(after, ".sh") == before


def test_lines_of_another_form_are_named_by_their_numbers():
    text = f"#!/bin/sh\n{hook_line(HOOK)}\nnice {HOOK}\n# gpu-aware\n"
    assert names_us(text, ".sh") == [3]
    assert without_lines(text, ".sh") == f"#!/bin/sh\nnice {HOOK}\n# gpu-aware\n"


def test_the_join_is_taken_out_of_the_sites_lua():
    before = "--[[ gpu_aware\n]]\nfunction slurm_job_submit() end -- gpu_aware\nreturn 0\n"
    lines = "\n".join(join_lines(Path("/etc/slurm")))
    assert without_lines(before.replace("return 0", f"{lines}\nreturn 0"), ".lua") == before
    assert names_us(before, ".lua") == []
    assert names_us(f'{before}dofile("/etc/slurm/gpu_aware.lua")\n', ".lua") == [5]


def test_only_our_own_lines_of_the_block_are_taken_out():
    """All lines up to an "end" at the start of a line went with it."""
    first, second = join_lines(Path("/etc/slurm"))
    block = f"  {first}\n  if loaded then\n    gpu_aware.join()\n  end\n"
    assert without_lines(f"do\n{block}  site()\nend\n", ".lua") == "do\n  site()\nend\n"
    text = f"{first}\nif loaded then\n    gpu_aware.join()\n    site()\nend\n"
    assert without_lines(text, ".lua") == text
    assert names_us(text, ".lua") == [1, 3]
    assert without_lines(f"site()\r\n{first}\r\n{second}\r\n", ".lua") == "site()\r\n"
    assert without_lines(f"site()\n{first}\n{second}", ".lua") == "site()\n"


def test_our_own_filter_passes_jobs_without_its_join():
    text = next(path for path in shipped("lua") if path.name == OWN_FILTER).read_text()
    rest = without_lines(text, ".lua")
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
        OWN + f"x = function()\n for i = 1, 2 do\n{JOIN} end\nend\n{JOIN}",
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


@pytest.mark.parametrize(
    "after",
    [
        '_G["slurm_job_submit"] = f\n',
        "_G.slurm_job_submit = f\n",
        "_ENV['slurm_job_submit'] = f\n",
        'rawset(_G, "slurm_job_submit", f)\n',
        "x, slurm_job_submit, y = 1, f, 2\n",
        "pcall(function() slurm_job_submit = f end)\n",
        "local t = { slurm_job_submit = f }\nif t then function slurm_job_submit() end end\n",
    ],
)
def test_what_replaces_a_joined_function(after: str):
    assert "defines slurm_job_submit after join()" in join_fault(OWN + JOIN + after)
    assert join_fault(OWN + JOIN + after + JOIN) == ""


@pytest.mark.parametrize(
    "after",
    [
        "local slurm_job_submit = f\n",
        "local x, slurm_job_submit = 1, f\nslurm_job_submit = g\n",
        "local function slurm_job_submit() end\n",
        "local t = { slurm_job_submit = f, 1 }\n",
        "t.slurm_job_submit = f\nfunction t.slurm_job_submit() end\n",
        "function t:slurm_job_submit() end\n",
        "t = { _G.slurm_job_submit == nil, slurm_job_submit ~= f }\n",
        "function later() slurm_job_submit = f end\n",
        "-- slurm_job_submit = f\nlocal s = 'slurm_job_submit = f'\n",
    ],
)
def test_what_leaves_a_joined_function(after: str):
    assert join_fault(OWN + JOIN + after) == ""
    assert loads_filter(OWN + JOIN + after)


@pytest.mark.parametrize(
    "before",
    ["return slurm.SUCCESS\n", "do return end\n", "do return slurm.SUCCESS end\nlocal x = 1\n"],
)
def test_a_join_below_a_return_has_no_effect(before: str):
    assert "below a return" in join_fault(OWN + before + JOIN)
    assert not loads_filter(OWN + before + JOIN)
    assert not loads_cli_filter(OWN + before + "local ours\n" + CLI)


def test_a_join_behind_a_false_condition_has_no_effect():
    assert not loads_filter(f"if false then\n{JOIN}end\n")
    assert loads_filter(f"if false then f() else\n{JOIN}end\n")
    assert loads_filter(f"if x then return end\nif nil then f() end\n{JOIN}return 0\n")


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"\xff\0" + (OWN + JOIN).replace("\n", "\r\n").encode().rstrip())
    text = read_script(tmp_path / "x")
    assert text is not None
    assert loads_filter(text)
    assert names_us(text, ".lua") == []
    (tmp_path / "y").write_bytes(f"#!/bin/sh\n: \xff\0\n{LINE}".encode("latin-1"))
    assert calls(read_script(tmp_path / "y") or "", HOOK)


@pytest.mark.parametrize(
    "piece",
    [
        f"{join_lines(Path('/x'))[0]}\nif loaded then\n",
        "[[",
        "--[=[",
        '\\"',
        "slurm_job_submit,",
        "do return ",
        "a() {\na\n}\n",
        "<<A\n",
        "(",
    ],
)
def test_a_script_of_any_form_is_read_in_linear_time(piece: str):
    """Each takes a second or two; one of them took 56 s, as its time grew with the square."""
    text = JOIN + '"' + piece * (MAX_BYTES // len(piece))

    def read() -> None:
        join_fault(text)
        without_lines(text, ".lua")
        calls(f"#!/bin/sh\n{piece * (MAX_BYTES // len(piece))}", HOOK)

    assert least_cpu_s(read, enough_s=20.0, tries=2) < 20.0


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
