"""report.html stands alone: no script, no address, nothing of others as markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES, matrix
from support.sample_parts import AGENT, cell, check, run, spec

from keystone_action.report import html as html_module
from keystone_action.report.html import render_html

VOID = {"meta", "br"}
OURS = set(
    """html head meta title style body main header h1 h2 div span ul li p pre code aside section table thead tbody tr th
    td small svg rect g text line figure figcaption details summary footer mark""".split()  # noqa: SIM905 - as read
)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def assert_stands_alone(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= OURS
    attributes = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style", "action")}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_well_formed_and_loads_nothing(name: str) -> None:
    assert_stands_alone(render_html(SAMPLES[name]()))


def test_the_policy_allows_our_style_sheet_and_nothing_else() -> None:
    text = render_html(matrix())
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert "url(" not in style[1]
    assert "@import" not in style[1]


@settings(max_examples=40, deadline=None)
@given(st.text(), st.text(alphabet="<>&\"'/=! abcscript-", max_size=40))
def test_no_text_becomes_markup(one: str, two: str) -> None:
    bad = cell(
        f"c{two}",
        check(f"n{two}", "fail", message=one, details={one: two}, description=two),
        verdict="fail",
        composite=0.0,
        reason=two,
        params={one: two},
    )
    assert_stands_alone(render_html(run(spec(one, bad, bad, description=two, path=one), notices=(two,), error=one)))


def test_a_cell_is_a_bar_of_the_plot() -> None:
    text = render_html(matrix())
    figure = text[text.index("<figure>") : text.index("</figure>")]
    assert figure.count("<g ") == 12
    assert figure.count('<g class="fail">') == 2


def test_a_page_of_very_many_cells_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_module, "MAX_FAILED", 3)
    cells = [cell(f"c{n}", check("t", "fail"), verdict="fail", composite=0.0, agent=AGENT) for n in range(5)]
    text = render_html(run(spec("s", *cells, verdict="fail"), verdict="fail"))
    assert "… and 2 cells more that did not pass, in results.json." in text
    assert_stands_alone(text)
