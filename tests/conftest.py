"""What holds for all tests."""

from hypothesis import settings

# No example fails for being slow: how long it takes depends on who else uses the machine.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
