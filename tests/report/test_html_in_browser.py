"""report.html in Chromium: hostile texts act nowhere, ten thousand cells are searched, keys and links lead to cells."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from many_cells import leave_files, many_cells
from playwright.sync_api import Browser, Page, expect, sync_playwright
from samples import SAMPLES
from support.sample_parts import HOSTILE, cell, check, run, spec

from keystone_action.report.page.render import html_pieces
from keystone_action.report.write import write_file
from keystone_action.scoring.results import RunResult
from tools.github_page import BROWSERS, PHONE

pytestmark = pytest.mark.browser

FAILED = "shop.refund-3.model-large.r0"
"""A cell of `small` that failed."""

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, BROWSERS)), None)
        assert program is not None, "there is no chromium; run: sudo apt-get install chromium"
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Open]:
    """Opens files, and knows of everything that one of them said, asked for, or tried in vain."""
    contexts, noticed = [], []

    def open_page(path: Path, address: str = "", **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: noticed.append(message.text))
        page.on("pageerror", lambda error: noticed.append(str(error)))
        page.on("dialog", lambda dialog: (noticed.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: noticed.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri() + address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noticed == []


def written(result: RunResult, directory: Path) -> Path:
    path = directory / "report.html"
    write_file(path, html_pieces(result, directory))
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve scenarios, two models, three replicas, with files."""
    directory = tmp_path_factory.mktemp("small")
    result = many_cells(scenarios=12, replicas=3)
    leave_files(result, directory)
    return written(result, directory)


@pytest.fixture(scope="module")
def two_specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(many_cells(scenarios=4, specs=("shop", "bank")), tmp_path_factory.mktemp("two"))


def count(page: Page) -> str:
    return page.locator("p.count").inner_text()


def address(page: Page) -> str:
    return str(page.evaluate("location.hash"))


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.dataset.id ?? document.activeElement.id"))


def overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def hostile_run() -> RunResult:
    text = f"</script>{HOSTILE}\u2028" + "long " * 20_000
    bad = cell(
        "bad",
        check(text, "fail", message=text, description=text, details={text: text, "columns": [text], "found": [[text]]}),
        scenario=text,
        params={text: text},
        verdict="fail",
        composite=0.0,
        reason=text,
        error=text,
        notices=(text,),
    )
    bad = replace(bad, agent=replace(bad.agent, output=text) if bad.agent else None)
    return run(
        spec(text, bad, replace(bad, id=text, replica=1), description=text, path=text), notices=(text,), error=text
    )


def test_hostile_texts_are_shown_and_do_nothing(opened: Open, tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "bad"
    folder.mkdir(parents=True)
    for name in ("diff.patch", "trace.jsonl", "audit.jsonl"):
        (folder / name).write_bytes(HOSTILE.encode("utf-8", "replace"))
    page = opened(written(hostile_run(), tmp_path), viewport={"width": PHONE, "height": 800})
    elements = "img, iframe, form, object, embed, base, link, a[href^='javascript'], a[href^='http']"
    for place in ("", "#bad"):
        page.evaluate(f"location.hash = {place!r}")
        expect(page.locator("#cell" if place else "#overview")).to_be_visible()
        assert page.locator(elements).count() == 0
        assert page.locator("script").count() == 3
        assert "<script>alert(1)</script>" in page.inner_text("body")
        assert overflow(page) == 0


def test_no_markup_can_be_made_of_text_even_by_a_defect_of_ours(browser: Browser, small: Path) -> None:
    page = browser.new_page()
    page.goto(small.as_uri())
    made = """() => { try { document.body.innerHTML = "<b>x</b>"; return "made"; } catch { return "refused"; } }"""
    assert page.evaluate(made) == "refused"
    page.close()


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_opens_on_a_phone_without_scrolling_sideways(opened: Open, tmp_path: Path, name: str) -> None:
    page = opened(written(SAMPLES[name](), tmp_path), viewport={"width": PHONE, "height": 800})
    assert overflow(page) == 0
    if page.locator("ol.cells a").count():
        page.locator("ol.cells a").first.click()
        expect(page.locator("#cell")).to_be_visible()
        assert overflow(page) == 0


def test_the_only_cell_of_a_run_is_shown_at_once(opened: Open, tmp_path: Path) -> None:
    page = opened(written(SAMPLES["gate_failure"](), tmp_path))
    assert page.locator("#explorer h2").all_inner_texts() == ["Checks", "What it was asked", "Agent"]
    assert not page.locator(".invariants").is_visible(), "the checks are listed once"


def test_ten_thousand_cells_are_all_found(opened: Open, tmp_path: Path) -> None:
    page = opened(written(many_cells(scenarios=1000, replicas=5), tmp_path))
    assert count(page) == "10,000 cells"
    assert 100 <= page.locator("ol.cells li").count() <= 300
    page.fill("#search", "refund-77 large")
    assert count(page) == "55 of 10,000 cells"  # 77 and 770 to 779
    page.click("button.verdict.error")
    assert count(page) == "5 of 10,000 cells"  # 779
    page.click("button.clear")
    page.select_option("select[data-key='p.model']", "small")
    page.click("button.verdict.pass")
    assert count(page) == "4,500 of 10,000 cells"
    page.locator("ol.cells a").nth(99).focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("ol.cells li").count() >= 200
    assert page.evaluate("document.activeElement.closest('li').parentElement.children.length") >= 200


def test_keys_lead_to_a_cell_and_back(opened: Open, small: Path) -> None:
    page = opened(small)
    page.keyboard.press("/")
    assert focused(page) == "search"
    page.keyboard.type("large")
    page.keyboard.press("ArrowDown")
    first, second = (page.locator("ol.cells a").nth(n).get_attribute("data-id") for n in (0, 1))
    assert focused(page) == first
    page.keyboard.press("j")
    assert focused(page) == second
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("#cell h1")).to_be_focused()
    assert first in page.inner_text("#cell h1")
    page.keyboard.press("j")
    expect(page.locator("#cell h1")).to_contain_text(second or "")
    page.keyboard.press("Escape")
    expect(page.locator("#overview")).to_be_visible()
    assert focused(page) == second
    assert address(page) == "#?text=large"
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    assert (count(page), address(page)) == ("72 cells", "#?")


def test_letters_in_the_search_are_letters(opened: Open, small: Path) -> None:
    page = opened(small)
    page.keyboard.press("/")
    page.keyboard.type("jk/")
    assert page.input_value("#search") == "jk/"
    assert page.locator("#overview").is_visible()


def test_the_tab_key_reaches_search_grid_and_list_in_their_order(opened: Open, small: Path) -> None:
    page = opened(small)
    page.locator("button.count").first.focus()
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("(document.activeElement.className || document.activeElement.id).split(' ')[0]"))
    assert seen[0] == "search"
    assert seen[1:4] == ["verdict"] * 3


def test_arrows_move_in_the_grid_and_a_field_chooses_its_cells(opened: Open, small: Path) -> None:
    page = opened(small)
    assert page.locator("table.grid tbody tr").count() == 12
    assert page.locator(".dots a").count() == 72
    page.locator("button.count").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "refund-3, model=large: 0 of 3 passed"
    page.keyboard.press("Enter")
    assert count(page) == "3 of 72 cells"
    assert address(page) == "#?scenario=refund-3&p.model=large"
    assert focused(page) == FAILED


def test_a_pass_rate_has_its_interval(opened: Open, small: Path) -> None:
    field = opened(small).locator("table.grid tbody tr").nth(3).locator("td").nth(1)
    assert field.locator("svg").get_attribute("aria-label") == "95% interval 0% to 56%"
    assert field.inner_text().startswith("0/3")


def test_a_long_grid_begins_with_the_lowest_pass_rates(opened: Open, tmp_path: Path) -> None:
    page = opened(written(many_cells(scenarios=60, replicas=2), tmp_path))
    labels = page.locator("button.count").evaluate_all("all => all.map(button => button.getAttribute('aria-label'))")
    assert len(labels) == 80
    bad = [number for number in range(60) if number % 3 == 0 or number % 10 == 9]
    assert [label.split(",")[0] for label in labels[: 2 * len(bad) : 2]] == [f"refund-{number}" for number in bad]
    page.get_by_role("button", name="Show more rows (20 left)").click()
    assert page.locator("table.grid tbody tr").count() == 60


def test_filters_stand_in_the_address(opened: Open, two_specs: Path) -> None:
    page = opened(two_specs)
    page.select_option("select[data-key='spec']", "bank")
    page.select_option("select[data-key='check']", "tests_pass")
    page.select_option("select[data-key='scenario']", "refund-3")
    page.click("button.verdict.fail")
    assert count(page) == "1 of 16 cells"
    wanted = address(page)
    page = opened(two_specs, wanted)
    assert count(page) == "1 of 16 cells"
    assert page.locator("button.verdict.fail").get_attribute("aria-pressed") == "true"
    assert page.locator("select[data-key='spec']").input_value() == "bank"
    page.click("ol.cells a")
    assert address(page) == f"#bank.refund-3.model-large.r0{wanted[1:]}"
    page.go_back()
    expect(page.locator("#overview")).to_be_visible()
    assert count(page) == "1 of 16 cells"


def test_the_order_can_be_chosen(opened: Open, small: Path) -> None:
    page = opened(small, "#?sort=slow&p.model=large")
    seconds = [float(text.split()[0]) for text in page.locator("ol.cells a .number:nth-of-type(4)").all_inner_texts()]
    assert len(seconds) == 36
    assert seconds == sorted(seconds, reverse=True)


def test_a_link_opens_its_cell(opened: Open, small: Path) -> None:
    page = opened(small, f"#{quote(FAILED)}")
    assert FAILED in page.inner_text("#cell h1")
    assert FAILED in page.title()
    assert not page.locator("#overview").is_visible()


def test_a_link_to_a_cell_that_is_not_there_says_so(opened: Open, small: Path) -> None:
    page = opened(small, "#no-such-cell%")
    assert "There is no cell no-such-cell% on this page." in count(page)


def test_a_cell_shows_its_checks_trace_diff_and_requests(opened: Open, small: Path) -> None:
    page = opened(small, f"#{FAILED}")
    titles = ["Checks", "Agent", "What it did, in order", "What it changed", "What was observed", "Files"]
    assert page.locator("#cell h2").all_inner_texts() == titles
    assert page.locator("ol.checks > li").first.inner_text().startswith("✗ fail")
    assert page.locator("ol.checks p code").all_inner_texts() == ["db"]
    times = page.locator("ol.timeline").first.locator("time").all_inner_texts()
    assert times == ["+0 s", "+0.4 s", "+0.5 s", "+2.3 s", "+5.5 s"]
    assert "command: pytest -q" in page.locator("ol.timeline").first.inner_text()
    assert page.locator("pre.diff .added").all_inner_texts() == [
        "+    ledger.book(-order.amount, reference=order.id)\n"
    ]
    assert page.locator("pre.diff .removed").count() == 2
    observed = page.locator("ol.timeline").nth(1).inner_text()
    assert "POST http://mail/v1/send → 202, by mail" in observed
    assert "finance@shop.example" in observed
    assert "update db.public.orders: 2 rows, by log" in observed
    page.locator("ol.checks summary").nth(1).click()
    assert page.locator("table.rows").inner_text().split() == ["id", "state", "1", "open"]
    link = page.get_by_role("link", name="diff.patch")
    assert link.get_attribute("href") == f"cells/{FAILED}/diff.patch"
    assert (small.parent / f"cells/{FAILED}/diff.patch").exists()


def test_a_cell_without_details_says_where_they_are(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keystone_action.report.page.cell.MAX_PASSED", 0)
    page = opened(written(many_cells(scenarios=4), tmp_path), "#shop.refund-1.model-small.r0")
    assert "The rest is in results.json" in page.inner_text("#cell")
    assert page.locator("ol.checks > li").count() == 2
    assert page.get_by_role("link", name="trace.jsonl").count() == 1


def test_without_scripts_the_cells_that_failed_are_there(opened: Open, small: Path) -> None:
    page = opened(small, f"#{FAILED}", java_script_enabled=False)
    assert page.locator(f"details[id='{FAILED}']").is_visible()
    assert "This browser runs no scripts." in page.inner_text("#overview")
    assert not page.locator("#explorer").is_visible()


def test_on_paper_there_are_no_controls(opened: Open, small: Path) -> None:
    page = opened(small)
    page.emulate_media(media="print")
    assert not page.locator(".toolbar").is_visible()
    assert page.locator("ol.cells").is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("ol.cells li").count() == 72
    assert len(page.pdf()) > 10_000


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 1280])
@pytest.mark.parametrize("place", ["", f"#{FAILED}"])
def test_the_page_is_accessible(opened: Open, small: Path, theme: str, width: int, place: str) -> None:
    page = opened(small, place, color_scheme=theme, viewport={"width": width, "height": 900}, bypass_csp=True)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert overflow(page) == 0
