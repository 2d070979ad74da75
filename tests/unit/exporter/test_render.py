"""Text of metrics: limits, hostile labels, failures that stay alone, and what is kept."""

import math
from typing import Any

import pytest
from exposition import families, value

from slurm_gpu_aware.exporter.render import Renderer
from slurm_gpu_aware.metric import Fact, Metric, Sample, bucketed, one


def gauge(fact: Fact[Any], samples: Any, name: str = "gpu_aware_x", **more: Any) -> Metric[Any]:
    return Metric(name, "Text.", "gauge", fact, samples, **more)


NOW = Fact("now", ("now",), lambda now: now)


def test_series_beyond_the_limit_are_counted_not_exported() -> None:
    metric = gauge(NOW, lambda _: [Sample((str(i),), i) for i in range(7)], labels=("a",), most=3)
    done = Renderer([metric]).render({"now": 1.0})
    assert [labels[0][1] for labels in families(done.text.decode())["gpu_aware_x"]] == list("012")
    assert done.dropped == {"gpu_aware_x": 4}


@pytest.mark.parametrize(
    "text",
    ['a"} 1\ngpu_aware_forged 1', "back\\slash", "\udcff\udc00", "é\u2028x", "", "\0", "\r\n"],
)
def test_a_hostile_label_forges_no_series(text: str) -> None:
    metric = gauge(NOW, lambda _: [Sample((text,), 1.0)], labels=("a",))
    page = families(Renderer([metric]).render({"now": 1.0}).text.decode())
    assert set(page) == {"gpu_aware_x"}
    ((labels, number),) = page["gpu_aware_x"].items()
    assert (labels[0][1], number) == (text.encode("utf-8", "replace").decode(), 1.0)


def test_a_label_is_cut_and_equal_ones_count_once() -> None:
    long = [Sample(("x" * 5000 + str(i),), 1.0) for i in range(3)]
    text = Renderer([gauge(NOW, lambda _: long, labels=("a",))]).render({"now": 1}).text
    ((labels, _),) = families(text.decode())["gpu_aware_x"].items()
    assert labels == (("a", "x" * 200),)


def test_numbers_that_are_none_are_left_out() -> None:
    samples = [Sample((str(v),), v) for v in (math.nan, math.inf, -math.inf, 2.0)]
    text = Renderer([gauge(NOW, lambda _: samples, labels=("a",))]).render({"now": 1}).text
    assert families(text.decode()) == {"gpu_aware_x": {(("a", "2.0"),): 2.0}}


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("no")


def test_a_fact_or_a_family_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    broken = Fact("broken", ("now",), fails)
    wrong = gauge(broken, one, "gpu_aware_a"), gauge(NOW, fails, "gpu_aware_b")
    renderer = Renderer([*wrong, gauge(NOW, one, "gpu_aware_c")])
    for _ in range(3):
        done = renderer.render({"now": 5.0})
    assert (families(done.text.decode()), done.failed) == ({"gpu_aware_c": {(): 5.0}}, 2)
    assert [record.args[0] for record in caplog.records] == ["broken", "gpu_aware_b"]


def test_without_its_source_a_family_is_absent() -> None:
    fact = Fact("both", ("store", "now"), lambda store, now: now)
    renderer = Renderer([gauge(fact, one)])
    assert renderer.render({"now": 1.0}).text == b""
    assert renderer.render({"now": 1.0, "store": None}).text == b""
    assert b"gpu_aware_x 1.0" in renderer.render({"now": 1.0, "store": object()}).text


def test_a_fact_with_a_key_is_read_when_the_key_changes_only() -> None:
    read: list[float] = []
    fact = Fact("kept", ("now",), lambda now: read.append(now) or now, lambda now: now // 10)
    renderer = Renderer([gauge(fact, one)])
    texts = [renderer.render({"now": now}).text for now in (1.0, 5.0, 12.0)]
    assert read == [1.0, 12.0]
    assert texts[0] == texts[1] != texts[2]


def test_histograms_are_cumulative() -> None:
    samples = lambda _: [bucketed([3, 1, 9], [2, 5])]  # noqa: E731
    metric = Metric("gpu_aware_y_seconds", "Text.", "histogram", NOW, samples)
    page = families(Renderer([metric]).render({"now": 1}).text.decode())
    for least, number in (("2", 1), ("5", 2), ("+Inf", 3)):
        assert value(page, "gpu_aware_y_seconds_bucket", le=least) == number
    assert value(page, "gpu_aware_y_seconds_sum") == 13
    assert value(page, "gpu_aware_y_seconds_count") == 3
