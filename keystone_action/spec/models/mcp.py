"""`services: {type: mcp_mock}`: a server of the Model Context Protocol that answers as it is told (spec.md 1.2)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from keystone_action.spec.models.fields import Duration, PlainText, StrictModel, Template, Text, text_like
from keystone_action.spec.models.json_schema import check_schema, schemas_in

_Named = Annotated[
    str, text_like(r"^[A-Za-z0-9_.-]+$", "letters, digits, dots, dashes and underscores", max_length=64), PlainText()
]
_Filled = Annotated[str, Template(later=("arguments",))]
_PATTERNS = ("pattern", "patternProperties")


def _tool_schema(schema: dict[str, Any]) -> dict[str, Any]:
    check_schema(schema)
    if schema.get("type") != "object":
        problem = "the arguments of a tool are an object, so its schema has type: object"
        raise PydanticCustomError("json_schema", "{problem}", {"problem": problem})
    if problem := _problem_of_patterns(schema):
        raise PydanticCustomError("json_schema", "{problem}", {"problem": problem})
    return schema


def _problem_of_patterns(schema: dict[str, Any]) -> str:
    """Why the time that its patterns take can't be bounded; empty when it can."""
    import regex

    schemas = list(schemas_in(schema))
    if "$schema" in schema:
        return "the schema of a tool is read as 2020-12; leave $schema out"
    if any("patternProperties" in one for one in schemas) and any("unevaluatedProperties" in one for one in schemas):
        return "unevaluatedProperties beside patternProperties is not supported; use additionalProperties"
    patterns = [one["pattern"] for one in schemas if isinstance(one.get("pattern"), str)]
    patterns += [name for one in schemas for name in one.get("patternProperties") or ()]
    for pattern in patterns:
        try:
            regex.compile(pattern)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            return f"the pattern {pattern!r} is not a regular expression: {error}"
    return ""


class McpAnswer(StrictModel):
    """What a tool answers. Give at most one of `result`, `json` and `template`; without any the answer is empty."""

    result: Text | None = None
    """The answer as a text.

    Example: `shipped`
    """
    json_body: Any = Field(default=None, alias="json")
    """The answer as JSON: any value. The client gets its text.

    Example: `{id: 7, state: shipped}`
    """
    template: _Filled | None = None
    """The answer as a text that may use the call's `{{ arguments.NAME }}`.

    Example: `"order {{ arguments.id }} is shipped"`
    """
    is_error: bool = False
    """Whether the tool says that it failed.

    Example: `true`
    """
    delay: Duration | None = None
    """How long the mock waits before it answers.

    Example: `250ms`
    """
    fault: Literal["reset", "empty", "garbage"] | None = None
    """In place of an answer. `reset`: the connection is reset. `empty`: it is closed without a byte. `garbage`: bytes
    that are not HTTP.

    Example: `reset`
    """


class McpTool(McpAnswer):
    """One tool of an mcp_mock."""

    name: _Named
    """The name of the tool. Clients put the service's name in front of it.

    Example: `get_order`
    """
    description: str = ""
    """What the model is told of the tool.

    Example: `Returns the state of an order.`
    """
    input_schema: Annotated[dict[str, Any], AfterValidator(_tool_schema)] = Field(
        default_factory=lambda: {"type": "object"}
    )
    """The JSON Schema (2020-12) of its arguments, an object. A call whose arguments do not fit gets an error.

    Example: `{type: object, properties: {id: {type: integer}}, required: [id]}`
    """
    sequence: list[McpAnswer] = Field(default_factory=list)
    """Answers that are given one after the other; the last one from then on. It takes the place of the tool's own
    answer. Only calls whose arguments fit are counted.

    Example: `[{result: try again, is_error: true}, {result: done}]`
    """


class McpResource(StrictModel):
    """A text that clients can read by its URI."""

    uri: Annotated[str, text_like(r"^[a-zA-Z][a-zA-Z0-9+.-]*:[^\s]+$", "a URI such as docs://policy"), PlainText()]
    """Its address, which the mock makes nothing of.

    Example: `docs://policy`
    """
    name: Annotated[str, Field(min_length=1)]
    """What it is called.

    Example: `policy`
    """
    description: str = ""
    """What it is about.

    Example: `How refunds are handled.`
    """
    mime_type: str = "text/plain"
    """The media type of the text.

    Example: `text/markdown`
    """
    text: str
    """The text itself.

    Example: `Refund within 30 days.`
    """


class McpPromptArgument(StrictModel):
    """An argument of a prompt."""

    name: _Named
    """The name of the argument.

    Example: `order`
    """
    description: str = ""
    """What it is.

    Example: `The number of the order.`
    """
    required: bool = False
    """Whether the prompt can't be had without it.

    Example: `true`
    """


class McpPrompt(StrictModel):
    """A prompt that clients can ask for."""

    name: _Named
    """The name of the prompt.

    Example: `refund`
    """
    description: str = ""
    """What it is for.

    Example: `Refunds an order.`
    """
    arguments: list[McpPromptArgument] = Field(default_factory=list)
    """What the text needs.

    Example: `[{name: order, required: true}]`
    """
    text: _Filled
    """The message of the user that it gives, which may use `{{ arguments.NAME }}`.

    Example: `Refund the order {{ arguments.order }}.`
    """
