"""The comment's text: verdict and composite first, nothing of others acts, never too long, known by its last line."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown import LINKED_BY_THE_FORGE, OUR_PAGES, tokens
from samples import SAMPLES, passing
from support.sample_parts import HOSTILE, NO_LOGS, TESTS_FAIL, TESTS_PASS, cell, check, run, spec

from keystone_action.github.comment import SMALLER
from keystone_action.report.comment.history import (
    MAX_CHECKS,
    MAX_JOBS,
    MAX_REMEMBERED,
    Jobs,
    LastResult,
    Marker,
    Previous,
    changes_since,
)
from keystone_action.report.comment.render import (
    CommentFacts,
    CommentProgress,
    render_comment,
    render_running,
    render_superseded,
)
from keystone_action.report.ladder import COMMENT_LIMIT
from keystone_action.scoring.fields import Verdict
from keystone_action.scoring.results import AgentResult, RunResult, SandboxInfo

GOLDEN = Path(__file__).parent / "golden"
KEY = "octo/agents/.github/workflows/evaluate.yml@refs/pull/17/merge-__self-0"
MARKER = Marker.of_key(KEY)
RUN_URL = "https://github.com/octo/agents/actions/runs/6001/attempts/1"
FACTS = CommentFacts(sha="2" * 40, run_url=RUN_URL)
OUR_HTML = re.compile(
    r"<details( open)?>\n<summary>[^<>]*(<b>([^<>]|</?code>)*</b>)?[^<>]*</summary>\n|</details>\n|<br>|</?sub>"
    r"|<!-- keystone-action (remembers|comment): [A-Za-z0-9+/=]+ -->\n?"
    r"|<!-- keystone-action remembers: [A-Za-z0-9+/=]+ -->\n<!-- keystone-action comment: [0-9a-f]{32} -->\n?"
)
PARTS = [*"@#!`<>[]()|*_~&\\-=+:/ \n\t\r\x1b\u202e$.a1", "<!--", "-->", MARKER.line, "\n" + MARKER.line]
SKIPPED = check("b", "skip", message="no key")
ORIGIN = "This is what a run of code from mallory/agents says of itself."


def comment(result: RunResult, facts: CommentFacts = FACTS, **more: Any) -> str:
    return render_comment(result, MARKER, facts, **more)


def assert_harmless(text: str) -> None:
    """No HTML, image, mention, reference or link but ours, and no hidden line but the last ones."""
    found = list(tokens(text))
    foreign = [t.content for t in found if t.type.startswith("html_") and not OUR_HTML.fullmatch(t.content)]
    assert foreign == []
    assert not {t.type for t in found} & {"image", "s_open", "hr", "code_block", "em_open"}
    links = {t.attrs["href"] for t in found if t.type == "link_open"}
    assert links <= {RUN_URL, f"{RUN_URL}#artifacts", *OUR_PAGES}
    assert not [t.content for t in found if t.type == "text" and LINKED_BY_THE_FORGE.search(t.content)]
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
    assert text.count("<!--") == len(re.findall(r"^<!-- keystone-action ", text, re.MULTILINE)) <= 2


def before(**more: Any) -> LastResult:
    return replace(LastResult.of(passing(), "1" * 40), **more)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_comment_is_as_reviewed(name: str) -> None:
    path = GOLDEN / name / "comment.md"
    text = comment(SAMPLES[name](), replace(FACTS, before=before()))
    if os.environ.get("KEYSTONE_UPDATE_GOLDEN"):
        path.write_bytes(text.encode())
    assert text == path.read_bytes().decode()


@pytest.mark.parametrize("name", SAMPLES)
def test_product_and_verdict_come_first_and_nothing_acts(name: str) -> None:
    result = SAMPLES[name]()
    text = comment(result, replace(FACTS, origin=ORIGIN))
    first = text.split("\n", 1)[0]
    assert re.match(r"## (✅|❌|⚠️|💥|⏹️) Keystone: ", first)
    assert re.search("passed|failed|error|cancelled", first)
    assert f"[run]({RUN_URL})" in text
    assert_harmless(text)
    assert MARKER.is_in(text)


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://x.example/a)b", "https://x.example/ y", "http://a@b/c", "//x", "https://"]
)
def test_no_address_but_a_plain_one_is_linked(url: str) -> None:
    found = [t.attrs["href"] for t in tokens(comment(passing(), replace(FACTS, run_url=url))) if t.type == "link_open"]
    assert set(found) <= OUR_PAGES


def test_an_address_of_a_comment_is_linked_where_it_is_plain() -> None:
    assert "(https://github.com/o/r/pull/1#issuecomment-5)" in render_superseded(
        "https://github.com/o/r/pull/1#issuecomment-5"
    )
    assert "](" not in render_superseded("https://github.com/o/r/pull/1#x)![i](//evil")


@settings(max_examples=3 * settings().max_examples // 5, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
def test_text_of_others_is_only_text(text: str) -> None:
    bad = cell(
        f"c {text}",
        check(f"n {text}", "fail", message=text, description=text),
        verdict="fail",
        composite=0.0,
        reason=text,
        agent=AgentResult(1, timed_out=False, duration_s=1.0, output=text, stderr=text),
    )
    result = run(
        spec("s", bad, verdict="fail", composite=0.0), verdict="fail", composite=0.0, notices=(text,), error=text
    )
    written = comment(result, replace(FACTS, origin=text))
    assert_harmless(written)
    assert written.count(MARKER.line) == 1


def big(cells: int, message: str) -> RunResult:
    failed = [
        cell(
            f"c{n}",
            check("tests", "fail", message=message),
            verdict="fail",
            composite=0.0,
            reason=message,
            agent=AgentResult(1, timed_out=False, duration_s=1.0, output=message),
        )
        for n in range(cells)
    ]
    return run(
        *(spec(f"s{n}", one, verdict="fail", composite=0.0) for n, one in enumerate(failed)),
        verdict="fail",
        composite=0.0,
    )


def test_of_many_failing_checks_most_are_folded() -> None:
    failed = [check(f"c{n}", "fail", message="broken") for n in range(60)]
    one = cell("c", *failed, verdict="fail", composite=0.0, agent=None)
    text = comment(run(spec("s", one, verdict="fail", composite=0.0), verdict="fail", composite=0.0))
    shown, _, folded = text.partition("<details>\n<summary>30 more failing checks</summary>\n")
    assert shown.count("| ❌ ") == 10
    assert folded.partition("</details>")[0].count("| ❌ ") == 30
    assert "</details>\n\n… and 20 more in the job summary.\n" in folded


def test_many_specs_are_one_table_and_those_that_passed_are_folded() -> None:
    text = comment(big(60, "broken"))
    assert text.count("\n| ❌ ") == 40
    assert "\n… and 20 more in the job summary.\n" in text
    result = big(3, "broken")
    result = run(*result.specs, *(spec(f"p{n}", cell(f"p{n}", TESTS_PASS)) for n in range(37)), verdict="fail")
    shown, _, folded = comment(result).partition("<summary>✅ 37 specs passed</summary>\n")
    assert shown.count("\n| ❌ ") == 3
    assert folded.partition("</details>")[0].count("\n| ✅ ") == 37
    assert "evals/p36/keystone.yaml | 1/1 · 1.00 |" in folded


@pytest.mark.parametrize("limit", [COMMENT_LIMIT, 16_384, 6_000])
@pytest.mark.parametrize(
    "message", ["é\n" * 5_000, "```\n" * 3_000, "<!-- x " * 3_000, "|\n@a " * 3_000, "🧑‍🚀\n" * 3_000]
)
def test_a_comment_is_never_too_long(limit: int, message: str) -> None:
    text = comment(big(60, message), limit=limit)
    assert len(text.encode()) <= limit  # whichever way characters are counted, they are no more than these
    assert text.startswith("## ❌ Keystone: ")
    assert MARKER.is_in(text)
    assert text.count("<details") == text.count("</details>")


def test_only_the_last_line_tells_a_comment() -> None:
    assert MARKER.is_in(f"text\n\n{MARKER.line}\n")
    assert MARKER.is_in(f"text\r\n\r\n{MARKER.line}\r\n \n")
    for body in ("", MARKER.line, f"{MARKER.line}\ntext", f"text {MARKER.line}", f"text\n{MARKER.line} text"):
        assert not MARKER.is_in(body)
    assert not Marker.of_key("other").is_in(comment(passing()))


@given(st.text(max_size=50), st.text(max_size=50))
def test_two_keys_have_two_markers(one: str, other: str) -> None:
    assert (Marker.of_key(one) == Marker.of_key(other)) == (one == other)
    assert re.fullmatch("<!-- keystone-action comment: [0-9a-f]{32} -->", Marker.of_key(one).line)


def test_what_is_remembered_comes_back() -> None:
    result = SAMPLES["matrix"]()
    text = comment(result)
    found = LastResult.decode(MARKER.memory(text))
    assert found == LastResult.of(result, FACTS.sha)
    assert changes_since(found, result) is not None
    assert "nothing changed" in comment(result, replace(FACTS, before=found))


def test_what_changed_is_said_by_name() -> None:
    old = run(
        spec("s", cell("c", TESTS_FAIL, check("a"), check("old"), verdict="fail", composite=0.0)),
        verdict="fail",
        composite=0.0,
    )
    new = run(
        spec("s", cell("c", TESTS_PASS, check("a", "fail"), NO_LOGS, verdict="fail", composite=0.5)),
        verdict="fail",
        composite=0.5,
    )
    text = comment(new, replace(FACTS, before=LastResult.of(old, "1" * 40)))
    (line,) = [line for line in text.splitlines() if "Since the last comment" in line]
    assert "(`1111111`)" in line
    assert "composite 0.00 → ❌ Failed, composite 0.50" in line
    assert "fixed: `tests_pass`; broken: `a`; new: `no_debug_logs`; 1 check gone" in line


def test_what_is_skipped_from_now_on_is_no_nothing() -> None:
    """The composite may stay as it is."""
    graded, skipped = run(spec("s", cell("c", check("a"), check("b")))), run(spec("s", cell("c", check("a"), SKIPPED)))
    text = comment(skipped, replace(FACTS, before=LastResult.of(graded, "")))
    assert "→ ✅ Passed, composite 1.00; now skipped: `b`" in text
    text = comment(graded, replace(FACTS, before=LastResult.of(skipped, "")))
    assert "→ ✅ Passed, composite 1.00; no longer skipped: `b`" in text


def test_what_was_not_enforced_is_not_crowded_out() -> None:
    checks = (check(f"n{n} {'x' * 5_000}", "fail", message="m " * 5_000, description="d " * 5_000) for n in range(40))
    bad = cell("c " * 5_000, *checks, verdict="fail", composite=0.0)
    sandbox = SandboxInfo("process", ("none",), "watched", not_enforced=("the network is open",))
    text = comment(run(spec("s" * 5_000, bad, verdict="fail"), verdict="fail", composite=0.0, sandbox=sandbox))
    assert "Not enforced: the network is open" in text
    assert "commit `2222222`" in text
    assert_harmless(text)


@pytest.mark.parametrize("name", ["usage_error", "cancelled"])
def test_a_run_that_judged_nothing_leaves_what_was_known(name: str) -> None:
    text = comment(SAMPLES[name](), replace(FACTS, before=before()))
    assert LastResult.decode(MARKER.memory(text)) == before()
    assert "Since the last comment" not in text
    alone = comment(SAMPLES[name]())
    assert LastResult.decode(MARKER.memory(alone)) is None
    assert [Previous.read(one, MARKER).commit for one in (text, alone)] == [FACTS.sha, FACTS.sha]
    assert MARKER.memory(comment(SAMPLES[name](), CommentFacts(sha="HEAD"))) == ""


def test_of_very_many_checks_only_the_verdict_is_remembered() -> None:
    many = run(spec("s", cell("c", *(check(f"n{n}") for n in range(MAX_CHECKS + 1)))))
    found = LastResult.of(many, "")
    assert found.checks is None
    assert changes_since(found, many) is not None
    most = run(spec("s", cell("c", *(check(f"n{n}") for n in range(MAX_CHECKS)))))
    ended: dict[str, tuple[int, Verdict]] = {f"{number:012x}": (99_999, "error") for number in range(2 * MAX_JOBS)}
    jobs = Jobs("9" * 20, "0" * 12, ended)
    assert len(LastResult.of(most, "1" * 64).encode(commit="2" * 64, jobs=jobs)) <= MAX_REMEMBERED < SMALLER
    assert LastResult.decode(LastResult.of(most, "1" * 64).encode()) == LastResult.of(most, "1" * 64)


def encoded(**changed: Any) -> str:
    document = {"v": 1, "verdict": "pass", "composite": 1.0, "sha": "", "checks": {"A" * 12: "p"}}
    return base64.b64encode(json.dumps({**document, **changed}).encode()).decode()


def test_a_whole_document_is_read() -> None:
    assert LastResult.decode(encoded()) == LastResult("pass", 1.0, "", {"A" * 12: "pass"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "AAAA",
        "A" * (MAX_REMEMBERED + 4),
        base64.b64encode(b"[" * 9_000).decode(),
        base64.b64encode(b"[]").decode(),
        encoded(v=2),
        encoded(verdict="great"),
        encoded(verdict=["pass"]),
        encoded(composite=2),
        encoded(composite=True),
        encoded(composite=float("nan")),
        encoded(composite="1"),
        encoded(sha="HEAD"),
        encoded(sha=None),
        encoded(checks=[]),
        encoded(checks={"": "p"}),
        encoded(checks={"<img>": "p"}),
        encoded(checks={"A" * 12: "x"}),
        encoded(checks={"A" * 12: None}),
        encoded(checks={f"{n:012}": "p" for n in range(MAX_CHECKS + 1)}),
    ],
)
def test_what_was_not_written_by_us_is_not_remembered(text: str) -> None:
    assert LastResult.decode(text) is None


def commit_in(memory: str) -> str:
    return Previous.read(MARKER.sign("text", memory), MARKER).commit


def test_the_commit_of_a_comment_is_a_commit_or_nothing() -> None:
    assert commit_in(encoded(sha="1" * 40)) == "1" * 40
    assert commit_in(encoded(sha="1" * 40, commit="2" * 40)) == "2" * 40
    for text in ("", "!", encoded(commit="HEAD"), encoded(commit=["x"]), encoded(commit={}, sha=None), encoded(v=2)):
        assert commit_in(text) == ""


@given(st.binary(max_size=200))
def test_no_memory_breaks_the_reader(content: bytes) -> None:
    LastResult.decode(base64.b64encode(content).decode())
    LastResult.decode(content.decode("latin-1"))
    commit_in(base64.b64encode(content).decode())


def test_only_the_line_before_the_marker_is_a_memory() -> None:
    real, forged = encoded(), encoded(verdict="fail")
    body = f"<!-- keystone-action remembers: {forged} -->\ntext\n{MARKER.line}\n"
    assert MARKER.memory(body) == ""
    assert MARKER.memory(MARKER.sign(f"<!-- keystone-action remembers: {forged} -->", real)) == real
    assert MARKER.memory(body.replace(MARKER.line, "")) == ""


def test_a_running_comment_says_how_far_and_keeps_the_last_result() -> None:
    text = render_running(CommentProgress(12, 3, 1, 95.0), MARKER, replace(FACTS, before=before()))
    assert text.startswith("## ⏳ Running: 4 of 12 cells finished\n")
    assert "3 passed, 1 did not · 1 min 35 s" in text
    assert "`1111111`, was: ✅ Passed, composite 0.96" in text
    assert LastResult.decode(MARKER.memory(text)) == before()
    assert_harmless(text)
    assert "The last result" not in render_running(CommentProgress(1), MARKER, FACTS)
    assert "6,612 of 10,005 cells finished" in render_running(CommentProgress(10_005, 6_000, 612), MARKER, FACTS)


def test_the_hostile_sample_reaches_the_comment() -> None:
    """So that what is said of it above is said of something."""
    text = comment(SAMPLES["hostile"]())
    assert "closes" in text
    assert "evil.example" in text
    assert "\n<!- - comment\n" in text
    assert HOSTILE not in text
