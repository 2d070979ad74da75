"""Metrics as text for Prometheus (format 0.0.4), with limits for series and labels."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from slurm_gpu_aware.errors import SourceError, not_installed
from slurm_gpu_aware.exporter.registry import STATE
from slurm_gpu_aware.exporter.sources import Complaints
from slurm_gpu_aware.metric import Buckets, Fact, Metric

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeHistogramMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
except ImportError:
    raise SourceError(not_installed("prometheus-client", "metrics")) from None

_LONGEST_LABEL = 200  # Characters of a label's value; the rest is cut.


@dataclass
class Rendered:
    """Families of one fact as text."""

    text: bytes
    dropped: Mapping[str, int]
    failed: int = 0


@dataclass
class Renderer:
    """Renders metrics; what has not changed is not rendered again."""

    metrics: Iterable[Metric[Any]]
    _kept: dict[Fact[Any], tuple[object, Rendered]] = field(default_factory=dict)
    _complaints: Complaints = field(default_factory=Complaints)

    def render(self, sources: Mapping[str, Any]) -> Rendered:
        """All families whose sources are there, but those of the exporter itself."""
        return _joined(self._parts(sources))

    def own(self, state: object) -> bytes:
        """The families of the exporter itself."""
        return self._part(STATE, self._by_fact()[STATE], {"exporter": state}).text

    def _parts(self, sources: Mapping[str, Any]) -> Iterator[Rendered]:
        for fact, metrics in self._by_fact().items():
            if all(sources.get(name) is not None for name in fact.wants):
                yield self._part(fact, metrics, sources)
            else:
                self._kept.pop(fact, None)

    def _by_fact(self) -> dict[Fact[Any], list[Metric[Any]]]:
        found: dict[Fact[Any], list[Metric[Any]]] = {}
        for fact, metrics in groupby(self.metrics, key=lambda metric: metric.fact):
            found.setdefault(fact, []).extend(metrics)
        return found

    def _part(
        self, fact: Fact[Any], metrics: Iterable[Metric[Any]], sources: Mapping[str, Any]
    ) -> Rendered:
        given = [sources[name] for name in fact.wants]
        try:
            key = None if fact.key is None else (fact.key(*given),)
            known = self._kept.get(fact)
            if key is not None and known is not None and known[0] == key:
                return known[1]
            value = fact.read(*given)
        except Exception as exc:
            self._complain(fact.name, exc)
            return Rendered(b"", {}, 1)
        self._complaints.well(fact.name)
        done = _joined(self._families(metrics, value))
        if key is not None:
            self._kept[fact] = (key, done)
        return done

    def _families(self, metrics: Iterable[Metric[Any]], value: object) -> Iterator[Rendered]:
        for metric in metrics:
            try:
                yield _family(metric, value)
            except Exception as exc:
                self._complain(metric.name, exc)
                yield Rendered(b"", {}, 1)

    def _complain(self, what: str, exc: Exception) -> None:
        self._complaints.failed(what, f"not exported: {type(exc).__name__}: {exc}")


def _joined(parts: Iterable[Rendered]) -> Rendered:
    texts: list[bytes] = []
    dropped: dict[str, int] = {}
    failed = 0
    for part in parts:
        texts.append(part.text)
        dropped.update(part.dropped)
        failed += part.failed
    return Rendered(b"".join(texts), dropped, failed)


def _family(metric: Metric[Any], value: object) -> Rendered:
    kinds = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
        "gaugehistogram": GaugeHistogramMetricFamily,
    }
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    dropped, seen = 0, set[tuple[str, ...]]()
    for sample in metric.samples(value):
        labels = tuple(map(_label, sample.labels))
        if labels in seen or not _is_known(sample):
            continue
        if len(seen) >= metric.most:
            dropped += 1
            continue
        seen.add(labels)
        if isinstance(sample, Buckets):
            edges = [(_edge(edge), float(count)) for edge, count in sample.buckets]
            family.add_metric(labels, edges, sample.total)
        else:
            family.add_metric(labels, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_One(family))
    return Rendered(generate_latest(registry), {metric.name: dropped})


class _One:
    """A collector of one family."""

    def __init__(self, family: Any) -> None:
        self._family = family

    def collect(self) -> list[Any]:
        """The family."""
        return [self._family]


def _is_known(sample: Any) -> bool:
    return isinstance(sample, Buckets) or math.isfinite(sample.value)


def _label(value: str) -> str:
    """A value that is UTF-8 text of a bounded length; texts of users may be neither."""
    return value[:_LONGEST_LABEL].encode("utf-8", "replace").decode()


def _edge(bound: float) -> str:
    return "+Inf" if bound == math.inf else f"{bound:g}"
