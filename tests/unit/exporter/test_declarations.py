"""What every declared metric keeps to, and that a feature's own are exported."""

import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from commands import refusal
from exposition import families
from store_samples import ingest, report

import slurm_gpu_aware
from slurm_gpu_aware.exporter.registry import METRICS
from slurm_gpu_aware.exporter.render import Renderer
from slurm_gpu_aware.metric import Fact, Metric, one
from slurm_gpu_aware.store.database import Store

ROOT = Path(slurm_gpu_aware.__file__).parent
UNITS = (
    *("_seconds", "_ratio", "_watts", "_joules", "_total", "_info"),
    *("_jobs", "_gpus", "_nodes", "_faults"),
)
STATES = {
    *("gpu_aware_node_out_of_service", "gpu_aware_gate_closed", "gpu_aware_source_up"),
    "gpu_aware_gpu_watch_state",
    *("gpu_aware_power_limit_unmet", "gpu_aware_series_dropped", "gpu_aware_metrics_failed"),
}
"""Names without a unit: truth values and counts of what the name says."""


def test_names_are_unique_and_end_in_a_base_unit() -> None:
    names = Counter(metric.name for metric in METRICS)
    assert [name for name, count in names.items() if count > 1] == []
    assert [n for n in names if not n.endswith(UNITS) and n not in STATES] == []


def test_no_label_is_free_text_of_users() -> None:
    """Names of jobs and users, comments and reasons would be series without a bound."""
    labels = {label for metric in METRICS for label in metric.labels}
    assert labels & {"user", "name", "job_name", "comment", "reason", "account"} == set()


def test_every_family_has_a_limit_and_a_sentence() -> None:
    for metric in METRICS:
        assert 0 < metric.most <= 100_000
        assert metric.help[0].isupper() or metric.help[0] == "1", metric.name
        assert metric.help.endswith("."), metric.name


def test_metrics_of_every_module_are_exported() -> None:
    for path in ROOT.rglob("*metrics.py"):
        if path.parent.name != "cli":
            name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
            assert set(import_module(name).METRICS) <= set(METRICS)


FACT = Fact("nothing", ("now",), lambda now: now)


@pytest.mark.parametrize(
    ("name", "kind", "labels"),
    [
        ("rounds_total", "counter", ()),
        ("gpu_aware_rounds", "counter", ()),
        ("gpu_aware_rounds_total", "gauge", ()),
        ("gpu_aware_Rounds", "gauge", ()),
        ("gpu_aware_rounds", "gauge", ("a-b",)),
        ("gpu_aware_rounds", "gauge", ("__a",)),
        ("gpu_aware_rounds", "gauge", ("job",)),
    ],
)
def test_a_name_against_the_conventions_is_refused(
    name: str, kind: str, labels: tuple[str]
) -> None:
    with pytest.raises(ValueError, match="is no name"):
        Metric(name, "Text.", kind, FACT, lambda now: one(now), labels)  # type: ignore[arg-type]


def test_a_fact_of_an_unknown_source_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sources"):
        Fact("x", ("slurmdbd",), lambda asked: asked)


def test_the_example_of_the_page_is_a_metric(store: Store) -> None:
    page = (ROOT.parent / "docs" / "metrics.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"Fact": Fact, "Metric": Metric, "one": one}
    exec(example, names)
    ingest(store, report(errors=[{"index": None, "call": "nvmlX", "error": "no"}]))
    text = Renderer(names["METRICS"]).render({"store": store}).text.decode()
    assert families(text) == {"gpu_aware_probe_faults": {(): 1.0}}


def test_without_the_extra_the_command_says_what_to_install(store_path: Path) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; import slurm_gpu_aware.cli.main"
    asked = f"{code} as m; m.main(['metrics', '--textfile', 'x.prom'])"
    said = refusal(subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True))
    assert "prometheus-client is not installed" in said
    assert "pip install '.[metrics]'" in said
    assert "Traceback" not in said
