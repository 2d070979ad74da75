"""Owned files: scripts that Slurm runs, clock.conf, systemd units, folders of events and store."""

import os
import pwd
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from string import Template

from slurm_gpu_aware.clock_conf import ACCOUNTS, NO_ACCOUNTS, conf_path, read_clock_conf
from slurm_gpu_aware.config.load import tuned_path
from slurm_gpu_aware.config.settings import DEFAULT_PATH, Config
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, warning
from slurm_gpu_aware.deploy.files import Change, shipped
from slurm_gpu_aware.deploy.owned import INSTALL, Owned
from slurm_gpu_aware.deploy.site import Site
from slurm_gpu_aware.deploy.site_scripts import (
    calls,
    hook_line,
    read_script,
    runs,
    scripts_of,
    without_ours,
)
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.conffile import ConfFiles
from slurm_gpu_aware.store.files import OF_SETUP, give_folder, of_selector, published_path

_COMMANDS = Path(sys.prefix) / "bin"
UNIT_DIR = Path("/etc/systemd/system")
_AGENT, _SELECTOR = "gpu-aware-clockd.service", "gpu-aware-selectd.service"
_SHADOW = "gpu-aware-shadow.service"
_WRITERS = (_SELECTOR, _SHADOW, "gpu-aware-watch.service", "gpu-aware-sweep.service")
"""Services that write the store."""
_SYSTEMS = 3  # parts of /var/lib
"""Folder of the commands of this installation."""


@dataclass(frozen=True)
class Hook(Owned):
    """A script of ours that Slurm runs, by its setting or by a line in a script of the site."""

    folder: str
    script: str
    key: str  # The setting.
    without: str  # Effect of its absence.
    on_nodes: bool = True  # Slurm runs it on the compute nodes.
    group = "prolog, epilog"

    @property
    def source(self) -> Path:
        """The script of the installation."""
        return next(path for path in shipped(self.folder) if path.name == self.script)

    def path(self, slurm_dir: Path) -> Path:
        """The installed script."""
        return slurm_dir / self.folder / self.script

    def contents(self, site: Site) -> list[Change]:
        """The script, executable."""
        text = self.source.read_text(encoding="utf-8")
        return [Change(self.path(site.slurm_dir), text, 0o755)]

    def settings(self, site: Site, notes: list[str]) -> dict[str, str]:
        """The setting, if the site has none."""
        path, have = self.path(site.slurm_dir), site.conf.all(self.key)
        if not have or str(path) in have:
            return {self.key: str(path)}
        if not any(runs(value, path) for value in have):
            lines = " ".join(f"{self.key}={value}" for value in have)
            notes.append(
                f"{lines} stays; without a line more {self.without}; after its first line:\n"
                f"{hook_line(path)}"
            )
        return {}

    def of_site(self, site: Site, had: ConfFiles | None, key: str, value: str) -> str | None:
        """Without our script."""
        ours = (self.key.lower(), str(self.path(site.slurm_dir)))
        return None if (key, value) == ours else value

    def lines(self, site: Site) -> Iterator[Change]:
        """The site's scripts without calls of ours."""
        for path in chain.from_iterable(map(scripts_of, site.conf.all(self.key))):
            if path not in {hook.path(site.slurm_dir) for hook in HOOKS}:
                yield from without_ours(path)

    def folders(self, site: Site) -> list[Path]:
        """Its folder, unless slurm.conf names all scripts of it."""
        folder = self.path(site.slurm_dir).parent
        named = set(chain(*site.conf.values.values()))
        return [] if f"{folder}/*" in named else [folder]

    def values(self, g: DoctorContext) -> list[str]:
        """Values of the setting, which may occur often: ``Prolog[0]``, ``Prolog[1]``, ..."""
        return [v for k, v in g.slurm.items() if k.split("[")[0] == self.key and v != "(null)"]

    def scripts(self, g: DoctorContext) -> list[Path]:
        """Scripts of the setting, on this host."""
        return [path for value in self.values(g) for path in scripts_of(value)]

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Slurm runs the script of this release."""
        name, installed, scripts = self.key.lower(), self.path(g.folder), self.scripts(g)
        direct = next((path for path in scripts if path.name == self.script), None)
        by = next((path for path in scripts if calls(read_script(path) or "", installed)), None)
        if direct is None and by is None:
            yield self._not_run(g, scripts)
            return
        have, without = direct or installed, self.without
        install = f"{INSTALL}; without it {without}"
        if not have.exists():
            yield warning(name, f"{by} runs {have}, which is missing", install)
        elif have.read_bytes() != self.source.read_bytes():
            yield warning(name, f"{have} is of another release", install)
        elif not os.access(have, os.X_OK):
            yield failed(name, f"{have} is not executable", f"chmod 755 {have}")
        elif (lacks := _unseen_scontrol(have)) is not None:
            yield warning(name, f"{have} does not find {lacks}", f"link it; {without}")
        else:
            where = "controller: " if self.on_nodes else ""
            yield ok(name, f"{where}{have}" if direct else f"{where}{by} runs {have}")

    def _not_run(self, g: DoctorContext, scripts: Sequence[Path]) -> Check:
        installed, values = self.path(g.folder), self.values(g)
        name, found = self.key.lower(), f"{self.key} does not run {self.script}: {self.without}"
        if not values:
            return warning(name, found, f"{INSTALL}, then 'scontrol reconfigure'")
        copy = ", and copy it to all nodes" if self.on_nodes else ""
        named = next((p for p in scripts if str(installed) in (read_script(p) or "")), None)
        if named is not None:
            found = f"{named} names {self.script} only where it never runs: {self.without}"
        where = named or [*scripts, *values][0]
        cure = f"add the line below to {where}, after its first line{copy}"
        return warning(name, found, cure, lines=(hook_line(installed),))


def _unseen_scontrol(script: Path) -> str | None:
    """Path of scontrol, if the script calls it and its PATH lacks it."""
    text = script.read_text(encoding="utf-8", errors="replace")
    path = re.search(r"^PATH=(\S+)$", text, re.MULTILINE)
    if path is None or "scontrol" not in text or shutil.which("scontrol", path=path[1]):
        return None
    return shutil.which("scontrol")


class ClockConf(Owned):
    """Settings of the clocks, beside the configuration; those of the site stay."""

    group = "accounting"

    def path(self, config: Config) -> Path:
        """clock.conf."""
        return (config.source or DEFAULT_PATH).parent / "clock.conf"

    def contents(self, site: Site) -> list[Change]:
        """The file with our values."""
        path = site.slurm_dir / "clock.conf" if site.for_review else self.path(site.config)
        text = Template(Path(__file__).with_name("clock.conf.in").read_text(encoding="utf-8"))
        command = _COMMANDS / "gpu-aware-clock"
        values = {"command": command, "accounts": ACCOUNTS, "slurm_user": site.user}
        return [Change(path, text.substitute(values))]

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """The file, if the site has none."""
        path = self.path(site.config)
        if site.for_review or not path.exists():
            return self.contents(site)
        if not re.search(r"^\s*accounts\s*=\s*/", path.read_text(errors="replace"), re.M):
            notes.append(f"{path} {NO_ACCOUNTS}; add accounts = {ACCOUNTS}")
        return []

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """It names a folder for accounts."""
        if not g.elsewhere and not read_clock_conf().accounts:
            cure = f"add accounts = {ACCOUNTS} to clock.conf here and on all nodes"
            yield warning("energy", f"{conf_path()} {NO_ACCOUNTS}", cure)


class Units(Owned):
    """Our systemd units with the site's values."""

    group = "units"

    @property
    def names(self) -> list[str]:
        """Names of the units."""
        return [source.name for source in shipped("systemd")]

    def contents(self, site: Site) -> list[Change]:
        """The units, with user, paths and commands of the site."""
        conf, changes = read_clock_conf(), []
        file = site.config.source  # a unit that names a file does not start without it
        controller = {
            "User": site.user,
            "Environment": f"GPU_AWARE_CONFIG={file}" if file else None,
            "ReadWritePaths": _with_others(written(site.config, conf.orders)),
        }
        own = map(_above, (conf.spool, conf.locks, conf.accounts or ACCOUNTS))
        folders = list(dict.fromkeys([*own, *([conf.job_map] if conf.job_map else [])]))
        node = {
            "ReadWritePaths": " ".join(folders),
            "ExecStartPre": f"+/bin/mkdir -p {' '.join(folders)}",
        }
        for source in shipped("systemd"):
            values = node if source.name == _AGENT else controller
            if source.name == _SHADOW:  # not SlurmUser, who may change jobs
                values = {k: v for k, v in controller.items() if k == "Environment"}
            text = source.read_text(encoding="utf-8")
            for key, value in values.items():
                line = "" if value is None else f"{key}={value}\n".replace("\\", r"\\")
                text = re.sub(rf"^{key}=.*\n", line, text, flags=re.M)
            text = re.sub(r"^ExecStart=\S*/", f"ExecStart={_COMMANDS}/", text, flags=re.M)
            changes.append(Change(site.unit_dir / source.name, text))
        return changes

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """The selector may write the folders that the configuration names now.

        Services that are enabled and write the store may do so, as one user.
        """
        texts = {name: text for name in self.names if (text := _unit_text(name))}
        wanted = {_SELECTOR: written(g.config, read_clock_conf().orders)}
        enabled = {name: texts[name] for name in _WRITERS if name in texts and _enabled(name)}
        wanted |= {name: [str(g.config.store.path.parent)] for name in enabled if name != _SELECTOR}
        for name, paths in wanted.items():
            text = texts.get(name, "")
            may = re.findall(r"^ReadWritePaths=(.*)$", text, re.M)
            known = {path.lstrip("-+") for line in may for path in line.split()}
            if "ProtectSystem=strict" in text and (missing := [p for p in paths if p not in known]):
                who = "the selector" if name == _SELECTOR else name
                found = f"{UNIT_DIR / name} does not let {who} write {', '.join(missing)}"
                cure = f"gpu-aware setup --install; systemctl daemon-reload; restart {who}"
                yield warning("units", found, cure)
        if {_SELECTOR, _SHADOW} <= enabled.keys():
            found = "selector and shadow are both enabled: the shadow has nothing to compare"
            yield warning("units", found, f"systemctl disable --now {_SHADOW}")
            del enabled[_SHADOW]
        users = {
            name: (re.findall(r"^User=(.+)$", t, re.M) or ["root"])[-1].strip()
            for name, t in enabled.items()
        }
        if len(set(users.values())) > 1:
            each = ", ".join(f"{name} as {user}" for name, user in users.items())
            cure = "give all of them one User= (systemctl edit), and chown the store's folder to it"
            yield warning("units", f"several users write one store: {each}", cure)


def _unit_text(name: str) -> str:
    """An installed unit and its drop-ins, in their order; empty: it is not installed."""
    files = [UNIT_DIR / name, *sorted((UNIT_DIR / f"{name}.d").glob("*.conf"))]
    if not files[0].exists():
        return ""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


def _enabled(name: str) -> bool:
    """Whether systemd starts a service, or its timer, by itself."""
    names = (name, f"{name.removesuffix('.service')}.timer")
    return any(list(UNIT_DIR.glob(f"*.wants/{one}")) for one in names)


def written(config: Config, orders: str) -> list[str]:
    """Folders that our programs on the controller write; ``orders``: that of the agents' orders."""
    events, published = config.events.submit_file, config.store.published
    more = [events.parent, *([published.parent] if published else [])]
    more += [Path(orders)] if orders else []
    return list(map(str, dict.fromkeys([config.store.path.parent, *more])))


def _above(path: str) -> str:
    """The folder above one that the agent makes itself; the folder, if that is the system's."""
    above = Path(path).parent
    return str(above if len(above.parts) > _SYSTEMS else path)


def _with_others(folders: Sequence[str]) -> str:
    """The first folder, and the others as far as they are there."""
    return " ".join([folders[0], *(f"-{folder}" for folder in folders[1:])])


class Events(Owned):
    """Folder in which the filter tells the selector of submissions."""

    group = "events"

    def files(self, site: Site) -> list[Path]:
        """What the filter and the selector write there."""
        events = site.config.events
        told = events.defer_file, events.waiting_file
        return [events.submit_file, *told, *events.runs_folder.glob("*")]

    def folders(self, site: Site) -> list[Path]:
        """The folder, and that of earlier runs in it."""
        events = site.config.events
        return [events.runs_folder, events.submit_file.parent]

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Submissions and ends of jobs trigger a round at once."""
        events, user = g.config.events, g.slurm_user
        folder = events.submit_file.parent
        if not folder.is_dir():
            found = f"{folder} is missing: a submission waits for the next round"
            yield warning("events", found, f"install -d -o {user} {folder}")
        elif unknown := g.no_user("events"):
            yield unknown
        elif not _may(folder, user, stat.S_IWOTH):
            yield warning("events", f"{user} cannot write to {folder}", f"chown {user} {folder}")
        yield ok("events", f"submissions: {events.submit_file}")


class StoreFolder(Owned):
    """Folder of the store, which stays on removal."""

    group = "permissions"

    def files(self, site: Site) -> list[Path]:
        """States of rollout and removal, what tune has set, the copy for other hosts."""
        config = site.config
        states = [config.store.path.with_name(name) for name in OF_SETUP]
        return [*states, tuned_path(config), *filter(None, [config.store.published])]

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """SlurmUser can read the configuration and write the store."""
        path, user = g.config.store.path, g.slurm_user
        source = g.config.source
        if unknown := g.no_user("permissions"):
            yield unknown
            return
        if source is not None and not (
            _may(source, user, stat.S_IROTH) and _may(source.parent, user, stat.S_IXOTH)
        ):
            cure = f"chmod a+r {source}; chmod a+x {source.parent}; then start the selector"
            yield failed("permissions", f"{user} cannot read {source}: no selector starts", cure)
        if not path.parent.is_dir():
            cure = f"install -d -o {user} {path.parent}"
            yield failed("permissions", f"{path.parent} is missing", cure)
            return
        # SQLite also writes files beside it; a sweep run by root may leave files of root.
        files = [p for p in of_selector(path) if p != published_path(path)]
        wrong = [p for p in (path.parent, *files) if p.exists() and not _may(p, user, stat.S_IWOTH)]
        if wrong:
            cure = f"{INSTALL} as root, or chown {user} {' '.join(map(str, wrong))}"
            yield failed("permissions", f"{user} cannot write to {wrong[0]}", cure)
        yield ok("permissions", f"{user} can write to {path.parent}")


def make_folders(config: Config, user: str) -> list[Path]:
    """Make the folders of events and store, or give root's ones to ``user``.

    A sweep that root ran may have made the store's folder. Returns the changed paths. Raises
    SourceError.
    """
    store, submitted = config.store.path, config.events.submit_file
    names: dict[Path, list[str]] = {}
    for file in (*of_selector(store), submitted):
        names.setdefault(file.parent, []).append(file.name)
    changed = []
    for folder, files in names.items():
        try:
            changed += give_folder(folder, user, files)
        except (OSError, LookupError) as exc:
            raise SourceError(f"{folder}: cannot be made for {user}: {exc}") from None
    return changed


def _may(path: Path, user: str, bit: int) -> bool:
    """Whether a user may do what a bit of others says, by owner, groups and mode."""
    entry, status = pwd.getpwnam(user), path.stat()
    if entry.pw_uid == status.st_uid:
        bit <<= 6
    elif status.st_gid in os.getgrouplist(user, entry.pw_gid):
        bit <<= 3
    return entry.pw_uid == 0 or bool(status.st_mode & bit)


HOOKS = (
    Hook("prolog.d", "50-gpu-aware", "Prolog", "clocks are not set"),
    Hook("epilog.d", "50-gpu-aware", "Epilog", "clocks are not reset"),
    Hook(
        "resv.d",
        "50-gpu-aware-pool",
        "ResvProlog",
        "jobs in the holding pool precede all others while the selector is away",
        on_nodes=False,
    ),
)
CLOCK_CONF, UNITS, EVENTS, STORE = ClockConf(), Units(), Events(), StoreFolder()
