"""``gpu-aware setup``: options and texts of installation and rollout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from slurm_gpu_aware.cli.options import Context, pass_context
from slurm_gpu_aware.cli.output import json_option, paragraph, say
from slurm_gpu_aware.time_text import counted

if TYPE_CHECKING:
    from slurm_gpu_aware.deploy.files import Change
    from slurm_gpu_aware.deploy.site import Site

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("setup")
@click.option("--output", type=_FOLDER, metavar="DIR", help="Write all files here for review.")
@click.option("--install", is_flag=True, help="Change the site's files in place.")
@click.option("--yes", is_flag=True, help="Do not ask before files are overwritten.")
@click.option(
    "--roll", is_flag=True, help="Move nodes to one GRES type per GPU, one by one; or resume."
)
@click.option("--undo", is_flag=True, help="Move the nodes of --roll back in the same way.")
@click.option("--remove", is_flag=True, help="Remove slurm-gpu-aware from Slurm; or resume.")
@click.option("--nodes", metavar="LIST", help="Only these nodes: n[1-4],n7.")
@click.option("--partition", metavar="NAME", help="Only nodes of this partition.")
@click.option("--strand", is_flag=True, help="Do not wait for pending jobs that need plain nodes.")
@json_option
@click.option("--slurm-dir", type=_FOLDER, default=Path("/etc/slurm"), help="Folder of slurm.conf.")
@click.option(
    "--unit-dir", type=_FOLDER, default=Path("/etc/systemd/system"), help="Folder of systemd units."
)
@pass_context
def command(context: Context, /, **given: Any) -> None:
    """Write GRES lines, slurm.conf settings, Lua filter, prolog, epilog and systemd units.

    Without --output or --install it only shows the changes of --install. The files follow from the
    configuration and the profile in the store. Each change of an existing file is first shown as a
    diff; the original file is kept as NAME.before-gpu-aware. Lua files are compiled before any file
    is written. Nodes with GPUs in slurm.conf keep their GRES types, because a change kills running
    jobs.

    --roll changes these types without killing jobs: it drains a node, waits until it is empty,
    writes its lines in slurm.conf and gres.conf, runs setup.distribute, reconfigures Slurm, checks
    the registration of the node, resumes it, and takes the next. Nodes that are down or drained for
    another reason are skipped. --undo moves nodes back; if no selector works, pending jobs that ask
    for a model then ask for its GPU type again. Both may be interrupted (Ctrl-C, kill -9) and
    started again; without --nodes or --partition they resume with the same nodes. --json prints the
    outcome of each node.

    Pending jobs that ask for a GPU type are changed to ask for the model. Where that cannot be
    done, --roll names them, takes the nodes that they need last, and waits until they have started;
    --strand moves these nodes at once, and the jobs can no longer start.

    --remove takes everything back, and no job is lost: --undo, our lines out of job_submit.lua, the
    selector off, all waiting jobs with their own requests, our settings out of slurm.conf, our
    files. It shows all changes and asks first. It may be interrupted, or wait for jobs that still
    need it; started again, it goes on. At the end it prints what remains on other hosts.

    Exit codes of --roll, --undo and --remove: 0 done; 1 a node failed and was moved back, or an
    error; 3 nodes were skipped or were not in a resumed run, pending jobs can no longer start, or
    the removal waits, as it says; 130 interrupted.

    \b
    Examples:
      gpu-aware setup --output ./review
      gpu-aware setup
      gpu-aware setup --install
      gpu-aware setup --roll --partition gpu
      gpu-aware setup --undo
      gpu-aware setup --remove
    """
    output, install = given["output"], given["install"]
    acts = [name for name in ("roll", "undo", "remove") if given[name]]
    rolls = bool(acts) and acts != ["remove"]
    modes = [f"--{name}" for name in ("output", "install", "roll", "undo", "remove") if given[name]]
    if len(modes) > 1:
        raise click.UsageError(f"{' and '.join(modes)} exclude each other")
    if not rolls and (given["nodes"] or given["partition"]):
        raise click.UsageError("--nodes and --partition need --roll or --undo")
    if not acts and given["as_json"]:
        raise click.UsageError("--json needs --roll, --undo or --remove")
    if given["strand"] and not given["roll"]:
        raise click.UsageError("--strand needs --roll")
    from slurm_gpu_aware.deploy.site import find_site

    config = context.config(check_policies=not acts)
    if given["roll"] and config.placement.gpus == "nodes":
        where = config.source or "config.toml"
        raise click.UsageError(f'--roll needs gpus = "exact" in [placement] of {where}')
    if given["remove"]:
        from slurm_gpu_aware.cli.rollout import run_remove

        def read_site() -> Site:
            return find_site(config, given["slurm_dir"], given["unit_dir"])[0]

        raise click.exceptions.Exit(run_remove(read_site, given))
    site, about_profile = find_site(config, given["slurm_dir"], given["unit_dir"])
    if about_profile:
        say(paragraph(about_profile))
    if rolls:
        from slurm_gpu_aware.cli.rollout import run_rollout

        raise click.exceptions.Exit(run_rollout(site, given))
    _write(site, output, install, given["yes"])


def _write(site: Site, output: Path | None, install: bool, yes: bool) -> None:
    """Show the changes; write them with ``output`` or ``install``."""
    from slurm_gpu_aware.deploy import files
    from slurm_gpu_aware.deploy import setup as work
    from slurm_gpu_aware.deploy.owned_files import CLOCK_CONF, make_folders
    from slurm_gpu_aware.deploy.rollout_site import forget_removal

    wanted, notes = work.for_output(site, output) if output is not None else work.in_place(site)
    if not files.check_lua(wanted):
        say("luac is not installed: the Lua files were not checked.")
    changes = [change for change in wanted if files.diff(change)]
    for change in changes:
        if change.path.exists():
            click.echo(files.diff(change), nl=False)
        elif output is None:
            click.echo(f"new file {change.path}")
    if output is None and not install:
        them = "it" if len(changes) == 1 else "them"
        last = f"{counted(len(changes), 'file')} would change; --install writes {them}."
        _end(notes, last if changes else "All files are up to date; no file would change.")
        return
    existing = [c for c in changes if c.path.exists()]
    if existing and not yes and not _may_overwrite(existing):
        say("nothing was written")
        raise click.exceptions.Exit(1)
    for change in changes:
        kept = files.write(change)
        say(f"wrote {change.path}" + (f" (was: {kept})" if kept else ""))
    if install:
        forget_removal(site.config)
        if files.reload_filter(site.slurm_dir, [change.path for change in changes]):
            own = site.slurm_dir / files.OWN_FILTER
            say(f"touched {own}, so that slurmctld reloads the filter")
        for path in make_folders(site.config, site.user):
            say(f"{path} now belongs to {site.user}")
    last = "Review the files; 'gpu-aware setup --install' puts them in place."
    if not changes:
        last = "All files are up to date; nothing was written."
    elif install:
        last = (
            f"Next: copy gres.conf, slurm.conf, what they include, prolog.d, epilog.d and"
            f" {CLOCK_CONF.path(site.config)} to all nodes if they do not share these folders;"
            " 'systemctl daemon-reload'; 'systemctl restart slurmctld'; 'scontrol reconfigure', so"
            " that the slurmds read them; 'systemctl enable --now gpu-aware-selectd'; 'gpu-aware"
            " doctor --nodes'."
        )
    _end(notes, last)


def _end(notes: Sequence[str], last: str) -> None:
    for note in notes:
        sentence, *lines = note.split("\n")
        say(paragraph(f"note: {sentence}{'' if lines else '.'}"))
        for line in lines:  # to be copied
            say(f"    {line}")
    say(paragraph(last))


def _may_overwrite(changes: Sequence[Change]) -> bool:
    """Ask for confirmation; the end of stdin means no. Raises click.Abort on Ctrl-C."""
    try:
        return click.confirm(f"Overwrite {counted(len(changes), 'file')}?", err=True)
    except click.Abort as exc:
        if isinstance(exc.__context__, KeyboardInterrupt):
            raise
        say("")
        return False
