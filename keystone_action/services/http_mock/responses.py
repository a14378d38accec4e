r"""What a mock answers: made of a spec's response once, rendered for each request.

Templates are Jinja, sandboxed, with `request` as their only variable: `request.method`, `.path`, `.query`, `.headers`
(names without case), `.body`, `.json`, `.params` (of the route's path). A text that is one expression and nothing else
keeps the expression's type inside `json:`, so that `id: "{{ request.json.id }}"` answers a number with a number.
`\{{` is a literal `{{`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keystone_action.errors import UsageError

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

    from keystone_action.spec.models.services import MockResponse

TEMPLATE_OUTPUT_LIMIT = 16 << 20
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
        names = {"request": request}
        return self._headers(names), self._text(names), self._document(names)


def compile_text(text: str, where: str) -> Render:
    """Gives the text, rendered with names of templates; raises ReplyFailed then. where: for messages. Raises UsageError
    for a template that can't be read."""
    return _compile(text, where, typed=False)


def _compile(value: Any, where: str, *, typed: bool) -> Render:
    if isinstance(value, str) and has_template(value):
        return _text(value, where, typed=typed)
    if isinstance(value, dict):
        items = [(name, _compile(item, where, typed=typed)) for name, item in value.items()]
        return lambda names: {name: render(names) for name, render in items}
    if isinstance(value, list):
        parts = [_compile(item, where, typed=typed) for item in value]
        return lambda names: [render(names) for render in parts]
    plain = unescape(value)
    return lambda _names: plain


def _text(text: str, where: str, *, typed: bool) -> Render:
    from jinja2 import TemplateSyntaxError

    alone = _EXPRESSION.fullmatch(text) if typed else None
    try:
        if alone is not None:
            expression = _environment().compile_expression(alone[1], undefined_to_none=False)
            return lambda names: _guard(lambda: _plain(expression(**names)))
        template = _environment().from_string(_ESCAPED.sub("{{ '{{' }}", text))
    except TemplateSyntaxError as error:
        raise UsageError(f"{where}: the template {_shorten(text)} can't be read: {error.message}") from error
    return lambda names: _guard(lambda: _bound(template.generate(**names)))


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
        if size > TEMPLATE_OUTPUT_LIMIT:
            raise ReplyFailed(f"it gives more than {TEMPLATE_OUTPUT_LIMIT >> 20} Mi characters")
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
                if hasattr(many, "__len__") and isinstance(times, int) and len(many) * times > TEMPLATE_OUTPUT_LIMIT:
                    raise ReplyFailed(f"it gives more than {TEMPLATE_OUTPUT_LIMIT >> 20} Mi characters")
            return super().call_binop(context, operator, left, right)

    # Not escaped as HTML: most responses are JSON or text. keep_trailing_newline: a body is sent as it is written.
    return BoundedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


MockFault = Literal["reset", "empty", "garbage"]
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_OURS = frozenset({"connection", "content-length", "date", "transfer-encoding"})
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_TYPES = {
    ".json": _JSON,
    ".html": "text/html; charset=utf-8",
    ".txt": _TEXT,
    ".xml": "application/xml",
    ".csv": "text/csv; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class MockReply:
    """A rendered answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    text: str
    """The body as evidence has it."""
    delay: float = 0.0
    """In seconds."""
    fault: MockFault | None = None
    """What happens instead of the answer."""
    _encoded: dict[tuple[bool | None, bool], tuple[int, bytes]] = field(default_factory=dict, compare=False)

    @property
    def has_body(self) -> bool:
        """Whether HTTP allows this status a body."""
        return self.status >= 200 and self.status not in (204, 304)

    def encode(self, *, keep_alive: bool | None, head_only: bool) -> bytes:
        """The bytes on the wire. keep_alive: None = as the protocol's version has it without a word."""
        second = int(time.time())
        found = self._encoded.get((keep_alive, head_only))
        if found is not None and found[0] == second:  # most replies are the same for every request
            return found[1]
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}",
            f"Date: {formatdate(second, usegmt=True)}",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.has_body:
            lines.append(f"Content-Length: {len(self.body)}")
        if keep_alive is not None:
            lines.append("Connection: keep-alive" if keep_alive else "Connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
        encoded = head if head_only or not self.has_body else head + self.body
        self._encoded[keep_alive, head_only] = (second, encoded)
        return encoded


def json_reply(status: int, document: Any) -> MockReply:
    """An answer of ours."""
    text = json.dumps(document, ensure_ascii=False)
    return MockReply(status, (("Content-Type", _JSON),), text.encode(), text)


def refusal(status: int, sentence: str) -> MockReply:
    """Why a request could not be answered by a route."""
    return json_reply(status, {"error": f"keystone mock: {sentence}"})


class ResponsePlan:
    """One response of a spec, ready to be rendered.

    A text that reads as a JSON object or list is sent as application/json, any other as text/plain, unless `headers`
    say otherwise. `response`, every text inside `json`, and the values of headers are templates; files are not.
    """

    def __init__(self, response: MockResponse, directory: Path, where: str) -> None:
        """directory: the spec's, for `file`, which is read now. where: for messages. Raises UsageError."""
        self._status = response.status
        self._delay = response.delay or 0.0
        self._fault = response.fault
        self._headers = tuple(response.headers.items())
        self._header_names = {name.lower() for name, _ in self._headers}
        _check(self._headers, where)
        self._text: str | None = response.response
        self._file: tuple[bytes, str] | None = None
        self._json: Any = response.json_body
        self._has_json = "json_body" in response.model_fields_set
        if response.file is not None:
            self._file = _read(directory / response.file, where)
        self._template: ReplyTemplate | None = None
        self._constant_reply: MockReply | None = None
        if has_template([dict(self._headers), self._text, self._json]):
            self._template = ReplyTemplate(dict(self._headers), self._text, self._json, where)
        else:
            self._constant_reply = self._reply(self._headers, self._content(unescape(self._text), unescape(self._json)))

    def render(self, request: Mapping[str, Any] | None) -> MockReply:
        """request: what templates see of it; only asked for where `is_template`. A template that fails gives a 500
        whose body says why."""
        if self._constant_reply is not None:
            return self._constant_reply
        assert self._template is not None
        try:
            headers, text, document = self._template.render(request or {})
            content = self._content(text, document)
        except (ReplyFailed, ValueError, TypeError, RecursionError) as error:
            return refusal(500, f"the response's template failed: {error}")
        return self._reply(tuple(headers.items()), content)

    @property
    def is_template(self) -> bool:
        """Whether `render` needs the request."""
        return self._constant_reply is None

    def _content(self, text: str | None, document: Any) -> tuple[bytes, str, str]:
        """(bytes, text, content type)"""
        if self._file is not None:
            body, content_type = self._file
            return body, body.decode("utf-8", "replace"), content_type
        if self._has_json:
            text, content_type = json.dumps(document, ensure_ascii=False, allow_nan=False), _JSON
        else:
            text = text or ""
            content_type = _JSON if _is_json(text) else _TEXT
        body = text.encode("utf-8", "replace")
        return body, text, content_type

    def _reply(self, headers: tuple[tuple[str, Any], ...], content: tuple[bytes, str, str]) -> MockReply:
        body, text, content_type = content
        sent = tuple((name, _header_value(value)) for name, value in headers)
        if body and "content-type" not in self._header_names:
            sent = (("Content-Type", content_type), *sent)
        if self._fault is not None:
            # Nothing of the response reaches the client, so nothing of it is evidence.
            return MockReply(0, (), b"", "", self._delay, self._fault)
        return MockReply(self._status, sent, body, text, self._delay)


def _check(headers: tuple[tuple[str, str], ...], where: str) -> None:
    for name, _ in headers:
        if name.lower() in _OURS:
            raise UsageError(f"{where}: the header {name} is set by the mock itself; remove it")
        if not _TOKEN.fullmatch(name):
            raise UsageError(f"{where}: {name!r} is not a name for a header")


def _read(path: Path, where: str) -> tuple[bytes, str]:
    try:
        return path.read_bytes(), _TYPES.get(path.suffix.lower(), "application/octet-stream")
    except OSError as error:
        raise UsageError(f"{where}: the file {path} can't be read: {error.strerror}") from error


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _header_value(value: Any) -> str:
    # What a template takes from a request must not start a header of its own (or a second response).
    return "".join(character if character.isprintable() or character == "\t" else " " for character in str(value))
