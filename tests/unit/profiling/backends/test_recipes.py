"""Recipes of docs/measuring.md: their patterns read the number from the program's output."""

import re
import shlex

import pytest
from fake_nvml import ROOT

from gpu_aware_profile.backends.process_timing import UNITS, CommandTiming

PAGE = (ROOT / "docs" / "measuring.md").read_text()
# Lines of the programs' output, as their manuals show them.
OUTPUTS = {
    "gmx": (
        "               Core t (s)   Wall t (s)        (%)\n"
        "       Time:      554.326       69.291      800.0\n"
        "                 (ns/day)    (hour/ns)\n"
        "Performance:      124.694        0.192\n",
        1000 / 124.694,
    ),
    "hpl.sh": (
        "T/V                N    NB     P     Q         Time          Gflops (   per GPU)\n"
        "--------------------------------------------------------------------------------\n"
        "WC0            92160  1024     1     1        27.21       1.918e+04 ( 1.918e+04)\n"
        "||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)=   0.0004 ...... PASSED\n",
        27210.0,
    ),
    "nvbandwidth": (
        "Running device_local_copy.\nmemcpy local GPU(column) bandwidth (GB/s)\n"
        "           0\n 0   1243.07\n\nSUM device_local_copy 1243.07\n",
        1000 / 1243.07,
    ),
    "all_reduce_perf": (
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
        "     (us)  (GB/s)  (GB/s)\n"
        "  4294967296    1073741824     float     sum      -1   6433.2  667.62    0.00      0"
        "     0.21  20000.0    0.00      0\n"
        "# Avg bus bandwidth    : 0\n",
        1000 / 667.62,
    ),
    "python3": ("ms per step: 21.75\n", 21.75),
    "/opt/bench/step.sh": ("epoch 3\n0.42\n", 420.0),
}


def recipes():
    """Program -> options, for each command with --bench on the page."""
    text = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        words = shlex.split(line)
        if "--bench" not in words:
            continue
        options = dict(zip(words[2::2], words[3::2], strict=True))
        program = next(name for name in OUTPUTS if name.rpartition("/")[2] in options["--bench"])
        found[program] = options
    return found


def test_every_recipe_has_its_output_here():
    assert set(recipes()) == set(OUTPUTS)


@pytest.mark.parametrize("program", OUTPUTS)
def test_a_recipe_reads_its_output(program):
    options = recipes()[program]
    output, value_ms = OUTPUTS[program]
    unit = options.get("--bench-unit", "ms")
    timing = CommandTiming(
        options["--bench"], options["--bench-class"], options.get("--bench-pattern"), unit, 60.0
    )
    assert UNITS[unit](timing.number(output)) == pytest.approx(value_ms)
