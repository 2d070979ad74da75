"""Doctor: runs checks of a live cluster; their outcome and context."""

import pwd
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.deploy.files import FILTER_CODE
from slurm_gpu_aware.errors import AwareError, SourceError, StoreError
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.slurm.client import Controllers, SlurmClient, open_client
from slurm_gpu_aware.slurm.commands import run_command
from slurm_gpu_aware.slurm.records import SlurmNode
from slurm_gpu_aware.slurm.words import entry_name, plugins_of, words_of
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile

_ANSWER_S = 5.0


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    found: str
    cure: str = ""  # Remedy; empty for ``ok``.
    status: str = "ok"
    """``ok``, ``warning`` (works, but not as well as it could), ``failed``, ``skipped``."""
    lines: tuple[str, ...] = ()  # What the cure adds to a file, to be copied.


ok = Check
warning = partial(Check, status="warning")
failed = partial(Check, status="failed")
skipped = partial(Check, status="skipped")


def answer_of(*words: str) -> str:
    """What a command says of a path, whose file system may hang. Raises SourceError."""
    return run_command(words, _ANSWER_S)[0].strip()


@dataclass
class DoctorContext:
    """Configuration, Slurm and store for the checks; to read them may raise AwareError."""

    config: Config
    ask_nodes: bool = False  # Start a job on each idle node, which looks at its files.
    now: float = field(default_factory=time.time)
    silence: str | None = None
    """Why Slurm has not answered; it is not asked again, as each question waits for its end."""

    @cached_property
    def client(self) -> SlurmClient:
        """Slurm's client."""
        if self.silence is not None:
            raise SourceError(self.silence)
        return open_client(self.config.selector.command_timeout_s)

    @cached_property
    def slurm(self) -> Mapping[str, str]:
        """Slurm's configuration: key -> value in Slurm's spelling."""
        return self.client.settings()

    @cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """Slurm's nodes."""
        return self.client.nodes()

    @cached_property
    def folder(self) -> Path:
        """Folder of slurm.conf on the controller."""
        return Path(self.slurm.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent

    @cached_property
    def slurm_user(self) -> str:
        """SlurmUser's name."""
        return self.slurm.get("SlurmUser", "root").split("(")[0]

    @cached_property
    def profile(self) -> Profile:
        """Newest profile in the store."""
        with open_store(self.config.store.path, readonly=True) as store:
            return load_profile(store)

    @cached_property
    def elsewhere(self) -> bool:
        """Whether this host is no controller: it runs no slurmctld, and has no store."""
        try:
            return Controllers(self.slurm).elsewhere and not self.config.store.path.exists()
        except (AwareError, OSError):  # not known
            return False

    @cached_property
    def parks(self) -> bool:
        """Whether setup has prepared Slurm to park jobs, if only in part, or that is not known."""
        try:
            licences = map(entry_name, self.words("Licenses"))
            return self.config.gate.licence in licences or (self.folder / FILTER_CODE).exists()
        except (AwareError, OSError):
            return True

    def no_user(self, name: str) -> Check | None:
        """A check that cannot be made, as SlurmUser is no user of this host; None: it can."""
        try:
            pwd.getpwnam(self.slurm_user)
        except KeyError:
            found = f"SlurmUser {self.slurm_user} is no user of this host"
            return skipped(name, found, "run doctor on the controller")
        return None

    def words(self, key: str) -> list[str]:
        """Entries of a comma-separated setting of Slurm."""
        return words_of(self.slurm.get(key))

    def plugins(self, key: str) -> list[str]:
        """Plugins of such a setting."""
        return plugins_of(self.slurm.get(key))


CheckFunction = Callable[[DoctorContext], Iterable[Check]]
Checks = Sequence[tuple[str, bool, bool, CheckFunction]]
"""(name, whether it needs Slurm, whether it concerns only a controller, check), in the order of the
output."""


def run_checks(
    config: Config, checks: Checks, *, of_gate: Collection[str] = (), ask_nodes: bool = False
) -> list[Check]:
    """Run checks; one that raises counts as failed or skipped. ``ask_nodes``: by jobs on them.

    ``of_gate``: names of those that one sentence replaces where jobs start as on plain Slurm.

    The first one finds out whether Slurm answers. An ``ok`` counts only if the check has found
    nothing else under its name.
    """
    context = DoctorContext(config, ask_nodes)
    results: list[Check] = []
    answering = True
    for name, needs_slurm, of_controller, check in checks:
        if needs_slurm and not answering:
            results.append(skipped(name, "Slurm does not answer"))
            continue
        if name in of_gate and not context.parks:
            continue
        if of_controller and context.elsewhere:
            cure = "run doctor on the controller"
            results.append(skipped(name, "this host is no controller", cure))
            continue
        found: list[Check] = []
        try:
            found.extend(check(context))
        except StoreError as exc:
            found.append(skipped(name, str(exc), "see the store check"))
        except AwareError as exc:
            cure = "repair this, then run doctor again"
            if not results:
                answering = False
                context = DoctorContext(config, ask_nodes, silence=str(exc))
                cure += "; it needs slurmctld, and Slurm's commands on PATH"
            found.append(failed(name, str(exc), cure))
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            cure = "run it as root on the controller"
            found.append(skipped(name, f"{where}{exc.strerror}", cure))
        wrong = {c.name for c in found if c.status != "ok"}
        results += [c for c in found if c.status != "ok" or c.name not in wrong]
    if any(name in of_gate for name, *_ in checks) and not context.parks:
        plain = "jobs start as on plain Slurm: no gate is installed"
        cure = "to have them placed: 'gpu-aware setup --install'"
        results.append(skipped("placing", plain, cure))
    return results
