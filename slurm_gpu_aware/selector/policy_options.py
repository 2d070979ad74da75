"""Policy options from ``[policies.NAME]`` of the configuration, with the files that they name.

An interference file holds run times alone and beside one other job, as published with Amaral et
al.: a JSON object with ``solo`` and ``collocation`` by application type, batch size and GPU count.
The application of a job is ``TYPE/SIZE`` (``bvlc_alexnet/4``). An entry of 0 was not measured.

Policy in force: that of the configuration, or the one that ``gpu-aware tune`` has set.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_gpu_aware.bounds import MAX_TIME_S, quoted
from slurm_gpu_aware.config.load import Tuned, read_tuned, tuned_path, with_tuned
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import ConfigError, PolicyError, SourceError
from slurm_gpu_aware.files import identity_of
from slurm_gpu_aware.model.facets import decided
from slurm_gpu_aware.placement.drb.utility import InterferenceProfile, Workload
from slurm_gpu_aware.placement.policy import make_policy, option_names, policy_names
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.text_file import read_object

log = logging.getLogger(__name__)


def policy_options(config: Config) -> dict[str, dict[str, Any]]:
    """Policy -> its checked options; ``interference`` is read from the file that it names.

    Raises ConfigError for an unknown policy or option, or a bad value, also in ``tune.ranges``, and
    for an unreadable profile.
    """
    for name, ranges in config.tune.ranges.items():
        for option, ends in ranges.items():
            for end in ends:
                _options(config, name, {option: end}, "tune.ranges")
    return {name: _options(config, name, given) for name, given in config.policies.items()}


def _options(
    config: Config, policy: str, given: Mapping[str, Any], section: str = "policies"
) -> dict[str, Any]:
    def wrong(key: str, reason: object) -> ConfigError:
        return ConfigError(f"{config.source}: {section}.{key}: {reason}")

    if policy not in policy_names():
        raise wrong(policy, f"unknown policy; known: {', '.join(policy_names())}")
    valid = option_names(policy)
    options: dict[str, Any] = {}
    for name, value in given.items():
        key = f"{policy}.{name}"
        if name not in valid:
            raise wrong(key, f"unknown option; known: {', '.join(sorted(valid)) or 'none'}")
        try:
            options[name] = _profile(config, key, value) if name == "interference" else value
            make_policy(policy, {name: options[name]})
        except (PolicyError, SourceError, TypeError, ValueError, ArithmeticError) as exc:
            raise wrong(key, exc) from None
    try:
        make_policy(policy, options)
    except PolicyError as exc:
        raise wrong(policy, exc) from None
    return options


def _profile(config: Config, key: str, value: object) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected the path of a profile file, not {value!r}")
    folder = config.source.parent if config.source is not None else None
    profile, bad = read_interference(value if folder is None else folder / value)
    if bad:
        log.warning("policies.%s: %d entries left out: %s", key, len(bad), bad[0])
    return profile


def read_interference(path: Path | str) -> tuple[InterferenceProfile, tuple[str, ...]]:
    """The profile in a file, and reports of its entries that are no run time.

    Raises SourceError if the file cannot be read, is not JSON, lacks ``solo`` or ``collocation``,
    or has no run time of a job beside another.
    """
    content = read_object(path)
    for part in ("solo", "collocation"):
        if not isinstance(content.get(part), dict):
            raise SourceError(f"{path}: no object {part!r}; is it a profile file?")
    bad: list[str] = []
    solo: dict[Workload, float] = {}
    beside: dict[tuple[Workload, Workload], float] = {}
    for job, entry in _workloads(content["solo"], "solo", bad):
        seconds = entry.get("intra-socket", 0) if isinstance(entry, dict) else entry
        if run_time_s := _seconds(seconds, f"solo {_words(job)}", bad):
            solo[job] = run_time_s
    for job, partners in _workloads(content["collocation"], "collocation", bad):
        where = f"collocation {_words(job)}"
        for other, seconds in _workloads(partners, where, bad):
            if run_time_s := _seconds(seconds, f"{where} beside {_words(other)}", bad):
                beside[job, other] = run_time_s
    if not beside:
        raise SourceError(f"{path} has no run time of a job beside another")
    return InterferenceProfile(solo, beside), tuple(bad)


def _workloads(tree: object, where: str, bad: list[str]) -> Iterator[tuple[Workload, Any]]:
    """Entries of ``tree[type][size]["num_gpus"][n]``."""
    for kind, of_kind in _items(tree, where, bad):
        for size, entry in _items(of_kind, f"{where} {kind}", bad):
            counts = entry.get("num_gpus") if isinstance(entry, dict) else entry
            for count, value in _items(counts, f"{where} {kind}/{size}", bad):
                if count.isascii() and count.isdigit() and int(count[:9]) > 0:
                    yield (f"{kind}/{size}", int(count)), value
                else:
                    bad.append(f"{where} {kind}/{size}: {count!r} is no GPU count")


def _items(tree: object, where: str, bad: list[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        yield from tree.items()
    else:
        bad.append(f"{where}: expected an object, not {quoted(tree)}")


def _seconds(value: Any, where: str, bad: list[str]) -> float | None:
    if type(value) not in (int, float) or not 0 <= value <= MAX_TIME_S:
        bad.append(f"{where}: {quoted(value)} is no run time")
        return None
    return float(value)


def _words(job: Workload) -> str:
    return f"{job[0]} on {job[1]}"


def tuned_in_force(config: Config) -> tuple[Tuned | None, str]:
    """What tune has set, if it counts, and the policy in force in words.

    What is not to be trusted, damaged, out of bounds, or no policy takes, does not count, and the
    words say so.
    """
    own = config.placement.policy
    try:
        tuned = read_tuned(config)
        policy_options(with_tuned(config, tuned))
    except ConfigError as exc:
        return None, f"{own}, as configured, because what tune has set does not count: {exc}"
    return tuned, own if tuned is None else str(tuned)


def config_in_force(config: Config) -> Config:
    """The configuration with what tune has set."""
    return with_tuned(config, tuned_in_force(config)[0])


class PolicyInForce:
    """Settings of the planner; `refresh` takes a change of tune's file."""

    def __init__(self, config: Config) -> None:
        """Raises ConfigError for wrong options in the configuration."""
        self._config = config
        self._file_seen = identity_of(tuned_path(self._config))
        self._take()

    def refresh(self) -> None:
        """Read tune's file if it has changed."""
        seen = identity_of(tuned_path(self._config))
        if seen != self._file_seen:
            self._file_seen = seen
            self._take()

    def _take(self) -> None:
        tuned, self.words = tuned_in_force(self._config)
        """The policy, as ``gpu-aware status`` shows it."""
        config = with_tuned(self._config, tuned)
        placement, classes = config.placement, config.site.classes
        clocks = {name: config.for_class(name).clock_mhz for name in classes}
        self.options = policy_options(config)
        self.settings = PlanSettings(
            policy=placement.policy,
            classes=classes,
            class_clock_mhz={name: mhz for name, mhz in clocks.items() if mhz is not None},
            max_clock_mhz=placement.max_clock_mhz,
            backfill=placement.backfill,
            reservations=placement.reservations,
            **decided(config.sections),
        )
