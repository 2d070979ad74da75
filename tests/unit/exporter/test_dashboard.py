"""The dashboard against Grafana's schema, as Grafana Labs publishes it for Grafana 12."""

import json
import typing
from collections.abc import Iterator
from enum import Enum
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from slurm_gpu_aware.exporter.registry import METRICS

FILE = Path(__file__).resolve().parents[3] / "etc/grafana/gpu-aware.json"
register_default_plugins()


@pytest.fixture(name="raw")
def dashboard_file() -> Any:
    return json.loads(FILE.read_text())


def against_schema(raw: Any) -> list[str]:
    """Keys that Grafana does not know, and values that are of another type."""
    read = Dashboard.from_json(raw)
    written = json.loads(JSONEncoder().encode(read))
    return [*unknown(raw, written, "$"), *wrong(read, Dashboard, "$")]


def unknown(raw: Any, written: Any, path: str) -> Iterator[str]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            yield from (
                unknown(value, written[key], f"{path}.{key}")
                if key in written
                else [f"{path}.{key}"]
            )
    elif isinstance(raw, list):
        for number, (old, new) in enumerate(zip(raw, written, strict=True)):
            yield from unknown(old, new, f"{path}[{number}]")


def wrong(value: Any, hint: Any, path: str) -> Iterator[str]:
    inner, origin = typing.get_args(hint), typing.get_origin(hint) or hint
    if isinstance(hint, type) and issubclass(hint, Enum):
        inner, origin = tuple(one.value for one in hint), typing.Literal
    if isinstance(value, dict) and hasattr(hint, "from_json"):
        value = hint.from_json(value)  # the SDK leaves transformations as they are
    if origin is typing.Union:
        yield from min((list(wrong(value, one, path)) for one in inner), key=len)
    elif isinstance(value, list) and origin is list:
        for number, item in enumerate(value):
            yield from wrong(item, inner[0], f"{path}[{number}]")
    elif isinstance(value, dict) and origin is dict:
        for key, item in value.items():
            yield from wrong(item, inner[1], f"{path}.{key}")
    elif origin is typing.Literal:
        if value not in inner:
            yield f"{path}: {value!r} is none of {inner}"
    elif origin is not typing.Any and not isinstance(
        value, (int, float) if origin is float else origin
    ):
        yield f"{path}: {value!r} is not {hint}"
    elif hasattr(type(value), "from_json"):
        for name, own in typing.get_type_hints(type(value)).items():
            yield from wrong(getattr(value, name), own, f"{path}.{name}")


def test_grafana_knows_every_key_and_value(raw: Any) -> None:
    assert against_schema(raw) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gridpos", {}),
        ("title", 7),
        ("gridPos", {"x": 0, "y": 0, "w": "wide", "h": 1}),
        ("fieldConfig", {"defaults": {"thresholds": {"mode": "fixed", "steps": []}}}),
        ("targets", [{"refId": "A", "expression": "up"}]),
        ("transformations", [{"id": 7, "options": {}}]),
    ],
)
def test_what_grafana_does_not_know_is_found(raw: Any, key: str, value: object) -> None:
    raw["panels"][1][key] = value
    assert len(against_schema(raw)) == 1


def test_panels_have_numbers_of_their_own_and_do_not_overlap(raw: Any) -> None:
    panels = raw["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(p["x"], p["y"], p["x"] + p["w"], p["y"] + p["h"]) for p in grid(panels)]
    assert all(0 <= left < right <= 24 for left, _, right, _ in places)
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in combinations(places, 2):
        assert r1 <= l2 or r2 <= l1 or b1 <= t2 or b2 <= t1


def grid(panels: Any) -> list[dict[str, int]]:
    return [panel["gridPos"] for panel in panels]


def test_every_target_asks_for_a_metric_of_ours_from_the_chosen_source(raw: Any) -> None:
    (variable,) = raw["templating"]["list"]
    names = {metric.name for metric in METRICS}
    for panel in raw["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == f"${{{variable['name']}}}"
            assert any(name in target["expr"] for name in names), target["expr"]
