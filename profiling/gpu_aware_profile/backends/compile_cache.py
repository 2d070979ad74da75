"""Folder in which CuPy keeps compiled kernels."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

__all__ = ["ensure_compile_cache"]

_VARIABLE = "CUPY_CACHE_DIR"
_KERNEL_BYTES = 1 << 16


def ensure_compile_cache() -> None:
    """Set CuPy's folder, for this process and those that it starts, to one that can be written.

    CuPy takes one in the home folder, which a service user may not have on the nodes, or whose
    quota is used up, and cannot even be imported then. A folder of ours is removed at the exit.
    """
    usual = os.environ.get(_VARIABLE) or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(usual, exist_ok=True)
        with tempfile.TemporaryFile(dir=usual) as file:
            file.write(bytes(_KERNEL_BYTES))
    except OSError:
        usual = tempfile.mkdtemp(prefix="gpu-aware-cupy-")
        atexit.register(shutil.rmtree, usual, ignore_errors=True)
    os.environ[_VARIABLE] = usual
