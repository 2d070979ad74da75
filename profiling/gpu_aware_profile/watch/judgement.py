"""State of each GPU after a pass: what the sweeps, the hardware and the running jobs say."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpu_aware_profile.watch.hardware import Finding, findings, throttle_words
from gpu_aware_profile.watch.slow_gpus import NEWEST, Key, Verdict
from slurm_gpu_aware.model.profile import THROTTLED, Gpu
from slurm_gpu_aware.store.watch_state import (
    DRIFTED,
    ILL,
    SLOW,
    UNDER_JOB,
    UNKNOWN,
    WELL,
    GpuState,
    Named,
    Reading,
    Trouble,
)

CLEAN = 2  # Probes, or readings under jobs, without a finding until a GPU is well again.
_MOST_ERRORS = 3
LONGEST = 1000  # Characters of a sentence in the state.


class Error(NamedTuple):
    """An XID error that is no program's fault."""

    at: float  # Unix time.
    text: str


class Running(NamedTuple):
    """A reading of a GPU between or under jobs, without a kernel of ours."""

    at: float  # Unix time.
    throttle: frozenset[str]
    mhz: int | None = None
    watts: float | None = None
    job: str = ""  # Job or jobs of the GPU or its node; empty: not known.
    errors: tuple[Error, ...] = ()  # Of the last day, oldest first.


@dataclass(frozen=True)
class Evidence:
    """What a pass has found."""

    now: float
    seen: Mapping[Gpu, Reading]  # The newest readings of all GPUs.
    probed: Collection[Gpu]  # GPUs that this pass has probed.
    verdicts: Sequence[Verdict]
    running: Mapping[Gpu, Running]


def known_names(before: Iterable[GpuState]) -> dict[Key, Named]:
    """What an earlier pass named, for `slow_gpus.verdicts`."""
    return {
        (one.node, one.gpu, app_class): named
        for one in before
        for app_class, named in one.named.items()
    }


def seen_before(before: Iterable[GpuState]) -> dict[Gpu, Reading]:
    """The readings that an earlier pass kept."""
    return {(one.node, one.gpu): one.reading for one in before if one.reading.at}


def judge(before: Iterable[GpuState], evidence: Evidence) -> list[GpuState]:
    """The state of all GPUs, by node and index."""
    earlier = {(one.node, one.gpu): one for one in before}
    found = findings(evidence.seen)
    of_gpu: dict[Gpu, list[Verdict]] = {}
    for verdict in evidence.verdicts:
        of_gpu.setdefault(verdict.key[:2], []).append(verdict)
    gpus = sorted({*evidence.seen, *of_gpu, *evidence.running})
    return [
        _state(
            earlier.get(gpu, GpuState(*gpu)),
            found.get(gpu, ()),
            of_gpu.get(gpu, []),
            evidence,
        )
        for gpu in gpus
    ]


def _state(
    before: GpuState,
    found: Sequence[Finding],
    verdicts: Sequence[Verdict],
    evidence: Evidence,
) -> GpuState:
    gpu = (before.node, before.gpu)
    probed = gpu in evidence.probed
    reading = evidence.running.get(gpu)
    found = [*_errors(before, reading), *found]
    troubles = _troubles(before, found, probed, evidence.now)
    troubles += _under_jobs(before, reading, probed)
    named = {v.key[2]: Named(v.state, v.since, v.before) for v in verdicts if v.since is not None}
    seen = evidence.seen.get(gpu)
    state, by, since, why = _summary(troubles, verdicts, seen)
    kept = before.reading if seen is None else seen
    return GpuState(
        *gpu, state, by, since, why[:LONGEST], named, tuple(troubles), kept, before.told
    )


def _errors(before: GpuState, reading: Running | None) -> list[Finding]:
    """The newest XID errors since the last probe: what was before it, that has judged."""
    new = [
        one.text
        for one in (reading.errors if reading is not None else ())
        if one.at > before.reading.at
    ]
    return [Finding("xid", "; ".join(new[-_MOST_ERRORS:]))] if new else []


def _troubles(
    before: GpuState, found: Sequence[Finding], probed: bool, now: float
) -> list[Trouble]:
    """What is wrong now, and what was and has not been clean often enough."""
    earlier = {one.kind: one for one in before.troubles if one.kind != UNDER_JOB}
    now_wrong = {one.kind: one for one in reversed(found)}
    troubles = [
        Trouble(kind, one.text, earlier[kind].since if kind in earlier else now)
        for kind, one in now_wrong.items()
    ]
    for kind, one in earlier.items():
        clean = one.clean + probed
        if kind not in now_wrong and clean < CLEAN:
            troubles.append(Trouble(kind, one.text, one.since, clean))
    return troubles


def _under_jobs(before: GpuState, reading: Running | None, probed: bool) -> list[Trouble]:
    """A GPU that throttles while a job runs; `CLEAN` newer readings or probes make it well."""
    earlier = next((one for one in before.troubles if one.kind == UNDER_JOB), None)
    reasons = frozenset() if reading is None else reading.throttle & THROTTLED
    if reading is not None and reasons:
        under = f" under job {reading.job}" if reading.job else ""
        known = (f"{reading.mhz} MHz" if reading.mhz else "", _watts(reading.watts))
        level = " and ".join(filter(None, known))
        text = f"{throttle_words(reasons)}{', at ' if level else ''}{level}{under}"
        since = reading.at if earlier is None else earlier.since
        return [Trouble(UNDER_JOB, text, since, at=reading.at)]
    if earlier is None:
        return []
    newer = reading is not None and reading.at > earlier.at
    at = reading.at if reading is not None and newer else earlier.at
    clean = earlier.clean + newer + probed
    return [Trouble(UNDER_JOB, earlier.text, earlier.since, clean, at)] if clean < CLEAN else []


def _watts(watts: float | None) -> str:
    return "" if watts is None else f"{watts:.0f} W"


def _summary(
    troubles: Sequence[Trouble], verdicts: Sequence[Verdict], seen: Reading | None
) -> tuple[str, float | None, float | None, str]:
    """(state, by how much, since when, why)."""
    worst = max(
        (v for v in verdicts if v.slower is not None), key=lambda v: v.slower or 0.0, default=None
    )
    by = None if worst is None else worst.slower
    named = [v for v in verdicts if v.state in (SLOW, DRIFTED)]
    # Throttling under a job drains no node, so it must not hide what the sweeps say
    if troubles and not (named and all(one.kind == UNDER_JOB for one in troubles)):
        return ILL, by, min(one.since for one in troubles), _why(troubles)
    for state in (SLOW, DRIFTED):
        own = [v for v in named if v.state == state]
        if own:
            state, by, since, why = _named(state, own)
            return state, by, since, "; ".join(filter(None, (why, _why(troubles))))
    if seen is None and not verdicts:
        return UNKNOWN, by, None, "not measured yet"
    if seen is not None and seen.health is None:
        return UNKNOWN, by, None, "its hardware could not be read"
    known = [v for v in verdicts if v.state != UNKNOWN]
    if known:
        return WELL, by, None, ""
    return UNKNOWN, by, None, _unknown(verdicts)


def _why(troubles: Sequence[Trouble]) -> str:
    """What is wrong now, else what was last; empty: nothing."""
    if not troubles:
        return ""
    first = min(troubles, key=lambda one: (one.clean, one.since))
    again = f" (clean in {first.clean} of {CLEAN} probes since)" if first.clean else ""
    wrong = {one.kind: one.text for one in troubles if not one.clean}
    if UNDER_JOB in wrong:  # it says the same, and more
        wrong.pop("throttle", None)
    return ("; ".join(dict.fromkeys(wrong.values())) or first.text) + again


def _named(state: str, own: Sequence[Verdict]) -> tuple[str, float | None, float | None, str]:
    def amount(verdict: Verdict) -> float:
        value = verdict.slower if state == SLOW else verdict.risen
        return value or 0.0

    worst = max(own, key=amount)
    limit = worst.threshold if state == SLOW else worst.risen_threshold
    what = "than its peers" if state == SLOW else "than it was"
    why = (
        f"class {worst.key[2]}: {amount(worst):.1%} slower {what} in {NEWEST} sweeps"
        f" (noise explains {limit:.1%})"
    )
    if amount(worst) < limit:
        why = f"class {worst.key[2]}: {amount(worst):.1%} slower {what}, not yet well again"
    return state, amount(worst), min(v.since or 0.0 for v in own), why


def _unknown(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "hardware well; times need CuPy or --bench, and a pass without --hardware"
    sweeps = min(v.sweeps for v in verdicts)
    if sweeps >= NEWEST:
        return "too few GPUs of its model to compare it with"
    return f"{sweeps} of {NEWEST} sweeps"
