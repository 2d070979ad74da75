"""Fixtures: an import of measurements into the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_aware_profile.cli import cli


@pytest.fixture
def run_import(store_path: Path) -> Callable[..., Result]:
    """Run ``gpu-aware-profile import`` with options and a text on stdin."""
    return lambda *args, text=None: CliRunner().invoke(cli, ["import", *args], input=text)
