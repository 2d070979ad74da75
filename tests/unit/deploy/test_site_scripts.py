"""Lines of a site's own scripts that run ours: found, and taken out again."""

from pathlib import Path

import pytest

from slurm_gpu_aware.deploy.files import OWN_FILTER, shipped
from slurm_gpu_aware.deploy.site_scripts import (
    calls,
    hook_line,
    join_lines,
    joins_too_late,
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


JOIN = "".join(f"{line}\n" for line in join_lines(Path("/x")))
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
    assert (loads_filter(text), joins_too_late(text)) == (loads, late)
