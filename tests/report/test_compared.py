"""What changed, as readers see it: first in every report, bounded, and text whatever it says."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from markdown import OUR_PAGES, shown, tokens
from samples import SAMPLES
from support.sample_parts import HOSTILE
from support.shard_runs import cell, spec, whole

from keystone_action.report import console
from keystone_action.report.sentences.compared import (
    MAX_CHANGE,
    MAX_CHANGED_SPECS,
    MAX_GATE,
    MAX_ROWS,
    baseline_lines,
    gate_lines,
    gate_view,
)
from keystone_action.report.summary import render_summary
from keystone_action.report.write import render, render_results
from keystone_action.scoring.comparison import compare_runs
from keystone_action.scoring.differences import BaselineComparison, Difference, SpecChange, SpecChanges
from keystone_action.scoring.document import run_from_document, run_to_document
from keystone_action.scoring.results import RunResult

BASE = "3f9c2ab1d0e84b7a96f5c1b2a3d4e5f60718293a"


def changes(*specs: SpecChange, **more: Any) -> SpecChanges:
    values: dict[str, Any] = {"base": BASE, "base_name": "the pull request's base main", "specs": specs}
    return SpecChanges(**(values | more))


WEAKER = changes(
    SpecChange("evals/old/keystone.yaml", "deleted"),
    SpecChange("evals/keystone.yaml", "changed", ("threshold 0.85 → 0.5", "removed: tests_pass (a gate)")),
    SpecChange("evals/new/keystone.yaml", "added"),
)


def difference(change: str = "broken", **more: Any) -> Difference:
    values: dict[str, Any] = {
        "change": change,
        "spec": "reconcile-customers",
        "scenario": "reconcile",
        "params": {"model": "a"},
        "invariant": "email_sent_once",
        "before": "pass",
        "after": "fail",
        "score_before": 1.0,
        "score_after": 0.25,
        "passed_before": 5,
        "total_before": 5,
        "passed_after": 0,
        "total_after": 5,
        "p_value": 0.0079,
        "p_worse": 0.004,
        "regression": "test" if change == "broken" else None,
    }
    return Difference(**(values | more))


def baseline(*invariants: Difference, **more: Any) -> BaselineComparison:
    values: dict[str, Any] = {
        "source": "run 7 of main (push, 2026-03-01)",
        "verdict": "pass",
        "composite": 1.0,
        "git_sha": BASE,
        "started_at": "2026-03-01T10:15:00Z",
        "specs": (difference("same", scenario=None, params={}, invariant=None, p_value=None, after="pass"),),
        "groups": (),
        "invariants": invariants,
        "regressions": len(invariants),
    }
    return BaselineComparison(**(values | more))


def run(**more: Any) -> RunResult:
    return replace(SAMPLES["pass"](), **more)


def test_the_gate_comes_before_the_verdict() -> None:
    result = run(spec_changes=WEAKER)
    lines = render_summary(result).splitlines()
    assert lines[:5] == [
        "> [!WARNING]",
        "> **This change alters its own gate, compared with commit `3f9c2ab1d0e8` (the pull request's base main):**",
        "> - `evals/old/keystone.yaml`: spec deleted",
        "> - `evals/keystone.yaml`: threshold 0.85 → 0.5; removed: tests_pass (a gate)",
        "> - `evals/new/keystone.yaml`: spec added",
    ]
    assert lines[6].startswith("## ")
    page = render(result, "html")
    assert page.index("threshold 0.85 → 0.5") < page.index("<h1>")
    for printed in (console.print_verdict, console.print_table):
        stream = io.StringIO()
        printed(result, stream)
        text = stream.getvalue()
        assert text.index("threshold 0.85 → 0.5") < text.index("Keystone: ")


@pytest.mark.parametrize("end", ["\n", "\r", "\v", "\x1c", "\x85", "\u2028"])
def test_no_line_break_ends_a_sentence_and_hides_the_rest(end: str) -> None:
    """A change may name a file so, or set a value that is told before what it takes away."""
    one = SpecChange("evals/keystone.yaml", "changed", (f"forbidden a → b{end}", f"{end}c", "gate tests_pass removed"))
    (_, line) = gate_lines(changes(one))
    assert line.endswith("; gate tests_pass removed")


def test_specs_of_the_base_are_said_to_have_decided() -> None:
    headline = gate_view(replace(WEAKER, spec_from="base"))
    assert headline is not None
    assert "decided, as commit 3f9c2ab1d0e8 has them; those of this change" in headline.headline


def test_what_was_left_out_is_said_whether_or_not_something_was_found() -> None:
    less = "only this push was compared: GitHub refuses"
    (nothing,) = gate_lines(changes(incomplete=less))
    said = (
        "Only this push was compared: GitHub refuses. Compared with commit 3f9c2ab1d0e8 (the pull request's base main)"
    )
    assert nothing == f"{said}, no change of the gate was found."
    assert render_summary(run(spec_changes=changes(incomplete=less))).startswith("> [!WARNING]\n> **Only this push")
    headline, *_ = gate_lines(replace(WEAKER, incomplete=less))
    assert headline.endswith("(the pull request's base main; only this push was compared: GitHub refuses):")


def test_workflows_come_first_and_had_effect_whosever_specs_ran() -> None:
    flow = SpecChange(".github/workflows/evals.yml", "changed", ("threshold added: 0.5", "workflow changed (+1 −0)"))
    said = list(gate_lines(replace(WEAKER, workflows=(flow,))))
    assert said[1] == "  .github/workflows/evals.yml: threshold added: 0.5; workflow changed (+1 −0)"
    assert len(said) == 5
    headline, *_ = gate_lines(replace(WEAKER, workflows=(flow,), spec_from="base"))
    assert headline.endswith("but this change alters how they are run, which had effect; its own specs had none:")
    headline, *_ = gate_lines(replace(WEAKER, specs=(), workflows=(flow,), spec_from="base"))
    assert headline.endswith("but this change alters how they are run, which had effect:")


@pytest.mark.parametrize("nothing", [None, changes()])
def test_nothing_is_said_where_nothing_changed(nothing: SpecChanges | None) -> None:
    assert render_summary(run(spec_changes=nothing)) == render_summary(run())
    assert list(gate_lines(nothing)) == []


def test_a_problem_is_said_although_no_change_is_known() -> None:
    text = render_summary(run(spec_changes=changes(problem="it is not in this checkout; set fetch-depth: 0")))
    told = "ℹ️ Whether this change weakens its own gate is not known: it is not in this checkout; set `fetch-depth: 0`"
    assert text.splitlines()[2].replace("`", "") == told.replace("`", "")
    assert "[!" not in text


def test_what_is_known_beside_a_problem_is_said_too() -> None:
    known = SpecChange("results/base", "changed", ("baseline changed",))
    text = render_summary(run(spec_changes=changes(problem="no\nbase " + "x" * 5_000, workflows=(known,))))
    assert text.splitlines()[1].startswith("> **Whether this change weakens its own gate is not known: no base xxx")
    assert len(text.splitlines()[1]) < 2_000
    assert "> - `results/base`: baseline changed" in text


def test_a_comparison_in_every_report() -> None:
    flaky = difference("flaky", after="flaky", passed_after=3, score_after=0.6, p_value=0.44, p_worse=0.22)
    result = run(
        baseline=baseline(difference(), flaky, difference("new", before=None, score_before=None, p_value=None))
    )
    text = render_summary(result)
    assert "**Against the baseline:** 1 broken, 1 flaky, 1 new" in text
    assert (
        "| ❌ `reconcile (model=a)` › `email_sent_once`<br>broken, more than noise (p = 0.004, one-sided) "
        "| pass (5/5) → fail (0/5)<br>1.00 → 0.25 (−0.75) |" in text
    )
    assert "flaky, could be noise (p = 0.22, one-sided) | pass (5/5) → flaky (3/5)" in text
    assert "Against the baseline: 1 broken, 1 flaky, 1 new" in render(result, "html")
    lines = list(baseline_lines(result.baseline, result))
    assert lines[0].startswith("against the baseline: 1 broken, 1 flaky, 1 new (run 7 of main")
    assert any("composite 1.00 → 0.96 (−0.04)" in line for line in lines)


def test_what_is_to_be_known_before_believing_it() -> None:
    new = difference("new", before=None, score_before=None, p_value=None)
    told = "\n".join(baseline_lines(baseline(new, regressions=1, partial_baseline=True), run()))
    assert "What is new and fails may be what passed there under another name, and is gone: 1 counts" in told
    assert "The baseline has only a part of the cells" in told
    told = "\n".join(baseline_lines(baseline(difference(), partial=True), run()))
    assert "another name" not in told
    assert "Only a part of the cells ran here" in told


def replicas(passed: int, total: int, **more: Any) -> RunResult:
    verdicts = ["pass"] * passed + ["fail"] * (total - passed)
    cells = [cell("alpha", "one", n, verdict) for n, verdict in enumerate(verdicts)]
    return whole([spec("alpha", cells, **more)])


def told_of(before: RunResult, after: RunResult) -> list[str]:
    return list(baseline_lines(compare_runs(before, after, source="x"), after))


def test_which_rule_counted_is_said() -> None:
    """Contract, 5.4: "the report says which"."""
    told = told_of(replicas(5, 5), replicas(1, 5))
    assert "Regressions: 2 by the one-sided exact test (p < 0.05)." in told
    assert any("pass (5/5) → fail (1/5)" in one and "more than noise (p = 0.024, one-sided)" in one for one in told)
    told = told_of(replicas(4, 4), replicas(1, 4))
    assert "Regressions: 1 as a flip, with fewer than 5 replicas on a side." in told
    assert any("could be noise (p = 0.071, one-sided); a flip with fewer than 5 replicas counts" in one for one in told)
    told = told_of(replicas(5, 5), replicas(4, 5))
    assert told[0].startswith("against the baseline: 1 broken (1 could be noise), 1 flaky (x, ")
    assert "1 broken does not count: by the exact test that could be noise." in told
    assert not any("Regressions" in one for one in told)
    told = told_of(replicas(3, 10), replicas(10, 10))
    assert any(
        "fixed: one: fail (3/10) → pass (10/10) (" in one and "more than noise (p = 0.0015" in one for one in told
    )


def test_a_p_value_says_which_test_it_is_of() -> None:
    """A difference has two: of the whole spec in both directions, of its group in the one that counts."""
    told = told_of(replicas(10, 10), replicas(6, 10))
    assert "cells passed 10/10 → 6/10: could be noise (p = 0.087, two-sided)" in told[0]
    assert any("broken: one: " in one and "more than noise (p = 0.043, one-sided)" in one for one in told)


def test_a_drop_that_no_group_shows_by_itself_is_said() -> None:
    def of(passed: int) -> RunResult:
        cells = [cell("alpha", f"s{n}", k, "pass" if k < passed else "fail") for n in range(12) for k in range(5)]
        return whole([spec("alpha", cells, rule="any")])

    compared = compare_runs(of(5), of(4), source="x")
    assert compared.regressions == 0
    said = (
        "alpha as a whole passes less often than chance explains (60/60 → 48/60), though no group or check of it does"
    )
    assert any(one.startswith(said) for one in told_of(of(5), of(4)))
    for before, after in ((4, 5), (5, 5), (5, 1)):
        assert not any("as a whole" in one for one in told_of(of(before), of(after)))


def test_how_often_the_test_is_wrong_is_said() -> None:
    """Of each group's replicas half passed on both sides: the test has something to be wrong about."""
    many = [
        spec(name, [cell(name, f"s{n}", k, "pass" if k < 15 else "fail") for n in range(10) for k in range(30)])
        for name in ("alpha", "beta")
    ]
    told = told_of(whole(many), whole(many))
    assert "The exact test was made 40 times; if nothing had changed, about 1 of these would be false alarms." in told
    few = whole(many[:1])
    said = "The exact test was made 20 times; if nothing had changed, the chance of a false alarm would be at most 70%."
    assert said in told_of(few, few)
    assert not any("false alarm" in one for one in told_of(replicas(10, 10), replicas(10, 10)))


def test_means_say_what_they_are_over() -> None:
    told = told_of(replicas(5, 5), replicas(3, 6))
    assert "composite 1.00 over 6 cells (baseline 5)" in told[0]


def test_other_rules_than_there_are_said() -> None:
    told = told_of(replicas(3, 4, threshold=0.5), replicas(3, 4, threshold=0.75, rule="any"))
    said = "alpha: threshold 0.50 → 0.75, alpha: replicas needed all → any"
    assert f"Other rules than in the baseline: {said}. Each side keeps the verdicts by its own." in told


def test_what_may_have_another_name_is_named() -> None:
    before = whole([spec("alpha", [cell("alpha", "old", 0), cell("alpha", "kept", 0)])])
    after = whole([spec("alpha", [cell("alpha", "new", n, "fail", score=0.0) for n in (0, 1)])])
    told = list(baseline_lines(compare_runs(before, after, source="x"), after))
    assert (
        "What is new and fails (alpha › new › holds) may be what passed there under another name, and is gone:"
        " 2 count as broken."
    ) in told
    cells = [cell("alpha", f"{n} {HOSTILE}", 0, "fail", score=0.0) for n in range(12)]
    many = replace(after, specs=(spec("alpha", cells),))
    text = render_summary(replace(many, baseline=compare_runs(before, many, source="x")))
    assert "and 2 more) may be what passed" in text
    assert not {token.type for token in tokens(text)} & {"image"}
    assert {token.attrs["href"] for token in tokens(text) if token.type == "link_open"} <= OUR_PAGES


def test_worst_first_and_bounded() -> None:
    many = [difference("fixed", before="fail", after="pass")] * 40 + [difference()] * 3
    result = run(baseline=baseline(*many))
    text = render_summary(result)
    assert text.count("email_sent_once`<br>broken") == 3
    assert text.count("email_sent_once`<br>fixed") == MAX_ROWS - 3
    assert "… and 13 more in results.json." in text
    specs = [SpecChange(f"evals/{n}.yaml", "added") for n in range(MAX_CHANGED_SPECS + 2)]
    assert "… and 2 files more" in render_summary(run(spec_changes=changes(*specs)))


def test_a_crowd_of_differences_is_cut_between_two_and_counted() -> None:
    crowd = [f"{n:03} {'x' * 200}" for n in range(40)]
    (line,) = gate_view(changes(SpecChange("a.yaml", "changed", tuple(crowd)))).lines
    assert line[1].startswith("; ".join(crowd[:2]))
    kept = line[1].count("x; ")
    assert line[1].endswith(f"; … {40 - kept} more in results.json")
    assert len(line[1]) < MAX_CHANGE + 50


def test_of_a_crowd_of_specs_each_is_told_the_first_at_length() -> None:
    crowd = tuple(f"{n:03} {'x' * 200}" for n in range(40))
    many = [SpecChange(f"evals/{n}.yaml", "changed", crowd) for n in range(MAX_CHANGED_SPECS)]
    found = gate_view(changes(*many))
    assert len(found.lines) == MAX_CHANGED_SPECS
    assert all(text.startswith("000 ") for _, text in found.lines)
    assert len(found.lines[0][1]) > len(found.lines[-1][1])
    assert sum(len(text) for _, text in found.lines) < MAX_GATE + MAX_CHANGED_SPECS * 400
    assert "Cut here" not in render_summary(run(spec_changes=changes(*many)))


def test_hostile_text_is_text() -> None:
    texts = (HOSTILE, HOSTILE.replace("\n", " "))
    gate = changes(*(SpecChange(text, "changed", (text,)) for text in texts), base_name=HOSTILE)
    compared = baseline(
        *(difference(spec=text, scenario=text, params={text: text}, invariant=text) for text in texts),
        source=HOSTILE,
        changed_specs=texts,
    )
    for result in (run(spec_changes=gate, baseline=compared), run(spec_changes=changes(problem=HOSTILE))):
        text = render_summary(result)
        found = {token.type for token in tokens(text)}
        assert not found & {"image"}
        assert {token.attrs["href"] for token in tokens(text) if token.type == "link_open"} <= OUR_PAGES
        html = [token.content for token in tokens(text) if token.type in ("html_inline", "html_block")]
        assert not any("script" in one or "<img" in one for one in html)
        assert "PASSED" in shown(text)
        page = render(result, "html")
        assert page.count("<script") == 3, "its own"
        assert "<script>alert" not in page
        assert "<img" not in page
        stream = io.StringIO()
        console.print_table(result, stream)
        console.print_verdict(result, stream)
        assert not any(line.lstrip().startswith(("::error", "::set-output")) for line in stream.getvalue().splitlines())
        assert "\x1b[32m" not in stream.getvalue()


def test_both_are_read_back_as_they_were_written() -> None:
    workflow = SpecChange(".github/workflows/evals.yml", "changed", ("threshold 0.85 → 0.5",))
    gate = replace(WEAKER, workflows=(workflow,), incomplete="only this push was compared")
    result = run(spec_changes=gate, baseline=baseline(difference()))
    document = run_to_document(result)
    again = run_from_document(document)
    assert (again.spec_changes, again.baseline) == (result.spec_changes, result.baseline)
    assert render_results(again) == render_results(result)
    older = {key: value for key, value in document.items() if key not in ("spec_changes", "baseline")}
    assert run_from_document(older).baseline is None
