"""Fixtures: the filter in a folder of its own, under each Lua that sites have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from luafilter import CONF, LUA, RUNTIMES, Filter, MakeFilter


@pytest.fixture
def make_filter(tmp_path: Path) -> MakeFilter:
    """Copy the filter into a folder with a configuration (``conf=None``: none) and load it."""

    def make(version: str = "5.1", conf: str | None = CONF, more: str = "") -> Filter:
        shutil.copy(LUA / "gpu_aware.lua", tmp_path)
        if conf is not None:
            text = conf.format(submit_file=tmp_path / "submitted", more=more)
            (tmp_path / "gpu_aware_conf.lua").write_text(text)
        return Filter(tmp_path, version)

    return make


@pytest.fixture(params=list(RUNTIMES))
def filter_(request: pytest.FixtureRequest, make_filter: MakeFilter) -> Filter:
    """The filter under each Lua that sites have."""
    return make_filter(request.param)
