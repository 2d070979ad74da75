"""``gpu-aware metrics``: the exporter for Prometheus, or a file for node_exporter."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.options import Context, Number, options_with, pass_context
from slurm_gpu_aware.cli.output import say

if TYPE_CHECKING:
    from slurm_gpu_aware.exporter.server import MetricsServer

LISTEN = "127.0.0.1:9836"
_LONGEST_S = 3600


_HELP = {
    "--interval": "Seconds between two refreshes of what is exported.",
    "--textfile": "Write one page into this file (*.prom, for node_exporter) and end.",
}
_option = options_with(_HELP)


@click.command("metrics")
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help=f"Where the exporter listens.  [default: {LISTEN}]",
)
@_option("--interval", "interval_s", type=Number(1, _LONGEST_S), default=15)
@_option("--textfile", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH")
@pass_context
def metrics(context: Context, listen: str | None, interval_s: float, textfile: Path | None) -> None:
    """Export metrics for Prometheus: GPUs, jobs, gate, rounds, power, energy.

    Any user may run it, best on the controller (gpu-aware-metrics.service). It reads the published
    copy of the store and the selector's counters, and asks slurmctld now and then; no scrape waits
    for either. It needs prometheus-client (the extra 'metrics').

    \b
    Examples:
      gpu-aware metrics
      gpu-aware metrics --listen 10.0.0.1:9836
      gpu-aware metrics --textfile /var/lib/prometheus/node-exporter/gpu-aware.prom
    """
    from slurm_gpu_aware.errors import RequestError
    from slurm_gpu_aware.exporter.server import Exporter, MetricsServer, parse_address
    from slurm_gpu_aware.exporter.sources import SlurmWatch
    from slurm_gpu_aware.service import READY, notify

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if textfile is not None and listen is not None:
        raise click.UsageError("give --listen or --textfile, not both")
    if textfile is not None and textfile.suffix != ".prom":
        raise RequestError(f"{textfile}: node_exporter reads only files that end in .prom")
    config = context.config()
    watch = SlurmWatch(config, interval_s)
    exporter = Exporter(config, watch, interval_s)
    if textfile is not None:
        watch.ask()
        _write(textfile, exporter.refresh().text)
        return
    try:
        address = parse_address(listen or LISTEN)
    except ValueError as exc:
        raise RequestError(f"--listen: {exc}") from None
    with MetricsServer(address, lambda: exporter.page) as server:
        watch.start()
        exporter.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: _stop(server))
        notify(READY)
        say(f"metrics at http://{listen or LISTEN}/metrics")
        server.serve_forever(poll_interval=0.5)


def _stop(server: MetricsServer) -> None:
    # Not in this thread: it is the one that serves.
    threading.Thread(target=server.shutdown, daemon=True).start()


def _write(path: Path, text: bytes) -> None:
    """Replace the file in one step. Raises SourceError."""
    from slurm_gpu_aware.errors import SourceError
    from slurm_gpu_aware.files import ReplacedFile

    try:
        with ReplacedFile(path) as stream:
            stream.write(text.decode())
            os.fchmod(stream.fileno(), 0o644)  # node_exporter is another user
    except OSError as exc:
        raise SourceError(f"{path}: cannot be written: {exc.strerror}") from None
