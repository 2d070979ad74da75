"""A site whose store has a model of ``net``."""

import shutil
from pathlib import Path

import pytest
from slurm_folder import SlurmFolder
from store_samples import fit_models, ingest, put_net, report

from slurm_gpu_aware.store.database import open_store


@pytest.fixture(scope="session")
def net_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which ``net`` has a model: each doubling of its GPUs almost halves its time."""
    path = tmp_path_factory.mktemp("fitted") / "store.db"
    with open_store(path) as store:
        for node in ("n1", "n2"):
            ingest(store, report(node))
        put_net(store)
    fit_models(path)
    return path


@pytest.fixture
def net_site(slurm: SlurmFolder, net_store: Path) -> SlurmFolder:
    """A small Slurm beside that store."""
    shutil.copy(net_store, slurm.store)
    return slurm
