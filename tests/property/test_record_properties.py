"""A record of each kind comes back as it was; each wrong value in it is named in one sentence."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import record_samples as samples
from record_samples import places

from slurm_gpu_aware import records
from slurm_gpu_aware.config import load
from slurm_gpu_aware.config.load import Tuned
from slurm_gpu_aware.config.settings import File
from slurm_gpu_aware.deploy.rollout_site import RolloutState
from slurm_gpu_aware.features.models.performance_model import PerformanceModel
from slurm_gpu_aware.features.power.power_limit import SetLimit
from slurm_gpu_aware.store import report


class Kind(NamedTuple):
    """A kind of record, with a valid value that has each of its fields."""

    sample: Any
    read: Callable[[Any], object]
    """Raises ValueError."""
    free: frozenset[str] = frozenset()
    """Fields that may hold any value."""


def typed(kind: type) -> Callable[[Any], object]:
    """The reader of a type."""
    return lambda raw: records.read(raw, kind)


def read_config(raw: Any) -> object:
    """The configuration without what one setting says of another."""
    return records.read(raw, File, load.path_of, closed=True)


KINDS = {
    "report": Kind(samples.REPORT, typed(report.Report)),
    "policy that tune set": Kind(samples.TUNED, typed(Tuned)),
    "power limit that is set": Kind(samples.SET_LIMIT, typed(SetLimit)),
    "performance model": Kind(samples.MODEL, typed(PerformanceModel), frozenset({"format"})),
    "unfinished rollout": Kind(samples.ROLLOUT, typed(RolloutState)),
    "configuration": Kind(samples.CONFIG, read_config, frozenset({"policies", "ranges"})),
}
NUMBERS = (True, "1", math.nan, math.inf, -math.inf, 1e300, -1e300, 1 << 110, -(1 << 110), [], {})
TEXTS = (3, False, "\0", "\ud800", "x" * 5000, [], {})
OTHERS = (3, True, "x", 1.5)
"""Wrong for lists and objects."""


def path_text(path: tuple[Any, ...]) -> str:
    """``gpus[1].index``"""
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in path).removeprefix(".")


def wrong_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (3, "true", [], {})
    if isinstance(value, int | float):
        return NUMBERS
    if value is None:
        return ([], {})
    return TEXTS if isinstance(value, str) else OTHERS


def cases() -> Iterator[Any]:
    for name, kind in KINDS.items():
        for path in places(kind.sample):
            if not kind.free.intersection(path):
                yield pytest.param(kind, path, id=f"{name} {path_text(path)}")


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_record_comes_back_as_it_was(kind: Kind) -> None:
    read = kind.read(json.loads(json.dumps(kind.sample)))
    assert kind.read(json.loads(json.dumps(records.plain(read, str)))) == read


@pytest.mark.parametrize(("kind", "path"), list(cases()))
def test_each_wrong_value_is_named_in_one_sentence(kind: Kind, path: tuple[Any, ...]) -> None:
    for wrong in wrong_values(value_at(kind.sample, path)):
        changed = copy.deepcopy(kind.sample)
        value_at(changed, path[:-1])[path[-1]] = wrong
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at below
            kind.read(changed)
        text = str(caught.value)
        assert text.startswith(f"{path_text(path)}: expected "), text
        assert "\n" not in text
        assert len(text) < 300


def value_at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
