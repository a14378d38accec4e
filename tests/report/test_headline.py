"""The first line, what stands first below it, and the line that says how to run it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown import OUR_PAGES, tokens
from samples import flaky, matrix
from support.sample_parts import AGENT, cell, check, run, spec

from keystone_action.report.again import MAX_COMMAND, command_again
from keystone_action.report.comment.history import Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.junit import render_junit
from keystone_action.report.sentences.causes import failures
from keystone_action.report.sentences.headline import headline
from keystone_action.report.sentences.view import reasons, spec_views
from keystone_action.report.summary import render_summary
from keystone_action.scoring.aggregate import decide_run, decide_spec
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import CellResult, ForbiddenResult, InvariantResult, PlanInfo, RunResult

SPEC = "reconcile-customers"
GATE: dict[str, Any] = {"gate": True, "score": 0.0}


def failing(
    *checks: InvariantResult, reason: str = "composite 0.20 is below the threshold 0.85", **more: Any
) -> RunResult:
    one = cell(SPEC, *checks, verdict="fail", composite=0.2, reason=reason, **more)
    counts = {"cells": 1, "passed": 0, "failed": 1, "errors": 0}
    return run(spec(SPEC, one, verdict="fail", composite=0.2), verdict="fail", composite=0.2, counts=counts)


def replicas(*cells: CellResult, **more: Any) -> RunResult:
    failed = sum(one.verdict == "fail" for one in cells)
    counts = {"cells": len(cells), "passed": len(cells) - failed, "failed": failed, "errors": 0}
    return run(spec(SPEC, *cells, verdict="fail", **more), verdict="fail", counts=counts)


def bad(number: int, message: str = "2 customers differ") -> CellResult:
    failed = check("clean", "fail", message=message, **GATE)
    return replace(cell(f"{SPEC}.r{number}", failed, verdict="fail", composite=0.0), replica=number, scenario=SPEC)


def test_it_names_product_spec_and_verdict_with_its_reason() -> None:
    line = headline(failing(check("clean", "fail", message="2 customers differ")))
    assert line == "Keystone: reconcile-customers failed: 2 customers differ (clean)"


def test_what_broke_beside_a_failure_and_how_often_cells_ran_stand_before_the_reason() -> None:
    failed, broke = check("clean", "fail", message="2 customers differ"), check("script", "error", message="no file")
    line = headline(failing(failed, broke))
    assert line == "Keystone: reconcile-customers failed (1 check broke): 2 customers differ (clean)"
    line = headline(failing(failed, broke, replace(broke, name="other"), attempts=3))
    assert line == "Keystone: reconcile-customers failed (2 checks broke; 3 tries): 2 customers differ (clean)"
    line = headline(replicas(replace(bad(0), attempts=2), bad(1), replace(bad(2), attempts=0)))
    assert line.startswith("Keystone: reconcile-customers failed in 3 of 3 cells (3 tries of 2 cells): ")
    assert headline(run(spec(SPEC, cell(SPEC, check("clean"), attempts=2)))).endswith(" passed (2 tries): 1 of 1 check")


def test_a_shard_without_a_cell_says_so_and_is_no_error() -> None:
    plan = PlanInfo("2/3", 5, "d" * 64, {SPEC: "0" * 64})
    assert headline(run(plan=plan)) == "Keystone: shard 2/3 has none of the 5 cells of this run"
    assert headline(run(plan=plan, error="no engine", verdict="error")) == "Keystone: error: no engine"
    assert headline(run()) == "Keystone: error: nothing was graded"


def test_a_check_that_broke_in_a_cell_in_error_is_its_reason_and_not_counted_beside_it() -> None:
    broke = cell(SPEC, check("script", "error"), verdict="error", composite=None, error="check script broke: no file")
    line = headline(run(spec(SPEC, broke, verdict="error", composite=None), verdict="error", composite=None))
    assert line == "Keystone: reconcile-customers ended with an error: check script broke: no file"


@pytest.mark.parametrize(
    ("checks", "first"),
    [
        (
            [check("light", "fail", weight=0.1, message="a"), check("heavy", "fail", weight=2.0, message="b")],
            "b (heavy)",
        ),
        ([check("heavy", "fail", weight=9.0, message="a"), check("gate", "fail", message="b", **GATE)], "b (gate)"),
        (
            [check("half", "fail", 0.5, weight=1.0, message="a"), check("all", "fail", 0.0, weight=0.9)],
            "exit code 0 (all)",
        ),
    ],
)
def test_failing_gates_come_first_and_then_what_lost_most_weight(checks: list[InvariantResult], first: str) -> None:
    result = failing(*checks)
    assert headline(result) == f"Keystone: {SPEC} failed: {first}, and 1 more check"
    (item,) = spec_views(result)
    assert item.rows[0].name == first.partition("(")[2].rstrip(")")
    assert [one.name for one in item.failures[0].checks] == [row.name for row in item.rows]


def test_what_is_no_checks_doing_is_the_reason_itself() -> None:
    said = "the agent ended with exit code 3, and must_exit_zero is true"
    assert headline(failing(check("clean", "fail"), reason=said)).endswith(f"failed: {said}")
    rule = ForbiddenResult("secrets_in_logs", violated=True, details="x")
    assert headline(failing(check("clean", "fail"), forbidden=(rule,))).endswith(
        "forbidden rule secrets_in_logs was violated: x"
    )


def test_a_limit_that_stopped_the_agent_comes_before_what_the_checks_found() -> None:
    agent = replace(
        AGENT, exit_code=None, stopped="memory", note="was stopped at a limit (memory: 64 MiB); it had a cold"
    )
    stopped = "the agent was stopped at a limit (memory: 64 MiB)"
    result = failing(check("sum", "fail", message="found 2, expected 0"))
    [[failed]] = (one.cells for one in result.specs)
    one = replace(result, specs=(replace(result.specs[0], cells=(replace(failed, agent=agent),)),))
    assert f"{stopped}; found 2, expected 0 (sum)" in headline(one)
    assert "stopped" not in headline(result)
    (reason,), _ = reasons(one)
    assert reason.text.startswith(f"{stopped}; ")
    forced = replace(failed, agent=agent, reason=f"{stopped}, and must_exit_zero is set")
    again = replace(result, specs=(replace(result.specs[0], cells=(forced,)),))
    assert headline(again).count("stopped") == 1


def test_several_cells_are_counted() -> None:
    assert headline(replicas(bad(0), bad(1), cell(f"{SPEC}.r2", check("clean")))) == (
        f"Keystone: {SPEC} failed in 2 of 3 cells: 2 customers differ (clean)"
    )
    assert headline(flaky()) == "Keystone: fix-tests passed, but is flaky: 2 of 3 cells"
    assert headline(matrix()).startswith("Keystone: crud (1 of 2 specs) failed in 2 of 13 cells: ")


def test_a_pass_says_what_held_and_never_a_number_that_contradicts_it() -> None:
    one = cell(SPEC, check("a"), check("b", "skip"))
    assert headline(run(spec(SPEC, one))) == f"Keystone: {SPEC} passed: 1 of 1 check"
    low = replace(cell(SPEC, check("a"), check("b", "fail", weight=0.1)), composite=0.8496)
    passed = replace(spec(SPEC, low), pass_threshold=0.8495)
    assert headline(run(passed)) == f"Keystone: {SPEC} passed: composite 0.85, needs 0.8495"


def test_what_ended_before_any_cell_says_why() -> None:
    broken = run(verdict="error", composite=None, error="keystone.yaml:1:1: unknown key\nmore")
    assert headline(broken) == "Keystone: error: keystone.yaml:1:1: unknown key"
    assert headline(replace(broken, cancelled=True, error=None)) == "Keystone: cancelled: 0 cells had finished"


@given(st.text(max_size=300), st.text(max_size=300))
def test_it_is_short_whatever_the_names(name: str, message: str) -> None:
    line = headline(failing(check(name, "fail", message=message)))
    assert len(line) < 500
    assert len(line.splitlines()) == 1


def test_equal_failures_of_replicas_are_shown_once_with_their_number() -> None:
    alike, other = [bad(number) for number in range(3)], bad(3, "3 customers differ")
    result = replicas(*alike, other)
    assert [(one.cell.replica, one.number) for one in failures([*alike, other])] == [(0, 3), (3, 1)]
    shown = render_summary(result)
    assert shown.count("<details open>") == 2
    assert "<b>reconcile-customers.r0</b> and 2 more replicas, for the same reason" in shown
    written = render_comment(result, Marker.of_key("k"), CommentFacts())
    assert written.count("<details>") == 2
    assert "<b>reconcile-customers.r0</b> and 2 more replicas, for the same reason" in written


def test_failures_that_differ_in_anything_that_is_said_are_shown_apart() -> None:
    """The honest twin: reasons, scores and messages count; how long it took and what the agent printed does not."""
    one = bad(0)
    others = [
        replace(one, reason="other"),
        replace(one, error="other"),
        replace(one, forbidden=(ForbiddenResult("tools", violated=True, details="x"),)),
        replace(one, invariants=(check("clean", "fail", 0.5, gate=True),)),
    ]
    assert len(failures([one, *others])) == 5
    assert len(failures([one, replace(one, params={"model": "b"}), replace(one, scenario="other")])) == 1
    assert len(failures([one, replace(one, duration_s=9.0, agent=replace(AGENT, output="x"))])) == 1


def test_each_check_leads_to_its_line_of_the_spec() -> None:
    result = failing(check("clean", "fail"), check("unknown", "fail"))
    result = replace(result, specs=(replace(result.specs[0], positions={"clean": 12}),))
    url = "https://github.com/octo/agents/blob/" + "2" * 40 + "/evals/a%20b.yaml"
    for text in (
        render_summary(result, links={SPEC: url}),
        render_comment(result, Marker.of_key("k"), CommentFacts(links={SPEC: url})),
    ):
        assert f"[`clean`]({url}#L12)" in text
        assert "❌ `unknown`" in text
    for harmful in (
        "",
        "javascript:alert(1)",
        "https://x.example/a)![i](https://evil.example",
        "https://x.example/a b",
    ):
        written = render_summary(result, links={SPEC: harmful})
        assert {one.attrs["href"] for one in tokens(written) if one.type == "link_open"} <= OUR_PAGES


@pytest.mark.parametrize(
    ("result", "command"),
    [
        (failing(check("a", "fail")), f"keystone run evals/{SPEC}/keystone.yaml"),
        (replicas(bad(0), cell(f"{SPEC}.r1")), f"keystone run evals/{SPEC}/keystone.yaml --filter {SPEC}.r0"),
        (matrix(), "keystone run evals/crud/keystone.yaml --param model=small --filter rename"),
        (run(verdict="error", composite=None, error="bad"), ""),
    ],
)
def test_how_to_run_it_again(result: RunResult, command: str) -> None:
    assert command_again(result) == command
    assert (f"Run it again:\n\n```sh\n{command}\n```\n" in render_summary(result)) == bool(command)


def test_what_the_run_was_asked_is_asked_again() -> None:
    chosen = ("tag smoke", "filter a*", "param model=a b", "param size=3")
    result = replace(failing(check("a", "fail")), plan=PlanInfo(None, 1, "0" * 64, {}, chosen))
    result = replace(result, specs=(replace(result.specs[0], threshold_source="input", pass_threshold=0.9),))
    assert command_again(result) == (
        f"keystone run evals/{SPEC}/keystone.yaml --tag smoke --param 'model=a b' --param size=3 --threshold 0.9 "
        "--filter 'a*'"
    )


@pytest.mark.parametrize("path", ["-x.yaml", "a\nb.yaml", "a\u202eb.yaml", "x" * MAX_COMMAND, "a; rm -rf ~", "$(id)"])
def test_no_path_makes_it_another_command(path: str) -> None:
    result = failing(check("a", "fail"))
    command = command_again(replace(result, specs=(replace(result.specs[0], path=path),)))
    assert command in ("", "keystone run ./-x.yaml", "keystone run 'a; rm -rf ~'", "keystone run '$(id)'")


def shared(*verdicts: Verdict, rate: str = "0.9") -> RunResult:
    """One scenario for each, whose check is the gate `clean`."""
    cells = []
    for index, verdict in enumerate(verdicts):
        made = bad(0) if verdict == "fail" else cell(SPEC, *([check("clean")] if verdict == "pass" else []))
        composite, error = (None, "service db did not start") if verdict == "error" else (made.composite, None)
        one = replace(made, id=f"{SPEC}.s{index}.r0", scenario=f"s{index}", verdict=verdict)
        cells.append(replace(one, composite=composite, error=error))
    decided = decide_spec(spec(SPEC, scenarios=f"at least {rate}", pass_threshold=0.9), cells)
    return decide_run(run(decided), [decided])


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["pass"] * 17 + ["fail"] * 3, " failed: 17 of 20 scenarios pass, needs 0.9: 2 customers differ (clean)"),
        (["pass"] * 18 + ["fail"] * 2, " passed: 18 of 20 scenarios pass, needs 0.9"),
        (["pass"] * 18 + ["error"] * 2, " passed (2 cells in error): 18 of 20 scenarios pass, 2 in error, needs 0.9"),
        (
            ["pass"] * 16 + ["fail"] * 3 + ["error"],
            " failed (1 cell in error): 16 of 20 scenarios pass, 1 in error, needs 0.9: 2 customers differ (clean)",
        ),
        (
            ["pass"] * 17 + ["fail"] * 2 + ["error"],
            " ended with an error: 17 of 20 scenarios pass, 1 in error, needs 0.9: service db did not start",
        ),
        (["fail"], " failed: 0 of 1 scenario passes, needs 0.9: 2 customers differ (clean)"),
    ],
)
def test_a_share_of_the_scenarios_is_what_the_first_line_says(verdicts: list[Verdict], said: str) -> None:
    assert headline(shared(*verdicts)) == f"Keystone: {SPEC}{said}"


@pytest.mark.parametrize("passed", [16, 17, 18, 20])
def test_where_a_share_decides_no_composite_is_compared_with_anything(passed: int) -> None:
    """Of 18 passes of 20 the mean composite is 0.90, and so is the threshold: neither has decided anything."""
    result = shared(*(["pass"] * passed + ["fail"] * (20 - passed)))
    pages = [render_summary(result), *spec_facts(result), render_junit(result)]
    assert not any("needs 0.90" in page for page in pages)
    assert f"{passed} of 20 scenarios pass, needs 0.9 (95% interval " in "".join(spec_facts(result))
    assert "scenarios pass, needs 0.9" in pages[-1]


def spec_facts(result: RunResult) -> list[str]:
    return [fact for view in spec_views(result) for fact in view.facts]


def test_a_share_that_nobody_knows_is_left_out_of_a_foreign_report() -> None:
    result = shared("pass", "fail")
    foreign = replace(result, specs=tuple(replace(one, scenarios="at least 7") for one in result.specs))
    assert "scenarios" not in headline(foreign)
