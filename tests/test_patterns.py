"""The regular expressions of the product mean the same in every Python that it runs on."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

import keystone_action


def possessive_groups(parsed: Any) -> Iterator[str]:
    """Possessive repeats of more than one character or set: before Python 3.11.5 they give back a part (gh-106052)."""
    for operator, argument in parsed:
        if operator is _constants.POSSESSIVE_REPEAT and not _is_simple(argument[2]):
            yield str(argument)
        for part in argument if isinstance(argument, (tuple, list)) else (argument,):
            for inner in part if isinstance(part, list) else (part,):
                if isinstance(inner, _parser.SubPattern):
                    yield from possessive_groups(inner)


def _is_simple(parsed: Any) -> bool:
    simple = {_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN}
    return len(parsed) == 1 and parsed[0][0] in simple


@pytest.mark.parametrize(
    ("pattern", "has"),
    [
        ("a*+", False),
        (r"[\w.]++x", False),
        (r"\s?+", False),
        ("(?:ab)*+", True),
        ("(?:a|(?:b(c)++))", True),
        ("(?>(?:ab)*)", False),
    ],
)
def test_possessive_repeats_of_groups_are_found(pattern: str, has: bool) -> None:
    assert bool(list(possessive_groups(_parser.parse(pattern)))) is has


def patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    for module in pkgutil.walk_packages(keystone_action.__path__, "keystone_action."):
        if module.name.endswith("__main__"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("keystone_"):
                raise
            continue  # a program of its own: what stands beside it in a sandbox is not here
        yield from ((f"{module.name}.{name}", one) for name, one in names.items() if isinstance(one, re.Pattern))


def test_no_pattern_repeats_a_group_possessively() -> None:
    found, seen = [], 0
    for name, pattern in patterns():
        text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
        found += [f"{name}: {one}" for one in possessive_groups(_parser.parse(text, pattern.flags & re.VERBOSE))]
        seen += 1
    assert seen > 100
    assert not found
