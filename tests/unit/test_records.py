"""What all records share, whatever their type."""

import subprocess
import sys

NEW_TYPES = """
import sys, threading
from dataclasses import make_dataclass
from typing import Annotated
from slurm_gpu_aware import records

sys.setswitchinterval(1e-6)
for _ in range(100):
    number = Annotated[int, records.whole(0, 9)]
    inner = make_dataclass("Inner", [(f"f{i}", number, 0) for i in range(30)])
    outer = make_dataclass("Outer", [(f"g{i}", tuple[inner, ...], ()) for i in range(10)])
    gate, read = threading.Barrier(6), []

    def work():
        gate.wait()
        read.append(records.read({"g0": [{"f0": 1}]}, outer).g0[0].f0)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [1] * 6
"""


def test_threads_that_meet_a_type_at_once_do_not_end_the_process() -> None:
    """A sweep reads the reports of its nodes in threads; msgspec 0.22 alone dies of SIGSEGV."""
    subprocess.run([sys.executable, "-c", NEW_TYPES], check=True, timeout=500)
