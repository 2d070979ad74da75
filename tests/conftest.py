"""What holds for all tests."""

from hypothesis import settings

# No example fails for being slow: the time depends on other processes of the machine.
settings.register_profile("suite", deadline=None, derandomize=True)
# make test-search: new examples every time.
settings.register_profile("search", deadline=None)
settings.load_profile("suite")
