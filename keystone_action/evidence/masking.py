"""Taking secrets out of everything that we write.

A value is found as it is, line by line, and in the shapes in which programs print it: URL-encoded, base64 (also in the
middle of a longer text, as in a Basic authorization), hex, and with the escapes of JSON, XML and HTML. The search for
leaked secrets (`secret_search.py`) uses the same shapes. Values under MINIMUM characters are not masked (spec 5.1),
because they would blot out everything; the caller warns of `Masker.unmasked`.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

_NESTED = 3
ENCODING = ("utf-8", "surrogatepass")


def printed_shapes(text: str) -> Iterator[str]:
    """The text itself, and what programs make of it; some shapes more than once."""
    raw = text.encode(*ENCODING)
    yield text
    for one in (quote(raw), quote(raw, safe=""), quote_plus(raw)):
        yield one
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), one)
    # A file name in a patch, as git quotes it.
    quoted = json.dumps(text, ensure_ascii=False)[1:-1].encode(*ENCODING)
    name = "".join(chr(byte) if byte < 0x80 else f"\\{byte:03o}" for byte in quoted)
    printed = {text, repr(text)[1:-1], repr(raw)[2:-1], name, *_markup(text)}
    # All of that again as text within JSON, within JSON: a script's reason, a body in our audit log, a log of it. A
    # value without quotes, backslashes and letters beyond ASCII is not changed by it, and costs nothing more.
    for _ in range(_NESTED):
        yield from printed
        printed = {shape for one in printed for shape in _json(one)}
    yield from printed
    yield raw.hex()
    yield raw.hex().upper()
    yield from _base64(raw)


def _markup(text: str) -> Iterator[str]:
    """As HTML and XML have it, in text and in attributes: writers differ in which quotes they escape, and how."""
    escaped = html.escape(text, quote=False)
    for double in ('"', "&quot;", "&#34;"):
        for single in ("'", "&apos;", "&#39;", "&#x27;"):
            quoted = escaped.replace('"', double).replace("'", single)
            yield quoted
            yield quoted.replace("\t", "&#09;").replace("\n", "&#10;").replace("\r", "&#13;")
            yield quoted.replace("\t", "&#9;").replace("\n", "&#10;").replace("\r", "&#13;")
            yield quoted.replace("\t", "&#x9;").replace("\n", "&#xA;").replace("\r", "&#xD;")


def _json(text: str) -> Iterator[str]:
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")


def _base64(raw: bytes) -> Iterator[str]:
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):
            yield _base64_core(alphabet(b"\0" * offset + raw).decode(), offset, len(raw))


def _base64_core(encoded: str, offset: int, length: int) -> str:
    """The characters of a base64 text that depend on the value alone, not on what stands before and after it."""
    first = -(-offset * 8 // 6)
    return encoded[first : (offset + length) * 8 // 6]


def spelled_out(text: str) -> Iterator[str]:
    """The text with every character escaped, also those that need no escape, and base64 of it in UTF-16."""
    raw = text.encode(*ENCODING)
    units = text.encode("utf-16-be", "surrogatepass").hex()
    wide = [units[at : at + 4] for at in range(0, len(units), 4)]
    for case in (str.lower, str.upper):
        yield "".join(f"%{case(f'{byte:02x}')}" for byte in raw)
        yield "".join(f"\\x{case(f'{byte:02x}')}" for byte in raw)
        yield "".join(f"\\u{case(unit)}" for unit in wide)
        yield "".join(f"&#x{case(f'{ord(char):x}')};" for char in text)
    yield "".join(f"&#{ord(char)};" for char in text)
    for order in encodings(text)[1:]:
        yield from _base64(order)


def encodings(text: str) -> tuple[bytes, ...]:
    """Its bytes in UTF-8 and in UTF-16 of either order."""
    return tuple(text.encode(name, ENCODING[1]) for name in (ENCODING[0], "utf-16-le", "utf-16-be"))


MINIMUM = 4
MASK = "***"
# How we say that something was cut: `[… 1,234 bytes cut …]` where a stream was, `[… 1,234 bytes before this …]`
# before a tail, and a bare ellipsis after a value that was too long for a message.
_CUT = re.compile(r"(\n?\[… [\d,]+ (?:bytes|characters) (?:cut|before this) …\]\n|…)")


class Masker:
    """Masks the values of secrets. Immutable.

    values: name → value; the longest shape is masked first, and what overlaps is masked together.
    """

    def __init__(self, values: Mapping[str, str] | Iterable[str]) -> None:
        named = dict(values) if isinstance(values, Mapping) else {f"value {n}": v for n, v in enumerate(values, 1)}
        self.unmasked = tuple(sorted(name for name, value in named.items() if 0 < len(value) < MINIMUM))
        """Names of the values that are too short to be masked."""
        shapes = {shape for value in named.values() if len(value) >= MINIMUM for shape in _shapes(value)}
        self._texts = tuple(sorted(shapes, key=lambda shape: (-len(shape), shape)))

    def text(self, text: str) -> str:
        """The text without the values, also without the halves of one that a cut of ours went through."""
        if not self._texts:
            return text
        pieces = ["", *_CUT.split(text), ""]  # text between marks, the ends of the text as empty ones
        if len(pieces) > 3:
            for index in range(1, len(pieces), 2):
                pieces[index] = self._edges(pieces[index], _least(pieces[index - 1]), _least(pieces[index + 1]))
            text = "".join(pieces)
        return _mask(text, self._texts)

    def finds(self, text: str) -> bool:
        """Whether a value stands in the text, in any shape."""
        return any(shape in text for shape in self._texts)

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it masked, names of keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _edges(self, text: str, start: int, end: int) -> str:
        """start, end: from how many characters on a half counts there, 0 where nothing was cut."""
        text = _mask(text, self._texts)
        # A character cut in two was decoded as a replacement; it stands between the half of a value and the edge.
        if start:
            body = text.lstrip("\ufffd")
            text = text[: len(text) - len(body)] + _cut_start(body, self._texts, start)
        if end:
            body = text.rstrip("\ufffd")
            text = _cut_end(body, self._texts, end) + text[len(body) :]
        return text


def _least(mark: str) -> int:
    """Our notices are sure signs of a cut; an ellipsis may be anybody's, and one letter before it a coincidence."""
    return 0 if not mark else MINIMUM if mark == "…" else 1


def _shapes(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    for text in {value, value.strip(), *lines}:
        if len(text) >= MINIMUM:
            yield from (shape for shape in printed_shapes(text) if len(shape) >= MINIMUM)


def _mask(text: str, shapes: tuple[str, ...]) -> str:
    # Every round is shorter than the one before (a mask has three characters, a shape four or more), so this ends.
    # It takes several only where a mask and its neighbours make up a value again.
    while spans := _spans(text, shapes):
        pieces: list[str] = []
        end = 0
        for start, stop in spans:
            pieces.extend((text[end:start], MASK))
            end = stop
        pieces.append(text[end:])
        text = "".join(pieces)
    return text


def _spans(text: str, shapes: tuple[str, ...]) -> list[tuple[int, int]]:
    """Where any shape is, overlapping and touching places joined."""
    found = []
    for shape in shapes:
        at = text.find(shape)
        while at >= 0:
            found.append((at, at + len(shape)))
            at = text.find(shape, at + 1)
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def _cut_end(text: str, shapes: tuple[str, ...], least: int) -> str:
    """Without the beginning of a shape, of `least` or more, at its very end."""
    longest = max((_overlap(text, shape, least) for shape in shapes), default=0)
    return text[: len(text) - longest] + MASK if longest else text


def _overlap(text: str, shape: str, least: int) -> int:
    for size in range(min(len(shape) - 1, len(text)), least - 1, -1):
        if text.endswith(shape[:size]):
            return size
    return 0


def _cut_start(text: str, shapes: tuple[str, ...], least: int) -> str:
    """Without the end of a shape, of `least` or more, at its very start."""
    longest = least - 1
    for shape in shapes:
        for size in range(min(len(shape) - 1, len(text)), longest, -1):
            if text.startswith(shape[-size:]):
                longest = size
                break
    return MASK + text[longest:] if longest >= least else text
