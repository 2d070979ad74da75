"""Times, durations and counts as people read them."""

from datetime import datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def stamp(unix_s: float | None) -> str:
    """Local date and time of a Unix time; ``-`` for None."""
    return "-" if unix_s is None else datetime.fromtimestamp(unix_s).strftime("%Y-%m-%d %H:%M:%S")


def duration(seconds: float | None) -> str:
    """A duration in the largest two units, ``2 h 5 min``; ``-`` for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{max(0.0, seconds) * 1000:.0f} ms" if seconds > 0 else "0 s"
    whole = round(seconds)
    parts = []
    for name, size in _UNITS:
        if whole >= size:
            parts.append(f"{whole // size} {name}")
            whole %= size
    return " ".join(parts[:2])


def counted(count: int, one: str, several: str = "") -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
