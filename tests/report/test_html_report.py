"""report.html stands alone: no address, no script but its own, nothing of others as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import SAMPLES, matrix
from support.sample_parts import AGENT, HOSTILE, TESTS_FAIL, cell, check, run, spec

from keystone_action.report.page import cell as cell_module
from keystone_action.report.page import charts, rows
from keystone_action.report.page import render as render_module
from keystone_action.report.page.render import render_html, script_text
from keystone_action.report.page.rows import inert_json, shown
from keystone_action.scoring.results import CellResult, RunResult

VOID = {"meta", "br"}
OURS = set(
    """html head meta title style body main header h1 h2 p div span ul li pre code aside section table thead tbody tr th
    td small svg rect text line circle figure figcaption details summary footer mark noscript script""".split()  # noqa: SIM905 - as read
)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def assert_stands_alone(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= OURS
    attributes = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style", "action")}
    data = {"type": "application/json"}
    assert [attributes for tag, attributes in page.elements if tag == "script"] == [
        data | {"id": "index"},
        data | {"id": "details"},
        {},
    ]
    index, details, script = page.scripts
    json.loads(index)
    json.loads(details)
    assert script == script_text()


def details_of(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Page(text).scripts[1])
    return found


def index_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Page(text).scripts[0])
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_the_page_is_well_formed_and_loads_nothing(name: str) -> None:
    assert_stands_alone(render_html(SAMPLES[name]()))


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_our_style_sheet_and_script_and_nothing_else() -> None:
    text = render_html(matrix())
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    policy = f"default-src 'none'; style-src 'sha256-{digest(style[1])}'; script-src 'sha256-{digest(script_text())}';"
    assert policy in text
    assert "require-trusted-types-for 'script'" in text
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_script_makes_no_markup_of_text_and_asks_nobody() -> None:
    script = script_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "fetch(", "XMLHttp", "import("):
        assert word not in script
    assert "</script" not in script
    assert "<!--" not in script


@settings(max_examples=2 * settings().max_examples // 5, deadline=None)
@given(st.text(), st.text(alphabet="<>&\"'/=! abcscript-", max_size=40))
def test_no_text_becomes_markup(one: str, two: str) -> None:
    bad = cell(
        f"c{two}",
        check(f"n{two}", "fail", message=one, details={one: two}, description=two),
        verdict="fail",
        composite=0.0,
        reason=two,
        params={one: two},
        notices=(one,),
    )
    other = replace(bad, id=f"d{two}", composite=0.5, scenario=one)
    assert_stands_alone(render_html(run(spec(one, bad, other, description=two, path=one), notices=(two,), error=one)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["</script>", "<!--", "]]>", "\u2028&"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_data_is_one_line_without_markup_and_reads_back(value: Any) -> None:
    text = inert_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set("<>&\n\r") & set(text)


@given(JSON)
def test_what_is_invisible_is_shown_in_data_too(value: Any) -> None:
    read = json.dumps(shown(value), ensure_ascii=False)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\u2028\ud800-\udfff]", read)


def many(number: int, **more: Any) -> list[CellResult]:
    return [cell(f"c{n}", TESTS_FAIL, verdict="fail", composite=0.0, agent=AGENT, **more) for n in range(number)]


def failed(*cells: CellResult) -> RunResult:
    return run(spec("s", *cells, verdict="fail"), verdict="fail")


def test_a_cell_is_a_dot_of_each_chart() -> None:
    text = render_html(matrix())
    assert text.count("<figure>") == 1, "nothing is known of cost"
    figure = text[text.index("<figure>") : text.index("</figure>")]
    assert figure.count('class="dot ') == 13
    assert figure.count('class="dot fail"') == 2
    priced = [replace(one, usage={**one.usage, "cost_usd": 0.01 * (n + 1)}) for n, one in enumerate(many(3))]
    assert render_html(failed(*priced)).count("<figure>") == 2


def test_thousands_of_cells_are_few_dots_and_all_counted() -> None:
    cells = [replace(one, duration_s=1 + n % 7) for n, one in enumerate(many(900))]
    text = render_html(failed(*cells))
    figure = text[text.index("<figure>") : text.index("</figure>")]
    counts = [int(number.replace(",", "")) for number in re.findall(r"<title>([\d,]+) cells?: fail</title>", figure)]
    assert (len(counts), sum(counts)) == (7, 900)
    assert "n = 900 of 900 cells" in figure


def test_times_of_nothing_at_all_can_be_drawn() -> None:
    assert "<figure>" in render_html(failed(*many(2, duration_s=0.0)))
    assert "<figure>" in render_html(failed(*many(2, duration_s=1e-9), *many(2, duration_s=1e9)))


def test_a_browser_without_scripts_is_told_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_module, "MAX_WHOLE", 1)
    monkeypatch.setattr(render_module, "MAX_NAMED", 3)
    text = render_html(failed(*many(5)))
    fallback = text[text.index("<noscript>") : text.index("</noscript>")]
    assert "… and 1 cell more that did not pass, in results.json." in fallback
    assert [word in fallback for word in ('id="c0"', "<code>c3</code>", "c4")] == [True, True, False]
    assert_stands_alone(text)


def test_what_it_is_shown_has_one_bound_for_all_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_module, "MAX_WHOLE", 3)
    monkeypatch.setattr(render_module, "MAX_NAMED", 2)
    monkeypatch.setattr(render_module, "MAX_FALLBACK_CHECKS", 1)
    two = replace(many(1)[0], invariants=(TESTS_FAIL, replace(TESTS_FAIL, name="second")))
    specs = [spec(name, *(replace(two, id=f"{name}{n}") for n in range(2)), verdict="fail") for name in "abcd"]
    text = render_html(run(*specs, verdict="fail"))
    fallback = text[text.index("<noscript>") : text.index("</noscript>")]
    assert re.findall(r'<details id="(\w+)"', fallback) == ["a0", "a1", "b0"]
    assert re.findall(r"</mark> <code>(\w+)</code>", fallback) == ["b1", "c0"]
    assert re.findall(r"… and (\d) cells? more that did not pass", fallback) == ["1", "2"]
    assert "<code>second</code>" not in fallback
    assert "… and 1 check more in results.json." in fallback


def test_checks_of_one_cell_have_a_bound() -> None:
    long = {f"k{n}": "x" * 4000 for n in range(9)}
    checks = [check(f"n{n}", "fail", message="m" * 9000, details=long) for n in range(400)]
    text = render_html(failed(cell("c", *checks, verdict="fail", composite=0.0)))
    (found,) = details_of(text)
    assert len(found["checks"]) == 300
    assert [bool(one["found"]) for one in (found["checks"][0], found["checks"][-1])] == [True, False]
    assert len(Page(text).scripts[1]) < 500_000
    assert found["left_out"] == ["This cell has 400 checks, and this page 300 of them."]


def test_every_cell_has_a_row_and_those_that_failed_come_first() -> None:
    good, bad = cell("good", check("t"), replica=1), many(1)[0]
    index = index_of(render_html(failed(good, bad)))
    assert [row[0] for row in index["cells"]] == ["c0", "good"]
    assert [index["statuses"][row[5]] for row in index["cells"]] == ["fail", "pass"]
    assert index["total"] == 2
    (group,) = index["groups"]
    assert group[3:5] == [1, 2]
    assert group[5] == pytest.approx(0.095, abs=0.001), "Wilson's interval for 1 of 2"
    assert group[7] == [1, 0]


def test_a_cell_in_error_counts_in_no_pass_rate() -> None:
    broken = cell("broken", verdict="error", composite=None, error="service db was not ready")
    (group,) = index_of(render_html(failed(broken, cell("good", replica=1))))["groups"]
    assert group[3:5] == [1, 1]


def test_rows_are_bounded_and_the_number_of_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_CELLS", 3)
    monkeypatch.setattr(rows, "MAX_CHECKS", 2)
    cells = [cell(f"g{n}", check("a"), check("b")) for n in range(4)]
    index = index_of(render_html(failed(*cells, *many(1))))
    assert [row[0] for row in index["cells"]] == ["c0", "g0", "g1"]
    assert index["total"] == 5
    assert [(len(row[10]), row[11]) for row in index["cells"]] == [(1, 1), (0, 2), (0, 2)]


def test_texts_of_rows_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_TEXT", 1000)
    cells = [cell(f"c{n}", check("t", "fail", message=f"{n} " + "x" * 5000), verdict="fail") for n in range(50)]
    assert sum(map(len, index_of(render_html(failed(*cells)))["texts"])) <= 1000


def test_messages_push_no_scenario_or_parameter_out_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_TEXT", 300)
    cells = [
        cell(
            f"c{n}",
            check("t", "fail" if n % 2 else "pass", message=f"{n} " + "x" * 190),
            verdict="fail" if n % 2 else "pass",
            scenario=f"scenario {n}",
            params={"model": f"m{n}"},
        )
        for n in range(6)
    ]
    index = index_of(render_html(failed(*cells)))
    groups = [(index["texts"][group[1]], group[3:5]) for group in index["groups"]]
    assert groups == [(f"scenario {n}", [1 - n % 2, 1]) for n in range(6)]
    named = [[(index["texts"][name], index["texts"][value]) for name, value in pairs] for pairs in index["parameters"]]
    assert sorted(named) == [[("model", f"m{n}")] for n in range(6)]


def test_scenarios_that_look_alike_once_cut_are_counted_apart() -> None:
    cells = [
        cell(f"c{n}", check("t", verdict), verdict=verdict, scenario="long " * 60 + str(n))
        for n, verdict in enumerate(("pass", "fail", "pass"))
    ]
    groups = index_of(render_html(failed(*cells)))["groups"]
    assert [group[3:5] for group in groups] == [[1, 1], [0, 1], [1, 1]]
    assert len({group[1] for group in groups}) == 3


def test_a_group_counts_the_cells_that_have_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell(f"c{n}", verdict="pass" if n else "fail", replica=n) for n in range(5)]
    monkeypatch.setattr(rows, "MAX_CELLS", 2)
    (group,) = index_of(render_html(failed(*cells)))["groups"]
    assert (group[3:5], len(group[7])) == ([4, 5], 2)


def test_cells_that_failed_are_whole_until_the_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "MAX_PASSED", 2)
    good = [cell(f"g{n}", check("t")) for n in range(4)]
    assert len(details_of(render_html(failed(*good, *many(3))))) == 5
    monkeypatch.setattr(cell_module, "BUDGET", 100)
    assert len(details_of(render_html(failed(*good, *many(3))))) == 1


def write(folder: Path, name: str, content: str | bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def line(kind: str, payload: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": kind, **more, "payload": payload}) + "\n"


def test_trace_diff_and_audit_log_of_a_cell_are_in_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "c0"
    call = {"tool_call_id": "1", "raw_name": "Bash", "name": "bash", "kind": "execute", "input": {"command": "ls"}}
    write(folder, "trace.jsonl", line("trace", {"source": "gateway"}) + line("tool_call", call, ts="2026-03-01T10:00Z"))
    write(folder, "diff.patch", "diff --git a/x b/x\n+</script>\n")
    asked = {"service": "mail", "method": "POST", "url": "/send", "request_body": "hi", "status": 202}
    write(folder, "audit.jsonl", json.dumps({"ts": "2026-03-01T10:00Z", "type": "http_call", "details": asked}) + "\n")
    write(folder / "checks", "tests_pass.log", "log")
    (found,) = details_of(render_html(failed(*many(1)), tmp_path))
    assert found["trace"][1] == {
        "at": "2026-03-01T10:00Z",
        "kind": "tool_call",
        "title": "bash (execute)",
        "text": "command: ls",
    }
    assert found["diff"] == "diff --git a/x b/x\n+</script>\n"
    assert found["audit"][0]["title"] == "POST /send → 202, by mail"
    assert found["audit"][0]["text"] == "sent:\nhi"
    assert [name for name, _ in found["files"]] == ["audit.jsonl", "checks/tests_pass.log", "diff.patch", "trace.jsonl"]
    assert found["left_out"] == []


def test_what_is_too_long_is_cut_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "cells" / "c0"
    long = "x" * 3000
    write(folder, "diff.patch", "diff --git a/x b/x\n" + "+line\n" * 400_000)
    write(folder, "trace.jsonl", "".join(line("message", {"role": "assistant", "text": long}) for _ in range(2000)))
    text = render_html(failed(*many(1)), tmp_path)
    (found,) = details_of(text)
    assert found["left_out"][0].startswith("trace.jsonl has 6,")
    assert any(note.startswith("diff.patch has 2,400,019 bytes") for note in found["left_out"])
    assert any("more are in trace.jsonl" in event["title"] for event in found["trace"])
    assert len(text) < 600_000


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n{", b'{"type": "tool_call", "payload": 3}\n', b"[" * 100_000, b"null\n"]
)
def test_lines_that_can_not_be_read_are_shown_as_they_are(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "cells" / "c0", "trace.jsonl", content)
    write(tmp_path / "cells" / "c0", "audit.jsonl", content)
    text = render_html(failed(*many(1)), tmp_path)
    (found,) = details_of(text)
    assert {event["kind"] for event in found["trace"]} == {"unread"}
    assert_stands_alone(text)


@pytest.mark.parametrize("name", ["../c0", "..", ".", "", "a/b", "c\0"])
def test_no_name_of_a_cell_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    write(tmp_path / "c0", "diff.patch", "secret")
    write(tmp_path / "cells", "diff.patch", "secret")
    write(tmp_path, "diff.patch", "secret")
    assert "secret" not in render_html(failed(replace(many(1)[0], id=name)), tmp_path)


def test_links_and_pipes_among_the_files_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "secret", "secret")
    folder = tmp_path / "cells" / "c0"
    folder.mkdir(parents=True)
    (folder / "diff.patch").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "trace.jsonl")
    (folder / "checks").symlink_to(tmp_path)
    (folder.parent / "c1").symlink_to(tmp_path)
    text = render_html(failed(*many(2)), tmp_path)
    assert "secret" not in text
    assert [one["files"] for one in details_of(text)] == [[], []]


def test_a_hostile_agents_words_are_data(tmp_path: Path) -> None:
    write(tmp_path / "cells" / "c0", "diff.patch", HOSTILE.encode("utf-8", "replace"))
    for name in ("trace.jsonl", "audit.jsonl"):
        write(
            tmp_path / "cells" / "c0", name, json.dumps({"type": HOSTILE, "ts": HOSTILE, "payload": {HOSTILE: HOSTILE}})
        )
    assert_stands_alone(render_html(failed(*many(1, params={HOSTILE: HOSTILE})), tmp_path))


def test_rows_of_a_query_are_a_table() -> None:
    asked = {"query": "SELECT 1", "columns": ["id"], "found": [[1], ["<b>"]]}
    (found,) = details_of(
        render_html(failed(cell("c", check("sql", "fail", details=asked), verdict="fail", composite=0.0)))
    )
    assert found["checks"][0]["found"] == [
        {"name": "query", "text": "SELECT 1"},
        {"name": "found", "columns": ["id"], "rows": [["1"], ["<b>"]]},
    ]


@pytest.mark.parametrize("values", [(5e-324,), (5e-324, 1e-322), (1e-310, 4e-309), (0.0, 3e-301), (5e-324, 1.7e308)])
def test_a_chart_has_a_scale_for_the_smallest_numbers(values: tuple[float, ...]) -> None:
    scale = charts._Scale(values)
    places = [scale.x(value) for value in (*values, *scale.ticks())]
    assert all(charts._LEFT <= place <= charts._WIDTH for place in places)
