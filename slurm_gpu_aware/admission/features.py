"""Feature expressions of ``--constraint``.

``a&b``, ``a,b``, ``a|b`` and parentheses are evaluated. Counts (``a*2``), brackets and negation are
not a yes or no per node; such jobs are left to Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Set

__all__ = ["matches", "understood"]

_TOKEN = re.compile(r"\s*([()&|,]|[A-Za-z0-9_.:+=-]+)")


def understood(expression: str | None) -> bool:
    """Whether `matches` can evaluate the expression."""
    try:
        matches(expression, frozenset())
    except ValueError:
        return False
    return True


def matches(expression: str | None, features: Set[str]) -> bool:
    """Whether a node with these features is allowed. Raises ValueError if it cannot tell.

    Slurm reads ``&`` and ``|`` from left to right without precedence.
    """
    if not expression:
        return True
    tokens = _tokens(expression)
    value, rest = _expression(tokens, 0, features)
    if rest != len(tokens):
        raise ValueError(f"constraint {expression!r} is not understood")
    return value


def _tokens(expression: str) -> list[str]:
    tokens, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise ValueError(f"constraint {expression!r} is not understood")
        tokens.append(match[1])
        at = match.end()
    return tokens


def _expression(tokens: list[str], at: int, features: Set[str]) -> tuple[bool, int]:
    value, at = _operand(tokens, at, features)
    while at < len(tokens) and tokens[at] in "&|,":
        operator = tokens[at]
        right, at = _operand(tokens, at + 1, features)
        value = (value or right) if operator == "|" else (value and right)
    return value, at


def _operand(tokens: list[str], at: int, features: Set[str]) -> tuple[bool, int]:
    if at >= len(tokens) or tokens[at] in "&|,)":
        raise ValueError("constraint ends too early")
    if tokens[at] != "(":
        return tokens[at] in features, at + 1
    value, at = _expression(tokens, at + 1, features)
    if at >= len(tokens) or tokens[at] != ")":
        raise ValueError("constraint lacks a closing parenthesis")
    return value, at + 1
