"""Errors that callers distinguish. Bad arguments inside the code stay ``ValueError``."""

from __future__ import annotations

import sys

__all__ = [
    "AwareError",
    "ConfigError",
    "PolicyError",
    "RequestError",
    "SourceError",
    "StoppedError",
    "StoreBusyError",
    "StoreError",
    "not_installed",
]


class AwareError(Exception):
    """Base of all errors with a sentence for a person.

    ``str()`` joins the chain of causes, so that one printed line says what failed and why.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if self.__cause__ is not None:
            return f"{text}: {self.__cause__}"
        return text


class ConfigError(AwareError):
    """The configuration is wrong; names file, key and reason. Stops the start."""


class PolicyError(AwareError):
    """Unknown policy, or an option that the policy does not take; names the valid ones."""


class RequestError(AwareError):
    """A user's request is wrong; the message is the sentence that the user reads."""


class SourceError(AwareError):
    """A call to the outside (a Slurm command, NVML) failed, timed out or answered nonsense."""


class StoppedError(SourceError):
    """A person gave up waiting for an answer from outside."""


class StoreError(AwareError):
    """The SQLite store is damaged, newer than we are, or cannot be opened."""


class StoreBusyError(StoreError):
    """Another process is writing to the store; the same call may succeed in a moment."""


def not_installed(library: str, extra: str) -> str:
    """What to do where a library of an extra is missing: as the README installs, into here."""
    return (
        f"{library} is not installed; in the folder of the sources:"
        f" {sys.prefix}/bin/pip install '.[{extra}]'"
    )
