"""Whatever text comes, it reads as itself and does nothing: in Markdown, HTML, XML and logs."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown import LINKED_BY_THE_FORGE, kinds, shown, tokens
from support.sample_parts import HOSTILE

from keystone_action.report.escape import (
    code,
    excerpt,
    fence,
    first_line,
    html_without_commands,
    inline,
    inline_html,
    json_without_commands,
    log_line,
    prose,
    prose_html,
    visible,
    without_commands,
)

MARKUP = st.text(alphabet="`*_[]()<>#@|\\~!-+=.:;/&$^{}\"' \n\t1a7fwGH", max_size=60)
FRAGMENTS = st.lists(
    st.sampled_from([*HOSTILE.splitlines(), "`", "``", "|", "\\", "\n\n", "    x", "\t", "- ", "1) ", "</", "&#64;"]),
    max_size=8,
).map("".join)
TEXT = MARKUP | FRAGMENTS | st.text(max_size=40)
PLACES = ["{}", "- {}", "> - {}", "## {}", "| a | b |\n|---|---|\n| {} | z |\n", "x ({}) y"]


def squeezed(text: str) -> str:
    return "".join(text.split())


@settings(deadline=None)
@given(TEXT, st.sampled_from(PLACES), st.sampled_from([inline, code]))
def test_text_stays_text_wherever_a_template_puts_it(text: str, place: str, escape: object) -> None:
    assume(visible(text).strip())
    assert callable(escape)
    written = place.format(escape(text))
    found = list(tokens(written))
    assert kinds(written) == kinds(place.format("word"))
    assert {token.type for token in found if token.nesting == 0} <= {"text", "code_inline", "softbreak"}
    assert shown(written) == squeezed(place_text(place).format(re.sub(r"##(?=\[)", "## ", visible(text))))
    assert not [t for t in found if t.type == "text" and LINKED_BY_THE_FORGE.search(t.content)]


QUOTING = st.lists(
    st.sampled_from(["`ls -l | wc`", "`x@y`", "``", "`", " ", "(`a b`)", ".", ",", ":", "a", "`:tada:`", "|", "##["])
).map("".join)


@settings(deadline=None)
@given(QUOTING | TEXT, st.sampled_from(PLACES))
def test_what_a_message_quotes_is_code_and_nothing_else_acts(text: str, place: str) -> None:
    assume(visible(text).strip())
    written = place.format(prose(text))
    found = list(tokens(written))
    assert kinds(written) == kinds(place.format("word"))
    assert {token.type for token in found if token.nesting == 0} <= {"text", "code_inline", "softbreak"}
    said = squeezed(place_text(place).format(re.sub(r"##(?=\[)", "## ", visible(text))))
    assert shown(written).replace("`", "") == said.replace("`", "")
    assert not [t for t in found if t.type == "text" and LINKED_BY_THE_FORGE.search(t.content)]
    reader = Reader()
    reader.feed(prose_html(text) + "\n")
    assert set(reader.tags) <= {"code"}
    assert squeezed(reader.text).replace("`", "") == squeezed(visible(text)).replace("`", "")


def test_a_quoted_command_is_one_piece_of_code() -> None:
    message = "`make test -k` ended with exit code 2; see (`make help`)."
    assert prose(message) == message
    assert prose_html(message) == message.replace("`make test -k`", "<code>make test -k</code>").replace(
        "`make help`", "<code>make help</code>"
    )
    assert prose("`a` and a lone ` sign") == "`a` and a lone `` ` `` sign"


def test_what_ends_a_sentence_is_no_part_of_a_name_in_it() -> None:
    assert inline("commit 0123abc, see https://x.example; by @ada.") == (
        "commit `0123abc`, see `https://x.example`; by `@ada`."
    )


def place_text(place: str) -> str:
    return {"x ({}) y": "x ({}) y", PLACES[4]: "ab{}z"}.get(place, "{}")


@settings(deadline=None)
@given(TEXT)
def test_a_block_holds_just_its_text(text: str) -> None:
    written = f"before\n\n{fence(text)}\n\nafter"
    found = [token for token in tokens(written) if token.type == "fence"]
    assert kinds(written) == [*kinds("before"), "fence", *kinds("after")]
    assert found[0].info == "text"
    assert found[0].content.rstrip("\n") == without_commands(visible(text)).rstrip("\n")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(f"{tag}{attrs or ''}")

    def handle_data(self, data: str) -> None:
        self.text += data


@settings(deadline=None)
@given(TEXT)
def test_text_in_a_summary_element_is_one_line_without_elements_of_its_own(text: str) -> None:
    written = inline_html(text)
    reader = Reader()
    reader.feed(written + "\n")
    assert "\n" not in written
    assert set(reader.tags) <= {"code"}
    assert squeezed(reader.text) == squeezed(visible(text))


@settings(deadline=None)
@given(st.text())
def test_visible_text_is_legal_xml_and_utf8(text: str) -> None:
    element = ElementTree.Element("a")
    element.text = visible(text)
    assert ElementTree.fromstring(ElementTree.tostring(element)).text == (visible(text) or None)
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("one\r\ntwo\rthree", "one\ntwo␍three"),
        ("nul\0 del\x7f csi\x9b", "nul␀ del␡ csi⟨U+009B⟩"),
        ("\ud800", "⟨U+D800⟩"),
        ("👩\u200d🔧 naïve 日本", "👩\u200d🔧 naïve 日本"),
    ],
)
def test_invisible_characters_are_shown_and_others_stay(text: str, expected: str) -> None:
    assert visible(text) == expected


@pytest.mark.parametrize("text", ["main.c:100:5", "a:tada:b", ":8ball:", ":+1:", ":-1:", ":1st_place_medal:"])
def test_what_could_be_an_emoji_is_code(text: str) -> None:
    assert inline(text) == f"`{text}`"
    assert inline_html(text) == f"<code>{text}</code>"


def test_what_is_never_an_emoji_is_read_once() -> None:
    """Text of a fork can be megabytes long: whatever looks at a word again and again keeps its reader for hours."""
    word = "x:" + "a" * 1_000_000
    assert inline(word) == word


def test_a_time_and_a_place_are_text() -> None:
    assert inline("at 12:30:45, a.py:7:5: tests/test_a.py::test_b") == "at 12:30:45, a.py:7:5: tests/test_a.py::test_b"


COMMANDS = st.lists(
    st.sampled_from(["::error::x", "##[error]", " ", "\u2003", "\t", "\n", "\r", "\x0b", "#", ":", "a"])
)


@settings(deadline=None)
@given(COMMANDS.map("".join) | st.text())
def test_no_line_of_a_log_is_a_workflow_command(text: str) -> None:
    assert "\n" not in log_line(text)
    for line in [*re.split(r"[\r\n]", without_commands(visible(text))), log_line(text)]:
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


@settings(deadline=None)
@given(COMMANDS.map("".join) | st.text())
def test_no_line_of_a_page_or_of_a_document_is_a_workflow_command(text: str) -> None:
    page = html_without_commands(html.escape(visible(text)))
    assert html.unescape(page) == html.unescape(html.escape(visible(text)))
    document = json_without_commands(json.dumps({"text": text}, indent=1))
    assert json.loads(document) == {"text": text}
    assert not re.search(r"(?m)^\s*::|##\[", page + "\n" + document)


def test_broken_commands_are_still_readable() -> None:
    assert log_line("::error::x ##[group]y\nz") == ": :error::x ## [group]y ⏎ z"
    assert log_line("tests/test_a.py::test_b failed") == "tests/test_a.py::test_b failed"


@settings(deadline=None)
@given(st.text(), st.integers(4, 20), st.integers(20, 200))
def test_an_excerpt_is_bounded_and_says_what_it_leaves_out(text: str, lines: int, characters: int) -> None:
    cut = excerpt(text, lines=lines, characters=characters)
    assert len(cut) <= characters + 60
    assert cut == text.rstrip("\n") or "left out …]" in cut


def test_an_excerpt_keeps_head_and_most_of_the_tail() -> None:
    text = "\n".join(f"line {number}" for number in range(100))
    rows = excerpt(text, lines=8).split("\n")
    assert rows[:3] == ["line 0", "line 1", "[… 92 lines left out …]"]
    assert rows[-1] == "line 99"
    assert excerpt("x" * 100, characters=40) == f"{'x' * 10}\n[… 60 characters left out …]\n{'x' * 30}"


@settings(deadline=None)
@given(st.text(), st.integers(4, 20), st.integers(20, 200))
def test_an_excerpt_that_is_mostly_head_is_one_too(text: str, lines: int, characters: int) -> None:
    cut = excerpt(text, lines=lines, characters=characters, head=0.75)
    assert len(cut) <= characters + 60
    assert cut.startswith(text.rstrip("\n")[: characters // 2].split("\n", 1)[0])
    assert cut == text.rstrip("\n") or "left out …]" in cut


def test_a_long_last_line_is_cut_by_no_more_than_there_is() -> None:
    text = "\n".join([*["x"] * 100, "y" * 4600])
    assert excerpt(text) == text


def test_the_first_line_is_the_first_that_says_something() -> None:
    assert first_line("\n  \n  one \ntwo") == "one"
    assert first_line("x" * 30, limit=10) == "x" * 9 + "…"
    assert first_line(" \n") == ""
