"""Outcome and context of the checks of ``gpu-aware doctor``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.model.profile import Profile
from slurm_gpu_aware.slurm.client import SlurmClient, open_client
from slurm_gpu_aware.slurm.records import SlurmNode, SlurmReservation
from slurm_gpu_aware.store.database import open_store
from slurm_gpu_aware.store.profiles import load_profile

__all__ = ["Check", "DoctorContext", "failed", "ok", "skipped", "warning", "words"]


@dataclass(frozen=True)
class Check:
    """Outcome of one check."""

    name: str
    status: str
    """``ok``, ``warning`` (works, but not as well as it could), ``failed``, ``skipped``."""
    found: str
    cure: str = ""
    """Remedy; empty for ``ok``."""


def ok(name: str, found: str) -> Check:
    """A passed check."""
    return Check(name, "ok", found)


def failed(name: str, found: str, cure: str) -> Check:
    """A failed check."""
    return Check(name, "failed", found, cure)


def warning(name: str, found: str, cure: str) -> Check:
    """A check with a warning."""
    return Check(name, "warning", found, cure)


def skipped(name: str, found: str, cure: str = "") -> Check:
    """A check that cannot run here."""
    return Check(name, "skipped", found, cure)


@dataclass
class DoctorContext:
    """Configuration, Slurm and store for the checks; each property is read once, on first use.

    Properties raise AwareError if they cannot be read.
    """

    config: Config
    now: float = field(default_factory=time.time)

    @cached_property
    def slurm(self) -> Mapping[str, str]:
        """Slurm's configuration: key -> value in Slurm's spelling."""
        return self.client.settings()

    @cached_property
    def client(self) -> SlurmClient:
        """Slurm's client."""
        return open_client(self.config.selector.command_timeout_s)

    @cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """Slurm's nodes."""
        return self.client.nodes()

    @cached_property
    def reservations(self) -> Sequence[SlurmReservation]:
        """Slurm's reservations."""
        return self.client.reservations()

    @cached_property
    def folder(self) -> Path:
        """Folder of slurm.conf on the controller."""
        return Path(self.slurm.get("SLURM_CONF", "/etc/slurm/slurm.conf")).parent

    @cached_property
    def profile(self) -> Profile:
        """Newest profile in the store."""
        with open_store(self.config.store.path, readonly=True) as store:
            return load_profile(store)

    @cached_property
    def slurm_user(self) -> str:
        """SlurmUser's name."""
        return self.slurm.get("SlurmUser", "root").split("(")[0]


def words(value: str | None) -> list[str]:
    """Entries of a comma-separated setting."""
    return [w for w in (value or "").split(",") if w and w != "(null)"]
