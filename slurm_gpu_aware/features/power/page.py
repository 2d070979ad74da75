"""Section on power: the limit, and planned and measured power over time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu_aware.page.blocks import Block, Pairs, Sentences, Side
from slurm_gpu_aware.page.drawing import Curve, chart
from slurm_gpu_aware.page.sections import Section, Source
from slurm_gpu_aware.store.database import POWER as READING
from slurm_gpu_aware.store.database import value_of
from slurm_gpu_aware.store.ledger import Ledger
from slurm_gpu_aware.time_text import stamp

DAYS = 7
_POINTS = 300
_KW = 1000.0
Samples = Sequence[tuple[float, float, float, float | None]]
"""(Unix time, limit, planned and measured power) of rounds, W."""


@dataclass(frozen=True)
class PowerFacts:
    """What the section shows."""

    reading: Mapping[str, Any] | None
    """Of the selector's last round (`metrics.PowerReading`); None: there was no limit."""
    samples: Samples
    days: int = DAYS


def read_power(source: Source) -> PowerFacts:
    """Read the store. Raises StoreError."""
    reading = json.loads(value_of(source.store, READING) or "null")
    return PowerFacts(reading, Ledger(source.store).power(source.now - DAYS * 86_400.0))


def thinned(samples: Samples) -> Samples:
    """At most `_POINTS` spans; of each the sample with the highest planned power."""
    size = max(1, -(-len(samples) // _POINTS))
    spans = (samples[k : k + size] for k in range(0, len(samples), size))
    return [max(span, key=lambda sample: sample[2]) for span in spans]


def power_blocks(facts: PowerFacts) -> list[Block]:
    """The last reading, and a chart."""
    if facts.reading is None and not facts.samples:
        return [Sentences(["There is no power limit, so no power is planned or recorded."])]
    blocks: list[Block] = []
    if (reading := facts.reading) is not None:
        measured = reading["measured_w"]
        entries: list[tuple[str, object]] = [
            ("limit", reading["limit"]),
            ("planned", f"{reading['planned_w']:.0f} W of {reading['limit_w']:.0f} W"),
            (
                "measured",
                "no node reports it"
                if measured is None
                else f"{measured:.0f} W on {reading['measured_gpus']} of {reading['gpus']} GPUs",
            ),
            ("jobs that keep their clock", reading["keeping"] or "none"),
            ("idle nodes", reading["idle_nodes"] or "none"),
        ]
        blocks.append(Pairs(entries, "After the last round"))
        if reading["unmet"]:
            blocks.append(Sentences(["The limit cannot be met: what runs needs more."]))
    samples = thinned(facts.samples)
    curves = [
        Curve("limit", [(at, limit / _KW) for at, limit, _, _ in samples], steps=True),
        Curve("planned", [(at, planned / _KW) for at, _, planned, _ in samples], steps=True),
        Curve("measured", [(at, w / _KW) for at, _, _, w in samples if w is not None]),
    ]
    drawn = chart(
        f"The last {facts.days} days",
        "Power of all GPUs over time",
        [curve for curve in curves if curve.points],
        unit=" kW",
        from_zero=True,
    )
    if drawn is not None:
        peak = max(facts.samples, key=lambda sample: sample[2])
        text = f"Highest planned power: {peak[2]:.0f} W at {stamp(peak[0])}."
        blocks += [Side([drawn], "Power of all GPUs"), Sentences([text])]
    return blocks


SECTION = Section("power", "Power", read_power, power_blocks)
