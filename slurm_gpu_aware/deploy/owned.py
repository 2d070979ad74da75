"""Owned things: what we bring to a site, each with what it should be, its check and its removal.

`setup.OWNED` lists them; setup, doctor and removal walk this list. Here are those in
slurm.conf and gres.conf.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, failed, ok, warning
from slurm_gpu_aware.deploy.files import Change
from slurm_gpu_aware.deploy.site import Site, gres_lines, node_lines
from slurm_gpu_aware.gate.licence_gate import POOL_LICENCE, POOL_LICENCES
from slurm_gpu_aware.slurm.conf_grammar import fields_of
from slurm_gpu_aware.slurm.conffile import ConfFiles, Entry
from slurm_gpu_aware.slurm.gres import gpu_slots
from slurm_gpu_aware.slurm.words import entry_name, expand_hostlist, hostlist, words_of
from slurm_gpu_aware.time_text import counted

INSTALL = "'gpu-aware setup --install'"
RESTART = f"run {INSTALL}, then restart slurmctld"
_SCHEDULER = {
    "default_queue_depth": (5000, "parked jobs of higher priority delay others"),
    "batch_sched_delay": (0, "a placed job waits up to 3 s for Slurm's scheduler"),
}
"""Word of SchedulerParameters -> (our value, effect of Slurm's default)."""
_FORMER = "batch_sched_delay=1"
"""What setup added before: Slurm's scheduler then leaves out every fifth pass."""
_REQUEUE_S = 5
"""Least ``requeue_delay``, s: until then the selector has parked a requeued job again."""
_EXPEDITED = "enable_expedited_requeue"
_JOBCOMP = "jobcomp/filetxt"


class Owned:
    """A thing of ours: settings of slurm.conf, files, lines in a site's scripts.

    A subclass says what differs from nothing. ``notes`` gets sentences for the administrator; their
    further lines are to be copied.
    """

    group = ""  # The check of doctor to which its check belongs; empty: it has none.
    list_key = ""
    """A setting of slurm.conf that is a list with entries of ours; empty: there is none."""
    words: tuple[str, ...] = ()  # These entries.
    former: tuple[str, ...] = ()  # Those that earlier versions of ours wrote instead.
    by_name = False  # An entry with the name of one of ours is ours, whatever else it says.

    def entries(self, config: Config) -> dict[str, str]:
        """Our entries of the list: name -> entry."""
        return {entry_name(word): word for word in self.words}

    def settings(self, site: Site, notes: list[str]) -> dict[str, str]:
        """Settings of slurm.conf (key as Slurm spells it -> value), merged with the site's."""
        if not self.list_key:
            return {}
        ours, have = self.entries(site.config), site.conf.get(self.list_key)
        words = words_of(have)
        kept = [word for word in words if not (self.by_name and entry_name(word) in ours)]
        there = set(map(entry_name, kept))
        added = (entry for name, entry in ours.items() if name not in there)
        return {self.list_key: ",".join([*kept, *added])}

    def contents(self, site: Site) -> list[Change]:
        """Its files as they should be."""
        return []

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """Files to write; those of the site stay as they are."""
        return self.contents(site)

    def check(self, g: DoctorContext) -> Iterable[Check]:
        """Check it on a live site."""
        return ()

    def lines(self, site: Site) -> Iterable[Change]:
        """Files of the site without our lines. Raises SourceError for lines that are not known."""
        return ()

    def of_site(self, site: Site, had: ConfFiles | None, key: str, value: str) -> str | None:
        """The value of a setting (key in lower case) without us; None: no such setting.

        ``had``: slurm.conf before setup; None: it is not known. An entry that was changed since is
        the site's, unless ours go by their names.
        """
        if key != self.list_key.lower() or (had is None and not self.by_name):
            return value
        ours = self.entries(site.config)
        if not self.by_name:
            before = set(map(entry_name, ((had and had.get(key)) or "").split(",")))
            ours = {name: word for name, word in ours.items() if name not in before}
        words = words_of(value)
        kept = [w for w in words if entry_name(w) not in ours]
        if not self.by_name:
            mine = (*ours.values(), *(w for w in self.former if entry_name(w) in ours))
            kept = [w for w in words if w not in mine]
        return value if kept == words else ",".join(kept) or None

    def files(self, site: Site) -> Iterable[Path]:
        """Files of ours that a removal deletes, as far as they exist."""
        return [change.path for change in self.contents(site)]

    def folders(self, site: Site) -> Iterable[Path]:
        """Folders that a removal deletes if they are empty."""
        return ()

    def needed(self, path: Path, settings: Mapping[str, str]) -> str:
        """Why a file has to stay by these settings of the running Slurm; empty: it may go."""
        return ""


class Licences(Owned):
    """The licences of the gate and of the holding pool; their count follows the configuration."""

    group, list_key, by_name = "licence", "Licenses", True

    def entries(self, config: Config) -> dict[str, str]:
        """Licences with their counts."""
        counts = {config.gate.licence: config.gate.licence_count, POOL_LICENCE: POOL_LICENCES}
        return {name: f"{name}:{count}" for name, count in counts.items()}

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """The licences are configured, with the right count."""
        counts: dict[str, int] = {}
        for word in g.words("Licenses"):
            name, *rest = re.split(r"[:*=]", word)
            counts.setdefault(name, int(rest[0]) if rest and rest[0].isdigit() else 1)
        if POOL_LICENCE not in counts:
            found = "on large clusters many parked jobs slow down slurmctld"
            found = f"slurm.conf has no licence {POOL_LICENCE}: {found}"
            cure = (
                f"add {POOL_LICENCE}:{POOL_LICENCES} to Licenses ({INSTALL}), scontrol reconfigure"
            )
            yield warning("holding pool", found, cure)
        name, wanted = g.config.gate.licence, g.config.gate.licence_count
        if name not in counts:
            found = f"slurm.conf has no licence {name}: nothing can be parked"
            cure = f"add Licenses={name}:{wanted} ({INSTALL}), scontrol reconfigure"
            yield failed("licence", found, cure)
        elif counts[name] != wanted:
            found = f"slurm.conf has {counts[name]} of {name}, but the configuration has {wanted}"
            cure = f"set Licenses={name}:{wanted} in slurm.conf ({INSTALL})"
            yield failed("licence", found, cure)
        yield ok("licence", f"{name}: {wanted}")


class SchedulerWords(Owned):
    """Words of SchedulerParameters that keep jobs from waiting for each other."""

    group, list_key = "settings", "SchedulerParameters"
    words = tuple(f"{name}={value}" for name, (value, _) in _SCHEDULER.items())
    former = (_FORMER,)

    def settings(self, site: Site, notes: list[str]) -> dict[str, str]:
        """Words that the site has not set."""
        values = super().settings(site, notes)
        if "bf_licenses" in values[self.list_key].split(","):
            notes.append(
                "SchedulerParameters has bf_licenses: many parked jobs then delay others by many"
                " seconds; remove it if the site can do without"
            )
        notes += (f"{found}; {cure}" for _, found, cure in _harmful(site.conf.get))
        return values

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """No setting of the scheduler makes jobs wait for each other."""
        given = {word.partition("=")[0] for word in g.words("SchedulerParameters")}
        if "bf_licenses" in given:
            cure = "remove it: many parked jobs then delay other jobs by many seconds"
            yield warning("scheduler", "SchedulerParameters has bf_licenses", cure)
        for status, found, cure in _harmful(g.slurm.get):
            yield status("scheduler", found, f"{cure}, then 'scontrol reconfigure'")
        for name, (value, why) in _SCHEDULER.items():
            if name not in given:
                cure = f"add {name}={value} ({INSTALL}), then 'scontrol reconfigure'"
                yield warning("scheduler", f"SchedulerParameters has no {name}: {why}", cure)
        yield ok("scheduler", "no setting that makes jobs wait for each other")


def _harmful(
    setting: Callable[[str], str | None],
) -> Iterator[tuple[Callable[..., Check], str, str]]:
    """(Kind of check, finding, cure) of each word with which the gate does not do."""
    passes = "who requeues a job passes the queue"
    if _EXPEDITED in words_of(setting("SlurmctldParameters")):
        # From 26.05 on: `--requeue=expedite` of any user, for which no `requeue_delay` counts.
        yield warning, f"SlurmctldParameters has {_EXPEDITED}: {passes}", f"remove {_EXPEDITED}"
    for word in words_of(setting("SchedulerParameters")):
        name, _, delay_s = word.partition("=")
        found = f"SchedulerParameters has {word}: "
        if name == "extra_constraints":
            # Slurm reads a job's Extra as a constraint on its nodes.
            yield failed, f"{found}no job starts whose GPUs or clock are in Extra", f"remove {name}"
        elif name == "requeue_delay" and (not delay_s.isdecimal() or int(delay_s) < _REQUEUE_S):
            # A selector cannot park a requeued job in time.
            cure = f"set {name}={_REQUEUE_S} or more"
            yield warning, f"{found}{passes}", cure
        elif word == _FORMER:
            yield warning, f"{found}each fifth second no placed job starts", f"set {name}=0"


class JobEnds(Owned):
    """Slurm's record of ended jobs, which starts a round at once (``events.jobcomp_file``)."""

    group = "events"

    def _wanted(self, config: Config) -> dict[str, str]:
        file = config.events.jobcomp_file
        return {} if file is None else {"JobCompType": _JOBCOMP, "JobCompLoc": str(file)}

    def settings(self, site: Site, notes: list[str]) -> dict[str, str]:
        """The record, if the site has none of another kind."""
        wanted, kind = self._wanted(site.config), site.conf.get("JobCompType") or "jobcomp/none"
        if not wanted:
            notes.append(
                "events.jobcomp_file is not set: after the end of a job, the next round starts"
                f" within {site.config.selector.round_s:g} s instead of at once"
            )
        elif kind == "jobcomp/none":
            notes.append(
                f"{wanted['JobCompLoc']} must be writable by SlurmUser, otherwise slurmctld does"
                " not start"
            )
        elif kind != _JOBCOMP or site.conf.get("JobCompLoc") not in (None, wanted["JobCompLoc"]):
            notes.append(f"JobCompType={kind} stays; events.jobcomp_file has no effect with it")
            return {}
        return wanted

    def of_site(self, site: Site, had: ConfFiles | None, key: str, value: str) -> str | None:
        """As before, if both settings are ours."""
        wanted = self._wanted(site.config)
        ours = all(site.conf.get(name) == text for name, text in wanted.items())
        if had is None or not ours or had.get("JobCompType") == _JOBCOMP:
            return value
        mine = {name.lower(): text for name, text in wanted.items()}
        return had.get(key) if mine.get(key) == value else value

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Slurm writes the file that the selector reads."""
        wanted = self._wanted(g.config)
        have = {key: g.slurm.get(key) for key in wanted}
        if not wanted:
            yield ok("job ends", f"by timer, every {g.config.selector.round_s:g} s")
        elif have == wanted:
            yield ok("job ends", wanted["JobCompLoc"])
        else:
            listed = ", ".join(f"{key}={value}" for key, value in have.items())
            found = f"{listed}: {wanted['JobCompLoc']} is never written"
            cure = f"set {_JOBCOMP} and the same file in slurm.conf, or remove events.jobcomp_file"
            yield warning("job ends", found, cure)


class GresTypes(Owned):
    """GresTypes of slurm.conf lists gpu."""

    group, list_key, words = "settings", "GresTypes", ("gpu",)

    def of_site(self, site: Site, had: ConfFiles | None, key: str, value: str) -> str | None:
        """Without gpu, if no node has GPUs."""
        with_gpus = any(node.has_gpus for node in site.conf_nodes.values())
        return value if with_gpus else super().of_site(site, had, key, value)

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Slurm schedules GPUs."""
        if "cons_tres" not in g.slurm.get("SelectType", ""):
            found = f"SelectType={g.slurm.get('SelectType')}"
            yield failed("settings", found, "use select/cons_tres")
        elif "gpu" not in g.words("GresTypes"):
            found = f"GresTypes={g.slurm.get('GresTypes')} lacks gpu"
            yield failed("settings", found, RESTART)
        yield ok("settings", "select/cons_tres, GresTypes has gpu")


class GpuTypes(Owned):
    """One GRES type per GPU: lines of gres.conf.

    Setup does not change the GRES types of a node with GPUs in slurm.conf, because Slurm would kill
    or requeue its running jobs. A rollout changes such nodes.
    """

    group = "gres types"

    def install(self, site: Site, notes: list[str]) -> list[Change]:
        """Lines of nodes with one type per GPU in slurm.conf; for review those of all nodes."""
        if not site.nodes or site.config.placement.gpus == "nodes":
            return []
        if site.for_review:
            body = "\n".join(gres_lines(site.nodes)) + "\n"
            return [Change(site.slurm_dir / "gres.conf", body)]
        indexed = {name: node.indexed for name, node in site.conf_nodes.items() if node.has_gpus}
        plain = [n.name for n in site.nodes if indexed.get(n.name) is False]
        absent = [n for n in site.nodes if n.name not in indexed]
        if plain:
            notes.append(
                f"{hostlist(plain)} keep their GRES types, because a change kills running jobs."
                " 'gpu-aware setup --roll' moves them one by one, each while it is empty."
                " Until then the selector chooses only the node there"
            )
        if absent:
            lines = "; ".join(node_lines(absent))
            notes.append(f"slurm.conf has no GPUs on these nodes; add to their lines: {lines}")
        gres = ConfFiles(site.slurm_dir / "gres.conf", missing_ok=True, checked=False)
        of_site = (fields_of(record) for record, entry in gres.effective if not entry.in_block)
        described = {
            name
            for fields in of_site
            if fields.get("name", "").lower() == "gpu"
            for name in expand_hostlist(fields.get("nodename", ""))
        }
        ours = [n for n in site.nodes if indexed.get(n.name) and n.name not in described]
        block: dict[Entry, Sequence[str]] = dict.fromkeys(gres.block(), ())
        changed = gres.with_lines(block, gres_lines(ours))
        return [Change(path, text) for path, text in changed.items()]

    def check(self, g: DoctorContext) -> Iterator[Check]:
        """Every GPU has its own GRES type."""
        name, with_gpus = self.group, [n for n in g.nodes if n.gpus]
        if not with_gpus:
            yield failed(name, "Slurm knows no node with GPUs", "add Gres= to the node lines")
            return
        note = "; unsupported (MPS, MIG, shards that Slurm counts by node): "
        shared = hostlist(n.name for n in with_gpus if n.shared_gres)
        note = f"{note}{shared}" if shared else ""
        mixed = hostlist(n.name for n in with_gpus if n.gpus_used & n.shared_gpus)
        if mixed:
            found = f"{mixed}: Slurm has given the same GPU as a whole and in shards"
            yield warning(name, found, "add File= to the lines Name=shard of gres.conf")
        whole = [n for n in with_gpus if not n.shared_gres]
        plain = [n.name for n in whole if not gpu_slots(n)[1]]
        if g.config.placement.gpus == "nodes":
            typed = [n.name for n in whole if n.name not in plain]
            if typed:
                found = f"{hostlist(typed)}: one GRES type per GPU, and placement.gpus is nodes"
                cure = "'gpu-aware setup --undo' gives these nodes their former types"
                yield warning(name, f"{found}{note}", cure)
            yield ok(name, f"placement.gpus is nodes: Slurm chooses the GPUs of each node{note}")
            return
        if plain or not whole:
            none = "no node has one GRES type per GPU"
            found = none if len(plain) == len(whole) else hostlist(plain)
            cure = "'gpu-aware setup --roll' changes nodes one by one, each while it has no job"
            yield warning(name, f"{found}: only the node is chosen, not the GPU{note}", cure)
        yield ok(name, f"{counted(len(whole), 'node')} with one GRES type per GPU{note}")
