"""Entry points of the programs. Ctrl-C while their modules are imported is no traceback.

Nothing but the standard library's smallest modules is imported here before the handler is set.
"""

import os
import signal
from types import FrameType
from typing import NoReturn

from slurm_gpu_aware.cli import INTERRUPTED

__all__ = ["gpu_aware", "gpu_aware_profile"]


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
    """Nothing was begun yet, so there is nothing to end. An ignored SIGINT stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def _usual_interrupts() -> None:
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
