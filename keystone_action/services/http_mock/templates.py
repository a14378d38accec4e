r"""Templates in the responses of a mock: Jinja, sandboxed, with `request` as their only variable.

`request.method`, `.path`, `.query`, `.headers` (names without case), `.body`, `.json`, `.params` (of the route's path).
A text that is one expression and nothing else keeps the expression's type inside `json:`, so that
`id: "{{ request.json.id }}"` answers a number with a number. `\{{` is a literal `{{`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from keystone_action.errors import UsageError

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

OUTPUT_LIMIT = 16 << 20
"""Characters of one rendered text."""
TIME_LIMIT = 1.0
"""Seconds for one rendered text, looked at between its pieces."""

_MARK = re.compile(r"(?<!\\)\{\{|\{%")
_ESCAPED = re.compile(r"\\\{\{")
_EXPRESSION = re.compile(r"\s*\{\{((?:(?!\}\}|\{\{|\{%).)*)\}\}\s*", re.DOTALL)

Render = Callable[[Mapping[str, Any]], Any]


class ReplyFailed(Exception):  # noqa: N818 - an outcome: the client gets a 500 that says so
    """A template that could not be rendered; the message is a sentence."""


class Headers(dict[str, Any]):
    """Headers by name, in upper or lower case."""

    def __init__(self, headers: Mapping[str, Any]) -> None:
        super().__init__((name.lower(), value) for name, value in headers.items())

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.lower() if isinstance(name, str) else name)

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict.get`, without case."""
        return super().get(name.lower(), default)


def has_template(value: Any) -> bool:
    """Whether there is a template in a text, or anywhere in a list or mapping."""
    if isinstance(value, str):
        return _MARK.search(value) is not None
    if isinstance(value, dict):
        return any(has_template(item) for item in value.values())
    return isinstance(value, list | tuple) and any(has_template(item) for item in value)


def unescape(value: Any) -> Any:
    r"""The value with `\{{` made `{{` in each of its texts, as it is everywhere in a spec."""
    if isinstance(value, str):
        return value.replace("\\{{", "{{")
    if isinstance(value, dict):
        return {name: unescape(item) for name, item in value.items()}
    return [unescape(item) for item in value] if isinstance(value, list) else value


class ReplyTemplate:
    """The templates of one response, compiled."""

    def __init__(self, headers: Mapping[str, str], text: str | None, document: Any, where: str) -> None:
        """document: what `json:` has. where: for messages. Raises UsageError for a template that can't be read."""
        self._headers = _compile(dict(headers), where, typed=False)
        self._text = _compile(text, where, typed=False)
        self._document = _compile(document, where, typed=True)

    def render(self, request: Mapping[str, Any]) -> tuple[dict[str, str], str | None, Any]:
        """(headers, text, document), every template rendered. Raises ReplyFailed."""
        return self._headers(request), self._text(request), self._document(request)


def _compile(value: Any, where: str, *, typed: bool) -> Render:
    if isinstance(value, str) and has_template(value):
        return _text(value, where, typed=typed)
    if isinstance(value, dict):
        items = [(name, _compile(item, where, typed=typed)) for name, item in value.items()]
        return lambda request: {name: render(request) for name, render in items}
    if isinstance(value, list):
        parts = [_compile(item, where, typed=typed) for item in value]
        return lambda request: [render(request) for render in parts]
    plain = unescape(value)
    return lambda _request: plain


def _text(text: str, where: str, *, typed: bool) -> Render:
    from jinja2 import TemplateSyntaxError

    alone = _EXPRESSION.fullmatch(text) if typed else None
    try:
        if alone is not None:
            expression = _environment().compile_expression(alone[1], undefined_to_none=False)
            return lambda request: _guard(lambda: _plain(expression(request=request)))
        template = _environment().from_string(_ESCAPED.sub("{{ '{{' }}", text))
    except TemplateSyntaxError as error:
        raise UsageError(f"{where}: the template {_shorten(text)} can't be read: {error.message}") from error
    return lambda request: _guard(lambda: _bound(template.generate(request=request)))


def _guard(render: Callable[[], Any]) -> Any:
    try:
        return render()
    except ReplyFailed:
        raise
    except Exception as error:
        raise ReplyFailed(str(error) or type(error).__name__) from error


def _bound(pieces: Iterator[str]) -> str:
    deadline = time.monotonic() + TIME_LIMIT
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > OUTPUT_LIMIT:
            raise ReplyFailed(f"it gives more than {OUTPUT_LIMIT >> 20} Mi characters")
        if time.monotonic() > deadline:
            raise ReplyFailed(f"it takes longer than {TIME_LIMIT:g} s")
        kept.append(piece)
    return "".join(kept)


def _plain(value: Any) -> Any:
    """What JSON has: anything else by its text, which for an undefined name raises."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:79] + "…")


@cache
def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    class BoundedEnvironment(SandboxedEnvironment):
        """Does no arithmetic whose result is huge: both sides may come from a request."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "**" and (abs(left) > 2**32 or abs(right) > 64):
                raise ReplyFailed("a power in it is too large")
            for many, times in ((left, right), (right, left)):
                if hasattr(many, "__len__") and isinstance(times, int) and len(many) * times > OUTPUT_LIMIT:
                    raise ReplyFailed(f"it gives more than {OUTPUT_LIMIT >> 20} Mi characters")
            return super().call_binop(context, operator, left, right)

    # Not escaped as HTML: most responses are JSON or text. keep_trailing_newline: a body is sent as it is written.
    return BoundedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
