"""Reads a page of metrics, as Prometheus' own parser for Python does."""

from prometheus_client.parser import text_string_to_metric_families

Series = dict[tuple[tuple[str, str], ...], float]


def families(text: str) -> dict[str, Series]:
    """Sample name -> labels -> value; fails on a page that cannot be parsed."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series = found.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in series, f"{sample.name}{labels} twice"
            series[labels] = sample.value
    return found


def value(page: dict[str, Series], name: str, **labels: str) -> float | None:
    """Value of a series; None: it is not there."""
    return page.get(name, {}).get(tuple(sorted(labels.items())))
