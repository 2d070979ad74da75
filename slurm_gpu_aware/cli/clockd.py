"""Command ``gpu-aware clockd``: the agent of a compute node."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

import click

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_TURN_S = 1.0
log = logging.getLogger(__name__)


@click.command("clockd")
@click.option("--once", is_flag=True, help="One turn, then end; clocks stay as ordered.")
@click.option("--node", metavar="NAME", help="Slurm's name of this node. Default: its host name.")
def clockd(once: bool, node: str | None) -> None:
    """Move the clocks of running jobs on this compute node, as the selector orders.

    Runs as root (gpu-aware-clockd.service) and opens no port. It reads NODE.orders in the folder
    that clock.conf names, moves the clocks of the ordered jobs' own GPUs, and reports what it did
    and the GPUs' power in the spool. When it stops, jobs get back the clocks they started with.

    \b
    Examples:
      gpu-aware clockd
      gpu-aware clockd --once --node n7
    """
    from slurm_gpu_aware.bounds import is_node_name
    from slurm_gpu_aware.clock_conf import conf_path, read_clock_conf
    from slurm_gpu_aware.clocks.agent import Agent
    from slurm_gpu_aware.errors import ConfigError
    from slurm_gpu_aware.files import InstanceLock
    from slurm_gpu_aware.service import ALIVE, READY, notify

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    conf = read_clock_conf()
    if conf.complaint is not None:
        log.warning("%s", conf.complaint)
    if not conf.accounts:
        raise ConfigError(f"{conf_path()}: accounts = /FOLDER is missing; the agent needs it")
    name = node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    if not is_node_name(name):
        raise ConfigError(f"{name[:40]!r} is not a node name; give --node")
    # Blocked in this thread and its children: each is taken where the loop waits for it.
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    agent = Agent(conf, name)
    with InstanceLock(Path(conf.accounts) / ".lock.agent", "clockd"):
        log.info("agent of %s: orders in %s", name, conf.orders or "no folder")
        if once:
            _attempt(agent.turn, "the turn")
            return
        try:
            with agent.listening():
                stopped = False
                notify(READY)
                while not stopped:
                    notify(ALIVE)
                    _attempt(agent.turn, "the turn")
                    until = time.monotonic() + _TURN_S
                    while not stopped and (left := until - time.monotonic()) > 0:
                        woken = signal.sigtimedwait(signals, left)
                        if woken is not None and woken.si_signo == signal.SIGUSR1:
                            _attempt(agent.hear, "what hooks left")
                        stopped = woken is not None and woken.si_signo != signal.SIGUSR1
        finally:
            agent.turn(stopping=True)


def _attempt(work: Callable[[], object], what: str) -> None:
    try:
        work()
    except Exception:
        log.exception("%s failed; the next turn tries again", what)
