"""What several unit tests start from."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import build_library
from slurm_folder import SlurmFolder

from slurm_gpu_aware.features.models import site_models
from slurm_gpu_aware.features.models.performance_model import PerformanceModel
from slurm_gpu_aware.store.database import Store, open_store

MEMORY = Path("/dev/shm")
LEAST_BYTES = 1 << 30


def _runs_programs(folder: Path) -> bool:
    """Whether a folder has room for the files of tests, and may hold programs."""
    return (
        os.access(folder, os.W_OK)
        and not os.statvfs(folder).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(folder).free >= LEAST_BYTES
    )


# A round of the selector syncs its files ten times: on a disk it takes nine times as long
if _runs_programs(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="session", autouse=True)
def kept_fits() -> Iterator[None]:
    """The models of a site are fitted once to the same samples: it takes a second."""
    fit_model, found = site_models.fit_model, dict[str, PerformanceModel]()

    def fit(*args: Any, **more: Any) -> PerformanceModel:
        key = repr((args, more))
        if key not in found:
            found[key] = fit_model(*args, **more)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_models, "fit_model", fit)
        yield


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmFolder:
    """A small Slurm of our own, which all of this process finds."""
    slurm = SlurmFolder(tmp_path)
    slurm.serve(monkeypatch)
    return slurm


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake NVML."""
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of the configuration that commands find; it is not there yet."""
    path = tmp_path / "store.db"
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\npath = "{path}"\n')
    monkeypatch.setenv("GPU_AWARE_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    return path
