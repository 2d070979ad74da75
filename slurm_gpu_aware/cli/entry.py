"""Entry points of the programs. Ctrl-C while their modules are imported is no traceback.

Nothing but the standard library's smallest modules is imported here before the handler is set.
"""

import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # Exit code after Ctrl-C: 128 and the number of SIGINT.


def gpu_aware() -> NoReturn:
    """Start ``gpu-aware``."""
    _start("slurm_gpu_aware.cli.main")


def gpu_aware_profile() -> NoReturn:
    """Start ``gpu-aware-profile``."""
    _start("gpu_aware_profile.cli")


def _start(module: str) -> NoReturn:
    """Import a program and call its ``main``. An ignored SIGINT stays ignored."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual:  # nothing was begun yet, so there is nothing to end
        signal.signal(signal.SIGINT, _exit)
    main = import_module(module).main
    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)
