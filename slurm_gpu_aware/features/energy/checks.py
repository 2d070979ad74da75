"""Checks of doctor: the folder of the records by which clocks are checked, and power profiles."""

import pwd
from collections.abc import Iterator

from slurm_gpu_aware.deploy.doctor import Check, DoctorContext, answer_of, failed, ok, warning
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.features.energy.declared import EnergyConfig
from slurm_gpu_aware.model.profile import profile_sentences

_NAME, _PROFILES = "records of jobs", "power profiles"
_WRITE, _STICKY, _READ = 0o3, 0o1000, 0o4


def _records(g: DoctorContext) -> Iterator[Check]:
    """Users may leave records in the folder and see no others; the selector reads all."""
    folder = g.config.of(EnergyConfig).records
    if folder is None:
        return
    if unknown := g.no_user(_NAME):
        yield unknown
        return
    cure = f"install -d -o {g.slurm_user} -m 1733 {folder}"
    try:
        shown = answer_of("stat", "-Lc", "%a %u %F", "--", folder)
        options = answer_of("findmnt", "-n", "-o", "OPTIONS", "-T", folder)
    except SourceError as exc:
        yield failed(_NAME, f"{folder}: {exc}; no clock is checked", cure)
        return
    digits, owner, kind = shown.split(" ", 2)
    mode = int(digits, 8)
    if kind != "directory":
        yield failed(_NAME, f"{folder} is no folder but a {kind}", f"move it away, then {cure}")
        return
    if int(owner) != pwd.getpwnam(g.slurm_user).pw_uid:
        found = f"{folder} does not belong to {g.slurm_user}: the selector may not read it"
        yield failed(_NAME, found, f"chown {g.slurm_user} {folder}")
    if mode & _WRITE != _WRITE:
        yield failed(_NAME, f"{folder} has mode {digits}: jobs may not write it", cure)
    elif not mode & _STICKY:
        found = f"{folder} has mode {digits}: users may delete and replace records of others"
        yield failed(_NAME, found, cure)
    elif mode & _READ:
        yield warning(_NAME, f"{folder} has mode {digits}: users see which jobs others ran", cure)
    if "noexec" not in options.split(","):
        found = f"{folder} is on a file system that runs programs, and all users may write there"
        yield warning(_NAME, found, "mount it with noexec, or take a folder on one that is")
    yield ok(_NAME, f"{folder}, mode {digits}, of {g.slurm_user}")


def _profiles(g: DoctorContext) -> Iterator[Check]:
    """No power profile is requested of GPUs that were measured: clocks are chosen without one."""
    try:
        gpus = g.profile.gpus
    except StoreError:
        return  # the check of the store says so
    found = profile_sentences(gpus)
    for sentence in found:
        yield warning(_PROFILES, sentence, "clear the request, and sweep these nodes again")
    if not found and any(gpu.power_profiles for gpu in gpus.values()):
        yield ok(_PROFILES, "none was requested when the GPUs were measured")


CHECKS = ((_NAME, True, True, _records), (_PROFILES, False, True, _profiles))
"""See `doctor.Checks`."""
