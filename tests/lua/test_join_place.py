"""Where join() stands in a site's script, as we read it and as Lua runs it."""

from itertools import product
from pathlib import Path

import pytest
from luafilter import RUNTIMES

from slurm_gpu_aware.deploy.site_scripts import join_fault, join_lines, loads_filter

NOISE = (
    "-- function f( if do repeat\n",
    "--[[ function f()\n]] local a = 1 --[==[ end ]] end ]==]\n",
    "local s = 'function ' .. \"end -- [[ \\\" function\" .. '\\'--[['\n",
    "local s = [[ function\n ]] .. [=[]]]=] .. [==[ ]=]function]==]\n",
    "local s = 'of two \\\nlines function'\n",
    "for i = 1, 2 do if i == 1 then s = i elseif i == 2 then s = 0 else s = 1 end end\n",
    "local f = function(...) while true do if ... then return 1 end break end end f()\n",
    "repeat local function g() return function() end end until g\n",
    "local util = {} function util.join(t) return t end local x = util.join({}) x = #x\n",
    "local functional, ending, redo, _if, until_ = 1, 2, 3, 4, 5\n",
    "local t = { ['end'] = function() end, f = function() return 1 end; [1] = [[end]] }\n",
)
PLACES = (
    "{}",
    "do\n{}end\n",
    "if true then\n{}end\n",
    "repeat\n{}until true\n",
    "for _ = 1, 1 do\n{}end\n",
    "while true do\n{}break end\n",
    "pcall(function()\n{}end)\n",
    "xpcall(function()\n{}end, print)\n",
    "local set_up = (function()\n{}end)()\n",
    "function slurm_job_submit()\n{}end\n",
    "local function set_up()\n{}end\n",
    "slurm_job_modify = function()\n if true then\n{} end end\n",
    "local hooks = {{ later = function()\n{}end }}\n",
    "call_later(function()\n{}end)\n",
    "--[[\n{}]]\n",
    "--[==[ ]]\n{}]==]\n",
    "local text = [[\n{}]]\n",
)


@pytest.mark.parametrize("version", ["5.1", "5.4"])
@pytest.mark.parametrize("place", PLACES)
def test_as_lua_runs_it(place: str, version: str) -> None:
    lines = "".join(f"{line}\n" for line in join_lines(Path("/etc/slurm")))
    for before, after in product(NOISE, NOISE):
        script = before + place.format(lines) + after
        lua = RUNTIMES[version]()
        lua.execute(
            "joined = 0 function dofile() return {join = function() joined = joined + 1 end} end"
            " function call_later() end"
        )
        lua.execute(script)
        joined = lua.globals().joined > 0
        assert (loads_filter(script), script) == (joined, script)
        if joined or place.startswith(("--", "local text")):
            assert join_fault(script) == ""
        else:
            assert "inside a function" in join_fault(script)
