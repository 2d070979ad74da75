"""Names are checked without regular expressions, and as their patterns say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu_aware.bounds import (
    INDEX_TYPES,
    NODE_NAME,
    index_type,
    is_name,
    is_node_name,
    slot_of,
)
from slurm_gpu_aware.filter_rules import NAME

texts = st.text(st.sampled_from("aZ09._-é²\n g"), max_size=8)


@given(texts)
def test_a_node_name_has_its_pattern(text: str) -> None:
    assert is_node_name(text) == bool(re.fullmatch(NODE_NAME, text))


@given(texts)
def test_a_class_name_has_the_pattern_of_the_filter(text: str) -> None:
    assert is_name(text) == bool(re.fullmatch(NAME, text))


def test_long_names_are_refused() -> None:
    assert is_node_name("n" * 255)
    assert not is_node_name("n" * 256)
    assert is_name("n" * 32)
    assert not is_name("n" * 33)


@given(st.integers(0, INDEX_TYPES - 1))
def test_an_index_type_names_its_index(slot: int) -> None:
    assert slot_of(index_type(slot)) == slot


@pytest.mark.parametrize(
    "kind", [None, "", "g", "g01", "g1024", "g99999", "G1", "a100", "g²", "g-1"]
)
def test_other_types_name_no_index(kind: str | None) -> None:
    assert slot_of(kind) is None
