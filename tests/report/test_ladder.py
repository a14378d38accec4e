"""A document too large for its place gives way from the passes on, and what is left of it is well formed."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown import kinds, tokens

from keystone_action.report.ladder import Level, cut, fit

PARAGRAPH = ["some text é", "", "| a | b |", "", "- item", ""]
FENCED = ["```text", "inside", "</details>", "```` not the end", "~~~", "```", ""]
LONGER = ["`````text", "```", "x" * 40, "`````", ""]
DETAILS = ["<details open>", "<summary>what failed</summary>", "", *FENCED, "text", "", *LONGER, "</details>", ""]
NESTED = ["<details>", "<summary>a</summary>", "", *DETAILS, "</details>", ""]
DOCUMENTS = st.lists(st.sampled_from([PARAGRAPH, FENCED, LONGER, DETAILS, NESTED]), max_size=6).map(
    lambda parts: "\n".join(["## verdict: fail", "", *(line for part in parts for line in part)]) + "\n"
)
NOTICE = "\n\n> cut here\n"


@settings(max_examples=3 * settings().max_examples, deadline=None)
@given(DOCUMENTS, st.integers(0, 600))
def test_what_is_cut_fits_is_closed_and_keeps_the_verdict(document: str, limit: int) -> None:
    text = cut(document, limit, notice=NOTICE)
    assert len(text.encode()) <= limit
    assert text.startswith("## verdict: fail"[:limit])
    if text.endswith(NOTICE):
        # What is appended is read as a paragraph of its own: no fence and no HTML block swallows it.
        assert kinds(f"{text}\nafter\n")[-3:] == kinds("after")
        html = "".join(token.content for token in tokens(text) if token.type == "html_block")
        assert html.count("<details") == html.count("</details>")
    else:
        assert len(f"## verdict: fail\n{NOTICE}".encode()) > limit


@settings(deadline=None)
@given(st.text(), st.integers(0, 50))
def test_any_text_at_all_is_cut_to_its_limit(text: str, limit: int) -> None:
    assert len(cut(text, limit, notice="").encode()) <= limit


def ladder(everything: str, failures: str, limit: int) -> tuple[str, list[Level]]:
    asked: list[Level] = []

    def render(level: Level) -> Iterator[str]:
        asked.append(level)
        yield from (everything if level == "everything" else failures).splitlines(keepends=True)

    return fit(render, limit), asked


def test_everything_is_shown_when_it_fits() -> None:
    assert ladder("verdict\nall\n", "verdict\n", 12) == ("verdict\nall\n", ["everything"])


def test_passes_give_way_first() -> None:
    assert ladder("verdict\nall\n", "verdict\n", 11) == ("verdict\n", ["everything", "failures"])


def test_failures_are_cut_with_a_notice_that_names_the_whole() -> None:
    text, _ = ladder("verdict\n" + "all\n" * 100, "verdict\n" + "bad\n" * 100, 300)
    assert len(text.encode()) <= 300
    assert text.startswith("verdict\nbad\n")
    assert "**Cut here:**" in text
    assert "`report.html`" in text


def test_no_more_is_rendered_than_fits() -> None:
    def endless(_: Level) -> Iterator[str]:
        while True:
            yield "line\n"

    assert len(fit(endless, 1000).encode()) <= 1000
