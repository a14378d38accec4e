"""AgenticAssure's regex scorer, over all that `input_from` can name (spec.md 1.7, 5.1, 5.3)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.changed import grade_changes
from support.context import grade, make_check, make_evidence
from support.observed import evidence

from keystone_action.evidence.agent_run import AgentRun, AgentTurn, LongText, TooMuchPrinted
from keystone_action.evidence.model import RecordedRequest
from keystone_action.files.snapshot import Change, FileState
from keystone_action.invariants.judged_material import NothingToJudge, collect_material, gather_material

HERE = Path(__file__).parent


def regex(pattern: str, output: str = "", *, problem: str = "", **fields: Any):
    return grade({"type": "regex", "pattern": pattern, **fields}, HERE, evidence=evidence(output, problem=problem))


def over(workspace: Path, pattern: str, source: str, **fields: Any):
    document = {"type": "regex", "pattern": pattern, "input_from": source}
    return grade(document, workspace, evidence={**evidence("the output"), **fields})


BOTH = "(?=.*phrase one)(?=.*phrase two)"
"""002: "use the Regex scorer with a pattern like (?=.*phrase one)(?=.*phrase two)"."""


@pytest.mark.parametrize(
    ("pattern", "output", "status"),
    [
        (BOTH, "first phrase two, then phrase one", "pass"),
        (BOTH, "only phrase one", "fail"),
        (BOTH, "phrase one\nphrase two", "fail"),
        ("(?s)" + BOTH, "phrase one\nphrase two", "pass"),
        (r"order #\d+", "Order #12", "fail"),
        (r"(?i)order #\d+", "Order #12", "pass"),
        ("^b", "a\nb", "fail"),
        ("(?m)^b", "a\nb", "pass"),
        ("a$", "a\n", "pass"),
        ("^$", "", "pass"),
        ("x", "", "fail"),
    ],
)
def test_a_pattern_matches_somewhere_by_the_rules_of_python(pattern: str, output: str, status: str) -> None:
    outcome = regex(pattern, output)
    assert (outcome.status, outcome.score) == (status, 1.0 if status == "pass" else 0.0)


def test_a_missing_output_fails_whatever_the_pattern() -> None:
    outcome = regex(".*", problem="the output file could not be read: out.txt does not exist")
    assert outcome.status == "fail"
    assert "out.txt does not exist" in outcome.message


def test_a_pattern_that_backtracks_for_ever_fails() -> None:
    document = {"type": "regex", "pattern": "(a|aa)+$"}
    outcome = grade(document, HERE, evidence=evidence("a" * 60 + "b"), timeout=0.3)
    assert outcome.status == "fail"
    assert "time limit" in outcome.message


@pytest.mark.parametrize(
    ("content", "pattern", "status"),
    [(b"total: 42\n", r"total: \d+$", "pass"), (b"total: x\n", r"\d", "fail"), (b"\xff 1", "1", "fail")],
)
def test_files_that_the_agent_left(tmp_path: Path, content: bytes, pattern: str, status: str) -> None:
    (tmp_path / "report.txt").write_bytes(content)
    assert over(tmp_path, pattern, "file:report.txt").status == status


def test_files_are_looked_at_whole(tmp_path: Path) -> None:
    (tmp_path / "large.log").write_text("x" * (5 << 20) + "the end")
    assert over(tmp_path, "the end$", "file:large.log").status == "pass"


def test_a_file_that_is_not_there_or_leads_out_fails(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for path in ("missing", "out", "pipe"):
        assert over(tmp_path, ".", f"file:{path}").status == "fail", path


def test_stdout_diff_and_workspace(tmp_path: Path) -> None:
    changes = (Change("a.txt", "added"),)
    assert over(tmp_path, "output$", "stdout").status == "pass"
    assert over(tmp_path, r"(?m)^\+new$", "diff", changes=changes, patch="+++ b/a.txt\n+new\n").status == "pass"
    assert over(tmp_path, "new", "diff").status == "fail"
    assert over(tmp_path, "new", "workspace").status == "fail"


def test_secrets_are_looked_at_too(tmp_path: Path) -> None:
    """What goes to a judge has none; a pattern that is to find a leak must see it."""
    outcome = grade(
        {"type": "regex", "pattern": "hunter22"},
        tmp_path,
        evidence={**evidence("it is hunter22"), "secrets": ("hunter22",)},
    )
    assert outcome.status == "pass"


class Log:
    def requests(self) -> list[RecordedRequest]:
        return [RecordedRequest("api", "POST", "/m", "/m", {}, {}, '{"text": "renewal"}', 19, 0, 200, "", "")]


def test_requests_that_a_mock_recorded(tmp_path: Path) -> None:
    logs = {"request_logs": {"api": Log()}}
    assert over(tmp_path, "renewal", "api.last_request.body", **logs).status == "pass"
    assert over(tmp_path, "refund", "api.last_request.body", **logs).status == "fail"
    assert over(tmp_path, "renewal", "api.requests[3].body", **logs).status == "fail"
    assert over(tmp_path, "renewal", "db.last_request.body", **logs).status == "error"


def test_without_a_trace_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    assert over(tmp_path, "x", "trace").status == "skip"


@pytest.mark.parametrize(
    "fields",
    [{}, {"pattern": ""}, {"pattern": 12}, {"pattern": "x", "input_from": "nowhere"}, {"pattern": "x", "flags": "i"}],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "regex", **fields})


NO_PASSWORD = r"(?s)\A(?!.*hunter2).*\Z"


def long(folder: Path, text: str, *, limit: int = 1 << 20) -> LongText:
    (folder / "kept").write_text(text[:limit])
    return LongText(len(text), folder / "kept", limit)


@pytest.mark.parametrize(("word", "status"), [("hunter2", "fail"), ("", "pass")])
@pytest.mark.parametrize("source", ["agent_output", "stdout"])
def test_an_output_is_looked_at_whole(tmp_path: Path, source: str, word: str, status: str) -> None:
    kept = long(tmp_path, "x" * 5000 + word + "x" * 5000)
    agent = AgentRun(output="cut", stdout="cut", long_output=kept, long_stdout=kept)
    assert over(tmp_path, NO_PASSWORD, source, agent=agent).status == status


@pytest.mark.parametrize("source", ["agent_output", "stdout"])
def test_an_output_that_was_not_kept_whole_is_not_looked_at(tmp_path: Path, source: str) -> None:
    kept = long(tmp_path, "x" * 5000, limit=4999)
    agent = AgentRun(output="cut", stdout="cut", long_output=kept, long_stdout=kept)
    with pytest.raises(TooMuchPrinted, match=r"has 5,000 bytes; at most 4,999 can be judged"):
        over(tmp_path, NO_PASSWORD, source, agent=agent)


def test_a_diff_that_does_not_show_all_is_not_judged(tmp_path: Path) -> None:
    """A file of 2 MB with the password is one line in it: `too large to be shown`."""

    def write(size: int) -> str:
        workspace = tmp_path / str(size)
        workspace.mkdir()
        document = {"type": "regex", "pattern": NO_PASSWORD, "input_from": "diff"}
        outcome = grade_changes(document, workspace, lambda place: (place / "a").write_text("x" * size) and None)
        return f"{outcome.status}: {outcome.message}"

    assert write(1000).startswith("pass: ")
    assert write(2_000_000).startswith("fail: the diff does not show all that changed: a: added, 2,000,000 bytes")


@pytest.mark.parametrize(("word", "status"), [("hunter2", "fail"), ("", "pass")])
def test_a_workspace_is_looked_at_whole(tmp_path: Path, word: str, status: str) -> None:
    text = "x" * (5 << 20) + word
    (tmp_path / "large.log").write_text(text)
    state = FileState("file", 0o644, len(text))
    assert over(tmp_path, NO_PASSWORD, "workspace", after={"large.log": state}).status == status


def test_a_trace_is_looked_at_whole(tmp_path: Path) -> None:
    found = make_evidence(tmp_path, tmp_path / "private")
    found.trace.write_text("x" * (5 << 20) + "hunter2")
    assert gather_material(found, "trace").text.endswith("hunter2")
    os.truncate(found.trace, (64 << 20) + 1)
    with pytest.raises(NothingToJudge, match="the trace has 67,108,865 bytes; at most 67,108,864"):
        gather_material(found, "trace")
    assert collect_material(found, "trace").size == (64 << 20) + 1


def test_a_body_that_was_not_kept_whole_is_not_judged(tmp_path: Path) -> None:
    class Log:
        def requests(self) -> list[RecordedRequest]:
            return [RecordedRequest("m", "POST", "/", "/", {}, {}, "begin", 12, 7, 200, "", "")]

    outcome = over(tmp_path, NO_PASSWORD, "m.last_request.body", request_logs={"m": Log()})
    assert (outcome.status, "7 bytes of the request's body were not kept" in outcome.message) == ("fail", True)


def test_what_an_agent_says_is_not_the_file_that_it_was_to_write(tmp_path: Path) -> None:
    """In a conversation the turn says so."""
    missing = AgentTurn("go", "it is done", problem="the output file could not be read: a.md is missing")
    found = make_evidence(tmp_path, tmp_path, agent=AgentRun(output="42", turns=(missing, AgentTurn("again", "42"))))
    said = gather_material(found, "conversation").text
    assert "(no answer: the output file could not be read: a.md is missing)" in said
    assert "42" in said
    assert "it is done" not in said
    with pytest.raises(NothingToJudge, match="the agent answered nothing"):
        gather_material(
            make_evidence(tmp_path, tmp_path, agent=AgentRun(output="it is done", turns=(missing,))), "conversation"
        )
