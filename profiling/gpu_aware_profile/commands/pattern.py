"""``gpu-aware-profile pattern``: the communication pattern of an application."""

from __future__ import annotations

from typing import BinaryIO

import click

from slurm_gpu_aware.cli.output import json_option, print_json
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.text_file import name_of, read_text
from slurm_gpu_aware.topology.communication_log import Communication, read_communication

_SOURCES = {
    "algorithms": "by the algorithms that NCCL took, in bytes",
    "calls": "by the calls, in bytes; with NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING NCCL names its "
    "algorithms",
    "kernels": "by the time of NCCL's kernels",
    "connections": "by what NCCL connected, used or not; NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING "
    "tells what ran",
}


@click.command()
@click.argument("file", type=click.File("rb"))
@json_option
def pattern(file: BinaryIO, as_json: bool) -> None:
    """Read the communication pattern of an application from its own run.

    FILE is NCCL's debug output of all ranks, or the kernels of Nsight Systems (- reads stdin):

    \b
      export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING
      srun APP > app.log; gpu-aware-profile pattern app.log
      nsys stats --report cuda_gpu_kern_sum --format csv app.nsys-rep | gpu-aware-profile pattern -

    A few steps of the application are enough. The pattern is ring, tree, ring+tree, all-to-all or
    none; what carries less than a tenth of the traffic does not count.
    """
    try:
        found = read_communication(read_text(file, errors="replace").splitlines())
    except SourceError as exc:
        raise SourceError(f"{name_of(file)}: {exc}") from None
    if as_json:
        print_json({**vars(found), "comment": _comment(found)})
        return
    click.echo(f"pattern: {found.pattern} ({_SOURCES[found.source]})")
    if found.traffic:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found.traffic.items())
        click.echo(f"traffic: {shares}")
    if found.ranks:
        click.echo(f"ranks:   {found.ranks}")
    click.echo(f"type:    --comment={_comment(found)}")


def _comment(found: Communication) -> str:
    return f"pattern={found.pattern}"
