"""Removal of slurm-gpu-aware from a live site, in an order that loses no job.

The nodes are plain again (the undo of a rollout) while the filter still translates requests by
model. Then: our lines out of the site's job_submit.lua, the selector off, all waiting jobs restored
and released, our settings out of slurm.conf, and last the files: a slurmd that still has our epilog
in its slurm.conf drains its node if the file is missing. Each step looks at what is there, so a
removal that was interrupted, or that waits for jobs, goes on when it is started again.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_gpu_aware.config.settings import GateConfig
from slurm_gpu_aware.deploy import files
from slurm_gpu_aware.deploy.filter import FILTER, filter_answer
from slurm_gpu_aware.deploy.gpu_types import return_types
from slurm_gpu_aware.deploy.job_requests import (
    all_jobs,
    clear_records,
    features_named,
    is_bound,
    jobs_text,
    open_placements,
    restore_all,
)
from slurm_gpu_aware.deploy.owned_files import UNITS
from slurm_gpu_aware.deploy.reconfiguration import WANTED, Delivery, Reconfiguration, not_read_since
from slurm_gpu_aware.deploy.rollout_site import LocalSite, begin_removal
from slurm_gpu_aware.deploy.setup import OWNED, conf_without_settings, kept_backups, own_files
from slurm_gpu_aware.deploy.site import Site, feature_of
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.files import SELECTOR_LOCK, hold_selector_lock
from slurm_gpu_aware.filter_rules import EXTRA_CLOCK, HOLDING_POOL
from slurm_gpu_aware.gate.licence_gate import gate_reservation
from slurm_gpu_aware.gate.restore import release_by_hand
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.records import ENDED, HOLDING
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.watch_state import PREFIX
from slurm_gpu_aware.time_text import counted

SYSTEMCTL_S = 60.0
RELOAD_S = 10.0  # Longest wait until slurmctld has read a changed job_submit.lua.
_TRIES = 5
"""Rounds of release, as jobs that were submitted before the filter went may still arrive."""


@dataclass
class Removed:
    """Outcome of one run."""

    waits: list[str] = field(default_factory=list)
    """What has to happen before the next run can go on; empty: all is removed."""
    kept: list[str] = field(default_factory=list)
    """What stays on this host and in Slurm, each with the reason."""


class Removal:
    """The steps after the nodes are plain. ``say`` takes a line of progress."""

    def __init__(
        self, site: Site, client: SlurmClient, local: LocalSite, say: Callable[[str], None]
    ) -> None:
        self._site = site
        self._config = site.config
        self._client = client
        self._local = local
        self._say = say
        self._ended: list[str] = []
        """Jobs that have ended and keep our AdminComment."""

    # -- what will change ----------------------------------------------------------------------

    def filter_change(self) -> files.Change | None:
        """job_submit.lua without our lines; None: it has none. Raises SourceError if some stay."""
        return next(iter(FILTER.lines(self._site)), None)

    def conf_changes(self, plain: Mapping[Path, str]) -> tuple[list[files.Change], list[str]]:
        """The site's Prolog, Epilog, cli_filter.lua and slurm.conf without us, this last; notes.

        ``plain``: changed files with plain nodes. Raises SourceError if a script runs ours in a
        form that is not known.
        """
        site = self._site
        changes = [c for thing in OWNED if thing is not FILTER for c in thing.lines(site)]
        settings, notes = conf_without_settings(site, plain)
        texts = {**plain, **settings}
        last = (site.slurm_dir / "slurm.conf").__eq__
        changes += [files.Change(path, texts[path]) for path in sorted(texts, key=last)]
        return [change for change in changes if files.diff(change)], notes

    # -- steps ---------------------------------------------------------------------------------

    def run(self, models: frozenset[str], delivery: Delivery) -> Removed:
        """Do all steps as far as they can be done now.

        ``models``: those whose features the nodes still have. ``delivery``: how nodes get the
        files. Raises SourceError; a later run goes on.
        """
        self._remove_filter()
        self._stop_selector()
        self._return_types(models)  # a job that starts with the feature is waited for
        self._release()
        waits = self._waits(models) or self._remove_settings(delivery)
        if waits:
            begin_removal(self._config, waits)
            return Removed(waits)
        return Removed(kept=self._remove_files())

    def _waits(self, models: frozenset[str]) -> list[str]:
        """What jobs have to do before the settings can go; those that need not wait are freed."""
        gate = self._config.gate
        wrong = self._return_types(models)
        self._ended = clear_records(self._client, gate)
        features = frozenset(map(feature_of, models))
        placed = open_placements(self._config)
        waiting = waiting_jobs(self._client, gate, features, placed, wrong)
        return [f"{jobs_text(ids)}: {why}" for why, ids in waiting.items()]

    def _return_types(self, models: frozenset[str]) -> dict[str, str]:
        """Pending jobs get their GPU types back; those that do not -> why."""
        if not models:
            return {}
        returned = return_types(self._client, self._config, models)
        if returned.changed:
            self._say(f"back from a feature to a GPU type: {jobs_text(returned.changed)}")
        return returned.wrong

    def _remove_filter(self) -> None:
        change = self.filter_change()
        if change is not None:
            files.check_lua([change])
            files.write(change, backup=False)
            self._say(f"{change.path}: our lines are out; new jobs pass unchanged")
        end = time.monotonic() + RELOAD_S
        while filter_answer(self._config)[0]:
            if time.monotonic() >= end:
                raise SourceError(
                    "slurmctld still runs the filter; restart slurmctld, then run this again"
                )
            folder = self._site.slurm_dir  # an earlier run may have been killed before this
            files.reload_filter(folder, [folder / files.OWN_FILTER])
            time.sleep(1.0)

    def _stop_selector(self) -> None:
        units = [n for n in UNITS.names if (self._site.unit_dir / n).exists()]
        timed = [name for name in units if f"{name.removesuffix('.service')}.timer" in units]
        startable = [name for name in units if name not in timed]
        if startable and shutil.which("systemctl"):
            run_command(["systemctl", "disable", "--now", *startable], SYSTEMCTL_S)
            if timed:  # a run that goes on could write again what is deleted below
                run_command(["systemctl", "stop", *timed], SYSTEMCTL_S, check=False)
            self._say(f"stopped and disabled: {', '.join(startable)}")
        store = self._config.store.path
        if (store.parent / SELECTOR_LOCK).exists():
            with hold_selector_lock(store):  # raises if a selector runs
                pass
        others = Controllers(self._client.settings()).others
        if others and self._renewed():
            raise SourceError(
                "a selector on another controller renews the gate: on"
                f" {', '.join(others)} 'systemctl disable --now gpu-aware-selectd', then run this"
                " again"
            )

    def _renewed(self) -> bool:
        """Whether the end of the gate's reservation moves."""
        gate = self._config.gate
        before = gate_reservation(self._client, gate)
        if before is None:
            return False
        time.sleep(self._config.selector.heartbeat_s + 2.0)
        after = gate_reservation(self._client, gate)
        return after is not None and after.end_s > before.end_s

    def _release(self) -> None:
        """Restore and release all waiting jobs; then delete the reservations of gate and pool."""
        for _ in range(_TRIES):
            released = release_by_hand(self._client, self._config, None)
            restored = restore_all(self._client, self._config)
            if restored.kept:
                raise SourceError(f"placed jobs stay unchanged: {restored.kept_why}")
            for job_id, why in restored.wrong.items():
                raise SourceError(f"the request of job {job_id} could not be restored: {why}")
            if not released and not restored.left:
                break
            self._say(f"given back to Slurm: {jobs_text(released + restored.left)}")
        gate = self._config.gate.reservation
        for name in [r.name for r in self._client.reservations()]:
            if name == gate or re.fullmatch(rf"{HOLDING_POOL}(_\d+)?", name):
                self._client.delete_reservation(name)
                self._say(f"deleted reservation {name}")

    def _remove_settings(self, how: Delivery) -> list[str]:
        """Change slurm.conf and let all daemons read it; return what has to be done by hand."""
        found = self._local.read()
        plain = {} if found.indexed_by_us() else found.texts((), features=False)
        changes, _ = self.conf_changes(plain)
        changed_s = max(path.stat().st_mtime for path in found.slurm.texts)
        if not changes and not not_read_since(self._client.nodes(), changed_s):
            return []
        for change in changes:
            files.write(change, backup=False)
            self._say(f"{change.path}: our lines are out")
        if how.arrives:
            self._local.distribute()
            Reconfiguration(self._client, self._say, lambda: False).run()
            self._say("all daemons have read slurm.conf")
            return []
        folder = self._site.slurm_dir
        return [
            f"{how.why}: copy {folder} to all nodes that have their own, then run 'scontrol"
            f" reconfigure'; or {WANTED.format(folder=folder)}"
        ]

    def _remove_files(self) -> list[str]:
        """Delete our files on this host; return those that stay, with the reason."""
        kept, deleted = [], []
        settings, drained = self._client.settings(), self._drained()
        backups = kept_backups(self._site)
        folders = dict.fromkeys(f for thing in OWNED for f in thing.folders(self._site))
        for path, thing in own_files(self._site).items():
            if why := thing.needed(path, settings):
                kept.append(f"{path}: {why}")
            else:
                deleted.append(path)
        for path, needless in backups.items():
            if needless:
                deleted.append(path)
            else:
                kept.append(f"{path}: the file was changed since, so its first version stays")
        for path in deleted:
            path.unlink(missing_ok=True)
        for folder in folders:
            if folder.is_dir() and not os.listdir(folder):
                folder.rmdir()
        if deleted:
            self._say(f"deleted {counted(len(deleted), 'file')}: {', '.join(map(str, deleted))}")
            if shutil.which("systemctl"):
                run_command(["systemctl", "daemon-reload"], SYSTEMCTL_S, check=False)
            self._local.distribute()
        if self._ended:
            kept.append(
                f"AdminComment of {jobs_text(self._ended)}: Slurm changes no job that has ended;"
                f" slurmctld forgets it after MinJobAge ({settings.get('MinJobAge', '300 sec')}),"
                " accounting keeps it"
            )
        kept += drained
        data = (self._config.store.path.parent, self._config.source)
        yours = [path for path in data if path is not None and path.exists()]
        return [*kept, *(f"{path}: your measurements or settings" for path in yours)]

    def _drained(self) -> list[str]:
        """Nodes that watch has drained: nothing resumes them any more."""
        nodes = self._client.nodes()
        names = [n.name for n in nodes if "DRAIN" in n.states and n.reason.startswith(PREFIX)]
        if not names:
            return []
        command = f"scontrol update nodename={hostlist(names)} state=resume"
        return [f"the drain of {hostlist(names)} by watch: when the GPUs are well, '{command}'"]


def waiting_jobs(
    client: SlurmClient,
    gate: GateConfig,
    features: Collection[str],
    placed: Collection[str],
    wrong: Mapping[str, str],
) -> dict[str, list[str]]:
    """Why jobs still need us -> their ids.

    ``placed``: those of open decisions. ``wrong``: why pending jobs keep the feature of a model.
    Raises SourceError if a job cannot be read.
    """
    found: dict[str, list[str]] = {}
    for job in all_jobs(client):
        if job.state in ENDED:
            continue
        why = None
        if job.licence_count(gate.licence):
            why = f"the licence {gate.licence} is in the request"
        elif job.holding_pool is not None:
            why = f"the reservation {job.holding_pool} is in the request"
        elif features_named(job) & set(features):
            why = "running with the feature of a GPU model, which a requeue would ask for again"
            if job.state == "PENDING":
                kept = wrong.get(job.id, "it has just come, and gets its GPU type in the next run")
                why = f"the feature of a GPU model is in the request; {kept}"
        elif job.state in HOLDING and (
            job.id in placed or is_bound(job) or EXTRA_CLOCK in (job.extra or "")
        ):
            why = "running where we placed it; the epilog resets its clock"
        if why is not None:
            found.setdefault(why, []).append(job.id)
    return found
