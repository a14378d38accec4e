"""CheckResult: the JSON document by which a custom script says what it found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from keystone_action.invariants.base import Outcome, failed, passed
from keystone_action.sandbox.base import Capture


class BadResult(Exception):  # noqa: N818 - an outcome: the check is in error
    """What was printed is no CheckResult; the message follows the script's name."""


def read_result(stdout: Capture) -> Outcome:
    """The outcome of `{"passed": bool, "score": number, "reason": text, "details": mapping}`; all but `passed` may be
    left out, and other keys are left alone.

    The document is all of stdout or, when something else was printed before it, the last line that is not empty.
    `passed` decides the status and `score` [1 or 0] the credit, also where the two disagree (a script that passes
    with 0.4 has passed, and earns 0.4). Raises BadResult.
    """
    document = _document(stdout)
    if not isinstance(document, dict):
        raise BadResult(f"printed a JSON {_kind(document)}, expected an object with `passed`")
    verdict = document.get("passed")
    if not isinstance(verdict, bool):
        what = f"has {json.dumps(verdict)[:80]}" if "passed" in document else "is missing"
        raise BadResult(f"printed a result whose `passed` {what}, expected true or false")
    score = document.get("score")
    if score is None:
        score = 1.0 if verdict else 0.0
    reason = document.get("reason")
    text = reason if isinstance(reason, str) else "" if reason is None else json.dumps(reason)
    outcome = (passed if verdict else failed)(text or f"The script says passed: {str(verdict).lower()}.", score=score)
    if outcome.status == "error":
        raise BadResult(f"printed the score {json.dumps(score)[:80]}, expected a number from 0 to 1")
    details = document.get("details")
    return replace(
        outcome, details=details if isinstance(details, dict) else {} if details is None else {"details": details}
    )


def _document(stdout: Capture) -> Any:
    if not stdout.total:
        raise BadResult("printed nothing, expected a JSON object with `passed`")
    problem: ValueError | None = None
    if not stdout.cut:
        try:
            return _parsed((stdout.head + stdout.tail).decode("utf-8"))
        except ValueError as error:
            problem = error
    lines = (stdout.tail or stdout.head).decode("utf-8", "replace").rstrip().rsplit("\n", 1)
    try:
        return _parsed(lines[-1])
    except ValueError as error:
        raise BadResult(f"printed no JSON ({problem or error})") from None


def _parsed(text: str) -> Any:
    try:
        return _encodable(json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles))
    except RecursionError:
        raise ValueError("nested too deep") from None


def _encodable(value: Any) -> Any:
    """Half surrogate pairs, which JSON can spell and UTF-8 can't, replaced: results must always be writable."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        # Which of two `passed` counts must not depend on the parser.
        raise ValueError("a key is there twice")
    return document


def _kind(document: object) -> str:
    return {list: "array", str: "text", bool: "boolean", type(None): "null"}.get(type(document), "number")
