"""The shapes in which programs print a text: URL-encoded, base64 (also in the middle of a longer text, as in a Basic
authorization), hex, escapes of JSON, XML and HTML. Masks and the search for leaked secrets share them."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
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
