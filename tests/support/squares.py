"""Two lists of cases, each of which meets each: a diagonal in `make test`, the whole square in `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_case(*values: Any) -> Any:
    """A case of `parametrize` that is for `make test-slow`, where others of its kind are enough for `make test`."""
    return pytest.param(*values, marks=pytest.mark.slow)


def square(first: str, firsts: Iterable[str], second: str, seconds: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrize a test by the arguments `first` and `second` with every pair. `slow` are all but as many pairs as
    the longer list has cases: together these have each case of both."""
    one, other = list(firsts), list(seconds)
    longer, shorter = max(len(one), len(other)), min(len(one), len(other))
    diagonal = {(number % len(one), number % len(other)) for number in range(longer)}
    assert shorter
    return pytest.mark.parametrize(
        (first, second),
        [
            pytest.param(a, b, id=f"{b}-{a}", marks=[] if (row, column) in diagonal else pytest.mark.slow)
            for row, a in enumerate(one)
            for column, b in enumerate(other)
        ],
    )
