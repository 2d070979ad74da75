"""Settings of a simulated run: policy, order of the queue, rounds, and what slows jobs.

The share c is the part of a step that is communication at the best bandwidth for its GPUs: over
links of 1/r of that bandwidth a step takes (1 - c) + c r times as long. It depends on batch size,
GPU and links, so a site with numbers of its own gives them in the trace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar

from slurm_gpu_aware.errors import PolicyError
from slurm_gpu_aware.features import found
from slurm_gpu_aware.model.facets import Section
from slurm_gpu_aware.placement.drb.utility import SCOPES, InterferenceProfile
from slurm_gpu_aware.placement.policy import DEFAULT
from slurm_gpu_aware.planning.plan import PlanSettings
from slurm_gpu_aware.simulator.trace import TraceJob
from slurm_gpu_aware.slurm.multifactor import Multifactor

T = TypeVar("T", bound=Section)
SHARES: Mapping[str, float] = {
    # Amaral et al., SC'17, batch size 1, 2 P100: 127.4 s with NVLink in a socket (40 GB/s), 159.1 s
    # across sockets (12 GB/s): 1.249 = 1 + c (40/12 - 1)
    "alexnet": 0.107,
    "googlenet": 0.012,  # the same: 146.1 s and 150.3 s
    # MAPA, SC'21, 2 V100: up to 3 times as long over PCIe (12 GB/s) as over a double NVLink
    # (50 GB/s): 3 = 1 + c (50/12 - 1); the upper end
    "vgg16": 0.632,
    # ElasticFlow, ASPLOS'23, A100: c = 1 - T(1 GPU) / T(2 GPUs), same local batch
    "inceptionv3": 0.033,
    "inception3": 0.033,
    "resnet50": 0.045,  # mean of two batch sizes (0.033, 0.057)
    "bert": 0.058,
    "gpt2": 0.048,
    "deepspeech2": 0.020,
}
"""Application, in lower case without separators -> communication share, with its source."""
MEASURED_SHARE = SHARES["alexnet"]  # Communication share for applications without a measured one.
ORDERS: Mapping[str, str] = {
    "fifo": "first in, first out",
    "las": "least attained service, two-level queue (Tiresias)",
    "srtf": "shortest remaining time first",
    "priority": "the trace's own priority, then submission (Slurm)",
    "edf": "earliest deadline first; jobs without one last",
    "multifactor": "by age, fair share and size, as Slurm's priority/multifactor",
}
OVERRUNS: Mapping[str, str] = {
    "kill": "the job ends unfinished, as in Slurm",
    "extend": "limits are long enough for the slowest GPUs from the start",
}
LIMIT_FACTOR = 3.0
"""Time limit of a job without one in the trace, as a multiple of its duration; more, so that it is
``LIMIT_MARGIN`` times the longest run, where that is longer. A recorded job without a limit keeps
none."""
LIMIT_MARGIN = 1.5
"""Limits that the simulator sets are at least this multiple of a job's longest run."""


class Mode(NamedTuple):
    """How the rounds of a run go; `MODES` of a feature's ``simulated.py`` are more of them."""

    about: str
    anew: bool = False  # Each round places all jobs, the running ones, too.
    sized: bool = True  # Jobs with a range of GPU counts may get others than they ask for.
    powered: bool = False  # It needs power and size tables.


_MODES: Mapping[str, Mode] = {
    "sticky": Mode("a job keeps its GPUs until it ends or is preempted"),
    "non-sticky": Mode("every round places all jobs", anew=True),
}


class RunSection(Section):
    """What a run has of a feature beside the site's settings, ``RUN`` of its ``simulated.py``.

    As all sections it is a frozen dataclass with defaults.
    """

    @property
    def words(self) -> str:
        """What it adds to the name of the run; after a space it stands behind all others."""
        return ""

    @classmethod
    def read(cls, text: str, base: SimSettings) -> tuple[str, SimSettings]:
        """The name of a policy without such words, and ``base`` with them. Raises PolicyError."""
        return text, base


@cache
def _run_sections() -> tuple[type[RunSection], ...]:
    return tuple(found("simulated", "RUN"))


@cache
def modes() -> Mapping[str, Mode]:
    """Name -> mode of those of the simulator and of the features."""
    known = (_MODES, *found("simulated", "MODES"))
    return {name: mode for each in known for name, mode in each.items()}


def share_of(application: str | None) -> float | None:
    """Communication share of an application; None: not measured.

    Examples
    --------
    >>> share_of("VGG-16"), share_of("ResNet50"), share_of("mine"), share_of(None)
    (0.632, 0.045, None, None)
    """
    return None if application is None else SHARES.get(re.sub(r"[-_ ]", "", application.lower()))


@dataclass(frozen=True)
class SimSettings:
    """Settings of one run."""

    policy: str = DEFAULT
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    slurm_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the policy by which Slurm chooses GPUs on nodes that the policy has chosen."""
    order: str = "fifo"  # A key of :data:`ORDERS`.
    round_s: float | None = None
    """Plan at multiples of this (PAL: 300); None: at every arrival and end."""
    mode: str = "sticky"  # A key of :func:`modes`.
    backfill: bool = False  # Backfill; needs time limits (see ``LIMIT_FACTOR``).
    reservations: int = PlanSettings.reservations
    backfill_depth: int = PlanSettings.backfill_depth
    migration_s: float = 60.0
    """Time without progress after a restart or a move of a job (checkpoint, restore), if neither
    the job nor ``class_restart_s`` says it."""
    class_restart_s: Mapping[str, float] = field(default_factory=dict)
    """Class -> the same for its jobs."""
    overrun: str = "kill"
    """A key of :data:`OVERRUNS`: what becomes of a job that reaches its limit."""
    las_threshold_gpu_s: float = 3600.0
    """Attained service at which LAS moves a job to the second queue. Units: GPU s."""
    multifactor: Multifactor | None = None
    """Of the order ``multifactor``: what priorities are made of."""
    sections: Mapping[type, Section] = field(default_factory=dict)
    """Settings of features, by their types; see `put`."""
    classes: tuple[str, ...] = ("A", "B", "C")
    locality: bool = True  # Jobs that span nodes (or other levels) are slowed by L.
    variability: bool = True  # Jobs run at the pace of their slowest GPU.
    communication_share: float | None = None
    """Share of a bandwidth-sensitive job's time that is communication at the best bandwidth for
    its GPU count on the machine, for applications without a measured one (``communication``) and
    jobs without their own. None: bandwidth does not affect run times."""
    interference: InterferenceProfile | None = None
    """Measured slowdown of pairs of jobs; None: no interference."""
    interference_scope: str = "socket"
    """What jobs share that slow each other, one of ``drb.utility.SCOPES``."""

    def __post_init__(self) -> None:
        for what, value, known in (
            ("order", self.order, ORDERS),
            ("scope", self.interference_scope, SCOPES),
            ("overrun", self.overrun, OVERRUNS),
            ("mode", self.mode, modes()),
        ):
            if value not in known:
                raise PolicyError(f"unknown {what} {value!r}; known: {', '.join(known)}")
        if (self.order == "multifactor") != (self.multifactor is not None):
            raise PolicyError("order multifactor needs the site's settings: give --fairshare")
        if self.multifactor is not None and self.anew:
            raise PolicyError("running jobs have no place in the order multifactor: only sticky")

    def of(self, kind: type[T]) -> T:
        """The section of a feature; its defaults if there is none."""
        section: T | None = self.sections.get(kind)  # type: ignore[assignment]
        return kind() if section is None else section

    def put(self, *sections: Section) -> Self:
        """The run with other sections of features."""
        return replace(self, sections=dict(self.sections) | {type(one): one for one in sections})

    def restart_s(self, job: TraceJob) -> float:
        """What a restart or a move costs a job, as live: by itself, its class, or all."""
        of_class = self.class_restart_s.get(job.app_class, self.migration_s)
        return of_class if job.restart_s is None else job.restart_s

    @property
    def anew(self) -> bool:
        """Whether each round places all jobs, the running ones, too."""
        return modes()[self.mode].anew

    @property
    def preemptive(self) -> bool:
        """Whether the order can take GPUs from a running job."""
        return self.order in ("las", "srtf")

    @property
    def label(self) -> str:
        """``pal``, ``pal:moves`` or ``pal:non-sticky``; with a power limit ``pal eta=0.6``."""
        words = [self.of(kind).words for kind in reversed(_run_sections())]
        mode = "" if self.mode == "sticky" else f":{self.mode}"
        return self.policy + mode + "".join(sorted(words, key=lambda one: one.startswith(" ")))


def parse_policy(text: str, base: SimSettings) -> SimSettings:
    """Settings of ``NAME`` or ``NAME:MODE`` on top of ``base``; a mode is one of :func:`modes`.

    Words of features (`RunSection`) may end both: ``:no-due@expected=0.1``. Raises PolicyError if
    a part after the name is invalid; the name is not checked here.
    """
    for kind in _run_sections():
        text, base = kind.read(text, base)
    name, colon, mode = text.partition(":")
    if not colon:
        return replace(base, policy=name)
    if mode not in modes():
        *most, last = (f"NAME:{known}" for known in modes())
        raise PolicyError(f"policy {text!r}: expected NAME, {', '.join(most)} or {last}")
    return replace(base, policy=name, mode=mode)
