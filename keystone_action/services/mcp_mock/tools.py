"""What the tools of an mcp_mock answer: made of a spec once, rendered for each call."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from keystone_action.services.http_mock.responses import ReplyFailed, compile_text, unescape
from keystone_action.spec.models.mcp import McpAnswer, McpTool

ARGUMENTS_SECONDS = 1.0
"""For the arguments of a call to be held against the schema of its tool."""
_SHOWN = 300
"""Characters of what does not fit."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A rendered answer."""

    text: str
    is_error: bool = False
    delay: float = 0.0
    """In seconds."""
    fault: Literal["reset", "empty", "garbage"] | None = None
    """What happens instead of the answer."""


class AnswerPlan:
    """One answer of a spec, ready to be rendered."""

    def __init__(self, answer: McpAnswer, where: str) -> None:
        """where: for messages. Raises UsageError for a template that can't be read."""
        self._answer = answer
        self._text = unescape(answer.result) if answer.result is not None else ""
        if "json_body" in answer.model_fields_set:
            self._text = json.dumps(unescape(answer.json_body), ensure_ascii=False)
        self._template = None if answer.template is None else compile_text(answer.template, where)

    def render(self, arguments: Mapping[str, Any]) -> ToolAnswer:
        """A template that fails gives an answer that says why, which is an error."""
        answer, text, failed = self._answer, self._text, False
        if self._template is not None:
            try:
                text = str(self._template({"arguments": arguments}))
            except ReplyFailed as problem:
                text, failed = f"keystone mock: the answer's template failed: {problem}", True
        return ToolAnswer(text, answer.is_error or failed, answer.delay or 0.0, answer.fault)


class ToolPlan:
    """One tool of a spec."""

    def __init__(self, tool: McpTool, service: str) -> None:
        """Raises UsageError."""
        self.tool = tool
        where = f"service {service}, tool {tool.name}"
        answers: list[McpAnswer] = list(tool.sequence) or [tool]
        self._plans = [
            AnswerPlan(answer, f"{where}, answer {number}" if tool.sequence else where)
            for number, answer in enumerate(answers, 1)
        ]

    def plan(self, used: int) -> AnswerPlan:
        """The answer to the next call. used: how many there were before it."""
        return self._plans[min(used, len(self._plans) - 1)]

    def misfit(self, arguments: Any) -> str:
        """Why these arguments do not fit the schema, or can't be held against it in time; empty where they fit.
        Blocks."""
        from jsonschema import ValidationError
        from referencing.exceptions import Unresolvable

        try:
            _DEADLINE.set(time.monotonic() + ARGUMENTS_SECONDS)
            problem = next(iter(_validator()(self.tool.input_schema).iter_errors(arguments)), None)
        except (TimeoutError, RecursionError):
            return "the arguments take too long to be held against the schema"
        except OverflowError:
            return "a number is too large to be held against the schema"
        except Unresolvable as error:
            return f"the schema refers to what is not in it: {error}"
        if not isinstance(problem, ValidationError):
            return ""
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem.absolute_path)
        return f"{where.removeprefix('.') + ': ' if where else ''}{problem.message}"[:_SHOWN]


_DEADLINE: ContextVar[float] = ContextVar("deadline")
"""In `time.monotonic()` seconds."""


@cache
def _validator() -> Any:
    """The validator of drafts 2020-12, in which every keyword looks at the clock, and no pattern outlasts it. An agent
    writes the arguments: a schema that takes long for some of them must not hold up the mocks of other cells."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    bounded = {name: _bounded(keyword) for name, keyword in Draft202012Validator.VALIDATORS.items()}
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    make: Any = extend
    return make(Draft202012Validator, {**bounded, **ours})


Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _bounded(keyword: Keyword) -> Keyword:
    def looking_at_the_clock(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _seconds_left()
        yield from keyword(validator, value, instance, schema) or ()

    return looking_at_the_clock


def _seconds_left() -> float:
    left = _DEADLINE.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _matches(pattern: str, text: str) -> bool:
    import regex

    return regex.search(pattern, text, timeout=_seconds_left(), concurrent=True) is not None


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if _matches(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if not isinstance(instance, dict):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in known or any(_matches(pattern, name) for pattern in patterns):
            continue
        if additional is False:
            yield ValidationError(f"{name!r} is not one of its properties")
        else:
            yield from validator.descend(value, additional, path=name)


def _unique_items(_validator: Any, wanted: bool, instance: Any, _schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if wanted and isinstance(instance, list):
        seen = {json.dumps(_plain(item), sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("an item is there twice")


def _plain(value: Any) -> Any:
    """With one form of each number: 1.0 is 1."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
