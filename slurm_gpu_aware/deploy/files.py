"""Files that setup writes: shipped files, differences, atomic replacement."""

import difflib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import slurm_gpu_aware
from slurm_gpu_aware.errors import AwareError, FileFault, SourceError
from slurm_gpu_aware.files import ReplacedFile

OWN_FILTER = "job_submit.lua"
CLI_FILTER = "cli_filter.lua"
"""The script of Slurm's commands; ours only if ``setup.cli_filter`` is set."""
OUR_CLI_FILTER = "gpu_aware_cli_filter.lua"
FILTER_CODE = "gpu_aware.lua"
LUA_CONF = "gpu_aware_conf.lua"
BACKUP = ".before-gpu-aware"  # End of the name of a file's first version, which setup keeps.

COMMAND_TIMEOUT_S = 20.0
_LUAC = ("luac5.1", "luac", "luac5.3", "luac5.4")


@dataclass(frozen=True)
class Change:
    """Wanted content of a file."""

    path: Path
    text: str
    mode: int = 0o644


def shipped(kind: str) -> list[Path]:
    """Files of ``etc/KIND`` of the installation, sorted. Raises SourceError."""
    checkout = Path(slurm_gpu_aware.__file__).resolve().parent.parent / "etc" / kind
    installed = Path(sys.prefix) / "share" / "slurm-gpu-aware" / kind
    for folder in (checkout, installed):
        if folder.is_dir():
            return sorted(p for p in folder.iterdir() if p.is_file())
    raise SourceError(
        f"the installation lacks its {kind} files; looked in {checkout} and {installed}: install"
        " slurm-gpu-aware again"
    )


def shipped_lua(name: str) -> str:
    """Text of a Lua file of the installation. Raises SourceError."""
    return next(p for p in shipped("lua") if p.name == name).read_text(encoding="utf-8")


def diff(change: Change) -> str:
    """Unified diff between the file on disk and the change; empty if they are equal."""
    old: str | None = None
    with FileFault(change.path), suppress(FileNotFoundError):
        old = change.path.read_bytes().decode("utf-8", "surrogateescape")
    return "".join(
        difflib.unified_diff(
            (old or "").splitlines(keepends=True),
            change.text.splitlines(keepends=True),
            fromfile="/dev/null" if old is None else str(change.path),
            tofile=str(change.path),
        )
    )


def check_lua(changes: Iterable[Change]) -> bool:
    """Compile all Lua files; False if no Lua compiler is installed.

    Raises AwareError for a syntax error: slurmctld does not start with one.
    """
    compiler = next(filter(None, map(shutil.which, _LUAC)), None)
    if compiler is None:
        return False
    for change in (c for c in changes if c.path.suffix == ".lua"):
        done = subprocess.run(
            [compiler, "-p", "-"],
            input=change.text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise AwareError(
                f"{change.path}: Lua syntax error, nothing was installed:"
                f" {done.stderr.decode(errors='replace').strip()}"
            )
    return True


def write(change: Change, *, backup: bool = True) -> Path | None:
    """Replace a file atomically; return the path of a new backup, if any.

    Owner and mode of an existing file stay. With ``backup`` the original file is kept beside it as
    ``NAME.before-gpu-aware``. Raises SourceError.
    """
    path = change.path.resolve()
    original = path.with_name(path.name + BACKUP)
    made: Path | None = None
    with FileFault(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        status = path.stat() if path.exists() else None
        if backup and status is not None and not original.exists():
            shutil.copy2(path, original)
            made = original
        with ReplacedFile(path) as stream:
            stream.write(change.text)
            mode = change.mode if status is None else status.st_mode & 0o7777
            os.fchmod(stream.fileno(), mode)
            if status is not None and os.geteuid() == 0:
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
    return made


def reload_filter(slurm_dir: Path, written: Iterable[Path]) -> bool:
    """Let slurmctld load all Lua files anew; return whether job_submit.lua was only touched.

    slurmctld loads a job_submit.lua that is newer, in whole seconds, than when it last loaded it,
    which may have been in this very second.
    """
    names = {path.name for path in written if path.suffix == ".lua"}
    target = slurm_dir / OWN_FILTER
    if not names or not target.exists():
        return False
    with FileFault(target, "touched"):
        later = max(time.time(), target.stat().st_mtime) + 1
        os.utime(target, (later, later))
    return OWN_FILTER not in names
