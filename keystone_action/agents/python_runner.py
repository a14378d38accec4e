"""Calls a Python agent inside the sandbox; a program of its own, copied there, that needs only the standard library.

stdin holds one JSON document: `entrypoint` ("module:Class" or "module:function"), `directory` (put first on sys.path),
`input`, `context`, `result` (name of the file for the AgentResult document, relative to the directory that this starts
in), `stdin` (whether the agent finds the input on its own stdin) and `library` (an archive of modules, last on
sys.path). Exit code 1 with a traceback on stderr, and `{"raised": text, "missing": a module or null}` for a result: the
agent raised, or returned nothing.

It runs under the sandbox's python3, so it is written for 3.8.
"""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import importlib
import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPORTED = ("reasoning_trace", "latency_ms", "raw_response")
REPORTED_LIMIT = 1 << 20


def main() -> int:
    start = os.open(".", os.O_RDONLY)
    call = json.loads(sys.stdin.buffer.read())
    replace_stdin(call["input"] if call["stdin"] else "")
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [call["directory"], *(path for path in sys.path if path != here), call["library"]]
    sys.argv[:] = [call["entrypoint"]]
    try:
        result = invoke(find(call["entrypoint"]), call["input"], call["context"])
        document = as_document(result)
        content, code = json.dumps(document, default=repr).encode(), 0
    except Exception as error:  # noqa: BLE001 - any error is an agent that failed
        sys.stdout.flush()
        traceback.print_exc()
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        content, code = json.dumps({"raised": in_words(error), "missing": missing}, default=repr).encode(), 1
    # Relative to the first directory, wherever the agent has gone since.
    target = os.open(call["result"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=start)
    with os.fdopen(target, "wb") as file:
        file.write(content)
    return code


def in_words(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:500]
    except Exception:  # noqa: BLE001 - an exception of the agent's own making may not even have a text
        return type(error).__name__


def replace_stdin(text: str) -> None:
    """Give the agent a stdin of its own, in place of the one that held the call."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode("utf-8", "replace"))
        file.seek(0)
        os.dup2(file.fileno(), 0)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)


def find(entrypoint: str) -> Callable[..., Any]:
    """The function to call: `run` of an instance of the class, of an object that has one, or the function itself."""
    module, _, names = entrypoint.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = attribute(found, name)
    if inspect.isclass(found):
        found = found()
    run = getattr(found, "run", None)
    function: Callable[..., Any] | None = None
    if callable(run) and not inspect.isroutine(found):
        function = run
    elif callable(found):
        function = found
    if function is not None:
        return function
    raise TypeError(f"{entrypoint} is not a function, and has no method run(input, context)")


def attribute(found: Any, name: str) -> Any:
    try:
        return getattr(found, name)
    except AttributeError as error:
        near = difflib.get_close_matches(name, dir(found), n=1)
        if not near:
            raise
        raise AttributeError(f"{error}, did you mean {near[0]!r}?") from None


def invoke(function: Callable[..., Any], text: str, context: dict[str, Any]) -> Any:
    """Call with (input, context), or (input) alone where no more is taken; a coroutine is run to its end."""
    arguments: list[Any] = [text, context] if takes(function, 2) else [text]
    result = function(*arguments)
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    if result is None:
        raise TypeError("the agent returned None; expected an AgentResult, a dict with `output`, or text")
    return result


def takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # no signature to look at
        return True
    return True


def as_document(result: Any) -> dict[str, Any]:
    """An AgentResult document of what was returned."""
    if isinstance(result, str):
        return {"output": result}
    document = as_mapping(result, ("output", "tool_calls", "tools_called", "token_usage", *REPORTED))
    called = document.pop("tools_called", None)  # what AgenticAssure's documents call them
    calls = called if document.get("tool_calls") is None and called is not None else document.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        document["tool_calls"] = [as_call(call) for call in calls]
    for name in REPORTED:
        if name in document:
            keep_reported(document, name)
    if document.get("token_usage") is not None:
        names = ("input_tokens", "prompt_tokens", "output_tokens", "completion_tokens", "cost_usd")
        document["token_usage"] = as_mapping(document["token_usage"], names)
    return document


def as_call(call: Any) -> dict[str, Any]:
    return {"name": call} if isinstance(call, str) else as_mapping(call, ("name", "arguments", "result"))


def keep_reported(document: dict[str, Any], name: str) -> None:
    """A value that only scorers of the suite's author look at: as JSON has it; one that is too large or endless is
    left out, never a reason to lose the result."""
    try:
        text = json.dumps(document[name], default=repr, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        text = "null"
    document[name] = json.loads(text if len(text) <= REPORTED_LIMIT else "null")


def as_mapping(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any]
    if isinstance(value, dict):
        found = value
    elif callable(getattr(value, "model_dump", None)):
        found = value.model_dump()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = dataclasses.asdict(value)
    else:
        found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    return {name: found[name] for name in names if name in found}


if __name__ == "__main__":
    sys.exit(main())
