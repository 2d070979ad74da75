"""Outcome and context of the checks of ``gpu-aware doctor``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.records import SlurmNode
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile

__all__ = ["Check", "DoctorContext", "failed", "ok", "skipped", "warning"]


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    found: str
    cure: str = ""
    """Remedy; empty for ``ok``."""
    status: str = "ok"
    """``ok``, ``warning`` (works, but not as well as it could), ``failed``, ``skipped``."""


ok = Check
warning = partial(Check, status="warning")
failed = partial(Check, status="failed")
skipped = partial(Check, status="skipped")


@dataclass
class DoctorContext:
    """Configuration, Slurm and store for the checks; each property is read once, on first use.

    Properties raise AwareError if they cannot be read.
    """

    config: Config
    now: float = field(default_factory=time.time)

    @cached_property
    def client(self) -> SlurmClient:
        """Slurm's client."""
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

    def words(self, key: str) -> list[str]:
        """Entries of a comma-separated setting of Slurm."""
        return [w for w in self.slurm.get(key, "").split(",") if w and w != "(null)"]
