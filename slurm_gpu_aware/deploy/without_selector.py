"""Hold that keeps selectors from working, while jobs are changed from outside.

A selector updates jobs by what it has just read. A second program that does the same beside it
would mix the two requests of a job, so a job of ours is changed only while none can start.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.gate.gate_holder import gate_reservation
from slurm_gpu_aware.gate.licence_gate import working_elsewhere
from slurm_gpu_aware.lockfile import SELECTOR_LOCK, hold_selector_lock
from slurm_gpu_aware.slurm.client import SlurmClient
from slurm_gpu_aware.slurm.controllers import Controllers


@contextlib.contextmanager
def without_selector(client: SlurmClient, config: Config) -> Iterator[str | None]:
    """Keep this host's selector from starting; yield None, or why a selector works.

    Raises SourceError if Slurm does not answer.
    """
    lease = gate_reservation(client, config.gate)
    only = Controllers(client.settings()).only
    other = working_elsewhere(lease, only, config, time.time())
    if other is not None:
        yield f"the selector of host {other.host} works; stop it first"
        return
    path = config.store.path
    with contextlib.ExitStack() as stack:
        why = None
        try:
            if (path.parent / SELECTOR_LOCK).exists():  # the file is not made here
                stack.enter_context(hold_selector_lock(path))
        except (SourceError, OSError) as exc:
            why = str(exc)
        yield why
