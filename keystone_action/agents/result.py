"""The document of a `ReportedResult`, `{output, tool_calls: [{name, arguments, result}], token_usage}`, by the agent.

Everything in it is data of a hostile author: checked, bounded and brought into one form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keystone_action.evidence.trace_readers.builder import json_kind
from keystone_action.spec.limits import MOST_COUNTED

RESULT_LIMIT = 64 << 20
"""Bytes of a document that are read."""
_VALUES_LIMIT = 1_000_000
"""Values in a document: each takes a hundred bytes of memory and more, so that a list of nothing but zeros is many
times as large as its text."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_TEXT = re.compile(rb'"[^"]*+(?:"|\Z)')

REPORTED = ("reasoning_trace", "latency_ms", "raw_response")
"""Keys that no check of ours believes or needs; scorers of a suite's author may."""
_TOKEN_NAMES = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}


class MalformedResult(Exception):  # noqa: N818 - an outcome: `AgentRun.problem`
    """The document is not a result; the message says where and what was expected."""


@dataclass(frozen=True, slots=True)
class ReportedResult:
    """What an agent reports of itself, as `AgentResult` has it."""

    output: str
    """The agent's answer."""
    tool_calls: tuple[Mapping[str, Any], ...] | None = None
    """Each with `name`, `arguments` and `result`; None where the document has none."""
    token_usage: Mapping[str, Any] | None = None
    """Any of `input_tokens`, `output_tokens` (int) and `cost_usd` (float); None where the document has none."""
    reported: Mapping[str, Any] = field(default_factory=dict)
    """What else it has of `REPORTED`, as it came."""


def parse_result(data: bytes) -> ReportedResult:
    """Read a document. Keys that are not known are passed over. Raises MalformedResult."""
    value = read_json(data)
    if not isinstance(value, dict):
        raise MalformedResult(f"expected a JSON object with `output`, found {json_kind(value)}")
    output = value.get("output")
    if not isinstance(output, str):
        found = json_kind(output) if "output" in value else "no such key"
        raise MalformedResult(f"expected text under `output`, found {found}")
    reported = {name: value[name] for name in REPORTED if name in value}
    return ReportedResult(
        output, read_tool_calls(value.get("tool_calls")), _token_usage(value.get("token_usage")), reported
    )


def read_json(data: bytes) -> Any:
    """What a hostile author wrote in JSON. Raises MalformedResult."""
    if len(data) > _VALUES_LIMIT:
        structure = _TEXT.sub(b"", _ESCAPED.sub(b"", data))
        if sum(map(structure.count, (b",", b"[", b"{"))) > _VALUES_LIMIT:
            raise MalformedResult(f"it has more than {_VALUES_LIMIT:,} values")
    try:
        # Twice: lone surrogates are legal in JSON, but can't be written anywhere; 1e999 is, and becomes infinite.
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
        clean = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        value = json.loads(clean, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise MalformedResult("it is not UTF-8") from None
    except RecursionError:
        raise MalformedResult("it is nested too deep") from None
    except ValueError as error:
        raise MalformedResult(f"it is not JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read_tool_calls(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    """Each as a `ReportedResult` has it; None for None. Raises MalformedResult."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise MalformedResult(f"expected a list under `tool_calls`, found {json_kind(value)}")
    return tuple(_tool_call(call, index) for index, call in enumerate(value))


def _tool_call(call: Any, index: int) -> Mapping[str, Any]:
    where = f"tool_calls[{index}]"
    if not isinstance(call, dict):
        raise MalformedResult(f"expected an object as `{where}`, found {json_kind(call)}")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name:
        raise MalformedResult(f"expected text under `{where}.name`, found {json_kind(name)}")
    if arguments is not None and not isinstance(arguments, dict):
        raise MalformedResult(f"expected an object under `{where}.arguments`, found {json_kind(arguments)}")
    return {"name": name, "arguments": arguments or {}, "result": call.get("result")}


def _token_usage(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise MalformedResult(f"expected an object under `token_usage`, found {json_kind(value)}")
    usage: dict[str, Any] = {}
    for name, spellings in _TOKEN_NAMES.items():
        given = [spelling for spelling in spellings if value.get(spelling) is not None]
        if given:
            number = _amount(value[given[0]], given[0])
            if number != int(number):
                raise MalformedResult(f"expected a whole number under `token_usage.{given[0]}`, found {number}")
            usage[name] = int(number)
    if value.get("cost_usd") is not None:
        usage["cost_usd"] = float(_amount(value["cost_usd"], "cost_usd"))
    return usage


def _amount(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedResult(f"expected a number under `token_usage.{name}`, found {json_kind(value)}")
    if not 0 <= value < MOST_COUNTED:  # NaN and infinity are not, either
        raise MalformedResult(f"expected a finite number of at least 0 under `token_usage.{name}`, found {value!r:.40}")
    return value
