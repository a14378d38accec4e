"""Six runs as they happen, drawn as GitHub shows them: a phone shows all of a comment, and nothing acts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gallery import RUN_URL, RUNS, SITE, pages, record, texts
from markdown import OUR_PAGES

from tools.github_page import PHONE, Seen, draw

pytestmark = pytest.mark.browser
SLIVER = 8
"""Pixels of a table that a phone may hide: less than what is beside a number in its cell."""
FIRST = {
    "1-pass": r"✅ Keystone: reconcile-customers passed: 8 of 8 checks",
    "2-gate-failed": r"❌ Keystone: reconcile-customers failed: .*\(reconciliation_clean\)",
    "3-flaky-matrix": r"⚠️ Keystone: migrate-schema passed, but is flaky: 27 of 30 cells",
    "4-service-error": r"💥 Keystone: clean-up \(1 of 2 specs\) ended with an error in 3 of 4 cells: service db:",
    "5-regression-40-specs": r"❌ Keystone: billing-export and 2 more of 40 specs failed in 3 of 40 cells: receipt",
    "6-fork-replay": r"✅ Keystone: overdue-invoices passed: 2 of 2 checks",
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return record(tmp_path_factory.mktemp("gallery"))


@pytest.fixture(scope="module")
def drawn(documents: dict[str, dict[str, Any]]) -> dict[str, Seen]:
    wanted = {name: page for name, page in pages(documents).items() if page.theme == "dark"}
    return dict(zip(wanted, draw([*wanted.values()]), strict=True))


def test_the_first_line_of_each_says_what_happened(drawn: dict[str, Seen]) -> None:
    assert FIRST.keys() == RUNS.keys()
    for name, seen in drawn.items():
        expected = next(pattern for run, pattern in FIRST.items() if name.startswith(run))
        assert re.match(expected, seen.first), name


def test_a_phone_shows_all_of_it(documents: dict[str, dict[str, Any]], drawn: dict[str, Seen]) -> None:
    shown = pages(documents)
    for name, seen in drawn.items():
        assert seen.overflow == 0, name
        if shown[name].width == PHONE:
            assert max(seen.scrolled, default=0) <= SLIVER, name


def test_nothing_runs_and_links_lead_to_the_run_the_spec_and_our_pages(drawn: dict[str, Seen]) -> None:
    for name, seen in drawn.items():
        assert (seen.scripts, seen.asked) == (0, ()), name
        others = {link for link in seen.links if link not in OUR_PAGES}
        assert all(link.startswith((RUN_URL, f"{SITE}/blob/")) for link in others), name


def test_forty_specs_are_one_table_and_those_that_fail_come_first(documents: dict[str, dict[str, Any]]) -> None:
    shown = texts("5-regression-40-specs", documents["5-regression-40-specs"])
    rows = re.findall(r"^\| (✅|❌) [^|]*(?:<br>| )(?:evals|…)/\S+\.keystone\.yaml", shown["summary"], re.MULTILINE)
    assert rows == ["❌"] * 3 + ["✅"] * 37
    assert shown["comment"].count("\n| ❌ ") == 3 + 3  # the specs, and what changed against the baseline
    assert "`evals/billing/export.keystone.yaml` · composite 0.00, needs 1.00" in shown["summary"]


def test_equal_failures_are_told_once(documents: dict[str, dict[str, Any]]) -> None:
    comment = texts("4-service-error", documents["4-service-error"])["comment"]
    assert "<b>clean-up.r0</b> and 2 more replicas, for the same reason" in comment
    assert comment.count("<details>") == 1
