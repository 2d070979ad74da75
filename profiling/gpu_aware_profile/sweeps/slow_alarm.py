"""Alarm of a sweep: a command of the site that hears of GPUs that became slower."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence

from gpu_aware_profile.child import Child, LateError
from gpu_aware_profile.tables import CHANGE, records
from slurm_gpu_aware.errors import SourceError
from slurm_gpu_aware.slurm.commands import clean_environment
from slurm_gpu_aware.slurm.words import hostlist
from slurm_gpu_aware.store.database import Store
from slurm_gpu_aware.store.profiles import alarms, put_alarms
from slurm_gpu_aware.variability.drift import Change, Drift, slow_again

_LIMIT_S = 60.0
_NAMED = 8
_MOST = 500
"""GPUs in the environment, whose size Linux bounds; the JSON has all."""


def alarm_words(command: str) -> list[str]:
    """The command as an argv list. Raises ValueError if it cannot be run."""
    words = shlex.split(command)
    if not words:
        raise ValueError("the command is empty")
    if shutil.which(words[0]) is None:
        raise ValueError(f"{words[0]}: no such command")
    return words


def raise_alarm(store: Store, found: Drift, argv: Sequence[str]) -> tuple[list[Change], str]:
    """Run the command once for the GPUs that became slower and were not reported yet.

    Returns (these, why the command failed or empty). They are remembered if it succeeded; after a
    failure the next sweep tries again. Raises StoreError.
    """
    before = alarms(store)
    new, after = slow_again(found.changes, before)
    failure = _run(argv, new) if new else ""
    if failure:
        keys = {(change.node, change.slot, change.app_class) for change in new}
        after = [alarm for alarm in after if alarm[:3] not in keys]
        after += [alarm for alarm in before if alarm[:3] in keys]
    put_alarms(store, after)
    return new, failure


def _run(argv: Sequence[str], slow: Sequence[Change]) -> str:
    """Run the command; return why it failed. Its output goes to stderr."""
    said = [f"{c.node}:{c.slot} ({c.app_class} {c.rise:+.0%})" for c in slow]
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    gpus = list(dict.fromkeys((c.node, c.slot) for c in slow))[:_MOST]
    environment = {
        **clean_environment(),
        "GPU_AWARE_SLOW_GPUS": " ".join(f"{node}:{slot}" for node, slot in gpus),
        "GPU_AWARE_SLOW_NODES": hostlist(sorted({node for node, _ in gpus})),
        "GPU_AWARE_SLOW_REASON": f"slow GPUs: {', '.join(said[:_NAMED])}{more}",
    }
    given = json.dumps({"gpus": records(slow, CHANGE)}).encode()
    try:
        with Child(argv, environment, limit_s=_LIMIT_S, given=given, output=2) as process:
            for _ in process.pieces():
                pass
    except LateError:
        return f"it did not end within {_LIMIT_S:g} s"
    except SourceError as exc:
        return str(exc)
    return "" if process.code == 0 else f"it ended with {process.code}"
