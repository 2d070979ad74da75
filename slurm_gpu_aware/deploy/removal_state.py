"""State of a removal that is under way: what it waits for, as doctor tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.store.ownership import REMOVAL_STATE


def _path(config: Config) -> Path:
    return config.store.path.with_name(REMOVAL_STATE)


def begin_removal(config: Config, waits: Sequence[str] = ()) -> None:
    """Note that a removal is under way, and what it waits for. Raises SourceError."""
    path = _path(config)
    if path.parent.is_dir():  # the last run may have been followed by rm
        files.write(files.Change(path, json.dumps({"waits": list(waits)})), backup=False)


def forget_removal(config: Config) -> None:
    """The site keeps slurm-gpu-aware: it is set up again."""
    _path(config).unlink(missing_ok=True)


def removal_waits(config: Config) -> list[str] | None:
    """What a removal waits for, as far as it is known; None: no removal is under way."""
    try:
        return [str(text) for text in json.loads(_path(config).read_text("utf-8"))["waits"]]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return []
