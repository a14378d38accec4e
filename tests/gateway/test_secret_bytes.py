"""A real key never passes, in whatever pieces it comes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gateway.relay import SecretBytes

KEY = b"sk-abab-1"


@given(st.lists(st.sampled_from([KEY, b"sk-", b"sk-abab", b"-1", b"ab", b"s", b"text"])), st.lists(st.integers(0, 60)))
def test_it_is_taken_out_of_any_pieces_and_nothing_else_changes(parts, cuts):
    content = b"".join(parts)
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    masked = SecretBytes({KEY: b"[key]"})
    found = b"".join(masked.feed(content[a:b]) for a, b in itertools.pairwise(places)) + masked.end()
    assert KEY not in found
    assert found == content.replace(KEY, b"[key]")


SEVERAL = {b"abc": b"1", b"abcab": b"2", b"bca": b"3", b"cabc": b"4"}


@given(st.text("abc", max_size=30), st.lists(st.integers(0, 60)))
def test_with_several_secrets_the_pieces_make_no_difference(text, cuts):
    content = text.encode()
    places = sorted({0, len(content), *(cut % (len(content) + 1) for cut in cuts)})
    masked = SecretBytes(SEVERAL)
    found = b"".join(masked.feed(content[a:b]) for a, b in itertools.pairwise(places)) + masked.end()
    assert found == masked.replace(content)
    assert not any(secret in found for secret in SEVERAL)


def test_what_can_not_begin_a_key_is_passed_on_at_once():
    masked = SecretBytes({KEY: b""})
    assert masked.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert masked.feed(b"data: sk-ab") == b"data: "
    assert masked.feed(b"\n\n") == b"sk-ab\n\n"


def test_without_a_key_nothing_is_held_back():
    assert SecretBytes({b"": b"x"}).feed(b"text") == b"text"
