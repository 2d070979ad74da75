"""What holds for all tests."""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

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
