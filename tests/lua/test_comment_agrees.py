"""Lua and Python give the same verdict, and the same sentence, for every comment."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from luafilter import CLASSES, CONF, POLICIES, REPO, Filter, install

from slurm_gpu_aware import features
from slurm_gpu_aware.errors import RequestError
from slurm_gpu_aware.features.hints import HINTS
from slurm_gpu_aware.model.job_hints import (
    BANDWIDTH,
    PATTERN,
    Duration,
    Hint,
    HintValue,
    Name,
    Range,
    Repeated,
    Time,
    Whole,
    parse_comment,
)

KEYS = [hint.key for hint in HINTS]
VALUES = [
    *CLASSES,
    "auto",
    *BANDWIDTH.words,
    *PATTERN.words,
    *POLICIES,
    "off",
    "max",
    "4",
    "2-8",
    "900",
]
ODD_VALUES = ["", " ", "D", "a", "0", "-1", "1-", "8-2", "99999", "100000", "05", "99", "10001"]
ODD_VALUES += ["2-100000", "1=2", "x" * 65, "é", "\n", "\x00", "'", '"', "$(id)", "A\t", "v1.0_x-y"]
ODD_VALUES += [
    "36h",
    "0d",
    "366d",
    "367d",
    "527041m",
    "90min",
    "90mi",
    "90dmin",
    "2026-02-29T08:00",
    "2028-02-29T23:59:59",
]
ODD_VALUES += ["2026-12-01T24:00", "2026-12-01T08:00:60", "2026-12-01 08:00", "2026-12-01T08:00Z"]
ODD_VALUES += ["2026-00-01T08:00", "2026-12-00T08:00", "2026-12-01T08:00:0", "1h30m", "007h"]
ODD_VALUES += [
    "90x10m",
    "90x10min",
    "90x0m",
    "0x10m",
    "100000x366h",
    "100001x1s",
    "9x",
    "x9s",
    "9x9d",
]
ODD_KEYS = ["Class", "", " ", "clas", "key", "классе", "class\n", "\x7f", "'", "y" * 50]

blank = st.sampled_from(["", "", "", " ", "\t", "  "])
entry = st.builds(
    lambda a, k, b, e, c, v, d: a + k + b + e + c + v + d,
    blank,
    st.sampled_from([*KEYS, *KEYS, *ODD_KEYS]),
    blank,
    st.sampled_from(["=", "=", "=", "=", "==", ""]),
    blank,
    st.sampled_from([*VALUES, *VALUES, *ODD_VALUES]),
    blank,
)
RIGHT = {
    "class": st.sampled_from([*CLASSES, "auto"]),
    "bw": st.sampled_from(BANDWIDTH.words),
    "pattern": st.sampled_from(PATTERN.words),
    "gpus": st.one_of(
        st.integers(1, 99_999).map(str),
        st.tuples(st.integers(1, 99_999), st.integers(1, 99_999)).map(
            lambda pair: f"{min(pair)}-{max(pair)}"
        ),
    ),
    "freq": st.one_of(st.sampled_from(["auto", "max"]), st.integers(90, 10_010).map(str)),
    "model": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,66}", fullmatch=True),
    "move": st.one_of(st.sampled_from(["ok", "no"]), st.integers(0, 86_410).map("{}s".format)),
    "due": st.one_of(
        st.tuples(st.integers(0, 9000), st.sampled_from(["m", "min", "h", "d", "s"])).map(
            "{0[0]}{0[1]}".format
        ),
        st.datetimes().map(lambda at: at.isoformat(timespec="minutes")),
        st.tuples(*(st.integers(0, most) for most in (99, 13, 32, 25, 61, 61))).map(
            lambda n: "20{:02}-{:02}-{:02}T{:02}:{:02}:{:02}".format(*n)
        ),
    ),
    "epochs": st.tuples(
        st.integers(0, 100_010),
        st.integers(0, 9000),
        st.sampled_from(["s", "m", "min", "h", "d", ""]),
    ).map("{0[0]}x{0[1]}{0[2]}".format),
    "place": st.sampled_from([*POLICIES, "off"]),
}
right_entries = st.fixed_dictionaries({}, optional=RIGHT).map(lambda d: list(d.items()))
right = st.tuples(right_entries.flatmap(st.permutations), blank).map(
    lambda t: ",".join(f"{t[1]}{key}{t[1]}={value}" for key, value in t[0])
)
likely = st.lists(entry, min_size=1, max_size=5).map(",".join)
anything = st.text(st.characters(codec="utf-8"), max_size=60)
marked = st.tuples(
    st.one_of(anything, st.sampled_from(["", "run 7 ", "gpu:class=D ", "a\tgpu:gpu:"])),
    st.sampled_from(["gpu:", "gpu:", " gpu:", "gpu: ", "GPU:"]),
    st.one_of(right, likely),
).map("".join)
comments = st.one_of(right, likely, marked, anything, st.tuples(likely, anything).map(",".join))


@pytest.fixture(scope="module")
def lua_filter(tmp_path_factory: pytest.TempPathFactory) -> Filter:
    folder: Path = tmp_path_factory.mktemp("filter")
    install(folder, CONF.format(submit_file="/nonexistent", more=""))
    return Filter(folder)


def python_side(
    text: str, hints: Sequence[Hint[HintValue]] = HINTS
) -> tuple[dict[str, Any] | None, str | None]:
    try:
        wishes = parse_comment(text, hints, {"classes": CLASSES, "policies": POLICIES})
    except RequestError as exc:
        return None, str(exc)
    return None if wishes is None else dict(wishes.values), None


@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(comments)
@example("class=A" + "," * 1100)
@example("x" * 1025 + ",class=A")
@example("é" * 600 + "=1,class=A")
def test_same_verdict_and_sentence(lua_filter: Filter, text: str) -> None:
    assert lua_filter.parse_comment(text) == python_side(text)


def test_the_generator_reaches_all_verdicts() -> None:
    """Guards the test above: its inputs are neither all right nor all wrong."""
    seen = {"ours": 0, "wrong": 0, "foreign": 0}

    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    @given(comments)
    def count(text: str) -> None:
        wishes, sentence = python_side(text)
        seen["wrong" if sentence else "ours" if wishes else "foreign"] += 1

    count()
    assert min(seen.values()) >= 10, seen


OTHER: tuple[Hint[HintValue], ...] = (
    Hint("n", forms=(Whole(0, 12),), says="0 to 12"),
    Hint("r", ("0-", "all"), (Range(0, 30),), says="all, or a part"),
    Hint("t", forms=(Time(), Duration({"q": 7}, 100), Whole(5, 1_234_567)), says="many"),
    Hint("x", forms=(Repeated(Whole(0, 3), Duration({"q": 7, "w": 1}, 100)),), says="3x9q"),
    Hint("m", forms=(Name("[a-c][0-9.]*", 4),), says="a name"),
    Hint("c", ("none",), listed="classes", none="none"),
)
"""Keys that no feature has: each kind of form at other bounds, and several for one key."""
other_values = st.one_of(
    st.sampled_from(
        ["0", "12", "13", "00", "-0", "0-30", "31", "all", "0-", "5", "4", "none", "A"]
    ),
    st.text("0123-", max_size=4),
    st.text("012345qwx", max_size=5),
    st.text("abc019.", max_size=5),
    st.integers(0, 2_000_000).map(str),
)
other_comments = st.lists(
    st.tuples(st.sampled_from([hint.key for hint in OTHER]), other_values).map("=".join), max_size=3
).map(",".join)


@pytest.fixture(scope="module")
def other_filter(tmp_path_factory: pytest.TempPathFactory) -> Filter:
    folder: Path = tmp_path_factory.mktemp("other")
    install(folder, CONF.format(submit_file="/nonexistent", more=""))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(features.hints, "HINTS", OTHER)
        rules = runpy.run_path(str(REPO / "docs" / "generate.py"))["lua_rules"]()
    (folder / "gpu_aware_rules.lua").write_text(rules)
    return Filter(folder)


@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(other_comments)
@example("n=0,x=0x14q,t=0014q")
@example("t=14q,r=0")
def test_a_new_key_needs_no_parser(other_filter: Filter, text: str) -> None:
    assert other_filter.parse_comment(text) == python_side(text, OTHER)


def test_what_a_form_is_must_be_said() -> None:
    with pytest.raises(ValueError, match="hint n: what its forms are must be said"):
        Hint("n", forms=(Whole(0, 12),))
