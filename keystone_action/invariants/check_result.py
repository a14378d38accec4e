"""CheckResult: the JSON document by which a custom script says what it found."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from keystone_action.command import Capture
from keystone_action.invariants.base import Outcome, failed, passed
from keystone_action.invariants.values.strict_json import parse


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
            return parse((stdout.head + stdout.tail).decode("utf-8"))
        except ValueError as error:
            problem = error
    lines = (stdout.tail or stdout.head).decode("utf-8", "replace").rstrip().rsplit("\n", 1)
    if stdout.cut and len(lines) == 1:
        # The end of a line is not the line: what is in it may be what the agent wrote.
        raise BadResult(f"printed {stdout.total:,} bytes; the line with its result may have {len(stdout.tail):,}")
    try:
        return parse(lines[-1])
    except ValueError as error:
        raise BadResult(f"printed no JSON ({problem or error})") from None


def _kind(document: object) -> str:
    return {list: "array", str: "text", bool: "boolean", type(None): "null"}.get(type(document), "number")
