"""``gpu-aware-profile collect``: stores what measured jobs left in a folder."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gpu_aware_profile.cli import PARTLY, store_options
from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config


@click.command()
@store_options
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, readable=False, path_type=Path)
)
def collect(path: Path, config: Config, folder: Path) -> None:
    """Store the records of measured jobs in FOLDER, and delete them there.

    Users' jobs write them: gpu-aware-profile job --out FOLDER (mode 1733, on a shared file system).
    Rows of ada's files for resnet50 become ada/resnet50, which only ada's jobs with model=resnet50
    look up. Files that changed in the last 5 minutes are left, as their job may still run. A file
    that is wrong is reported and deleted, one that may not be read is reported; then the exit code
    is 3. Run it as root or as the owner of FOLDER, who must be able to write the store.

    \b
      gpu-aware-profile collect /shared/gpu-aware-records; gpu-aware models fit
    """
    from gpu_aware_profile.imports import collecting
    from gpu_aware_profile.store_writer import writable_store

    with writable_store(path, config) as store:
        found = collecting.collect(store, folder, config.site.classes, time.time())
    for sentence in found.refused:
        say(sentence)
    say(f"{found.stored} rows of measured jobs in {path}")
    if found.refused:
        raise click.exceptions.Exit(PARTLY)
