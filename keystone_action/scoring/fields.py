"""What the fields of results hold: how each kind of value is written, and what the published schema says of it.

The limits are in the schema only: a reader checks them itself, and says which cell of which file breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer

Verdict = Literal["pass", "fail", "flaky", "error"]
COUNT_NAMES = ("scenarios", "cells", "passed", "failed", "errors", "skipped_checks", "broken_checks")
USAGE_NAMES = (
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost_usd",
    "tool_calls",
    "requests",
    "spent_usd",
)
JUDGE_USAGE_NAMES = ("cost_usd",)
_MAX_DEPTH = 64
_MAX_INTEGER_BITS = 4096  # above some 14,000 bits Python itself refuses to read an integer back


def plain_json(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """value as JSON can hold it: NaN, bytes, dates, lone surrogates and endless nesting become text. The authors of
    checks, and agents, decide what arrives here."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_INTEGER_BITS else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {utf8(str(key)): plain_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item, depth - 1) for item in value]
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    return utf8(str(value))


def nothing_used() -> dict[str, float | None]:
    """`usage` of a cell whose agent never ran, and of a run without cells."""
    return _zeros(USAGE_NAMES)


def nothing_judged() -> dict[str, float | None]:
    """`judge_usage` of a run without cells."""
    return _zeros(JUDGE_USAGE_NAMES)


def _zeros(names: Iterable[str]) -> dict[str, Any]:
    return {name: 0.0 if name.endswith("_usd") else 0 for name in names}


def utf8(text: str) -> str:
    """text as UTF-8 can carry it: a lone surrogate (undecodable bytes of a file name) becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def finite(number: float) -> float:
    """number, unless it is not finite: that is a defect of ours, and a report must not paper over it."""
    if not math.isfinite(number):
        raise ValueError(f"a composite, a score, a weight or a time is {number}: a result must be a finite number")
    return float(number)


def _amounts(*always: str) -> Callable[[Mapping[str, float | None]], dict[str, Any]]:
    """A writer of counters by name: those of the contract first, and never missing. Tokens and calls are whole numbers,
    money is not; what is unknown is null."""

    def write(found: Mapping[str, float | None]) -> dict[str, Any]:
        document = _zeros(always)
        for name, amount in found.items():
            whole = amount is not None and finite(amount) == int(amount) and not name.endswith("_usd")
            document[utf8(name)] = int(amount) if whole and amount is not None else amount
        return document

    return write


def _with_text_keys(found: Mapping[str, Any]) -> dict[str, Any]:
    return {utf8(key): value for key, value in found.items()}


ResultText = Annotated[str, PlainSerializer(utf8, return_type=str)]
ResultTexts = tuple[ResultText, ...]
ResultValues = Annotated[dict[str, Any], PlainSerializer(plain_json)]
ResultCount = Annotated[int, Field(json_schema_extra={"minimum": 0})]
Seconds = Annotated[float, Field(json_schema_extra={"minimum": 0}), PlainSerializer(finite, return_type=float)]
Weight = Seconds
ExpectedCount = Seconds
Score = Annotated[
    float, Field(json_schema_extra={"minimum": 0, "maximum": 1}), PlainSerializer(finite, return_type=float)
]
Lines = Annotated[dict[str, Annotated[int, Field(json_schema_extra={"minimum": 1})]], PlainSerializer(_with_text_keys)]
Digests = Annotated[dict[str, str], PlainSerializer(_with_text_keys)]
Amounts = Annotated[dict[str, float | None], PlainSerializer(_amounts())]
Counts = Annotated[
    dict[str, ResultCount],
    PlainSerializer(_amounts(*COUNT_NAMES)),
    Field(json_schema_extra={"required": [*COUNT_NAMES]}),
]
UsageAmounts = Annotated[
    dict[str, float | None],
    PlainSerializer(_amounts(*USAGE_NAMES)),
    Field(json_schema_extra={"required": [*USAGE_NAMES]}),
]
JudgeUsageAmounts = Annotated[
    dict[str, float | None],
    PlainSerializer(_amounts(*JUDGE_USAGE_NAMES)),
    Field(json_schema_extra={"required": [*JUDGE_USAGE_NAMES]}),
]
