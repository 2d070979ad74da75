"""Commands of operators: ``gpu-aware doctor``, ``release``, ``selectd`` and ``metrics``."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.explain import check_job_id
from slurm_gpu_aware.cli.options import Context, Number, pass_context
from slurm_gpu_aware.cli.output import json_option, print_json, say, table
from slurm_gpu_aware.time_text import counted

if TYPE_CHECKING:
    from slurm_gpu_aware.exporter.server import MetricsServer

LISTEN = "127.0.0.1:9836"
_LONGEST_S = 3600
_SOMETHING_WRONG = 3


@click.command("doctor")
@click.option("--nodes", is_flag=True, help="Also compare files on idle GPU nodes, by a short job.")
@json_option
@pass_context
def doctor(context: Context, nodes: bool, as_json: bool) -> None:
    """Check a live cluster: Slurm's release and settings, gate, filter, selector, store, profile.

    Each failed check names the cure. Run it as root or SlurmUser on the controller. The exit code
    is 3 if a check failed; warnings do not count.

    \b
    Examples:
      gpu-aware doctor
      gpu-aware doctor --nodes
      gpu-aware doctor --json
    """
    from slurm_gpu_aware.deploy import checks_ours, checks_slurm
    from slurm_gpu_aware.deploy.doctor import Checks, run_checks
    from slurm_gpu_aware.deploy.rollout_site import removal_waits
    from slurm_gpu_aware.features import found

    config = context.config(check_policies=True)
    of_features = (check for checks in found("checks", "CHECKS") for check in checks)
    every: Checks = (
        *checks_slurm.OF_SLURM,
        *checks_ours.OF_US,
        *of_features,
        *checks_slurm.OF_NODES,
    )
    if removal_waits(config) is not None:
        every = checks_ours.REMOVAL
    checks = run_checks(config, every, of_gate=checks_slurm.OF_GATE, ask_nodes=nodes)
    wrong = any(check.status == "failed" for check in checks)
    if as_json:
        print_json({"checks": [asdict(c) for c in checks], "ok": not wrong})
    else:
        rows = []
        for check in checks:
            rows.append((check.status, check.name, check.found))
            if check.cure:
                rows.append((" ", " ", f"cure: {check.cure}"))
        counts = {s: sum(c.status == s for c in checks) for s in ("failed", "warning", "skipped")}
        shown = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        last = f"{len(checks)} checks: {shown}" if shown else f"All {len(checks)} checks are fine."
        click.echo(table(["result", "check", "found"], rows))
        for check in checks:
            if check.lines:
                click.echo("\n".join([f"\n{check.name}: the lines to add", *check.lines]))
        click.echo(f"\n{last}")
    if wrong:
        raise click.exceptions.Exit(_SOMETHING_WRONG)


@click.command("release")
@click.argument("job_ids", metavar="[JOBID]...", nargs=-1, callback=check_job_id)
@click.option("--all", "everything", is_flag=True, help="All parked and placed jobs that wait.")
@pass_context
def release(context: Context, job_ids: tuple[str, ...], everything: bool) -> None:
    """Open the gate for parked jobs; Slurm then places and starts them as usual.

    SlurmUser, root and operators may run it. The jobs keep their requests. Running jobs stay
    unchanged. Prints the ids of the released jobs.

    --all also restores the requests of placed jobs that have not started or were requeued. For
    this, run it as root or SlurmUser on the controller, with the selector stopped.

    \b
    Examples:
      gpu-aware release 1234 1235_7 1236+1
      gpu-aware release --all
    """
    if bool(job_ids) == everything:
        raise click.UsageError("name one or more jobs, or --all")
    from slurm_gpu_aware.deploy.job_requests import restore_all
    from slurm_gpu_aware.gate.restore import release_by_hand
    from slurm_gpu_aware.slurm.client import open_client

    config = context.config()
    chosen = None if everything else list(job_ids)
    client = open_client(config.selector.command_timeout_s)
    released: list[str] = []
    try:
        released = release_by_hand(client, config, chosen)
    finally:  # also if Slurm refuses the release of a job
        if everything:
            restored = restore_all(client, config)
            released += restored.left
            if restored.kept:
                kept = ", ".join(restored.kept)
                say(f"placed jobs that wait stay unchanged ({kept}): {restored.kept_why}")
            for job_id, why in restored.wrong.items():
                say(f"the request of job {job_id} could not be restored: {why}")
        for job_id in released:
            click.echo(job_id)
    say(f"opened the gate for {counted(len(released), 'job')}")


@click.command("selectd")
@click.option("--once", is_flag=True, help="Run one round and exit.")
@click.option(
    "--shadow", is_flag=True, help="Change nothing: compare what Slurm gives with what we would."
)
@pass_context
def selectd(context: Context, once: bool, shadow: bool) -> None:
    """Run the selector: plan and release parked jobs, in rounds, until it is stopped.

    It runs on the controller as SlurmUser; systemd starts it. Of two controllers each has one: the
    one beside the slurmctld in control works, the other stands by. The log goes to stderr. While
    the selector runs, it renews the gate's reservation. If it stops, Slurm starts the parked jobs
    as usual within two minutes.

    With --shadow it changes nothing in Slurm and needs no filter, licence or GRES type: for each
    job that Slurm starts it notes the GPUs that the job got, and those that we would have given it
    (gpu-aware report --shadow). Any user may run it who sees all jobs.

    \b
    Examples:
      gpu-aware selectd
      gpu-aware selectd --once
      gpu-aware selectd --shadow
    """
    if shadow:
        if once:
            raise click.UsageError("--shadow needs several looks to see a start: drop --once")
        from slurm_gpu_aware.features.shadow.daemon import run as run_shadow

        raise click.exceptions.Exit(run_shadow(context.config(check_policies=True)))
    from slurm_gpu_aware.selector.daemon import run

    code = run(context.config(check_policies=True), once=once)
    raise click.exceptions.Exit(code or 0)


@click.command("metrics")
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    help=f"Where the exporter listens.  [default: {LISTEN}]",
)
@click.option(
    "--interval",
    "interval_s",
    type=Number(1, _LONGEST_S),
    default=15,
    help="Seconds between two refreshes of what is exported.",
)
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write one page into this file (*.prom, for node_exporter) and end.",
)
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
    from slurm_gpu_aware.errors import FileFault
    from slurm_gpu_aware.files import ReplacedFile

    with FileFault(path, "written"), ReplacedFile(path) as stream:
        stream.write(text.decode())
        os.fchmod(stream.fileno(), 0o644)  # node_exporter is another user
