"""What is seen at a glance: words that are explained, weights and coverage only where they say something, no fold that
is empty, and commands whole."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gallery import RUN_URL
from hypothesis import example, given
from hypothesis import strategies as st
from markdown import OUR_PAGES, kinds, shown, tokens
from support.sample_parts import AGENT, NO_LOGS, TESTS_FAIL, TESTS_PASS, cell, check, run, spec
from test_comment_text import comment

from keystone_action.github.status import description_of
from keystone_action.invariants.registry import ALIASES, BUILT_IN
from keystone_action.report.addresses import CHECKS, DOCS, WORDS, Terms, cell_anchor, check_page, report_link, word_page
from keystone_action.report.escape import code, prose, prose_html, short_path, shortened
from keystone_action.report.sentences.facts import coverage
from keystone_action.report.summary import render_summary
from keystone_action.scoring.results import GroupResult, RunResult

PAGES = Path(__file__).parent.parent.parent / "docs"


def failing(*checks: Any, **more: Any) -> RunResult:
    one = cell("s", *checks, **({"verdict": "fail", "composite": 0.0, "reason": "gate a scored 0.00"} | more))
    return run(spec("s", one, verdict="fail", composite=0.0), verdict="fail", composite=0.0)


def test_every_type_of_checks_and_every_word_has_its_page() -> None:
    assert BUILT_IN - ALIASES.keys() == CHECKS
    assert all((PAGES / "checks" / f"{name}.md").is_file() for name in CHECKS)
    headings = re.findall(r"^## (\w+)$", (PAGES / "words.md").read_text("utf-8"), re.MULTILINE)
    assert {word.lower() for word in headings} >= set(WORDS)
    assert (check_page("sql"), word_page("gate")) == (f"{DOCS}/checks/sql.md", f"{DOCS}/words.md#gate")
    assert check_page("x](javascript:alert(1))") == check_page("mine") == ""


def test_a_word_is_explained_once_and_only_as_a_word() -> None:
    terms = Terms()
    assert terms("3 of 4 cells, composite 1.00") == (
        f"3 of 4 [cells]({word_page('cell')}), [composite]({word_page('composite')}) 1.00"
    )
    assert terms("a cell, a composite") == "a cell, a composite"
    assert terms("excellent gates-keeper investigate") == "excellent gates-keeper investigate"
    assert terms("[gate](https://evil.example)").count(DOCS) == 0
    assert terms("gate") == f"[gate]({word_page('gate')})"


@pytest.mark.parametrize("render", [comment, render_summary])
def test_each_word_is_linked_at_most_once_in_a_report(render: Any) -> None:
    text = render(failing(TESTS_FAIL, TESTS_PASS, NO_LOGS))
    links = [token.attrs["href"] for token in tokens(text) if token.type == "link_open"]
    assert [links.count(word_page(word)) for word in ("composite", "gate")] == [1, 1]


@pytest.mark.parametrize("render", [comment, render_summary])
def test_weights_are_shown_only_where_they_differ(render: Any) -> None:
    assert "Weight" in render(failing(TESTS_FAIL, NO_LOGS))
    assert "Weight" not in comment(failing(TESTS_FAIL, check("a", weight=0.3)))
    assert "eight" not in render(failing(check("a", "fail", weight=0.3), check("b", "fail", weight=0.3)))


SEEN: list[tuple[str, dict[str, Any], str]] = [
    ("efficiency", {"targets": {"a": 1, "b": 1, "c": 1}, "not_observed": ["a", "b"]}, "1 of 3 targets"),
    ("budget", {"limits": {"a": 1, "b": 1}, "not_observed": ["a"]}, "1 of 2 limits"),
    ("budget", {"limits": {"a": 1, "b": 1}, "not_observed": []}, ""),
    ("trace", {"assertions": [{"holds": True}, {"holds": None}, {"holds": False}]}, "2 of 3 assertions"),
    ("tests", {"passed": 7, "failed": 1, "errors": 0, "skipped": 2}, "8 of 10 tests ran"),
    ("tests", {"passed": 7, "failed": 1, "errors": 0, "skipped": 0}, ""),
    ("tests", {"passed": "7", "failed": None, "errors": [], "skipped": -1}, ""),
    ("tests", {}, ""),
    ("budget", {"limits": "abc", "not_observed": "ab"}, ""),
    ("trace", {"assertions": "abc"}, ""),
    ("sql", {"limits": {"a": 1, "b": 1}, "not_observed": ["a"]}, ""),
]


@pytest.mark.parametrize(("kind", "details", "said"), SEEN)
def test_what_a_check_did_not_see_stands_beside_its_score(kind: str, details: dict[str, Any], said: str) -> None:
    one = check("a", "fail", 0.5, type=kind, details=details)
    assert coverage(one) == said
    assert coverage(replace(one, status="error", score=None)) == ""
    assert f"| 0.50{f'<br>{said}' if said else ''} |" in comment(failing(one))


def test_no_fold_is_empty_and_three_are_open() -> None:
    bare = failing(verdict="error", composite=None, agent=None, error="no database", reason="no database")
    assert "<details" not in comment(bare)
    assert "<details" not in render_summary(bare)
    cells = [
        cell(f"c{n}", check("a", "fail", message=f"wrong {n}"), verdict="fail", composite=0.0, scenario=f"s{n}")
        for n in range(9)
    ]
    specs = [spec(f"p{n}", *cells[n * 3 : n * 3 + 3], verdict="fail", composite=0.0) for n in range(3)]
    text = render_summary(run(*specs, verdict="fail", composite=0.0))
    assert text.count("<details open>") == 3
    assert text.count("<details>") == 6


def test_failures_alike_are_told_once_across_scenarios_and_parameters() -> None:
    bad = [
        cell(f"c.{name}.r0", TESTS_FAIL, scenario=name, params={"size": n}, verdict="fail", composite=0.0, reason="no")
        for n, name in enumerate(("add", "move", "drop"))
    ]
    groups = tuple(GroupResult(one.scenario, one.params, "fail", 0.0, 0, 1, "no") for one in bad)
    result = run(spec("c", *bad, verdict="fail", composite=0.0, groups=groups), verdict="fail", composite=0.0)
    for text in (comment(result), render_summary(result)):
        assert "<b>c.add.r0</b> and 2 more cells, for the same reason" in text
        assert "The same: `c.move.r0`, `c.drop.r0`\n" in text
        assert "(and 2 more, for the same reason)" in text
        assert text.count("AssertionError: 3 != 4") == 1


def test_a_failing_check_leads_to_its_line_in_every_place() -> None:
    url = "https://github.com/octo/agents/blob/abc/evals/s.yaml"
    one = replace(failing(TESTS_FAIL), specs=(replace(failing(TESTS_FAIL).specs[0], positions={"tests_pass": 7}),))
    two = replace(one, specs=(*one.specs, spec("other", cell("other", TESTS_PASS))))
    for result, places in ((one, 2), (two, 3)):  # table and fold; with several specs its row of theirs besides
        text = render_summary(result, links={"s": url})
        assert text.count(f"[`tests_pass`]({url}#L7)") == places


def test_a_cell_leads_to_its_place_in_the_report() -> None:
    assert cell_anchor("a b(c)") == "#a%20b%28c%29"
    one = failing(TESTS_FAIL)
    assert "[`report.html`](report.html#s)</sub>" in render_summary(one, report="report.html")
    assert f"[`report.html`]({RUN_URL}#artifacts) › `#s`</sub>" in render_summary(one, report=RUN_URL)
    assert "More of it: `report.html` › `#s`</sub>" in render_summary(one)
    assert report_link("javascript:alert(1)") is None


COMMAND = r"""grep -c "a\|b" x | tr '`' "'" && echo `date` | cat"""
PIPES = st.text(alphabet="|`\\ ab.@:/#*_<&", min_size=1, max_size=30).filter(lambda text: "|" in text and text.strip())


@given(PIPES)
@example("`| `:`")
def test_code_is_whole_in_a_table(text: str) -> None:
    for escape in (code, prose):
        table = f"| a | b |\n|---|---|\n| {escape(text)} | z |\n"
        assert kinds(table) == kinds("| a | b |\n|---|---|\n| x | z |\n")
        assert shown(table) == f"ab{shown(escape(text))}z"
    assert shown(code(text)) == "".join(text.split())
    # As HTML has it: what is quoted stands in an element, without its backticks.
    plain = html.unescape(re.sub("</?code>", "", prose_html(text)))
    assert shown(prose(text)) == "".join(plain.split())


def test_a_command_is_one_piece_of_code() -> None:
    (whole,) = [
        token.content for token in tokens(f"| a |\n|---|\n| {code(COMMAND)} |\n") if token.type == "code_inline"
    ]
    assert whole == COMMAND


@given(st.text(alphabet="ab ;.", max_size=60), st.integers(5, 40))
@example("aaaaaaa bbbbbbb", 10)
@example("aaaa; bbbb bbbb", 12)
def test_what_is_shortened_ends_after_a_word(text: str, limit: int) -> None:
    line = " ".join(text.split())
    short = shortened(line, limit)
    assert len(short) <= limit
    kept = short.removesuffix("…")
    assert line.startswith(kept)
    if kept != line and " " in line[:limit]:
        assert not line[len(kept)].isalpha() or not kept[-1:].isalpha()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("evals/a.yaml", "evals/a.yaml"),
        ("evals/reconcile-customers/keystone.yaml", "evals/reconcile-customers"),
        ("evals/support/merge.keystone.yaml", "…/support/merge.keystone.yaml"),
        ("evals/a-very-long-folder/a-long-file-name.keystone.yaml", "…/a-long-file-name.keystone.yaml"),
    ],
)
def test_a_long_path_loses_what_says_least(path: str, said: str) -> None:
    assert short_path(path, 30) == said


@given(st.text(alphabet="ab- ;.", min_size=1, max_size=300), st.text(alphabet="ab ", max_size=300))
def test_a_status_fits_and_keeps_product_and_verdict(name: str, message: str) -> None:
    result = failing(check("exact", "fail", message=message))
    said = description_of(replace(result, specs=(replace(result.specs[0], id=name.strip() or "x"),)))
    assert len(said) <= 140
    assert said.startswith("Keystone: ")
    assert " failed: " in said


def test_a_type_of_somebodys_package_is_named_and_not_linked() -> None:
    text = comment(failing(check("a", "fail", type="mine](x)")))
    assert r"mine\](x)" in text
    assert {token.attrs["href"] for token in tokens(text) if token.type == "link_open"} <= {
        *OUR_PAGES,
        RUN_URL,
        f"{RUN_URL}#artifacts",
    }
    assert AGENT.output.splitlines()[0] in text
