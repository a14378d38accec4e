"""What reports say of a run whose models were replayed: first of all, that a recording did not fit or was changed."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from support.sample_parts import cell, check, run, spec

from keystone_action.github.status import description_of
from keystone_action.report.again import command_again
from keystone_action.report.comment.history import Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.console import print_verdict
from keystone_action.report.junit import render_junit
from keystone_action.report.page.render import render_html
from keystone_action.report.sentences.facts import replay_note
from keystone_action.report.sentences.headline import headline
from keystone_action.report.summary import render_summary
from keystone_action.scoring.results import RunResult, TraceInfo

STALE = TraceInfo("gateway", "stale", "2026-11-20T10:00:00Z", "request 3 differs (turn)")
CHANGED = TraceInfo("gateway", "changed", "2026-11-21T10:00:00Z")
EXACT = TraceInfo("gateway", "exact", "2026-11-20T10:00:00Z")
LIVE = TraceInfo("gateway")
FROM_CHANGED = "from a changed recording"
TWO_DAYS = "Replayed, no model was asked: 2 cells from recordings of 2026-11-20 to 2026-11-21"


def replayed(*traces: TraceInfo, name: str = "small") -> RunResult:
    cells = [replace(cell(f"{name}.r{n}", check("clean")), trace=trace) for n, trace in enumerate(traces)]
    return run(spec(name, *cells), counts={"cells": len(cells), "passed": len(cells), "failed": 0, "errors": 0})


def on_terminal(found: RunResult) -> str:
    written = io.StringIO()
    print_verdict(found, written)
    return " ".join(written.getvalue().split())


@pytest.mark.parametrize(
    ("traces", "line"),
    [
        ((EXACT, EXACT), "Keystone: small passed: 2 of 2 cells"),
        ((LIVE,), "Keystone: small passed: 1 of 1 check"),
        ((STALE, STALE, EXACT), "Keystone (replayed; 2 of 3 cells stale): small passed: 3 of 3 cells"),
        ((STALE,), "Keystone (replayed; stale): small passed: 1 of 1 check"),
        (
            (CHANGED,),
            "Keystone (replayed; from a changed recording): small passed: 1 of 1 check",
        ),
        (
            (STALE, CHANGED),
            f"Keystone (replayed; 1 of 2 cells {FROM_CHANGED}; 1 of 2 cells stale): small passed: 2 of 2 cells",
        ),
    ],
)
def test_the_first_line_of_every_report(traces: tuple[TraceInfo, ...], line: str) -> None:
    found = replayed(*traces)
    assert headline(found) == line
    assert line in render_summary(found).splitlines()[0].replace("\\", "")
    comment = render_comment(found, Marker.of_key("k"), CommentFacts())
    assert next(one for one in comment.splitlines() if one.startswith("## ")).replace("\\", "") == f"## ✅ {line}"
    assert line in on_terminal(found)
    assert description_of(found) == (line if len(line) <= 140 else f"{line[:139].rstrip()}…")


def test_no_name_pushes_it_out_of_a_status() -> None:
    told = description_of(replayed(*[CHANGED] * 1_000, *[STALE] * 1_000, name="n" * 128))
    assert "1,000 of 2,000 cells from a changed recording; 1,000 of 2,000 cells stale" in told


def test_it_stands_in_failures_and_cancelled_runs_too() -> None:
    found = replayed(STALE, EXACT)
    failed = replace(found, verdict="fail", specs=(replace(found.specs[0], verdict="fail"),))
    assert headline(failed).startswith("Keystone (replayed; 1 of 2 cells stale): small failed")
    assert headline(replace(found, cancelled=True)).startswith(
        "Keystone (replayed; 1 of 2 cells stale): small was canc"
    )


@pytest.mark.parametrize(
    ("traces", "note"),
    [
        ((LIVE,), ""),
        ((EXACT,), "Replayed, no model was asked: 1 cell from recordings of 2026-11-20 (1 exact)"),
        (
            (STALE, CHANGED, LIVE),
            f"{TWO_DAYS} (1 changed, 1 stale); the first that differs: request 3 differs (turn)",
        ),
        ((TraceInfo("gateway", "exact"),), "Replayed, no model was asked: 1 cell from recordings (1 exact)"),
    ],
)
def test_a_line_of_its_own(traces: tuple[TraceInfo, ...], note: str) -> None:
    found = replayed(*traces)
    assert replay_note(found) == note
    for text in (render_summary(found), render_html(found), on_terminal(found)):
        assert ("Replayed" in text) == bool(note)


def test_a_replay_is_replayed_again_and_junit_knows_of_it() -> None:
    found = replayed(STALE, EXACT)
    assert command_again(found).endswith(" --gateway replay")
    assert render_junit(found).count('<property name="replayed" value="stale"') == 1
    assert "--gateway" not in command_again(replayed(LIVE))
    assert "replayed" not in render_junit(replayed(LIVE))


def test_words_of_a_recording_are_text() -> None:
    evil = TraceInfo("gateway", "stale", "<img src=x>", "request 1: <img src=x>\n::error::x\n# x")
    text = render_summary(replayed(evil))
    assert "<img" not in text.replace(r"\<", "")
    assert "\n::error" not in text
    assert "\n# x" not in text
