"""Asks a scorer class of an author's inside the sandbox; a program of its own, copied there.

An order comes on stdin: `{"directory": path, "modules": […], "library": path, "answer": name, "scorer": text or null,
"scenario": {…}, "result": {…}}`. The modules are imported for what they register; without a scorer the answer is the
names that they registered. A result that is not an AgentResult is `malformed`: the agent's fault. The answer is a JSON
file with a name that is made for this run, in the directory that this starts in: nothing that is printed, or was there
before, can be taken for it.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

DETAILS_LIMIT = 1 << 20
BUILT_IN = ("passfail", "exact", "regex", "similarity")


class Broken(Exception):  # noqa: N818 - an answer like any other
    """Why there is no score; a sentence without its full stop."""


def main() -> int:
    start = os.open(".", os.O_RDONLY)
    order = json.loads(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    here = Path(__file__).resolve().parent
    rest = [path for path in sys.path if path and Path(path).resolve() != here]
    sys.path[:] = [order["directory"], *rest, order["library"]]
    sys.argv[:] = ["scorer"]
    try:
        answer = ask(order)
    except Broken as broken:
        answer = {"broken": str(broken)}
    content = json.dumps(answer).encode()
    target = os.open(order["answer"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=start)
    with os.fdopen(target, "wb") as file:
        file.write(content)
    return 0


def ask(order: dict[str, Any]) -> dict[str, Any]:
    registry = imported("agenticassure.scorers.base")
    imported("agenticassure.scorers")
    before = {name: registry.get_scorer(name) for name in registry.list_scorers()}
    for module in order["modules"]:
        imported(module)
        if order["scorer"] in registry.list_scorers() and order["scorer"] not in before:
            break
    if order["scorer"] is None:
        return registered(registry, before)
    if order["scorer"] not in registry.list_scorers():
        names = ", ".join(registry.list_scorers())
        modules = ", ".join(order["modules"])
        raise Broken(f"no scorer {order['scorer']!r} is registered when {modules} is imported, only {names}")
    scenario = made(imported("agenticassure.scenario").Scenario, order["scenario"])
    try:
        result = made(imported("agenticassure.results").AgentResult, order["result"])
    except Broken as malformed:
        return {"malformed": str(malformed)}
    return found(score_result(registry.get_scorer(order["scorer"]), scenario, result))


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise Broken(f"the module {name} can't be imported: {error_in_words(error)}") from error


def made(kind: Any, values: dict[str, Any]) -> Any:
    try:
        return kind(**values)
    except Exception as error:  # a model of pydantic's, or of our own
        raise Broken(f"{kind.__name__}: {error_in_words(error)}") from error


def registered(registry: Any, before: dict[str, Any]) -> dict[str, Any]:
    names = [str(name) for name in registry.list_scorers()]
    replaced = [name for name in BUILT_IN if name in before and registry.get_scorer(name) is not before[name]]
    return {"names": names, "replaced": replaced}


def score_result(scorer: Any, scenario: Any, result: Any) -> Any:
    try:
        answer = scorer.score(scenario, result)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise Broken(f"it raised {error_in_words(error)}") from error


def error_in_words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # noqa: BLE001 - an exception of the author's own making may not even have a text
        return type(error).__name__


def found(answer: Any) -> dict[str, Any]:
    """A ScoreResult, or a dict like it, as the answer."""
    values = answer if isinstance(answer, dict) else {name: getattr(answer, name, None) for name in NAMES}
    if not isinstance(values.get("passed"), bool):
        what = "ScoreResult whose `passed` is true or false"
        raise Broken(f"it returned {answer!r:.80}, expected a {what}")
    return {
        "passed": values["passed"],
        "score": as_number(values.get("score")),
        "explanation": values["explanation"] if isinstance(values.get("explanation"), str) else "",
        "details": as_json(values.get("details")),
    }


NAMES = ("passed", "score", "explanation", "details")


def as_number(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise Broken(f"it gave the score {value!r:.80}, expected a number from 0 to 1")


def as_json(value: Any) -> Any:
    try:
        text = json.dumps(value, default=repr, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return json.loads(text) if len(text) <= DETAILS_LIMIT else None


if __name__ == "__main__":
    sys.exit(main())
