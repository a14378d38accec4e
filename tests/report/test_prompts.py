"""What an agent was asked stands in summary and page, where it takes no other's room, and in no comment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.sample_parts import AGENT, cell, check, run, spec

from keystone_action.report.author_summary import render_author_summary
from keystone_action.report.comment.history import Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.page.render import render_html
from keystone_action.report.sentences.view import asked
from keystone_action.report.summary import NO_PROMPTS, render_summary
from keystone_action.scoring.results import RunResult

LONG = ["Please mend the shop. " * 300, "直してください。" * 800]
NOTE = f"ℹ️ {NO_PROMPTS}\n\n"


def failures(cells: int, *prompts: str) -> RunResult:
    """Cells that failed, each for a reason of its own, and one that passed."""
    found = [
        cell(
            f"c{n}",
            check("t", "fail", message=f"exit code {n}\nout"),
            agent=replace(AGENT, output=f"said {n}\n"),
            verdict="fail",
            composite=0.0,
            reason=f"gate t scored 0.0{n}",
            prompts=prompts,
        )
        for n in range(cells)
    ]
    good = cell("good", check("t"), prompts=prompts)
    return run(spec("s", *found, good, verdict="fail", composite=0.0), verdict="fail", composite=0.0)


def comment(result: RunResult) -> str:
    return render_comment(result, Marker("key"), CommentFacts())


@pytest.mark.parametrize("text", LONG)
def test_a_comment_has_no_prompts_and_all_its_details(text: str) -> None:
    found = comment(failures(10, *[text] * 10))
    assert found == comment(failures(10))
    assert found.count("<details>") == 10
    assert text[:8] not in found


@pytest.mark.parametrize("text", LONG)
def test_of_a_summary_prompts_give_way_before_anything_else(text: str) -> None:
    asked_much, asked_nothing = failures(10, *[text] * 10), failures(10)
    whole = render_summary(asked_nothing)
    assert render_summary(asked_much).count("Turn 10:") == 10
    limit = len((whole + NOTE).encode())
    narrow = render_summary(asked_much, limit=limit)
    assert narrow.replace(NOTE, "") == whole
    assert NOTE in narrow
    narrower = render_summary(asked_much, limit=limit - 1)
    assert "✅ 1 cell passed" not in narrower
    assert [f"said {n}\n" in narrower for n in range(10)] == [True] * 10
    template = '{% extends "summary.md.j2" %}{% block footer %}{{ prompts }} {{ everything }}{% endblock %}'
    ends = [render_author_summary(template, "t", asked_much, limit=limit) for limit in (1 << 20, limit, 9_000)]
    assert [end.rsplit("\n", 1)[1] for end in ends[:2]] == ["True True", "False True"]
    assert NOTE in ends[2]


def test_what_was_asked_is_bounded_for_all_turns_together() -> None:
    shown = asked(["x" * 9_000, "short", *["y" * 9_000] * 20], lines=12, characters=3_000)
    assert [title for title, _ in shown] == ["Prompt", *(f"Turn {n}" for n in range(2, 11)), "More"]
    assert sum(len(text) for _, text in shown) < 3_000 + 11 * 60
    assert shown[1][1] == "short"
    assert shown[-1][1] == "12 more turns in results.json"
    assert asked(["x" * 2_900, "y" * 100], lines=12, characters=3_000)[0][1] == "x" * 2_900
    assert asked([], lines=12, characters=3_000) == []


@pytest.mark.parametrize("first", ["Mend the shop. " * 20, "Mend the shop. " * 400])
def test_the_task_itself_is_what_is_kept_of_a_long_prompt(first: str) -> None:
    prompt = "\n".join([first, *(f"rule {n}" for n in range(30))])
    ((_, text),) = asked([prompt], lines=12, characters=3_000)
    assert text.startswith(first[:2_000])
    assert "left out …]" in text
    assert text.endswith("rule 29")


def test_the_page_is_no_larger_for_many_turns() -> None:
    without, with_prompts = (len(render_html(failures(50, *prompts))) for prompts in ((), [LONG[0]] * 10))
    assert with_prompts - without < 51 * (3_000 + 25_000 + 4_000)
    text = render_html(failures(50, *[LONG[0]] * 10))
    fallback = text[text.index("<noscript>") : text.index("</noscript>")]
    assert fallback.count("Please mend") < 50 * 3_000 / len("Please mend the shop. ")
