"""Tables fit, text from outside cannot steer a terminal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.cli.output import clean, json_text, table, visible
from slurm_gpu_aware.time_text import duration, stamp


def test_the_last_column_wraps_under_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = table(["job", "why"], [["12", "word " * 40]])
    lines = text.splitlines()
    assert len(lines) > 4
    assert all(len(line) <= 60 for line in lines)
    assert lines[3].startswith("     word")


def test_numbers_align_to_the_right():
    text = table(["gpus", "why"], [[2, "x"], [16, "y"]], right=["gpus"])
    assert [line[:4] for line in text.splitlines()[2:]] == ["   2", "  16"]


def test_nothing_is_shown_as_a_dash():
    assert table(["a", "b"], [[None, ""]]).splitlines()[-1].split() == ["-", "-"]


@given(st.text())
def test_no_control_character_reaches_the_terminal(text: str):
    assert all(c.isprintable() for c in clean(text))
    assert all(c.isprintable() for c in visible(text).replace("\n", ""))


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False)))
def test_json_is_safe_for_a_terminal_and_unchanged(value: dict[str, str | float]):
    text = json_text(value)
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.25, "250 ms"),
        (59, "59 s"),
        (3_660, "1 h 1 min"),
        (7_200, "2 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str):
    assert duration(seconds) == text


def test_stamp_of_nothing():
    assert stamp(None) == "-"
