"""``gpu-aware setup``: write what Slurm has to know about us."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from slurm_gpu_aware.cli.context import Context, pass_context
from slurm_gpu_aware.cli.output import json_option, paragraph, say
from slurm_gpu_aware.errors import StoreError

if TYPE_CHECKING:
    from slurm_gpu_aware.config.settings import Config
    from slurm_gpu_aware.deploy.install import Plan, Site
    from slurm_gpu_aware.deploy.render import NodeGpus
    from slurm_gpu_aware.slurm.conffile import SlurmConf

__all__ = ["command"]

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("setup")
@click.option("--output", type=_FOLDER, metavar="DIR", help="Write all files there for review.")
@click.option("--install", is_flag=True, help="Change the site's files in place.")
@click.option("--yes", is_flag=True, help="Do not ask before files are overwritten.")
@click.option(
    "--roll", is_flag=True, help="Move nodes to one GRES type per GPU, one by one; or go on."
)
@click.option("--undo", is_flag=True, help="Move the nodes that --roll moved back, the same way.")
@click.option("--nodes", metavar="LIST", help="Only these nodes: n[1-4],n7.")
@click.option("--partition", metavar="NAME", help="Only nodes of this partition.")
@json_option
@click.option(
    "--slurm-dir",
    type=_FOLDER,
    default=Path("/etc/slurm"),
    show_default=True,
    help="Folder of slurm.conf.",
)
@click.option(
    "--unit-dir",
    type=_FOLDER,
    default=Path("/etc/systemd/system"),
    show_default=True,
    help="Folder of systemd units.",
)
@pass_context
def command(
    context: Context,
    output: Path | None,
    install: bool,
    yes: bool,
    roll: bool,
    undo: bool,
    nodes: str | None,
    partition: str | None,
    as_json: bool,
    slurm_dir: Path,
    unit_dir: Path,
) -> None:
    """Write GRES lines, slurm.conf settings, Lua filter, prolog, epilog and systemd units.

    Without --output or --install it only shows what --install would change. What it writes
    follows from the configuration and from the profile in the store. Each change to an existing
    file is shown as a diff first; the file's first version is kept as NAME.before-gpu-aware. Lua
    files are compiled before anything is written. The GRES types of nodes that have GPUs in
    slurm.conf are not changed: that kills running jobs.

    --roll does change them, under no running job: it drains a node, waits until it is empty,
    writes its lines in slurm.conf and gres.conf, runs setup.distribute, reconfigures Slurm, sees
    that the node registered, resumes it, and takes the next. Nodes that somebody else drained, or
    that are down, are skipped. --undo goes back. Both can be interrupted (Ctrl-C, kill -9) and
    go on when started again; without --nodes or --partition with the same nodes. --json prints
    what became of each node.

    Exit codes of --roll and --undo: 0 all nodes are as they should be; 1 a node failed and was
    put back, or an error; 3 nodes were skipped; 130 interrupted.

    \b
    Examples:
      gpu-aware setup --output ./review
      gpu-aware setup
      gpu-aware setup --install
      gpu-aware setup --roll --partition gpu
      gpu-aware setup --undo
    """
    if roll or undo:
        if output is not None or install:
            raise click.UsageError(
                "--roll and --undo go with --nodes, --partition, --yes, --json and --slurm-dir only"
            )
        code = _roll(context, slurm_dir, undo, nodes, partition, yes, as_json)
        raise click.exceptions.Exit(code)
    if nodes or partition or as_json:
        raise click.UsageError("--nodes, --partition and --json need --roll or --undo")
    from slurm_gpu_aware.deploy import files
    from slurm_gpu_aware.deploy import install as work

    if output is not None and install:
        raise click.UsageError("--output and --install exclude each other")
    site = _look_around(context.config(check_policies=True), slurm_dir, unit_dir)
    plan = work.for_output(site, output) if output is not None else work.in_place(site)
    if not files.check_lua(plan.changes):
        say("luac is not installed: the Lua files were not checked.")
    changes = files.pending(plan.changes)
    for change in changes:
        if change.path.exists():
            click.echo(files.diff(change), nl=False)
        elif output is None:
            click.echo(f"new file {change.path}")
    if output is None and not install:
        _end(plan, _would_change(len(changes)))
        return
    existing = [c for c in changes if c.path.exists()]
    if existing and not yes and not _may_overwrite(len(existing)):
        say("nothing was written")
        raise click.exceptions.Exit(1)
    for change in changes:
        kept = files.write(change)
        say(f"wrote {change.path}" + (f" (was: {kept})" if kept else ""))
    if install:
        if work.reload_filter(site, changes):
            say(f"touched {slurm_dir / work.OWN_FILTER}, so that slurmctld reads the filter again")
        for path in files.make_folders(site.config, site.user):
            say(f"{path} is {site.user}'s now")
    _end(plan, _next_steps(install, len(changes), work.clock_conf_path(site.config)))


def _roll(
    context: Context,
    slurm_dir: Path,
    undo: bool,
    nodes: str | None,
    partition: str | None,
    yes: bool,
    as_json: bool,
) -> int:
    from slurm_gpu_aware.cli.rollout import roll
    from slurm_gpu_aware.slurm.conffile import read_conf

    config = context.config()
    profile = _profiled(config, read_conf(slurm_dir / "slurm.conf"))
    return roll(
        config,
        slurm_dir,
        {node.name: node for node in profile},
        undo=undo,
        nodes=nodes,
        partition=partition,
        yes=yes,
        as_json=as_json,
    )


def _end(plan: Plan, last: str) -> None:
    for note in plan.notes:
        say(paragraph(f"note: {note}."))
    say(paragraph(last))


def _would_change(count: int) -> str:
    if not count:
        return "Everything is as it should be; no file would change."
    return f"{_files(count)} would change; --install writes {'it' if count == 1 else 'them'}."


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _may_overwrite(count: int) -> bool:
    """Ask; where nobody can answer (the end of stdin) the answer is no, Ctrl-C stays what it is."""
    try:
        return click.confirm(f"Overwrite {_files(count)}?", err=True)
    except click.Abort as exc:
        if isinstance(exc.__context__, KeyboardInterrupt):
            raise
        say("")
        return False


def _next_steps(install: bool, count: int, clock_conf: Path) -> str:
    if not count:
        return "Everything is as it should be; nothing was written."
    if not install:
        return "Review the files; 'gpu-aware setup --install' puts them in place."
    return (
        f"Next: copy gres.conf, slurm.conf, prolog.d, epilog.d and {clock_conf} to all nodes if"
        " they do not share these folders; 'systemctl daemon-reload'; 'systemctl restart"
        " slurmctld'; 'systemctl enable --now gpu-aware-selectd'; 'gpu-aware doctor'."
    )


def _look_around(config: Config, slurm_dir: Path, unit_dir: Path) -> Site:
    from slurm_gpu_aware.deploy.install import OWN_FILTER, Site
    from slurm_gpu_aware.slurm.conffile import SlurmConf, read_conf

    conf_file = slurm_dir / "slurm.conf"
    conf = read_conf(conf_file) if conf_file.exists() else SlurmConf()
    return Site(
        config=config,
        nodes=_profiled(config, conf),
        slurm_dir=slurm_dir,
        conf=conf,
        conf_text=_text(conf_file),
        gres_text=_text(slurm_dir / "gres.conf") or "",
        filter_text=_text(slurm_dir / OWN_FILTER),
        unit_dir=unit_dir,
    )


def _profiled(config: Config, conf: SlurmConf) -> tuple[NodeGpus, ...]:
    """Nodes of the profile; empty, with a word to the user, if there is no store."""
    from slurm_gpu_aware.deploy.install import sockets
    from slurm_gpu_aware.deploy.render import NodeGpus, usable_model
    from slurm_gpu_aware.model.profile import gpu_names, seen_only
    from slurm_gpu_aware.store.database import open_store
    from slurm_gpu_aware.store.profiles import load_profile

    try:
        with open_store(config.store.path, readonly=True) as store:
            profile, left_out = seen_only(load_profile(store))
    except StoreError as exc:
        say(paragraph(f"no profile: {exc}."))
        return ()
    if left_out:
        say(
            paragraph(
                f"note: left out, because no sweep has seen them: {gpu_names(left_out)}. Sweep"
                " these nodes, or 'gpu-aware-profile forget' what is not there."
            )
        )
    known = sockets(conf)
    nodes = []
    for name in sorted({node for node, _ in profile.gpus}):
        slots = sorted(slot for node, slot in profile.gpus if node == name)
        records = [profile.gpus[name, slot] for slot in slots]
        models = {usable_model(r.model) for r in records}
        count, cores = known.get(name, (None, None))
        nodes.append(
            NodeGpus(
                name=name,
                indices=tuple(slots),
                model=models.pop() if len(models) == 1 else None,
                numa=tuple(r.numa for r in records),
                sockets=count,
                cores_per_socket=cores,
            )
        )
    return tuple(nodes)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
