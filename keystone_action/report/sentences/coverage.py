"""How much of what it should look at a check did look at: said beside its score, which is that of the part it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keystone_action.scoring.results import InvariantResult

_AMOUNTS = {"efficiency": ("targets", "target"), "budget": ("limits", "limit")}
"""Type → the key of its details that names what was asked for, and one of that in words."""


def coverage(check: InvariantResult) -> str:
    """`1 of 3 targets`; empty where a check saw everything, or where it does not say."""
    if check.status not in ("pass", "fail"):
        return ""
    if check.type in _AMOUNTS:
        key, noun = _AMOUNTS[check.type]
        return _of_amounts(check.details, key, noun)
    if check.type == "trace":
        return _of_assertions(check.details)
    return _of_tests(check.details) if check.type == "tests" else ""


def _of_amounts(details: Mapping[str, Any], key: str, noun: str) -> str:
    asked, unseen = details.get(key), details.get("not_observed")
    if not isinstance(asked, Mapping) or not isinstance(unseen, Sequence) or isinstance(unseen, str):
        return ""
    total, missing = len(asked), len(unseen)
    return f"{total - missing} of {total} {noun}s" if 0 < missing < total else ""


def _of_assertions(details: Mapping[str, Any]) -> str:
    found = details.get("assertions")
    if not isinstance(found, Sequence) or isinstance(found, str):
        return ""
    seen = sum(isinstance(one, Mapping) and one.get("holds") is not None for one in found)
    return f"{seen:,} of {len(found):,} assertions" if 0 < seen < len(found) else ""


def _of_tests(details: Mapping[str, Any]) -> str:
    counts = [details.get(name) for name in ("passed", "failed", "errors", "skipped")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return ""
    *ran, skipped = (int(count or 0) for count in counts)
    return f"{sum(ran):,} of {sum(ran) + skipped:,} tests ran" if skipped and sum(ran) else ""
