"""A request as it came in, and as routes, templates and evidence read it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from keystone_action.services.http_mock.body import decode_text

Texts = dict[str, str | list[str]]


@dataclass(slots=True)
class RawRequest:
    """What the parser read. target: as sent. body: decoded bytes that were kept; body_bytes: what came in; cut: decoded
    bytes not kept. refusal: (status, sentence) when it can't be answered by a route."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes | bytearray = b""
    body_bytes: int = 0
    cut: int = 0
    refusal: tuple[int, str] | None = None


@dataclass
class MockRequest:
    """path: percent-decoded. query and headers: a name maps to a text, or to a list of texts when repeated; headers by
    the spelling that came first. body: as text, by its charset; what can't be decoded is replaced."""

    raw: RawRequest
    params: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.method = self.raw.method
        target = self.raw.target
        if not target.startswith(("/", "*")) and "://" in target:  # as sent to a proxy
            target = "/" + target.split("://", 1)[1].partition("/")[2]
        path, _, query = target.partition("#")[0].partition("?")
        self.path = unquote(path) if "%" in path else path
        self.query = collect(parse_qsl(query, keep_blank_values=True)) if query else {}
        self.headers = collect(self.raw.headers, fold=True)
        self.body = self._text()

    def cut_body(self, size: int) -> None:
        """Keep only the first bytes of the body, and count the others as cut."""
        self.raw.cut += max(0, len(self.raw.body) - size)
        self.raw.body = self.raw.body[:size]
        self.body = self._text()

    def _text(self) -> str:
        raw = self.raw
        if not raw.body:
            return ""
        content_type = next((value for name, value in raw.headers if name.lower() == "content-type"), "")
        return decode_text(raw.body, content_type)

    def for_template(self) -> dict[str, Any]:
        """What `request` is in a template; `json` is missing where the body is not JSON."""
        from keystone_action.services.http_mock.templates import Headers

        names: dict[str, Any] = {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "headers": Headers(self.headers),
            "body": self.body,
            "params": self.params,
        }
        with contextlib.suppress(ValueError, RecursionError):
            names["json"] = json.loads(self.body.removeprefix("\ufeff"))
        return names


def collect(pairs: list[tuple[str, str]], *, fold: bool = False) -> Texts:
    """Names that are repeated have a list. fold: names are the same without case."""
    found: Texts = {}
    spelled: dict[str, str] = {}
    for name, value in pairs:
        key = spelled.setdefault(name.lower(), name) if fold else name
        before = found.get(key)
        if before is None:
            found[key] = value
        elif isinstance(before, list):
            before.append(value)
        else:
            found[key] = [before, value]
    return found
