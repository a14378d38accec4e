"""No value of four characters or more survives in what we write, in any shape that programs print it in."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keystone_action.evidence.masking import MASK, Masker
from keystone_action.system.command import Capture

SECRET = 'p4ss/w"o rd+é&<'


@pytest.mark.parametrize(
    "shape",
    [
        SECRET,
        json.dumps(SECRET)[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        json.dumps({"key": [SECRET]}),
        json.dumps(SECRET).replace("/", "\\/"),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower().replace("é", "%c3%a9"),
        quote_plus(SECRET),
        html.escape(SECRET),
        html.escape(SECRET, quote=False),
        repr(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
    ],
)
def test_shapes(shape: str) -> None:
    masked = Masker({"S": SECRET}).text(f"before {shape} after")
    assert masked.startswith("before ")
    assert MASK in masked
    assert masked.endswith(" after")
    for piece in ("p4ss", "w%22o", "cDRzcy"):
        assert piece not in masked


@pytest.mark.parametrize("user", ["", "a", "ab", "abc", "x-access-token"])
def test_a_value_inside_of_longer_base64(user: str) -> None:
    """As in a Basic authorization: what stands before decides how the value is laid out."""
    token = "ghp_abcdefghijkl"
    encoded = base64.b64encode(f"{user}:{token}:tail".encode()).decode()
    masked = Masker({"T": token}).text(f"Authorization: Basic {encoded}")
    left = "".join(masked.split(" ")[-1].split(MASK))
    assert len(left) <= len(encoded) - len(token)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"<{SECRET}>", True),
        (json.dumps(json.dumps(SECRET)), True),
        (quote(SECRET, safe=""), True),
        (base64.b64encode(f"user:{SECRET}".encode()).decode(), True),
        (f"{SECRET[:-1]}…", False),  # part of it is not it
        ("", False),
    ],
)
def test_whether_a_value_is_there(text: str, found: bool) -> None:
    assert Masker({"A": SECRET, "B": "abc"}).finds(text) is found


def test_every_line_of_a_value_counts() -> None:
    key = "-----BEGIN KEY-----\nMIIEabcd\r\n  abc  \nxyzw==\n-----END KEY-----\n"
    masked = Masker([key]).text("log: MIIEabcd\nlog: xyzw==\nlog: abc\n" + key)
    assert "MIIE" not in masked
    assert "xyzw" not in masked
    assert "log: abc\n" in masked


def test_short_values_are_not_masked_but_named() -> None:
    masker = Masker({"SHORT": "abc", "LONG": "abcd", "EMPTY": ""})
    assert masker.unmasked == ("SHORT",)
    assert masker.text("abc abcd") == "abc ***"


def test_nothing_to_mask_changes_nothing() -> None:
    assert Masker({}).text("text *** \ud800") == "text *** \ud800"


def test_the_longest_goes_first_and_overlaps_go_together() -> None:
    masker = Masker(["secret", "secret-longer", "gerund"])
    assert masker.text("a secret-longer b secret c") == "a *** b *** c"
    assert masker.text("secret-longerund") == MASK
    assert masker.text("secretsecret") == MASK


def test_a_mask_never_makes_up_a_value() -> None:
    masker = Masker(["a***b", "SECRET", "****"])
    assert masker.text("aSECRETb") == MASK
    assert masker.text("*SECRET") == MASK


_values = st.text(min_size=4, max_size=12)
_few = st.lists(st.sampled_from("abs*?é\n=%"), min_size=4, max_size=6).map("".join)


@given(st.lists(_values | _few, min_size=1, max_size=4), st.data())
def test_no_value_survives(values: list[str], data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(values) | st.text(max_size=5) | _few, max_size=8))
    text = "".join(pieces)
    masker = Masker(values)
    masked = masker.text(text)
    assert not [value for value in values if value in masked]
    assert masker.text(masked) == masked


@given(st.text(max_size=40), st.lists(st.text(alphabet="xyz", min_size=4, max_size=8), max_size=3))
def test_text_without_any_value_stays(text: str, values: list[str]) -> None:
    masker = Masker(values)
    assume(not any(character in text for character in "xyzXYZ%0123456789abcdefghijklmnopqrstuvw+/="))
    assume("…" not in text)
    assert masker.text(text) == text


@given(st.text(alphabet="abcdé", min_size=4, max_size=12), st.integers(0, 20), st.integers(0, 20))
def test_no_half_of_a_value_survives_at_a_cut(secret: str, start: int, end: int) -> None:
    """The stream is `before SECRET … SECRET after`; the cut goes through both."""
    raw = secret.encode()
    head = b"12345 " + raw[: start % len(raw)]
    tail = raw[len(raw) - end % len(raw) :] + b" 67890"
    masker = Masker([secret])
    text = masker.text(Capture(head, tail, len(head) + len(tail) + 100).text())
    assert text.startswith("12345 ")
    assert text.endswith(" 67890")
    assert not set(text.replace("bytes cut", "")) & set(secret)


def test_a_value_across_both_halves_of_a_whole_stream() -> None:
    assert Masker(["secret"]).text(Capture(b"a sec", b"ret b", 10).text()) == "a *** b"


@given(st.text(alphabet="abcdé", min_size=8, max_size=16), st.integers(4, 15))
def test_no_half_of_a_value_survives_where_a_message_was_cut(secret: str, size: int) -> None:
    masker = Masker([secret])
    assert masker.text(f"found {secret[: min(size, len(secret) - 1)]!s}… (text)") == f"found {MASK}… (text)"
    tail = f"stdout:\n[… 1,234 bytes before this …]\n{secret[-min(size, len(secret) - 1) :]} 12345"
    assert masker.text(tail) == f"stdout:\n[… 1,234 bytes before this …]\n{MASK} 12345"


def test_an_ellipsis_of_anybody_costs_no_letter_that_is_like_a_value_by_chance() -> None:
    assert Masker(["secret"]).text("…ret, class… [… sec …]") == "…ret, class… [… sec …]"


def test_a_value_in_a_json_text_within_json() -> None:
    secret = 'pass"word\\1'
    for text in (json.dumps(secret), json.dumps({"body": json.dumps({"key": secret})})):
        masked = Masker([secret]).text(text)
        assert "pass" not in masked
        assert json.loads(masked)


def test_a_value_in_a_file_name_as_git_and_python_quote_it() -> None:
    masker = Masker(['caf\u00e9"secret'])
    assert masker.text('+++ "b/caf\\303\\251\\"secret"') == f'+++ "b/{MASK}"'
    assert masker.text(repr('caf\u00e9"secret'.encode())) == f"b'{MASK}'"


@pytest.mark.parametrize("value", ["to\"ken<1>&'2", "pass\tword\"x'y", "a'b'c\"d"])
def test_a_value_in_an_attribute_or_text_of_xml(value: str) -> None:
    from xml.etree import ElementTree as Tree
    from xml.sax import saxutils

    element = Tree.Element("a", b=value)
    element.text = value
    written = [
        Tree.tostring(element, encoding="unicode"),
        f"<a b={saxutils.quoteattr(value)}/>",
        f"<a b='{saxutils.escape(value, {chr(39): '&apos;', chr(34): '&quot;'})}'/>",
    ]
    for text in written:
        masked = Masker([value]).text(text)
        assert MASK in masked
        found = Tree.fromstring(masked)
        assert value not in (found.get("b"), found.text)
