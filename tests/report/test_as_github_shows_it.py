"""Summaries and comments drawn as GitHub shows them, by Chromium: nothing foreign acts, and a phone shows all of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown import OUR_PAGES
from samples import SAMPLES, flaky, gate_failure
from test_comment_text import RUN_URL, comment
from test_compared import WEAKER, baseline, difference

from keystone_action.report.summary import render_summary
from tools.github_page import PHONE, Page, Seen, draw
from tools.github_page.pictures import IMAGES, SOURCES, digests, pages

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent / "golden"
KINDS = ("summary.md", "comment.md")
CUTS = (100, 500, 900)
"""Bytes by which a summary is too long."""
SLIVER = 8
"""Pixels of a table that a phone may hide: less than what is beside a number in its cell."""
WIDEST = 48
"""Pixels of a comparison's table that a phone may hide: at most the last column, which holds scores."""


@pytest.fixture(scope="module")
def all_drawn() -> dict[tuple[str, str], Seen]:
    """What all tests of this file look at, by one browser."""
    wanted = [(name, kind) for name in SAMPLES for kind in KINDS]
    pages = {(name, kind): Page((GOLDEN / name / kind).read_text("utf-8"), PHONE, "dark") for name, kind in wanted}
    whole = render_summary(gate_failure())
    for less in CUTS:
        text = render_summary(gate_failure(), limit=len(whole.encode()) - less)
        pages["cut", str(less)] = Page(f"{text}\nlast words\n", PHONE)
    pages["cut", "not"] = Page(render_summary(flaky()) + "\nlast words\n", PHONE)
    differences = [difference(change) for change in ("broken", "fixed", "new")]
    result = replace(gate_failure(), spec_changes=WEAKER, baseline=baseline(*differences))
    pages["weakened", "summary.md"] = Page(render_summary(result), PHONE)
    pages["weakened", "comment.md"] = Page(comment(result), PHONE)
    return dict(zip(pages, draw([*pages.values()]), strict=True))


@pytest.fixture(scope="module")
def drawn(all_drawn: dict[tuple[str, str], Seen]) -> dict[tuple[str, str], Seen]:
    """The samples."""
    return {place: page for place, page in all_drawn.items() if place[0] in SAMPLES}


def test_nothing_on_a_page_runs_loads_or_leads_elsewhere(drawn: dict[tuple[str, str], Seen]) -> None:
    for place, page in drawn.items():
        assert (page.scripts, page.asked) == (0, ()), place
        assert set(page.links) <= {RUN_URL, f"{RUN_URL}#artifacts", *OUR_PAGES}, place


def test_the_first_line_says_product_spec_and_verdict(drawn: dict[tuple[str, str], Seen]) -> None:
    for (name, kind), page in drawn.items():
        if name in ("pass", "gate_failure", "flaky", "matrix", "high_composite_failure"):
            assert re.match(r"(✅|❌|⚠️) Keystone: [a-z-]+ .*(passed|failed)", page.first), (name, kind)
        assert re.match(r"[^\w\s]+ Keystone: \w", page.first) or name == "hostile", (name, kind)


def test_pages_fit_on_a_phone(drawn: dict[tuple[str, str], Seen]) -> None:
    for (name, kind), page in drawn.items():
        assert page.overflow == 0, (name, kind)
        if name != "hostile":
            assert max(page.scrolled, default=0) <= SLIVER, (name, kind)


def test_warnings_are_drawn_as_such(drawn: dict[tuple[str, str], Seen]) -> None:
    assert drawn["skipped_judge", "summary.md"].alerts == 1
    assert drawn["pass", "summary.md"].alerts == 0


def test_a_summary_that_was_cut_is_whole_markdown(all_drawn: dict[tuple[str, str], Seen]) -> None:
    assert [all_drawn["cut", str(less)].alerts for less in CUTS] == [1, 1, 1]
    assert all_drawn["cut", "not"].alerts == 0


def test_a_weakened_gate_and_a_baseline_fit_on_a_phone(all_drawn: dict[tuple[str, str], Seen]) -> None:
    posted = all_drawn["weakened", "comment.md"]
    for page in (all_drawn["weakened", "summary.md"], posted):
        assert (page.overflow, page.alerts, page.scripts) == (0, 1, 0)
        assert max(page.scrolled) <= WIDEST
    assert posted.first.startswith("❌ Keystone: fix-tests failed")


def test_the_pictures_of_the_readme_show_the_reports_as_they_are() -> None:
    """After a wanted change: python -m tools.github_page, then look at them."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert json.loads(SOURCES.read_text("utf-8")) == digests()
    assert {path.name for path in IMAGES.glob("*.png")} == digests().keys()
    for name in digests():
        assert (IMAGES / name).stat().st_size < 220_000
        assert f"docs/images/{name}" in readme


def test_the_pictures_show_a_pull_request_that_breaks_an_agent() -> None:
    shown = pages()
    assert shown["pass-comment.png"].text.startswith("## ✅ Keystone: reconcile-customers passed: 8 of 8 checks\n")
    failed = shown["fail-comment.png"].text
    assert failed.startswith("## ❌ Keystone: reconcile-customers failed: expected 0 (integer), found 2 (integer)")
    assert "✅ Passed, composite 1.00 → ❌ Failed, composite 0.00; broken: `reconciliation_clean`\n" in failed
    assert "all done!" in shown["fail-summary.png"].text
