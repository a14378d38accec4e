"""A secret is found in every shape, whatever pieces it comes in; what is none is not."""

from __future__ import annotations

import base64
import html
import json
import textwrap
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.evidence.secret_search import SecretSearch

SECRET = "s3cr/t+\"<&é' value"
SEARCH = SecretSearch({"S": SECRET})
KEY = "-----BEGIN KEY-----\nMIIEabcd\nxyzw==\n-----END KEY-----\n"


def shapes(value: str) -> list[str]:
    raw = value.encode()
    wide = "".join(f"\\u{ord(char):04x}" for char in value)
    return [
        value,
        *(base64.b64encode(before.encode() + raw + b"after").decode() for before in ("", "a", "ab")),
        *(base64.urlsafe_b64encode(before.encode() + raw).decode() for before in ("", "a", "ab")),
        base64.encodebytes(raw * 20).decode(),
        quote(value),
        quote(value, safe=""),
        "".join(f"%{byte:02X}" for byte in raw),
        raw.hex(),
        raw.hex().upper(),
        raw.hex(" "),
        json.dumps(value),
        json.dumps(json.dumps({"in": value})),
        wide,
        html.escape(value),
        "".join(f"&#{ord(char)};" for char in value),
        "\n".join(value),
        textwrap.indent("\n".join(textwrap.wrap(value, 4, drop_whitespace=False)), "    "),
        "\r\n".join([value[:5], value[5:]]),
    ]


@pytest.mark.parametrize("shape", shapes(SECRET))
def test_every_shape_is_found_in_pieces_of_any_size(shape: str) -> None:
    content = f"before {shape} after".encode()
    for size in (1, 7, 1000):
        pieces = [content[at : at + size] for at in range(0, len(content), size)]
        assert SEARCH.in_stream(pieces).keys() == {"S"}, size


@pytest.mark.parametrize(
    "text", ["", "s3cr/t", SECRET[1:], SECRET[:-1], "value " * 100, base64.b64encode(b"other").decode()]
)
def test_what_is_no_secret_is_not_found(text: str) -> None:
    assert SEARCH.in_text(text) == {}


def test_a_value_of_several_lines_is_found_in_one_and_its_lines_alone_are_none() -> None:
    search = SecretSearch({"KEY": KEY})
    assert search.in_text(json.dumps({"key": KEY.strip()}))
    assert search.in_text(KEY.replace("\n", "\r\n"))
    assert search.in_text("-----BEGIN KEY-----\n-----END KEY-----") == {}


@given(st.integers(0, 500), st.integers(1, 64), st.integers(1, 5))
def test_the_line_where_it_ends_is_told(before: int, size: int, times: int) -> None:
    content = ("\n" * before + f"x {SECRET} y\n" + f"{SECRET}\n" * (times - 1)).encode()
    found = SEARCH.in_stream(content[at : at + size] for at in range(0, len(content), size))
    assert found["S"].line == before + 1
    assert found["S"].times % times == 0


def test_what_is_too_short_is_not_looked_for() -> None:
    assert not SecretSearch({"A": "1234567", "B": "a b c d e", "C": ""})
    assert SecretSearch({"A": "12345678"}).in_text("x12345678x")


def test_several_are_told_apart() -> None:
    search = SecretSearch({"A": "first-value", "B": "second-value"})
    assert search.in_text("a second-value").keys() == {"B"}
    assert search.in_text("first-value\nsecond-value").keys() == {"A", "B"}


def test_a_large_stream_needs_no_memory_for_all_of_it() -> None:
    def pieces() -> object:
        for _ in range(64):
            yield b"all is well here\n" * (1 << 15)
        yield SECRET.encode()

    found = SEARCH.in_stream(pieces())  # type: ignore[arg-type]
    assert found["S"].line == 64 * (1 << 15) + 1
