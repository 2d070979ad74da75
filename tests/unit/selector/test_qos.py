"""QOS are read beside the rounds."""

import threading
from typing import Any, cast

from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.selector.site_reader import QosReader
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.records import SlurmQos


class Slurmdbd:
    """Answers once it is let; ``asked`` counts."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = 0
        self.fails = False

    def qos(self) -> list[SlurmQos]:
        self.asked += 1
        self.let.wait(600)
        if self.fails:
            raise SourceError("no answer")
        return [SlurmQos(f"low{self.asked}")]


def all_answered() -> None:
    for thread in threading.enumerate():
        if thread.name == "qos":
            thread.join()


def test_a_slurmdbd_that_hangs_is_not_waited_for() -> None:
    dbd = Slurmdbd()
    reader = QosReader(cast(SlurmClient, cast(Any, dbd)))
    reader.refresh()
    reader.refresh()
    assert dict(reader.known) == {}
    dbd.let.set()
    all_answered()
    assert dbd.asked == 1
    assert set(reader.known) == {"low1"}
    dbd.fails = True
    reader.refresh()
    all_answered()
    assert set(reader.known) == {"low1"}
    assert dbd.asked == 2
