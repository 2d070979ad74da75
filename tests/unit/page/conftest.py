"""The pages of a site with racks, links, slow GPUs, jobs, and hostile texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import gpu_aware
from page_samples import fill
from slurm_folder import SlurmFolder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmFolder]:
    """Slurm and the store of `page_samples`; nothing of it is changed."""
    found = SlurmFolder(tmp_path_factory.mktemp("site"))
    with pytest.MonkeyPatch.context() as patch:
        found.serve(patch)
        fill(found, time.time())
        yield found


@pytest.fixture(scope="session")
def pages(site: SlurmFolder) -> Path:
    """The folder that the command wrote."""
    folder = site.home.parent / "pages"
    done = gpu_aware("page", str(folder), config=site.config)
    assert done.exit_code == 0, done.stderr
    return folder
