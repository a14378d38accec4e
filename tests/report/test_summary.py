"""The job summary: the verdict first, what decided next, and nothing of others that acts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import ChoiceLoader, DictLoader
from markdown import LINKED_BY_THE_FORGE, OUR_PAGES, tokens
from samples import SAMPLES, flaky, gate_failure, high_composite_failure, passing
from support.sample_parts import AGENT, HOSTILE, cell, check, run, spec

from keystone_action.report import words
from keystone_action.report.addresses import Terms, word_page
from keystone_action.report.sentences import view
from keystone_action.report.sentences.headline import headline
from keystone_action.report.summary import render_summary
from keystone_action.report.templating import markdown_environment
from keystone_action.scoring.results import AgentResult, GroupResult, RunResult, SandboxInfo

OUR_HTML = re.compile(
    r"<details( open)?>\n<summary>[^<>]*(<b>([^<>]|</?code>)*</b>)?[^<>]*(<code>[^<>]*</code>)?[^<>]*</summary>\n"
    r"|</details>\n|<br>|</?sub>"
)


def assert_harmless(text: str) -> None:
    found = list(tokens(text))
    foreign = [t.content for t in found if t.type.startswith("html_") and not OUR_HTML.fullmatch(t.content)]
    assert foreign == []
    assert not {t.type for t in found} & {"image", "s_open", "hr", "code_block", "em_open"}
    assert {t.attrs["href"] for t in found if t.type == "link_open"} <= OUR_PAGES
    assert not [t.content for t in found if t.type == "text" and LINKED_BY_THE_FORGE.search(t.content)]
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def headings(text: str) -> int:
    return sum(token.type == "heading_open" for token in tokens(text))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_is_the_first_line_and_nothing_acts(name: str) -> None:
    result = SAMPLES[name]()
    text = render_summary(result)
    assert text.startswith("## ")
    assert re.search(r"Keystone: .*(passed|failed|error|cancelled)", text.split("\n", 1)[0])
    bad = [spec for spec in result.specs if spec.verdict != "pass"]
    assert headings(text) == 1 + (len(bad) if len(result.specs) > 1 else 0)
    assert_harmless(text)


NASTY = st.lists(st.sampled_from([*HOSTILE.splitlines(), "`", "|", "\\", "\n", "\n\n", "x", "    y"]), max_size=6).map(
    "\n".join
) | st.text(alphabet="`*_[]<>#@|\\~!-+=.:\n a1", max_size=40)


@settings(max_examples=3 * settings().max_examples // 5, deadline=None)
@given(NASTY, NASTY, NASTY)
def test_no_text_of_others_acts_wherever_it_comes_from(name: str, message: str, output: str) -> None:
    bad = cell(
        f"c{name}",
        check(name or "n", "fail", message=message, description=output),
        check("e", "error", message=output),
        check("s", "skip", message=message),
        verdict="error",
        composite=None,
        reason=message,
        error=output,
        agent=AgentResult(1, timed_out=False, duration_s=1, output=output, note=message),
        notices=(message,),
    )
    good = cell("good", check("g", message=output), agent=replace(AGENT, output=message))
    text = render_summary(
        run(spec(f"s{name}", bad, good, verdict="error", description=output), verdict="error", notices=(output,))
    )
    assert headings(text) == 1
    assert_harmless(text)


def test_a_failed_gate_is_named_with_its_output_opened() -> None:
    text = render_summary(gate_failure())
    head, rest = text.split("<details", 1)
    assert "\n❌ gate tests_pass scored 0.00, and a gate needs 1.00\n" in head
    assert rest.startswith(" open>")
    assert "AssertionError: 3 != 4" in rest
    assert "set by the threshold input" in head


def test_a_high_composite_that_fails_says_what_decided() -> None:
    head = render_summary(high_composite_failure()).split("| | Invariant")[0]
    assert "The composite alone would pass; what decides is:" in head
    assert "`fix-tests.r9`: gate tests_pass scored 0.00" in head
    assert "alone would pass" not in render_summary(gate_failure())


def test_flaky_is_said() -> None:
    head = render_summary(flaky()).split("| | Invariant")[0]
    assert "passed, but is flaky" in head
    assert "flaky: 2 of 3 replicas passed" in head


def test_passes_are_folded() -> None:
    assert "<details open>" not in render_summary(passing())


def test_what_was_skipped_substituted_or_not_enforced_is_in_the_head() -> None:
    head = render_summary(SAMPLES["skipped_judge"]()).split("| | Invariant")[0]
    for said in ("Skipped: email_quality", "Substituted: service db", "Not enforced: ", "shard 1/2"):
        assert said in head


def test_an_isolation_of_nothing_is_never_silent() -> None:
    result = passing()
    bare = replace(result, sandbox=replace(result.sandbox, isolation=("none",)))
    assert "Nothing isolated the agent" in render_summary(bare)


def many_failures(count: int, output: str) -> RunResult:
    agent = replace(AGENT, output=output)
    cells = [
        cell(
            f"c{n}",
            check("t", "fail", message=f"exit code {n}"),
            agent=agent,
            verdict="fail",
            composite=0.0,
            reason="gate t scored 0.00",
        )
        for n in range(count)
    ]
    good = [cell(f"g{n}", check("t")) for n in range(3)]
    return run(spec("many", *cells, *good, verdict="fail", composite=0.0), verdict="fail", composite=0.0)


def test_a_summary_above_the_limit_drops_the_passes_then_cuts() -> None:
    result = many_failures(20, "é" * 200 + "\n```\n")
    whole = render_summary(result)
    assert "✅ 3 cells passed" in whole
    without_passes = render_summary(result, limit=len(whole.encode()) - 1)
    assert "✅ 3 cells passed" not in without_passes
    assert "c19" in without_passes
    short = render_summary(result, limit=4000)
    assert len(short.encode()) <= 4000
    assert short.startswith("## ❌ Keystone: ")
    assert "Cut here" in short
    assert_harmless(short)


@pytest.mark.slow
def test_ten_thousand_failures_fit_into_a_job_summary() -> None:
    assert len(render_summary(many_failures(10_000, "boom " * 400)).encode()) <= 1_048_576


def test_a_template_of_a_user_extends_ours_by_blocks_and_stays_escaped() -> None:
    environment = markdown_environment()
    source = '{% extends "summary.md.j2" %}{% block head %}{{ super() }}Note: {{ result.run_id }}\n{% endblock %}'
    assert environment.loader is not None
    environment.loader = ChoiceLoader([DictLoader({"mine": source}), environment.loader])
    result = replace(gate_failure(), run_id="<b>*x*</b>")
    why, more = view.reasons(result)
    text = environment.get_template("mine").render(
        result=result,
        gate=None,
        baseline=None,
        icon=view.icon(result),
        headline=headline(result),
        facts=[],
        misleading=False,
        reasons=why,
        reasons_left_out=more,
        notes=[],
        notes_left_out=0,
        specs=view.spec_views(result),
        everything=True,
        prompts=True,
        max_passed=5,
        max_open=5,
        again="",
        spec_rows=[],
        spec_rows_left_out=0,
        report=None,
        terms=Terms(),
    )
    assert text.startswith("## ❌ Keystone: ")
    assert r"Note: \<b\>\*x\*\</b\>" in text


def test_a_reason_names_the_checks_that_cost_the_cell_its_score() -> None:
    low = "composite 0.50 is below the threshold 0.85"
    failed = cell("c", check("lint", "fail"), check("style", "fail", weight=0.0), check("ok"), verdict="fail")
    assert view.cell_reason(replace(failed, reason=low)) == f"{low}; failed: lint"
    assert view.cell_reason(replace(failed, reason="gate lint scored 0.00")) == "gate lint scored 0.00"
    many = cell("c", *(check(f"c{n}", "fail") for n in range(5)), verdict="fail", reason=low)
    assert view.cell_reason(many) == f"{low}; failed: c0, c1, c2 and 2 more"
    assert view.cell_reason(cell("c", verdict="error", error="db: gone\nlog")) == "db: gone"
    for name in ("composite", "threshold", "old", "0"):
        assert view.cell_reason(cell("c", check(name, "fail"), verdict="fail", reason=low)) == f"{low}; failed: {name}"
    ended = "the agent exited with 1, and must_exit_zero is set"
    assert view.cell_reason(cell("c", check("age", "fail"), verdict="fail", reason=ended)) == f"{ended}; failed: age"


def test_replicas_that_fail_alike_are_one_reason() -> None:
    cells = [cell(f"c.r{n}", replica=n, params={"size": "large"}, verdict="fail", reason="too slow") for n in range(3)]
    group = GroupResult("reconcile", {"size": "large"}, "fail", 0.5, 0, 3, "0 of 3 replicas passed, all must")
    found, more = view.reasons(run(spec("s", *cells, groups=(group,), verdict="fail"), verdict="fail"))
    assert more == 0
    (reason,) = found
    assert (reason.where, reason.text) == (
        ("size=large",),
        "0 of 3 replicas passed, all must; each: too slow",
    )


def test_many_failures_hide_nothing_that_is_flaky() -> None:
    groups = [GroupResult(f"g{n}", {}, "fail", 0.0, 0, 2, f"0 of {n} replicas passed") for n in range(9)]
    groups.append(GroupResult("wobbly", {}, "flaky", 0.5, 1, 2, "1 of 2 replicas passed"))
    found, more = view.reasons(run(spec("s", groups=tuple(groups), verdict="fail"), verdict="fail"))
    assert [reason.where for reason in found] == [("g0",), ("g1",), ("g2",), ("g3",), ("wobbly",)]
    assert more == 5


def test_a_run_that_never_came_to_a_sandbox_says_nothing_about_one() -> None:
    text = render_summary(run(verdict="error", composite=None, run_id="", error="spec a.yaml is missing\nlook there"))
    assert "sandbox" not in text
    assert "> spec a.yaml is missing<br>\n> look there\n" in text
    assert "· run" not in text


def test_a_run_cancelled_before_its_first_cell_says_nothing_about_isolation() -> None:
    early = run(spec("s"), verdict="error", composite=None, cancelled=True, sandbox=SandboxInfo())
    assert "isolated" not in render_summary(early)


def test_how_the_agent_ended_is_said_once() -> None:
    ended = AgentResult(3, timed_out=False, duration_s=1.0, output="", note="exited with 3")
    assert words.agent(ended) == "The agent ended with exit code 3 after 1.0 s."
    more = replace(ended, note="exited with 3; 2 of its processes outlived it and were killed")
    assert words.agent(more).endswith("code 3 after 1.0 s: 2 of its processes outlived it and were killed.")
    stopped = replace(ended, note="was stopped at a limit (2 GiB of memory)")
    assert words.agent(stopped).endswith("after 1.0 s: was stopped at a limit (2 GiB of memory).")
    limit = replace(ended, stopped="memory", note="was stopped at a limit (memory: 3 GiB used, 2 GiB allowed)")
    assert words.agent(limit) == "The agent was stopped by its limit on memory after 1.0 s: 3 GiB used, 2 GiB allowed."


def test_that_an_agent_which_passed_was_stopped_is_no_secret() -> None:
    agent = AgentResult(
        None, timed_out=False, stopped="disk", duration_s=1.0, output="", note="was stopped at a limit (disk: 2 GiB)"
    )
    told = "The agent was stopped at a limit (disk: 2 GiB)"
    stopped = render_summary(run(spec("s", replace(cell("c"), agent=agent))))
    assert stopped.count(told) == 1
    assert stopped.index(told) < stopped.index("<details")
    assert "stopped" not in render_summary(run(spec("s", cell("c"))))


def test_checks_are_counted_where_there_is_one_cell_and_those_that_fail_come_first() -> None:
    text = render_summary(
        run(spec("s", cell("c", check("a"), check("b", "skip"), check("c", "fail"), verdict="fail", composite=0.5)))
    )
    composite = f"[composite]({word_page('composite')})"
    assert f"`s` · 1 of 2 checks passed · 1 skipped · {composite} 1.00, needs 0.85 · 4.6 s\n" in text
    assert re.findall(r"^\| (.) `(\w)`", text, re.MULTILINE) == [("❌", "c"), ("➖", "b"), ("✅", "a")]


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-03-01T10:15:00Z\n", "2026-03-01T10:15:00+01:00", "٢026-03-01T10:15:00Z"]
)
def test_only_a_time_in_utc_is_said_to_be_one(text: str) -> None:
    assert words.moment(text) == text
    assert words.moment("2026-03-01T10:15:59.5Z") == words.moment("2026-03-01T10:15:00+00:00") == "2026-03-01 10:15 UTC"
