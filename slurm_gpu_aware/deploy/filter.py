"""The filter, and the script of Slurm's commands, as owned things.

Each is a Lua plugin of Slurm. Its script is ours, or the site's own with a line that loads ours.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, skipped
from slurm_gpu_aware.deploy.files import (
    CLI_FILTER,
    LUA_CONF,
    OUR_CLI_FILTER,
    OWN_FILTER,
    Change,
    shipped,
    shipped_lua,
)
from slurm_gpu_aware.deploy.filter_conf import FILTER_CONF
from slurm_gpu_aware.deploy.owned import INSTALL, RESTART, Owned
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.deploy.site_scripts import (
    LUA_PLACE,
    join_fault,
    join_lines,
    loads_cli_filter,
    loads_filter,
    read_script,
    without_lines,
    without_ours,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.conffile import read_conf
from slurm_gpu_aware.slurm.words import plugins_of

_NO_RIGHT = re.compile(r"(?i)account|association|root|denied")


class _Plugin(Owned, ABC):
    """A Lua plugin of Slurm with its script."""

    words = ("lua",)
    script = ""
    ours = ""  # The script of the installation.
    user = ""  # What fails without the script, if slurm.conf lists the plugin.

    def needed(self, path: Path, settings: Mapping[str, str]) -> str:
        """The script stays while Slurm loads it."""
        if path.name != self.script or "lua" not in plugins_of(settings.get(self.list_key)):
            return ""
        return f"slurm.conf has {self.list_key}=lua, so {self.user} one"

    def lines(self, site: Site) -> Iterator[Change]:
        """The script without the lines that load ours."""
        if not self._is_ours(site):
            yield from without_ours(site.slurm_dir / self.script)

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """The script only if the site has none; else a note with the lines to add."""
        path = site.slurm_dir / self.script
        if site.text(self.script) is None or self._is_ours(site):
            return [Change(path, shipped_lua(self.ours))]
        if advice := self._advice(site.text(self.script) or "", site.slurm_dir):
            notes.append(f"{path} {advice}")
        return []

    @abstractmethod
    def _advice(self, script: str, slurm_dir: Path) -> str:
        """What a script of the site lacks, to follow its path; empty: nothing."""

    def _is_ours(self, site: Site) -> bool:
        return site.text(self.script) == shipped_lua(self.ours)


class Filter(_Plugin):
    """job_submit.lua and the modules of the filter."""

    group, list_key, user = "filter", "JobSubmitPlugins", "slurmctld needs"
    script = ours = OWN_FILTER

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """The modules, and job_submit.lua last, as it reads them."""
        modules = [
            Change(site.slurm_dir / source.name, source.read_text(encoding="utf-8"))
            for source in filter_files()
        ]
        return [*modules, *super().install(site, notes)]

    def _advice(self, script: str, slurm_dir: Path) -> str:
        if fault := join_fault(script):
            return f"{fault}; the two lines belong {LUA_PLACE}"
        if loads_filter(script):
            return ""
        first, second = join_lines(slurm_dir)
        return (
            f"is the site's own and stays; add {LUA_PLACE},"
            f" after slurmctld was restarted:\n{first}\n{second}"
        )

    def lines(self, site: Site) -> Iterator[Change]:
        """job_submit.lua, ours too, without the lines that load the filter."""
        return without_ours(site.slurm_dir / self.script)

    def files(self, site: Site) -> list[Path]:
        """The modules; job_submit.lua if it is ours, with or without the lines of the filter."""
        ours = shipped_lua(self.ours)
        own = site.text(self.script) in (ours, without_lines(ours, ".lua"))
        names = [*(path.name for path in filter_files()), *([self.script] if own else [])]
        return [site.slurm_dir / name for name in names]

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """slurmctld runs the filter of this release with this configuration."""
        if "lua" not in g.plugins(self.list_key):
            found = f"{self.list_key}={g.slurm.get(self.list_key)} lacks lua"
            yield failed("filter", found, RESTART)
            return
        if g.elsewhere:  # only slurmctld reads the files
            yield skipped("filter", "this host is no controller", "run doctor on the controller")
            yield self._check_answers(g)
            return
        script = g.folder / self.script
        text = read_script(script)
        if text is not None and (fault := join_fault(text)):
            cure = f"the lines below belong {LUA_PLACE}"
            yield failed("filter", f"{script} {fault}", cure, lines=join_lines(g.folder))
            return
        if (text is None or not loads_filter(text)) and not filter_answer(g.config)[0]:
            found = f"{script} does not load gpu_aware.lua"
            if text is None:
                yield failed("filter", found, f"run {INSTALL}")
            else:
                cure = f"add the lines below to {script} {LUA_PLACE}"
                yield failed("filter", found, cure, lines=join_lines(g.folder))
            return
        there = {p.name: p.read_bytes() for p in g.folder.glob("*.lua")}
        stale = [p.name for p in filter_files() if there.get(p.name) != p.read_bytes()]
        if stale:
            found = f"{g.folder}: missing, or of another release: {', '.join(stale)}"
            yield failed("filter", found, RESTART)
        yield ok("filter", f"{script} loads gpu_aware.lua of this release")
        yield from FILTER_CONF.check(g)
        yield self._check_answers(g)

    def _check_answers(self, g: DoctorContext) -> Check:
        """Test slurmctld with a job that the filter must refuse; no job is submitted."""
        works, line = filter_answer(g.config)
        if works:
            return ok("filter answers", "slurmctld refuses a wrong comment")
        if works is None:
            return skipped("filter answers", line, "run doctor as a user who may submit jobs")
        cure = f"look for gpu_aware in slurmctld's log; touch {g.folder / self.script} to reload it"
        return failed("filter answers", f"a wrong comment is not refused: {line}", cure)


class CommandScript(_Plugin):
    """cli_filter.lua, with which ``--test-only`` tests jobs that would be parked.

    Only if ``setup.cli_filter`` is set. Ours is complete in itself, so it can be the site's.
    """

    group, list_key, user = "test-only", "CliFilterPlugins", "sbatch and srun need"
    script, ours = CLI_FILTER, OUR_CLI_FILTER

    def settings(self, site: Site, notes: list[str]) -> dict[str, str]:
        """CliFilterPlugins with lua, if it is asked for."""
        return super().settings(site, notes) if site.config.setup.cli_filter else {}

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """The script, if it is asked for."""
        if not site.config.setup.cli_filter:
            return []
        if not site.for_review:
            notes.append(
                f"{self.list_key}=lua: copy {site.slurm_dir / self.script} to every host with"
                " sbatch or srun before slurm.conf; without the file these commands fail there"
            )
        return super().install(site, notes)

    def _advice(self, script: str, slurm_dir: Path) -> str:
        stays = f"is the site's own and stays; {_call(slurm_dir)}"
        return "" if loads_cli_filter(script) else stays

    def files(self, site: Site) -> list[Path]:
        """The script, if it is ours."""
        return [site.slurm_dir / self.script] if self._is_ours(site) else []

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Slurm's commands find the script that slurm.conf makes them load. On this host only."""
        script, conf = g.folder / self.script, g.folder / "slurm.conf"
        if "lua" not in g.plugins(self.list_key):
            if not g.config.setup.cli_filter:
                off = "off: --test-only refuses what would be parked (setup.cli_filter)"
                yield ok("test-only", off)
            elif self._listed(conf):
                found = f"slurmctld has not read {self.list_key}=lua in {conf}"
                yield failed("test-only", found, "scontrol reconfigure")
            else:
                found = f"{self.list_key}={g.slurm.get(self.list_key)} lacks lua"
                cure = f"run {INSTALL} on the controller, then 'scontrol reconfigure'"
                yield failed("test-only", found, cure)
        elif not script.exists():
            cure = f"copy {OUR_CLI_FILTER} there, or remove lua from {self.list_key}"
            yield failed("test-only", f"{script} is missing: sbatch and srun fail", cure)
        elif g.config.setup.cli_filter:
            if not loads_cli_filter(script.read_text(errors="replace")):
                found = f"{script} does not load {OUR_CLI_FILTER}"
                yield failed("test-only", found, _call(g.folder))
            yield ok("test-only", f"{script} marks tests; other hosts need it, too")

    def _listed(self, conf: Path) -> bool:
        """Whether a slurm.conf lists Lua; False: no, or it cannot be read."""
        with suppress(SourceError):
            return "lua" in plugins_of(read_conf(conf).get(self.list_key))
        return False


FILTER, COMMAND_SCRIPT = Filter(), CommandScript()


def _call(slurm_dir: Path) -> str:
    """What to add to a site's own cli_filter.lua."""
    return f'add {LUA_PLACE}: pcall(dofile, "{slurm_dir / OUR_CLI_FILTER}")'


def filter_files() -> list[Path]:
    """The modules of the filter, without job_submit.lua and the generated configuration."""
    return [
        p for p in shipped("lua") if p.suffix == ".lua" and p.name not in (LUA_CONF, OWN_FILTER)
    ]


def filter_answer(config: Config) -> tuple[bool | None, str]:
    """(whether the filter works, slurmctld's answer); None: this user may not submit jobs.

    The job has a wrong comment and is only tested, not submitted. Raises SourceError.
    """
    words = ["sbatch", "--test-only", "--gres=gpu:1", "--comment=class=gpu-aware-doctor"]
    words += [f"--partition={name}" for name in config.site.partitions[:1]]
    _, output = run_command([*words, "--wrap=:"], config.selector.command_timeout_s, check=False)
    line = " ".join(output.split())[-160:] or "the job was accepted"
    if "gpu-aware:" in output:
        return True, line
    if "class" not in output and _NO_RIGHT.search(output):
        return None, line
    return False, line
