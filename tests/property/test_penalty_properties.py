"""Penalties of any configuration and any measurement: complete, ascending, as documented."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.config.settings import PlacementConfig
from slurm_gpu_aware.model.penalties import INSIDE_NODE, LEVELS, LevelTime, combine, level_ratios

ABOVE = st.floats(1.0, 4.0)


@st.composite
def configurations(draw):
    """What a site may give: ascending, the tightest of the levels in use 1.0."""
    names = draw(st.sets(st.sampled_from(LEVELS)))
    values = sorted(draw(st.lists(ABOVE, min_size=len(names), max_size=len(names))))
    given_levels = dict(zip([n for n in LEVELS if n in names], values, strict=True))
    inner = [n for n in INSIDE_NODE if n in given_levels]
    for name in inner[:1] if "node" in given_levels else inner:
        given_levels[name] = 1.0  # without a value of its own node is 1.0, and all below it
    return given_levels


@st.composite
def measurements(draw):
    """Times of up to two classes on up to two models, noise included, from one inner level on."""
    times = []
    for app_class in draw(st.sets(st.sampled_from("AB"))):
        inner = draw(st.sampled_from(INSIDE_NODE))
        looser = LEVELS[LEVELS.index(inner) + 1 :]
        for model in draw(st.sampled_from([("",), ("v100", "a100")])):
            for level in [inner, *draw(st.sets(st.sampled_from(looser), min_size=1))]:
                values = draw(st.lists(st.floats(0.5, 500.0), min_size=1, max_size=3))
                times += [LevelTime(app_class, level, value, model) for value in values]
    return times


@given(configurations(), measurements(), ABOVE)
def test_every_class_has_an_ascending_penalty_at_every_level_in_use(configured, times, across):
    across = max([across, *configured.values()])
    ratios = level_ratios(times)
    found = combine(configured, ratios, across=across)
    used = {"node", "cluster", *configured, *(time.level for time in times)}
    for app_class in "ABC":
        row = found.of(app_class)
        values = [penalty.value for penalty in row.values()]
        assert list(row) == [name for name in LEVELS if name in used]
        assert values == sorted(values)
        assert values[0] == 1.0
        assert all(map(math.isfinite, values))
        assert {n: row[n] for n in configured} == {
            n: (v, "configured") for n, v in configured.items()
        }
    general = PlacementConfig(levels={"cluster": across, **configured}).penalties
    assert {n: p.value for n, p in found.of("C").items() if n in general} == general


@given(measurements(), ABOVE)
def test_alone_a_measurement_counts_up_to_its_noise(times, across):
    """Without a configuration: the largest ratio up to the level, and never a default below it."""
    ratios = level_ratios(times)
    found = combine({}, ratios, across=across)
    for app_class, own in ratios.items():
        most = 1.0
        for level, (value, source) in found.of(app_class).items():
            if level in own:
                most = max(most, own[level])
                assert value == pytest.approx(most)
                assert source.startswith("measured")
            elif level == "cluster":
                assert value == pytest.approx(max(most, across))


@given(measurements(), st.floats(0.01, 100.0))
def test_the_unit_of_time_plays_no_part(times, unit):
    scaled = [time._replace(value_ms=time.value_ms * unit) for time in times]
    before, after = level_ratios(times), level_ratios(scaled)
    assert {c: list(r) for c, r in before.items()} == {c: list(r) for c, r in after.items()}
    for app_class, own in before.items():
        assert list(after[app_class].values()) == pytest.approx(list(own.values()))
