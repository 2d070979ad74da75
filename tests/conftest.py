"""What holds for all tests."""

import os
import re
import sys
import time

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# What the caller's environment says to Python, Slurm, make, us, or of a terminal is not the tests'.
OF_CALLER = re.compile(
    r"PYTHON(?!PATH$).+|(SLURM|SBATCH|SALLOC|SQUEUE|SINFO|SCONTROL|SACCT|SPRIO|SSHARE|LC)_.*"
    r"|GPU_AWARE(_CONFIG|_CLOCK_.*|_MARKS)?|FAKE_NVML_.*|LANG|LANGUAGE|COLUMNS|LINES"
    r"|MAKEFLAGS|MFLAGS|MAKELEVEL|NO_COLOR|FORCE_COLOR|CLICOLOR(_FORCE)?|NOTIFY_SOCKET|SUDO_USER"
)
for name in filter(OF_CALLER.fullmatch, list(os.environ)):
    del os.environ[name]
os.environ["TZ"] = "UTC"
time.tzset()
# Hundreds of processes read our modules: without bytecode each of them compiles them anew.
sys.dont_write_bytecode = False

# No example fails for being slow: the time depends on other processes of the machine.
NO_LIMIT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", NO_LIMIT, derandomize=True)
# make test-search: new examples every time.
settings.register_profile("search", NO_LIMIT)
settings.load_profile("suite")

_of_modules = providers._get_local_constants


def _no_constants_of_modules() -> providers.Constants:
    """Constants of the modules that a process has imported by then would change its examples."""
    return providers._local_constants if settings.default.derandomize else _of_modules()


providers._get_local_constants = _no_constants_of_modules
