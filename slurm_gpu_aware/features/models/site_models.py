"""Models of a site: of each class, and of each application with samples, per GPU model."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from slurm_gpu_aware.features.models.fitting import fit_model, is_timed, is_usable, merged
from slurm_gpu_aware.features.models.least_squares import Prior, prior_from, prior_of
from slurm_gpu_aware.features.models.performance_model import (
    APPLICATION,
    CLASS,
    NOT_LOCKED,
    UNKNOWN_BATCH,
    NamedSample,
    PerformanceModel,
    PerformanceSample,
    is_unnamed,
)
from slurm_gpu_aware.features.models.throughput import Conditions

_Key = tuple[str, str]
_MOST_CONDITIONS = 200
"""Conditions that a fit takes, each second or third one of more: users bring theirs, and a fit of
200 takes some seconds."""


class SiteFit(NamedTuple):
    """A fit, or the reason why there is none."""

    kind: str
    name: str
    gpu_model: str
    model: PerformanceModel | None
    reason: str = ""


def fit_site(
    class_samples: Sequence[NamedSample],
    application_samples: Sequence[NamedSample],
    default_mhz: Mapping[str, int],
) -> Iterator[SiteFit]:
    """Fit every model; classes come first: that of an application's class is its prior.

    ``default_mhz``: GPU model -> clock at which it runs by default, where it is known.
    """
    of_class: dict[_Key, PerformanceModel] = {}
    for kind, samples in ((CLASS, class_samples), (APPLICATION, application_samples)):
        for (name, gpu_model), own in _by_name(samples).items():
            app_class = name if kind == CLASS else newest_class(own)
            base = of_class.get((app_class, gpu_model))
            fit = fit_one(kind, own, app_class, base, default_mhz.get(gpu_model))
            if kind == CLASS and fit.model is not None:
                of_class[name, gpu_model] = fit.model
            yield fit


def fit_one(
    kind: str,
    samples: Sequence[NamedSample],
    app_class: str,
    base: PerformanceModel | None,
    default_mhz: int | None,
) -> SiteFit:
    """Fit the model of one name on one GPU model, from its samples (one at least).

    ``base``: the model of its class there.
    """
    key = samples[0].name, samples[0].gpu_model
    samples = of_one_program(samples)
    if not samples:
        return SiteFit(kind, *key, None, "no job has a time at its default clock")
    prior = prior_of(app_class, key[1]) if base is None else prior_from(base)
    bare, times_of = [one.sample for one in samples], None
    if not any(is_timed(sample) for sample in bare):
        if base is None:
            reason = "only its power was measured, and its class has no model here"
            return SiteFit(kind, *key, None, reason)
        times_of = base
    return _fit(kind, key, bare, prior, default_mhz, times_of)


def of_one_program(samples: Sequence[NamedSample]) -> Sequence[NamedSample]:
    """Samples of one name; if it names no application, as if all ran the program of the newest job.

    Of each such job only the ratios to its own default clock count: programs of one class are
    slowed alike, and have neither time nor power nor batch in common. The samples of a job have one
    moment; those of a job without a usable time at its default clock are left out.
    """
    if not is_unnamed(samples[0].name):
        return samples
    default = {
        _job(one): one.sample
        for one in samples
        if one.sample.clock_mhz == NOT_LOCKED and is_usable(one.sample._replace(clock_mhz=1.0))
    }
    if not default:
        return []
    like = default[max(default, key=lambda job: (default[job].power_w is not None, job))]
    found = []
    for one in samples:
        if (own := default.get(_job(one))) is not None:
            sample, power_w = one.sample, None
            if sample.power_w and own.power_w and like.power_w:
                power_w = sample.power_w / own.power_w * like.power_w
            time_s = sample.time_s / own.time_s * like.time_s
            alike = like._replace(clock_mhz=sample.clock_mhz, time_s=time_s, power_w=power_w)
            found.append(one._replace(sample=alike))
    return found


def _job(one: NamedSample) -> tuple[float, ...]:
    """What the samples of one job have in common."""
    return one.taken_at, *one.sample[:3]


def _fit(
    kind: str,
    key: _Key,
    samples: Sequence[PerformanceSample],
    prior: Prior,
    default_mhz: int | None,
    times_of: PerformanceModel | None,
) -> SiteFit:
    """``times_of``: model whose time counts at each clock; None: that of the samples.

    Of samples without a time those of one number of GPUs are fitted, and none under a power limit:
    the class's time says nothing of how the application scales, or how a limit slows it.
    """
    locked = [s.clock_mhz for s in samples if s.clock_mhz > 0]
    reference = max([float(default_mhz or 0), *locked])
    if reference <= 0:
        return SiteFit(kind, *key, None, "no clock is known: no sweep has seen this GPU model")
    located = _located(samples, reference)
    if times_of is not None and (located := [s for s in located if not s.limit_w]):
        numbers = Counter(s.gpus for s in located)
        often = max(numbers, key=lambda gpus: (numbers[gpus], -gpus))
        located = [s for s in located if s.gpus == often]
        located = [s._replace(time_s=_class_time(times_of, s.clock_mhz)) for s in located]
    usable = [s for s in located if is_usable(s)]
    if not usable:
        return SiteFit(kind, *key, None, "no usable sample")
    if kind == CLASS and len({s.clock_mhz for s in usable}) == 1:
        return SiteFit(kind, *key, None, "measured at one clock only")
    conditions = sorted(merged(usable), key=lambda s: not is_timed(s))  # one with a time is chosen
    alone = _thinned([s for s in conditions if not s.limit_w], _MOST_CONDITIONS)
    limited = [s for s in conditions if s.limit_w]
    chosen = alone + _thinned(limited, max(1, _MOST_CONDITIONS - len(alone)))
    try:
        model = fit_model(chosen, prior, reference, name=key[0], gpu_model=key[1])
    except (ValueError, ArithmeticError) as exc:  # samples of one user must not stop all others
        return SiteFit(kind, *key, None, f"it cannot be fitted: {exc}")
    if times_of is not None:
        untimed = replace(model.quality, time_samples=0, time_error=None, energy_error=None)
        model = replace(model, quality=untimed)
    return SiteFit(kind, *key, model)


def _thinned(conditions: list[PerformanceSample], most: int) -> list[PerformanceSample]:
    """At most so many of them, at equal distances."""
    return conditions[:: max(1, -(-len(conditions) // most))]


def _class_time(model: PerformanceModel, clock_mhz: float) -> float:
    """Time of the class's own iteration: what counts is how it changes with the clock."""
    one = np.ones(1)
    at = Conditions(one, one, model.measured.batch_size * one, clock_mhz * one)
    return float(model.predict(at)[0][0])


def _located(samples: Sequence[PerformanceSample], default_mhz: float) -> list[PerformanceSample]:
    """The samples; one without a locked clock ran at the default clock, and one of which the batch
    size is unknown at the usual one.
    """
    batches = [s.batch_size for s in samples if s.batch_size != UNKNOWN_BATCH]
    batch_size = float(np.median(batches)) if batches else 1.0
    return [
        s._replace(
            clock_mhz=default_mhz if s.clock_mhz == NOT_LOCKED else s.clock_mhz,
            batch_size=batch_size if s.batch_size == UNKNOWN_BATCH else s.batch_size,
        )
        for s in samples
    ]


def newest_class(samples: Sequence[NamedSample]) -> str:
    """The class that the newest sample with one names; empty: none does."""
    named = [one for one in samples if one.app_class]
    return max(named, key=lambda one: one.taken_at).app_class if named else ""


def _by_name(samples: Sequence[NamedSample]) -> dict[_Key, list[NamedSample]]:
    found: dict[_Key, list[NamedSample]] = {}
    for one in samples:
        found.setdefault((one.name, one.gpu_model), []).append(one)
    return found
