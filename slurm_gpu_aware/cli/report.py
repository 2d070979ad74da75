"""``gpu-aware report``: a page with pictures of a result folder."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_gpu_aware.cli.output import json_option, print_json, say
from slurm_gpu_aware.errors import RequestError, not_installed

__all__ = ["command"]


@click.command("report")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Draw the results of 'gpu-aware simulate --out DIR': a self-contained page and its pictures.

    Needs matplotlib (the extra 'plots': pip install '.[plots]' in the source folder).

    \b
    Examples:
      gpu-aware simulate --what-if --out results && gpu-aware report results
      gpu-aware report results --json
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError(not_installed("matplotlib", "plots")) from None
    from slurm_gpu_aware.simulator.files import load_results
    from slurm_gpu_aware.simulator.report import plain_summary, write_report

    written = write_report(folder)
    head, _ = load_results(folder)
    sentences = plain_summary(head)
    if as_json:
        print_json({"files": [str(path) for path in written], "summary": sentences})
        return
    for sentence in sentences:
        click.echo(sentence)
    say(f"wrote {written[0]} and {len(written) - 1} pictures beside it")
