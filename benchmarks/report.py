"""`report.html` of 10,000 cells: writing it, and opening it in Chromium until it can be read and filtered."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, interleaved, timed
from keystone_action.report.page.render import html_pieces
from keystone_action.report.write import write_file
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult, RunResult, SpecResult

SCENARIOS, MODELS, REPLICAS = 1000, ("small", "large"), 5
BUDGET = 2.0
_EMPTY = "<!doctype html><title>empty</title><p>Nothing.</p><input id=search>"
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_FILTERED = """() => {
  const search = document.getElementById("search");
  search.value = "refund-77 large";
  search.dispatchEvent(new Event("input"));
  document.body.offsetHeight;
  return [performance.now(), document.querySelector("p.count")?.textContent];
}"""


def report(rounds: int) -> list[Row | str]:
    """The rows, or lines that say why there are none."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        page, empty = Path(name) / "report.html", Path(name) / "empty.html"
        empty.write_text(_EMPTY)
        run = ten_thousand_cells()
        things: dict[str, Callable[[], float]] = {
            "writing": timed(lambda: write_file(page, html_pieces(run))),
            "copying": timed(lambda: shutil.copy(page, Path(name) / "copy.html")),
        }
        samples = interleaved(things, rounds)
        written, copied = samples["writing"].median, samples["copying"].median
        size = page.stat().st_size / 1_000_000
        rows: list[Row | str] = [Row("report.html of 10,000 cells: writing", written, "a copy", copied, None)]
        rows.append(f"report.html of 10,000 cells: {size:.1f} MB")
        return [*rows, *_opening(page, empty, rounds)]


def _opening(page: Path, empty: Path, rounds: int) -> list[Row | str]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return ["opening report.html: not measured (playwright is not installed)"]
    if program is None:
        return ["opening report.html: not measured (there is no chromium)"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        seen: dict[str, list[float]] = {}

        def opened(path: Path, key: str) -> Callable[[], float]:
            def once() -> float:
                tab: Any = browser.new_page()
                tab.goto(path.as_uri())
                filtered, count = tab.evaluate(_FILTERED)
                if path == page and count != "55 of 10,000 cells":
                    raise RuntimeError(f"the filter found {count}")
                tab.wait_for_function(_PAINTED)
                seen.setdefault(key, []).append(tab.evaluate(_PAINTED) / 1000)
                tab.close()
                return float(filtered) / 1000

            return once

        samples = interleaved({"page": opened(page, "page"), "empty": opened(empty, "empty")}, rounds)
        browser.close()
    painted, bare = (sorted(seen[key])[len(seen[key]) // 2] for key in ("page", "empty"))
    return [
        Row("report.html of 10,000: first contents", painted, "an empty page", bare, BUDGET),
        Row(
            "report.html of 10,000: filtered", samples["page"].median, "an empty page", samples["empty"].median, BUDGET
        ),
    ]


def ten_thousand_cells() -> RunResult:
    """A third of the cells of one model failed."""
    cells = tuple(
        _cell(number, model, replica) for number in range(SCENARIOS) for model in MODELS for replica in range(REPLICAS)
    )
    spec = SpecResult("shop", "keystone.yaml", "0" * 64, "spec", "fail", 0.8, 0.85, None, cells)
    return RunResult(
        keystone_version="bench",
        git_sha=None,
        run_id="bench",
        verdict="fail",
        composite=0.8,
        started_at="2026-03-01T10:15:00Z",
        duration_s=600.0,
        counts={"cells": len(cells), "failed": sum(cell.verdict == "fail" for cell in cells)},
        specs=(spec,),
    )


def _cell(number: int, model: str, replica: int) -> CellResult:
    fails = number % 3 == 0 and model == "large"
    message = f"pytest ended with exit code 1.\nFAILED test_refund_{number}: {replica} != 4\n" * 10
    tests = InvariantResult(
        "tests_pass",
        "command_exit",
        "fail" if fails else "pass",
        0.0 if fails else 1.0,
        1.0,
        True,
        message if fails else "pytest ended with exit code 0.",
        details={"exit_code": int(fails), "expected": 0},
    )
    others = (InvariantResult(name, "file_content", "pass", 1.0, 0.2, False, "all conditions hold") for name in "abcd")
    return CellResult(
        f"shop.refund-{number}.model-{model}.r{replica}",
        f"refund-{number}",
        {"model": model},
        replica,
        "fail" if fails else "pass",
        0.0 if fails else 0.9,
        1.0 + (number + replica) % 40,
        None,
        AgentResult(0, False, duration_s=1.0, output="Looked at the order.\n" * 40),
        invariants=(tests, *others),
        reason="gate tests_pass scored 0.00, and a gate needs 1.00" if fails else "",
    )
