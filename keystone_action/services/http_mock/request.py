"""A request as it came in, and as routes, templates and evidence read it.

Content codings are removed from a body while it comes in, and how much of it is kept is bounded.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

KEEP = 16 << 20
"""Bytes of a decoded body that are kept; the rest is counted."""
REFUSE = 64 << 20
"""Bytes of a body, on the wire or decoded, above which the request is refused (413)."""

_PIECE = 256 << 10
_CHARSET = re.compile(r"charset\s*=\s*\"?([^\s\";]+)", re.IGNORECASE)
# Python calls these codecs, too; none is a charset of the web, and some take quadratic time.
_NO_CHARSETS = frozenset(
    {"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "utf-7", "mbcs", "oem"}
)


class BodyError(Exception):
    """A body that can't be taken; status is what the client is told."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class BodyReader:
    """Takes the pieces of one body as they come.

    received_bytes: on the wire (after transfer coding). content: the first KEEP bytes, decoded. cut: decoded bytes that
    were not kept.
    """

    def __init__(self, content_encoding: str = "") -> None:
        """Raises BodyError(415) for a coding that we can't remove."""
        self.received_bytes = 0
        self.content = bytearray()
        self.cut = 0
        names = [name.strip().lower() for name in content_encoding.split(",")]
        self._stages = [_Inflater(name) for name in reversed(names) if name not in ("", "identity")]
        if len(self._stages) > 4:
            raise BodyError(415, "more than 4 content codings")

    def feed(self, data: bytes) -> None:
        """Raises BodyError(413) above REFUSE and BodyError(400) for a body that can't be decoded."""
        self.received_bytes += len(data)
        if self.received_bytes > REFUSE:
            raise BodyError(413, f"the body is larger than {REFUSE >> 20} MiB")
        if self._stages:
            self._inflate(data, 0)
        else:
            self._keep(data)

    def _inflate(self, data: bytes, stage: int) -> None:
        # Depth first, piece by piece: a body that grows a thousandfold is never in memory as a whole.
        if stage == len(self._stages):
            self._keep(data)
            return
        inflater = self._stages[stage]
        for piece in inflater.pieces(data):
            self._inflate(piece, stage + 1)

    def _keep(self, data: bytes) -> None:
        room = KEEP - len(self.content)
        if len(data) <= room:
            self.content += data
            return
        self.content += data[:room]
        self.cut += len(data) - room
        if len(self.content) + self.cut > REFUSE:
            raise BodyError(413, f"the decoded body is larger than {REFUSE >> 20} MiB")

    def finish(self) -> None:
        """Raises BodyError(400) when a coded body ended too early."""
        if self.received_bytes and any(not stage.finished for stage in self._stages):
            raise BodyError(400, "the body ends within its content coding")


class _Inflater:
    """gzip (of several members) or deflate (with the zlib wrapper, or without as some clients send it)."""

    def __init__(self, name: str) -> None:
        if name not in ("gzip", "x-gzip", "deflate"):
            raise BodyError(415, f"the content coding {name!r} is not known; gzip, deflate and identity are")
        self._gzip = name != "deflate"
        self._decoder = zlib.decompressobj(31 if self._gzip else 15)
        self._started = False

    @property
    def finished(self) -> bool:
        """Whether the last byte was the end of a coded body."""
        return self._decoder.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes, at most _PIECE at a time."""
        while data:
            if self._decoder.eof:
                if not self._gzip:
                    raise BodyError(400, "there is something after the end of the coded body")
                self._decoder = zlib.decompressobj(31)
            piece = self._decompress(data)
            data = self._decoder.unconsumed_tail or self._decoder.unused_data
            if piece:
                yield piece

    def _decompress(self, data: bytes) -> bytes:
        try:
            piece = self._decoder.decompress(data, _PIECE)
        except zlib.error as error:
            if self._gzip or self._started:
                raise BodyError(400, f"the body can't be decoded: {error}") from None
            self._decoder = zlib.decompressobj(-15)
            self._started = True
            return self._decompress(data)
        self._started = True
        return piece


def decode_text(body: bytes | bytearray, content_type: str) -> str:
    """By the charset of the content type [UTF-8]; what can't be decoded is replaced."""
    named = _CHARSET.search(content_type)
    if named is None:
        return body.decode("utf-8", "replace")
    try:
        name = codecs.lookup(named[1]).name
        return body.decode("utf-8" if name in _NO_CHARSETS else name, "replace")
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace")


RequestTexts = dict[str, str | list[str]]


@dataclass(slots=True)
class RawRequest:
    """What the parser read."""

    method: str
    target: str
    """As it was sent."""
    headers: list[tuple[str, str]]
    body: bytes | bytearray = b""
    """The decoded bytes that were kept."""
    body_bytes: int = 0
    """How many came in."""
    cut: int = 0
    """How many decoded bytes were not kept."""
    refusal: tuple[int, str] | None = None
    """Status and sentence, where no route can answer it."""


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
        from keystone_action.services.http_mock.responses import Headers

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


def collect(pairs: list[tuple[str, str]], *, fold: bool = False) -> RequestTexts:
    """Names that are repeated have a list. fold: names are the same without case."""
    found: RequestTexts = {}
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
