"""Reading of a slurm.conf that is given as text."""

import tempfile
from pathlib import Path

from slurm_gpu_aware.slurm.conffile import ConfFiles, read_conf

__all__ = ["parse_conf"]


def parse_conf(text: str) -> ConfFiles:
    """The content of a slurm.conf."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "slurm.conf")
        path.write_text(text)
        return read_conf(path)
