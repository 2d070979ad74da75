"""CuPy: a folder for its compiled kernels, its libraries, and what is missing without them."""

import atexit
import os
import shutil
import tempfile
import warnings
from typing import Any

from slurm_gpu_aware.errors import SourceError, not_installed

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


def libraries() -> tuple[Any, Any]:
    """CuPy and its cuBLAS. Raises SourceError that says what is missing."""
    try:
        import cupy
    except ImportError as exc:
        if exc.name == "cupy":
            raise SourceError(not_installed("CuPy", "gpu")) from None
        raise SourceError(f"CuPy cannot be loaded: {_first_line(exc)}") from None
    try:
        from cupy.cuda import cublas, nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as exc:
        raise SourceError(
            "CuPy finds no CUDA libraries: load the site's CUDA 12 module, or"
            f" pip install 'cupy-cuda12x[ctk]' ({_first_line(exc)})"
        ) from None
    return cupy, cublas


def nccl_library() -> Any:
    """NCCL of CuPy. Raises SourceError that says what is missing."""
    with warnings.catch_warnings(action="ignore"):  # CuPy warns without it
        try:
            from cupy.cuda import nccl
        except ImportError as exc:
            raise SourceError(f"CuPy with NCCL cannot be loaded: {_first_line(exc)}") from None
    if not nccl.available:
        raise SourceError(
            "CuPy finds no NCCL: load the site's module, or pip install nvidia-nccl-cu12"
        )
    return nccl


def _first_line(error: Exception) -> str:
    lines = [line.strip(" =") for line in str(error).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:200]
