"""Fixtures: an import of measurements into the store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from commands import gpu_aware_profile, refusal, succeeded


@pytest.fixture
def run_import(store_path: Path) -> Callable[..., Result]:
    """Run ``gpu-aware-profile import`` with options and a text on stdin."""
    return lambda *args, text=None: gpu_aware_profile("import", *args, text=text)


@pytest.fixture
def imported(run_import: Callable[..., Result]) -> Callable[..., str]:
    """What an import says that must succeed."""

    return lambda *args, **text: succeeded(run_import(*args, **text)).stderr


@pytest.fixture
def refused(run_import: Callable[..., Result]) -> Callable[..., str]:
    """What an import says that must fail."""
    return lambda *args, **text: refusal(run_import(*args, **text))
