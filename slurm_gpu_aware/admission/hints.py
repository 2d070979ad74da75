"""Hints of a job with the site's defaults, and its application class."""

from dataclasses import dataclass
from functools import lru_cache

from slurm_gpu_aware.config.settings import DEFAULT_KINDS, Config
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.gate.admin_comment import OriginalRequest
from slurm_gpu_aware.gate.gated_job import GatedJob
from slurm_gpu_aware.model.class_history import AskedClass, ClassHistory, GivenClass
from slurm_gpu_aware.model.job_hints import AUTO, CLASS, JobHints, parse_comment
from slurm_gpu_aware.slurm.records import SlurmJob


@dataclass(frozen=True)
class _Asked:
    """Hints of a job with the site's defaults."""

    hints: JobHints  # No class is ``auto``.
    given: bool  # Whether the user named the class.
    auto: bool  # Whether ``class=auto`` comes before the class of ``hints``.


def _asked_of(job: SlurmJob, original: OriginalRequest | None, config: Config) -> _Asked:
    """Job hints: the comment's or the environment's, filled with the site's defaults."""
    defaults, names = config.site.defaults, {"partition": job.partitions}
    names |= {"user": (job.user,), "account": (job.account or "",), "qos": (job.qos or "",)}
    texts = (defaults.get(kind, {}).get(n) for kind in DEFAULT_KINDS for n in names[kind])
    own = job.comment, original.environment if original is not None else None
    classes, offered = tuple(config.site.classes), config.placement.offered
    return _asked(own, tuple(filter(None, texts)), classes, offered)


def hints_of(job: SlurmJob, original: OriginalRequest | None, config: Config) -> JobHints:
    """The hints of a job with the site's defaults; no class is ``auto``."""
    return _asked_of(job, original, config).hints


@lru_cache(maxsize=1 << 12)  # users write few different comments
def _asked(
    own: tuple[str | None, ...],
    defaults: tuple[str, ...],
    classes: tuple[str, ...],
    offered: tuple[str, ...],
) -> _Asked:
    """Hints of the first of ``own`` that has some; none if the site has changed since."""
    hints, lists = JobHints(), {"classes": classes, "policies": offered}
    for text in own:
        try:
            found = parse_comment(text, HINTS, lists)
        except RequestError:
            break
        if found is not None:
            hints = found
            break
    given, auto = hints.get(CLASS) not in (None, AUTO), hints.get(CLASS) == AUTO
    for text in defaults:
        hints = hints.filled(parse_comment(text, HINTS, lists) or JobHints())
        auto |= hints.get(CLASS) == AUTO
    return _Asked(hints.filled(JobHints()), given, auto)


def class_of(
    job: SlurmJob, original: OriginalRequest | None, config: Config, history: ClassHistory
) -> AskedClass:
    """Application class: the one that its hints name or that is known, else the site's default."""
    asked = _asked_of(job, original, config)
    default = asked.hints.get(CLASS) or config.site.default_class
    if not asked.auto:
        return AskedClass(default, "given" if asked.given else "site")
    turn = job.submit_s, job.array_id or job.raw_id
    known = history.of(job.user, job.name, job.account or "", turn)
    if known is None or known[1].app_class not in config.site.classes:
        return AskedClass(default, "nothing")
    return AskedClass(known[1].app_class, known[0], known[1])


def given_class(gated: GatedJob, config: Config) -> GivenClass | None:
    """The class that the user gave a job, for `ClassHistory`; None: none."""
    job = gated.job
    asked = _asked_of(job, gated.original, config)
    named = asked.hints.get(CLASS)
    if not asked.given or named is None:
        return None
    return GivenClass(job.user, named, job.submit_s, job.name, job.account or "", job.id)
