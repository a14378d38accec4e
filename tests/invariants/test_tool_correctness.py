"""Touchstone's `tool_correctness` (not on its page of graders; spec.md 5.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import call, evidence, traced

from keystone_action.evidence.trace import ToolCall, Trace

HERE = Path(__file__).parent
READ = call("read_file", "read", path="a.py")
EDIT = call("edit_file", "write", path="src/a.py")
TEST = call("run_tests", "execute")


def correctness(expected: list[Any], *calls: ToolCall, **fields: Any):
    document = {"type": "tool_correctness", "expected": expected, **fields}
    return grade(document, HERE, evidence=evidence("ok", traced(*calls)))


@pytest.mark.parametrize(
    ("expected", "calls", "score"),
    [
        (["read_file", "edit_file"], (EDIT, READ), 1.0),
        (["read_file"], (READ, EDIT), 2 / 3),
        (["read_file", "run_tests"], (READ,), 2 / 3),
        (["read_file"], (READ, READ), 2 / 3),
        (["read_file", "read_file"], (READ,), 2 / 3),
        (["run_tests"], (READ, EDIT), 0.0),
        (["run_tests"], (), 0.0),
        ([{"kind": "write", "path_glob": "src/*.py"}, "run_tests"], (EDIT, TEST), 1.0),
        ([{"kind": "write", "path_glob": "docs/*"}, "run_tests"], (EDIT, TEST), 0.5),
        ([{"args": {"path": "a.py"}}], (READ,), 1.0),
        # The empty matcher must not take the only call that the name fits.
        ([{}, "read_file"], (READ, TEST), 1.0),
        ([{}, "read_file"], (TEST, READ), 1.0),
    ],
)
def test_the_score_is_f1_and_only_the_same_calls_pass(expected: list[Any], calls: Any, score: float) -> None:
    outcome = correctness(expected, *calls)
    assert outcome.score == pytest.approx(score)
    assert outcome.status == ("pass" if score == 1.0 else "fail")


@pytest.mark.parametrize(
    ("calls", "score"),
    [((READ, EDIT, TEST), 1.0), ((TEST, EDIT, READ), 1 / 3), ((READ, TEST, EDIT), 2 / 3), ((READ, EDIT), 0.8)],
)
def test_ordered_multiplies_by_the_share_in_order(calls: Any, score: float) -> None:
    outcome = correctness(["read_file", "edit_file", "run_tests"], *calls, ordered=True)
    assert outcome.score == pytest.approx(score)
    assert outcome.status == ("pass" if score == 1.0 else "fail")


@pytest.mark.parametrize(
    ("match", "expected", "status"),
    [
        ("name", "write", "fail"),
        ("name", "edit_file", "pass"),
        ("raw_name", "Edit", "pass"),
        ("raw_name", "edit_file", "fail"),
        ("kind", "write", "pass"),
        ("kind", "read", "fail"),
    ],
)
def test_what_a_bare_name_is_compared_with(match: str, expected: str, status: str) -> None:
    observed = call("edit_file", "write", raw_name="Edit")
    assert correctness([expected], observed, match=match).status == status


def test_the_message_names_what_is_missing_and_what_is_too_much() -> None:
    outcome = correctness(["read_file", {"kind": "fetch"}], READ, TEST)
    assert "1 of 2 expected calls were made, among 2: precision 0.50, recall 0.50, F1 0.50." in outcome.message
    assert "Missing: {kind: fetch}." in outcome.message
    assert "run_tests" in outcome.message
    assert (outcome.details["missing"], outcome.details["unexpected"]) == (["{kind: fetch}"], ["run_tests"])


def test_without_a_trace_or_its_calls_it_is_skipped_and_a_broken_trace_fails() -> None:
    document = {"type": "tool_correctness", "expected": ["a"]}
    for trace, status in ((None, "skip"), (Trace(source="otel"), "skip"), (Trace(source="x", problem="gone"), "fail")):
        assert grade(document, HERE, evidence=evidence("ok", trace)).status == status


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"expected": []},
        {"expected": "read_file"},
        {"expected": [""]},
        {"expected": [5]},
        {"expected": [{"tool": "x"}]},
        {"expected": ["wrote"], "match": "kind"},
        {"expected": ["a"], "match": "title"},
        {"expected": ["a"], "ordered": "yes"},
    ],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "tool_correctness", **fields})
