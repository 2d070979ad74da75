"""Bounds of numbers from outside, names in Slurm, and texts from outside, made safe to show.

The bounds are far above what any site has and far below what exhausts memory or a double's
precision. A value beyond one is a typing error, a wrong unit, or an attack.
"""

NODE_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,254}"
"""Pattern of a node name that may be passed to a command."""
NAME = "[A-Za-z][A-Za-z0-9_-]{0,31}"
"""Pattern of the name of a class, licence or reservation: a short ``filter_rules.NAME``."""
MARKS = "GPU_AWARE_MARKS"
"""Variable with the file to which a measured job appends one byte per iteration."""
PROBE_TIME_LIMIT = "time limit"  # Fault of a probe that left out runs because its time was over.
PROBE_JOB = "gpu-aware-probe."  # Start of the job names of a sweep's probes.
ROLLOUT_HOLD = "gpuaware_rollout"
"""Reservation of all nodes while a rollout reconfigures Slurm: no job starts."""
INDEX_TYPES = 1024  # ``g0`` to ``g1023`` are the GRES types of GPU indices.

_LONGEST_NODE = 255
_LONGEST_NAME = 32
_NODE_MARKS = str.maketrans("", "", "._-")
_NAME_MARKS = str.maketrans("", "", "_-")
MAX_GPUS = 99_999  # GPUs of one job, the largest number that ``gpus=`` of a comment takes.
MAX_GPUS_PER_NODE = 64  # A set of a node's GPUs is a mask in one machine word.
MAX_JOB_NAME = 128  # Characters of the name of a job, a user or an account that count.
MAX_NODES = 65_536
MAX_TIME_S = 1e10
"""Points in time and durations: 300 years, so that Unix seconds fit and milliseconds do not."""
MIN_RUN_S = 1e-3
"""Run time of a job in a trace; a shorter one is lost in rounding beside ``MAX_TIME_S``."""
MIN_TIME_MS, MAX_TIME_MS = 1e-6, 1e12  # A measured time: 1 ns to 30 years.
MAX_PENALTY = 1e6
MIN_GBPS, MAX_GBPS = 1e-6, 1e6
MAX_MHZ = 100_000
MAX_GPU_W = 5000.0  # Mean power of a GPU; above it a counter was set anew, or another GPU answers.
_SHOWN = 60


def is_node_name(text: str) -> bool:
    """Whether a text matches `NODE_NAME`; without regular expressions, for the hooks."""
    plain = text.translate(_NODE_MARKS)
    return len(text) <= _LONGEST_NODE and text[:1].isalnum() and plain.isascii() and plain.isalnum()


def is_name(text: str) -> bool:
    """Whether a text matches `NAME`; without regular expressions, for the hooks."""
    plain = text.translate(_NAME_MARKS)
    return len(text) <= _LONGEST_NAME and text[:1].isalpha() and plain.isascii() and plain.isalnum()


def index_type(slot: int) -> str:
    """GRES type of a GPU index."""
    return f"g{slot}"


def setting_text(mhz: int, limit_w: int) -> str:
    """``MHZ`` or ``MHZ:WATTS``: clock and power limit of a GPU; 0: the default, the site's own."""
    return f"{mhz}:{limit_w}" if limit_w else str(mhz)


def slot_of(kind: str | None) -> int | None:
    """GPU index K of the GRES type ``gK``; None for any other type."""
    digits = (kind or "")[1:5]
    if not digits.isascii() or not digits.isdigit():
        return None
    slot = int(digits)
    return slot if kind == index_type(slot) and slot < INDEX_TYPES else None


def check_time_ms(value_ms: float) -> float:
    """Return a measured time in ms; raise ValueError if it is out of bounds."""
    if not MIN_TIME_MS <= value_ms <= MAX_TIME_MS:  # refuses NaN, too
        bounds = f"{MIN_TIME_MS:g} to {MAX_TIME_MS:g} ms"
        raise ValueError(f"value_ms must be a time of {bounds}, not {quoted(value_ms)}")
    return value_ms


def printable(text: str) -> str:
    """A text of others without control characters, line breaks and changes of direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def quoted(value: object) -> str:
    """``repr`` of a value, cut if it is long."""
    text = repr(value[: _SHOWN + 1]) if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
