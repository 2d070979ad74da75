"""The pages of a site with racks, links, slow GPUs, jobs, and hostile texts."""

import time
from pathlib import Path

import pytest
from commands import gpu_aware
from page_samples import fill
from slurm_folder import SlurmFolder


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> SlurmFolder:
    """Slurm and the store of `page_samples`; nothing of it is changed."""
    found = SlurmFolder(tmp_path_factory.mktemp("site"))
    fill(found, time.time())
    return found


@pytest.fixture(name="site")
def page_site(filled: SlurmFolder, monkeypatch: pytest.MonkeyPatch) -> SlurmFolder:
    """The same, as the Slurm of this process."""
    filled.serve(monkeypatch)
    return filled


@pytest.fixture(scope="session")
def pages(filled: SlurmFolder) -> Path:
    """The folder that the command wrote."""
    folder = filled.home.parent / "pages"
    with pytest.MonkeyPatch.context() as patch:
        filled.serve(patch)
        done = gpu_aware("page", str(folder), config=filled.config)
    assert done.exit_code == 0, done.stderr
    return folder
