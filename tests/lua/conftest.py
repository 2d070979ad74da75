"""Fixtures: the filter in a folder of its own, under each Lua that sites have."""

from pathlib import Path

import pytest
from luafilter import CONF, RUNTIMES, Filter, MakeFilter, install


@pytest.fixture
def make_filter(tmp_path: Path) -> MakeFilter:
    """Copy the filter into a folder with a configuration (``conf=None``: none) and load it."""

    def make(version: str = "5.1", conf: str | None = CONF, more: str = "") -> Filter:
        text = conf and conf.format(submit_file=tmp_path / "submitted", more=more)
        install(tmp_path, text)
        return Filter(tmp_path, version)

    return make


@pytest.fixture(params=list(RUNTIMES))
def filter_(request: pytest.FixtureRequest, make_filter: MakeFilter) -> Filter:
    """The filter under each Lua that sites have."""
    return make_filter(request.param)
