"""Errors that callers distinguish. A bad argument inside the code stays ``ValueError``."""

import sys


class AwareError(Exception):
    """Base of all errors whose message is for a person; ``str()`` joins the chain of causes."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.__cause__ is None else f"{text}: {self.__cause__}"


class ConfigError(AwareError):
    """The configuration is wrong; the message names file, key and reason."""


class PolicyError(AwareError):
    """Unknown policy, or an option that the policy does not take; names the valid ones."""


class RequestError(AwareError):
    """A user's request is wrong; the user reads the message."""


class SourceError(AwareError):
    """A file or a call to the outside (Slurm, NVML) failed, timed out or gave an invalid answer."""


class FileFault:
    """``with FileFault(path, "written")``: an OSError of a file becomes a SourceError."""

    def __init__(self, path: object, done: str = "read") -> None:
        self._what = f"{path}: cannot be {done}"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        if isinstance(exc, OSError):
            raise SourceError(f"{self._what}: {exc.strerror}") from None


class DeviceError(SourceError):
    """A call to the driver of a GPU failed.

    ``call``: the driver's function; ``reason``: its error text; ``unsupported``: the device or the
    driver does not support the call; ``lost``: the device no longer answers.
    """

    def __init__(
        self, call: str, reason: str, *, unsupported: bool = False, lost: bool = False
    ) -> None:
        super().__init__(f"{call}: {reason}")
        self.call = call
        self.reason = reason
        self.unsupported = unsupported
        self.lost = lost


class StoppedError(AwareError):
    """The user stopped a call to the outside."""


class StoreError(AwareError):
    """The SQLite store is damaged, of a newer version, or cannot be opened."""


class StoreBusyError(StoreError):
    """Another process writes to the store; the same call can succeed a moment later."""


def not_installed(library: str, extra: str) -> str:
    """Message that a library is missing, with the command that installs its extra."""
    return (
        f"{library} is not installed; in the folder of the sources:"
        f" {sys.prefix}/bin/pip install '.[{extra}]'"
    )
