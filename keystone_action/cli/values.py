"""The values of options: text in, value out. Each raises ArgumentTypeError with a sentence on what was expected."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable


def _number(low: float, high: float, what: str, *, whole: bool) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
        if not math.isfinite(value) or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


parse_threshold = _number(0, 1, "a number from 0 to 1", whole=False)
parse_count = _number(1, 10**6, "a whole number from 1", whole=True)
parse_retries = _number(0, 100, "a whole number from 0 to 100", whole=True)
parse_money = _number(0, 10**9, "an amount from 0", whole=False)


def parse_shard(text: str) -> tuple[int, int]:
    """`2/3` → (2, 3). Raises ArgumentTypeError unless 1 ≤ i ≤ N."""
    first, slash, second = text.partition("/")
    if slash and first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second):
        return int(first), int(second)
    raise argparse.ArgumentTypeError(f"{text!r} is not a shard: write i/N with 1 <= i <= N, such as 1/3")


def parse_parameter(text: str) -> tuple[str, str]:
    """`model=a` → ("model", "a"). Raises ArgumentTypeError without a name or `=`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise argparse.ArgumentTypeError(f"{text!r} has bytes that are not UTF-8")
    return name, value


def parse_time(text: str) -> float:
    """`10m` → 600.0."""
    from pydantic_core import PydanticCustomError

    from keystone_action.spec.models.base import parse_duration

    try:
        return parse_duration(text)
    except PydanticCustomError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration like 90, 90s, 10m or 1h30m") from None


def parse_run_id(text: str) -> str:
    """The id of a run."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no id of a run, such as 20260102-030405-a1b2c3")
