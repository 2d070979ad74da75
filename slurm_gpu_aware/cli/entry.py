"""Entry points of the programs. Ctrl-C during the imports gives no traceback.

Before the handler is set, only the smallest modules of the standard library are imported.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

__all__ = ["INTERRUPTED", "gpu_aware", "gpu_aware_profile"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


def gpu_aware() -> NoReturn:
    """Start ``gpu-aware``."""
    _quiet_interrupts()
    from slurm_gpu_aware.cli.main import main

    _usual_interrupts()
    main()


def gpu_aware_profile() -> NoReturn:
    """Start ``gpu-aware-profile``."""
    _quiet_interrupts()
    from gpu_aware_profile.cli import main

    _usual_interrupts()
    main()


def _quiet_interrupts() -> None:
    """Exit at once on SIGINT, because no work has begun. An ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _usual_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
