"""Writers of the store other than the selector: its files' owner, its published copy, its scores.

Files that root makes must belong to SlurmUser, because the selector writes them. The published copy
must be renewed, because the selector publishes its own writes only.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_gpu_aware.cli.output import say
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import SourceError, StoreError
from slurm_gpu_aware.files import user_name
from slurm_gpu_aware.model.profile import GpuTiming
from slurm_gpu_aware.slurm.client import open_client
from slurm_gpu_aware.store.database import Store, open_store, republish, upgrade
from slurm_gpu_aware.store.files import give_folder, of_selector
from slurm_gpu_aware.store.measurements import unseen_gpus
from slurm_gpu_aware.store.profiles import newest_runs, prune, put_scores, score_reference
from slurm_gpu_aware.variability.drift import Outlier, outliers
from slurm_gpu_aware.variability.scores import median_runs, scores_of_gpus

_SLURM_USER = re.compile(r"([^\s(]+)")


@contextmanager
def writable_store(path: Path, config: Config, *, create: bool = True) -> Iterator[Store]:
    """Open a store for writing; at the end delete old measurements, renew the published copy.

    As root, the folder of the configured store is given to SlurmUser. Raises StoreError; without
    ``create`` also if there is no store.
    """
    _check_rights(path)
    upgrade(path)
    if not create:  # a mistyped path must not become an empty store
        open_store(path, readonly=True).close()
    folder = path.parent
    roots = os.geteuid() == 0 and (not folder.is_dir() or folder.stat().st_uid == 0)
    if roots and path == config.store.path:
        _give(path, config)
    with open_store(path) as store:
        try:
            yield store
        finally:
            try:
                prune(store, config.store.measurements)
                republish(store)
            except StoreError as exc:
                say(f"old measurements were not deleted, or the copy not renewed: {exc}")


def _check_rights(path: Path) -> None:
    """Raise StoreError if this user may not write a store that is there."""
    with suppress(OSError):
        owner = path.stat().st_uid
        needed = (path, path.parent)  # SQLite writes files beside it
        if not all(os.access(one, os.W_OK, effective_ids=True) for one in needed):
            who = " or ".join(dict.fromkeys(("root", user_name(owner))))
            me = user_name(os.geteuid())
            raise StoreError(f"{path}: user {me} may not write it; run this as {who}")


def _give(path: Path, config: Config) -> None:
    """Give the folder to SlurmUser. Without Slurm's answer ``gpu-aware setup --install`` does."""
    try:
        settings = open_client(config.selector.command_timeout_s).settings()
    except SourceError:
        return
    user = _SLURM_USER.match(settings.get("SlurmUser", ""))
    if user:
        try:
            give_folder(path.parent, user[1], [file.name for file in of_selector(path)])
        except (OSError, LookupError) as exc:
            raise StoreError(f"{path.parent}: cannot be given to {user[1]}: {exc}") from None


def newest_timings(store: Store) -> list[GpuTiming]:
    """The newest measurement of each GPU and class: the median of its runs."""
    return median_runs(newest_runs(store))


def recompute_scores(
    store: Store, classes: Sequence[str] | None = None, *, reference: str | None = None
) -> int:
    """Recompute PM scores and bins from the newest timings; return the number of scores.

    A GPU that is faster than its model allows (an outlier on the fast side) has no score, so that
    a broken measurement, or a node that lies, attracts no jobs.

    Parameters
    ----------
    classes : the site's classes; scores of other classes are deleted. None: all classes with
        timings.
    reference : ``model`` (the default) or ``cluster``, see ``variability.scores``. The store
        keeps it; None: the stored one.
    """
    timings = newest_timings(store)
    chosen = reference or score_reference(store) or "model"
    unseen = unseen_gpus(store, (timing[:2] for timing in timings))
    fast = {(o.node, o.slot, o.app_class) for o in outliers(timings, unseen) if o.ratio < 1.0}
    sound = [timing for timing in timings if timing[:3] not in fast]
    scores = scores_of_gpus(sound, classes, unseen=unseen, reference=chosen)
    put_scores(store, scores, reference)
    return len(scores)


def stored_outliers(store: Store) -> list[Outlier]:
    """All GPUs of the store whose newest time is an outlier. Raises StoreError."""
    timings = newest_timings(store)
    return outliers(timings, unseen_gpus(store, (timing[:2] for timing in timings)))
