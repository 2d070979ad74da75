"""The profile that a benchmark of placement prints where a target is missed."""

import cProfile
import pstats
import sys
from collections.abc import Callable

__all__ = ["show_profile"]


def show_profile(action: Callable[[], object], repetitions: int = 1, lines: int = 12) -> None:
    """Print where ``action`` spends its time, the largest shares first."""
    watch = cProfile.Profile()
    watch.enable()
    for _ in range(repetitions):
        action()
    watch.disable()
    pstats.Stats(watch, stream=sys.stdout).sort_stats("cumulative").print_stats(lines)
