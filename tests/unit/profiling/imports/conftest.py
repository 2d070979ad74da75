"""Fixtures: an import of measurements into the store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from commands import gpu_aware_profile


@pytest.fixture
def run_import(store_path: Path) -> Callable[..., Result]:
    """Run ``gpu-aware-profile import`` with options and a text on stdin."""
    return lambda *args, text=None: gpu_aware_profile("import", *args, text=text)
