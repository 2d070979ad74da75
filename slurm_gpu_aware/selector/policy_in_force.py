"""Policy in force: that of the configuration, or the one that ``gpu-aware tune`` has set."""

from __future__ import annotations

from slurm_gpu_aware.config.load import Tuned, read_tuned, tuned_path, with_tuned
from slurm_gpu_aware.config.settings import Config
from slurm_gpu_aware.errors import ConfigError
from slurm_gpu_aware.files import identity_of
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.selector.policy_options import policy_options


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
            auto_clocks=config.power.clocks == "auto",
            due_by_pressure=config.due_dates.order == "pressure",
        )
