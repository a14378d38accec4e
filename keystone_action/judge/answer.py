"""From what a model wrote to a score, strictly: never guessed, never clamped (spec 5.1, 5.3)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

REASON_LIMIT = 2000
"""Characters of a model's reason that are kept."""

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.DOTALL)


class BadAnswer(ValueError):  # noqa: N818 - an outcome of an attempt
    """The answer has no usable score; the sentence is told to the model before it is asked again."""


def parse_answer(text: str) -> tuple[float, str]:
    """(score in [0, 1], reason) from `{"score": …, "passed": …, "reason": …}`. `passed` is not looked at: the
    threshold decides. Raises BadAnswer."""
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    document = _load(fenced[1] if fenced else text)
    if not isinstance(document, dict):
        raise BadAnswer(f"expected a JSON object, found {_kind(document)}")
    if "score" not in document:
        raise BadAnswer('expected the key "score" in the JSON object, found none')
    score = document["score"]
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise BadAnswer(f"expected score to be a number from 0 to 1, found {_kind(score)}")
    if not _finite(score) or not 0 <= score <= 1:
        raise BadAnswer(f"expected score to be a number from 0 to 1, found {str(score)[:40]}")
    reason = document.get("reason", "")
    return float(score), (reason if isinstance(reason, str) else "").strip()[:REASON_LIMIT]


def _finite(score: int | float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # an integer of thousands of digits
        return False


def _load(text: str) -> Any:
    if not text:
        raise BadAnswer("expected a JSON object, found an empty answer")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except BadAnswer:
        raise
    except (ValueError, RecursionError):
        raise BadAnswer("expected one JSON object and nothing else, found text that is no JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    raise BadAnswer(f"expected score to be a number from 0 to 1, found {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise BadAnswer("expected each key once, found one twice")
    return document


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return f"{value!r}"[:40]
