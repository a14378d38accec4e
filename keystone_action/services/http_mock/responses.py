"""What a mock answers: made of a spec's response once, rendered for each request."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keystone_action.errors import UsageError
from keystone_action.services.http_mock.templates import ReplyFailed, ReplyTemplate, has_template, unescape

if TYPE_CHECKING:
    from keystone_action.spec.models.services import MockResponse

Fault = Literal["reset", "empty", "garbage"]
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
    """A rendered answer. text: the body as evidence has it. delay in seconds. fault: what happens instead of it."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    text: str
    delay: float = 0.0
    fault: Fault | None = None
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
            raise UsageError(f"{where}: {name!r} is no name of a header")


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
