"""A secret is found in every shape, whatever pieces it comes in; what is none is not."""

from __future__ import annotations

import base64
import html
import json
import textwrap
from collections.abc import Callable
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


def lines_of(data: bytes, width: int) -> list[tuple[int, bytes]]:
    return [(at, data[at : at + width]) for at in range(0, len(data), width)]


def words(data: bytes, size: int, *, swapped: bool = False) -> str:
    padded = data + bytes(-len(data) % size) if swapped else data
    parts = [padded[at : at + size] for at in range(0, len(padded), size)]
    return " ".join((part[::-1] if swapped else part).hex() for part in parts)


def shown(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)


def dumps(data: bytes) -> dict[str, str]:
    """As these programs print bytes."""
    of_16 = lines_of(data, 16)
    forms = {
        "xxd": [f"{at:08x}: {words(line, 2):<40} {shown(line)}" for at, line in of_16],
        "xxd -u": [f"{at:08x}: {words(line, 2).upper():<40} {shown(line)}" for at, line in of_16],
        "xxd -e": [f"{at:08x}: {words(line, 4, swapped=True):<36}  {shown(line)}" for at, line in of_16],
        "xxd -c 4": [f"{at:08x}: {words(line, 2):<9}  {shown(line)}" for at, line in lines_of(data, 4)],
        "xxd -p": [line.hex() for _, line in lines_of(data, 30)],
        "xxd -i": ["  " + ", ".join(f"0x{byte:02x}" for byte in line) + "," for _, line in lines_of(data, 12)],
        "hexdump": [f"{at:07x} {words(line, 2, swapped=True)}" for at, line in of_16] + [f"{len(data):07x}"],
        "hexdump -C": [
            f"{at:08x}  {words(line[:8], 1)}  {words(line[8:], 1):<25} |{shown(line)}|" for at, line in of_16
        ],
        "od -tx1": [f"{at:07o} {words(line, 1)}" for at, line in of_16] + [f"{len(data):07o}"],
        "od -x": [f"{at:07o} {words(line, 2, swapped=True)}" for at, line in of_16],
        "tcpdump -X": [f"\t0x{at:04x}:  {words(line, 2):<39}  {shown(line)}" for at, line in of_16],
        "in a log": [f"12:00:01 debug {at:08x}: {words(line, 2):<40} {shown(line)}" for at, line in of_16],
        "openssl": [":".join(f"{byte:02X}" for byte in line) + ":" for _, line in lines_of(data, 15)],
    }
    return {name: "\n".join(lines) + "\n" for name, lines in forms.items()}


TOKEN = "tok-0123456789-abcdef"


@pytest.mark.parametrize("program", dumps(b"x"))
@pytest.mark.parametrize("before", [0, 1, 7, 15, 16])
def test_what_programs_print_of_bytes_is_read(program: str, before: int) -> None:
    search, content = SecretSearch({"S": TOKEN}), b"x" * before + TOKEN.encode() + b" and more of it\n"
    for size in (1, 50, 10_000):
        printed = f"here it is:\n{dumps(content)[program]}".encode()
        assert search.in_stream([printed[at : at + size] for at in range(0, len(printed), size)]).keys() == {"S"}, size
    other = dumps(content.replace(b"5", b"6"))[program]
    assert search.in_stream([f"here it is:\n{other}".encode()]) == {}
    assert search.in_stream([b"\n" * 5, printed])["S"].line >= 7


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("value", [TOKEN, SECRET])
def test_wide_characters_are_characters(encoding: str, value: str) -> None:
    search = SecretSearch({"S": value})
    content = f"before\n{value}\nafter".encode(encoding)
    for size in (1, 3, 1000):
        assert search.in_stream(content[at : at + size] for at in range(0, len(content), size)), size
    assert search.in_stream([f"before\n{value[:-1]}\nafter".encode(encoding)]) == {}
    if value.isascii():
        assert search.in_stream(["\r\n".join([value[:5], value[5:]]).encode(encoding)])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("shape", [base64.b64encode, lambda raw: raw.hex().encode(), lambda raw: raw.hex(":").encode()])
def test_wide_characters_are_looked_for_in_base64_and_hex(encoding: str, shape: Callable[[bytes], bytes]) -> None:
    assert SEARCH.in_stream([shape(f"echo {SECRET} >out".encode(encoding))])
    assert SEARCH.in_stream([shape(f"echo {SECRET[1:]} >out".encode(encoding))]) == {}


@pytest.mark.parametrize(
    "shape",
    [
        lambda digits: "".join(char.upper() if at % 3 else char for at, char in enumerate(digits)),
        lambda digits: ":".join(f"{digits[at]}{digits[at + 1].upper()}" for at in range(0, len(digits), 2)),
        lambda digits: "".join(f"\\x{digits[at]}{digits[at + 1].upper()}" for at in range(0, len(digits), 2)),
        lambda digits: "".join(f"%{digits[at]}{digits[at + 1].upper()}" for at in range(0, len(digits), 2)),
        lambda digits: json.dumps([f"0x{digits[at : at + 2]}" for at in range(0, len(digits), 2)]),
    ],
    ids=["mixed", "colons", "escapes", "percent", "list"],
)
def test_hex_is_hex_in_any_case_and_with_what_stands_between(shape: Callable[[str], str]) -> None:
    assert SEARCH.in_text(f"id={shape(SECRET.encode().hex())};")
    assert SEARCH.in_text(f"id={shape(SECRET[1:].encode().hex())};") == {}


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
