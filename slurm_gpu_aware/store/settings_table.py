"""Single values of the store, by key."""

from __future__ import annotations

from slurm_gpu_aware.store.database import Store

CLASS_CENTRES = "class_centres"
"""Centres of the site's application classes, JSON."""
EFFBW = "effbw"
"""GPU model -> coefficients of its EffBW, JSON."""
POLICY = "policy"
"""The policy of the selector's last round, in words."""
POWER = "power"
"""Power of the site after the selector's last round, JSON (`selector.site_power.PowerReading`)."""
SCORE_REFERENCE = "score_reference"
"""What scores are relative to, see ``variability.scores``."""


def put_value(store: Store, key: str, value: str) -> None:
    """Set the value of a key."""
    store.execute(
        "INSERT INTO settings (key, value) VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def value_of(store: Store, key: str) -> str | None:
    """The value of a key; None: not set."""
    rows = store.query("SELECT value FROM settings WHERE key = ?", (key,))
    return str(rows[0]["value"]) if rows else None
