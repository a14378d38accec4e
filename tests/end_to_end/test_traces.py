"""`agent.trace` through the real command: agents that print or write a transcript, graded by it."""

from __future__ import annotations

import json
import shutil

import pytest
from support.command_line import keystone, run_spec
from support.images import PYTHON
from support.traces import CLAUDE, CODEX, SAMPLES, event

from keystone_action.scoring.fields import USAGE_NAMES

CHECKS = """
invariants:
  edits: {check: {type: trace, require_tools: [{kind: write}, {kind: execute}], forbid_tools: [{kind: fetch}]}}
  cheap: {check: {type: budget, max_tool_calls: 5, max_tokens: 10000}}
"""


def lay_out(directory, transcript, command, trace, *, checks=CHECKS, more="", name="traced"):
    """The agent with its transcript; its spec's text."""
    (directory / "agent").mkdir(parents=True)
    if isinstance(transcript, bytes):
        (directory / "agent" / "t.jsonl").write_bytes(transcript)
    else:
        shutil.copy(SAMPLES / f"{transcript}.jsonl", directory / "agent" / "t.jsonl")
    agent = {"type": "command", "command": command, "dir": "agent", **trace}
    head = f'version: 1\nid: {name}\ntask: {{prompt: "do it"}}\nagent: {json.dumps(agent)}\n'
    return f"{head}{more}{checks.lstrip()}"


def run(tmp_path, transcript, command, trace, *, checks=CHECKS, environ=None, more=""):
    document = lay_out(tmp_path, transcript, command, {"trace": trace}, checks=checks, more=more)
    called = run_spec(tmp_path, document, environ=environ)
    assert not called.has_traceback
    return called


class Case:
    """One cell of several that are run by one call. checks: by name."""

    def __init__(self, cell, files):
        self.cell, self.files = cell, files
        self.checks = {entry["name"]: entry for entry in cell["invariants"]}

    @property
    def copy(self):
        return [json.loads(line) for line in (self.files / "trace.jsonl").read_text("utf-8").splitlines()]


def run_cases(tmp_path, cases):
    """What became of each. cases: transcript, command, and what else the agent says, by name; with checks, where they
    are others."""
    for name, (transcript, command, says, *checks) in cases.items():
        text = lay_out(tmp_path / name, transcript, command, says, checks=checks[0] if checks else CHECKS, name=name)
        (tmp_path / name / "keystone.yaml").write_text(text, "utf-8")
    called = keystone("run", *cases, "--output", "out", directory=tmp_path)
    assert not called.has_traceback
    cells = {spec["id"]: spec["cells"][0] for spec in called.document["specs"]}
    assert cells.keys() == cases.keys()
    found = {name: Case(cell, called.output / "cells" / cell["id"]) for name, cell in cells.items()}
    return called, found


def used(read, written, calls, cost_usd=None):
    """`usage` of a cell whose agent tells these figures itself: no cache and no requests, and what it says is paid."""
    told = {"input_tokens": read, "output_tokens": written, "cost_usd": cost_usd, "tool_calls": calls}
    return dict.fromkeys(USAGE_NAMES) | told | {"spent_usd": cost_usd}


def copy_of(called):
    (path,) = called.output.glob("cells/*/trace.jsonl")
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_an_agent_that_prints_its_transcript(tmp_path):
    called = run(tmp_path, CLAUDE, "cat $KEYSTONE_AGENT_DIR/t.jsonl", {"format": "claude", "stdout": True})
    assert called.code == 0, called.err
    (cell,) = called.cells
    assert cell["usage"] == used(6400, 170, 5, cost_usd=0.041375)
    assert called.document["usage"] == cell["usage"]
    assert cell["notices"] == []
    lines = copy_of(called)
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert lines[0]["payload"] == {"source": "claude", "problem": "", "not_understood": []}
    assert [line["payload"]["raw_name"] for line in lines if line["type"] == "tool_call"] == [
        "Write", "Read", "Edit", "Bash", "Bash",
    ]  # fmt: skip
    assert lines[-1]["payload"]["reason"] == "end_turn"


FILLER = 'yes "$(printf %1000s)" | head -n 9000'
"""Nine megabytes of blank lines, of which the sandbox keeps two of an agent's stdout."""


def check_long_transcript(tmp_path, more):
    command = f"head -n 1 $KEYSTONE_AGENT_DIR/t.jsonl; {FILLER}; tail -n +2 $KEYSTONE_AGENT_DIR/t.jsonl"
    called = run(tmp_path, CLAUDE, command, {"format": "claude", "stdout": True}, more=more)
    assert called.code == 0, called.err
    (cell,) = called.cells
    assert cell["usage"] == used(6400, 170, 5, cost_usd=0.041375)
    (kept,) = called.output.glob("cells/*/agent.stdout")
    assert kept.stat().st_size < 3_000_000


def test_a_long_transcript_on_stdout(tmp_path):
    """An honest session prints more than is kept of an agent's stdout: that is our limit, and not its failure."""
    # Nor is the limit of the files that it may make one of what it may say.
    check_long_transcript(tmp_path, "resources: {disk: 4M}\n")


@pytest.mark.docker
def test_a_long_transcript_on_stdout_of_a_container(tmp_path, image):

    check_long_transcript(tmp_path, f"base: {image(PYTHON)}\n")


def test_an_agent_that_writes_its_transcript(tmp_path):
    command = "mkdir out && cp $KEYSTONE_AGENT_DIR/t.jsonl out/t.jsonl"
    called = run(tmp_path, CODEX, command, {"format": "codex", "path": "out/t.jsonl"})
    # Codex tells only commands: nothing was written by a tool that says so.
    assert called.code == 1, called.err
    assert called.checks["cheap"]["status"] == "pass"
    assert called.checks["edits"]["status"] == "fail"
    assert called.cells[0]["usage"] == used(6400, 170, 5)


ON_STDOUT, IN_A_FILE = {"stdout": True}, {"path": "t.jsonl"}
PRINT = "cat $KEYSTONE_AGENT_DIR/t.jsonl"
OUTSIDE = "ln -s $KEYSTONE_AGENT_DIR/t.jsonl t.jsonl"
EARN_NOTHING = {
    "missing": ("true", "claude", IN_A_FILE, "the trace t.jsonl could not be read: t.jsonl does not exist"),
    "empty": ("true", "claude", ON_STDOUT, "the trace on stdout is empty"),
    "no-event": ("echo hello", "codex", ON_STDOUT, "holds no event of the format codex"),
    "outside": (OUTSIDE, "claude", IN_A_FILE, "out of the workspace"),
    "fifo": ("mkfifo t.jsonl", "claude", IN_A_FILE, "is not a regular file"),
}


def test_a_trace_that_is_missing_or_malformed_earns_nothing(tmp_path):
    called, found = run_cases(
        tmp_path,
        {
            name: (CLAUDE, command, {"trace": {"format": source, **where}})
            for name, (command, source, where, _) in EARN_NOTHING.items()
        },
    )
    assert called.code == 1, called.err
    for name, (*_, told) in EARN_NOTHING.items():
        case = found[name]
        assert case.cell["composite"] == 0, name
        for entry in case.checks.values():
            assert (entry["status"], entry["score"]) == ("fail", 0), name
            assert told in entry["message"], name
        assert any(told in notice for notice in case.cell["notices"]), name
        assert told in case.copy[0]["payload"]["problem"], name


NEGATIVE = {
    "touchstone": event("usage", input_tokens=1, output_tokens=1, cost_usd=-5),
    "keystone": {"event_type": "llm_call", "cost": {"estimated_usd": -5}},
    "claude": {"type": "result", "subtype": "success", "total_cost_usd": -5},
    "codex": {"type": "turn.completed", "usage": {"input_tokens": -5}},
    "otel": {"name": "chat", "attributes": {"gen_ai.usage.input_tokens": -5}},
}


def test_a_trace_with_negative_numbers_earns_nothing(tmp_path):
    checks = "invariants: {cheap: {check: {type: budget, max_cost_usd: 1}}}\n"
    called, found = run_cases(
        tmp_path,
        {
            source: (json.dumps(line).encode(), PRINT, {"trace": {"format": source, "stdout": True}}, checks)
            for source, line in NEGATIVE.items()
        },
    )
    assert called.code == 1, called.err
    for source, case in found.items():
        assert (case.cell["verdict"], case.checks["cheap"]["status"]) == ("fail", "fail"), source
        assert "expected a finite number of at least 0" in case.checks["cheap"]["message"], source


RESULTS = {
    "whole": {"output": "x", "tool_calls": [{"name": "Edit"}, {"name": "Bash"}], "token_usage": {"prompt_tokens": 7}},
    "negative": {"output": "x", "tool_calls": [{"name": "Edit"}], "token_usage": {"cost_usd": -1}},
    "nameless": {"output": "x", "tool_calls": [{"name": 7}]},
    "without": {"output": "x"},
}


def test_the_result_of_an_agent_is_a_trace(tmp_path):
    checks = CHECKS + "  there: {check: {type: file_absent, path: x}}\n"
    _, found = run_cases(
        tmp_path,
        {
            name: (json.dumps(result).encode(), PRINT, {"output": {"json": "stdout"}}, checks)
            for name, result in RESULTS.items()
        },
    )
    statuses = {name: case.checks["edits"]["status"] for name, case in found.items()}
    assert statuses == {"whole": "pass", "negative": "fail", "nameless": "fail", "without": "skip"}
    assert found["whole"].cell["usage"] == used(7, None, 2)
    assert found["without"].cell["usage"] == dict.fromkeys(USAGE_NAMES)
    sources = {name: case.cell["trace"]["source"] for name, case in found.items()}
    assert sources == {"whole": "agent", "negative": "none", "nameless": "none", "without": "none"}
    assert found["whole"].copy[0]["payload"]["source"] == "agent_result"
    assert found["without"].copy == []


def test_what_was_not_understood_is_said(tmp_path):
    lines = (SAMPLES / f"{CLAUDE}.jsonl").read_bytes() + b'{"type": "martian"}\n{"type": "res'
    trace = {"format": "claude", "stdout": True}
    called = run(tmp_path, lines, "echo starting; cat $KEYSTONE_AGENT_DIR/t.jsonl", trace)
    assert called.code == 0, called.err
    (notice,) = called.cells[0]["notices"]
    assert notice == (
        'not understood of the agent\'s trace: 1 × line that is not JSON; 1 × event of an unknown type: "martian"; '
        "1 × line that is only half written, the last one"
    )
    assert "martian" in (called.output / "summary.md").read_text("utf-8")


def test_bytes_that_are_not_utf_8_are_survived_and_said(tmp_path):
    lines = (SAMPLES / f"{CLAUDE}.jsonl").read_bytes().replace(b"Two at once.", b"Two \xff at \xc3 once.")
    command = "tee t.jsonl < $KEYSTONE_AGENT_DIR/t.jsonl"
    called, found = run_cases(
        tmp_path,
        {
            name: (lines, command, {"trace": {"format": "claude", **where}})
            for name, where in (("printed", ON_STDOUT), ("written", IN_A_FILE))
        },
    )
    assert called.code == 0, called.err
    for name, case in found.items():
        (notice,) = case.cell["notices"]
        assert "not UTF-8" in notice, name


def test_secrets_are_masked_in_our_copy_and_scripts_read_it(tmp_path):
    (tmp_path / "check.py").write_text(
        "import json, sys\n"
        "context = json.load(sys.stdin)\n"
        "kinds = [json.loads(line)['type'] for line in open(context['trace_path'])]\n"
        "print(json.dumps({'passed': 'tool_call' in kinds, 'reason': ' '.join(kinds)}))\n"
    )
    lines = json.dumps(event("tool_call", tool_call_id="1", raw_name="Bash", input={"command": 'echo "pa$$-word"'}))
    called = run(
        tmp_path,
        lines.encode(),
        "cat $KEYSTONE_AGENT_DIR/t.jsonl",
        {"format": "touchstone", "stdout": True},
        checks="invariants: {told: {check: {type: custom, script: check.py}}}\n",
        more='secrets: [{name: TOKEN, source: "env:TOKEN"}]\n',
        environ={"TOKEN": 'echo "pa$$-word"'},
    )
    assert called.code == 0, called.err
    assert copy_of(called)[1]["payload"]["input"] == {"command": "***"}


ANSWERS = """
invariants:
  said: {check: {type: passfail, expected_output: fixed the typo}}
  all_of_it: {check: {type: exact, expected: 'Fixed the typo. Done: é✓ "quoted" <b>&amp;</b>', normalize: false}}
  begins: {check: {type: regex, pattern: '^Fixed'}}
  printed: {check: {type: regex, pattern: '^\\{"type"', input_from: stdout}}
"""


def test_the_answer_of_a_printed_transcript_is_the_output(tmp_path):
    transcripts = {"claude": CLAUDE, "codex": CODEX}
    called, found = run_cases(
        tmp_path,
        {
            source: (transcript, PRINT, {"trace": {"format": source, "stdout": True}}, ANSWERS)
            for source, transcript in transcripts.items()
        },
    )
    assert called.code == 0, called.out
    for source, case in found.items():
        assert case.cell["agent"]["output"] == 'Fixed the typo. Done: é✓ "quoted" <b>&amp;</b>', source
        raw = (SAMPLES / f"{transcripts[source]}.jsonl").read_bytes()
        assert (case.files / "agent.stdout").read_bytes() == raw, source


WITHOUT_AN_ANSWER = {
    "max-turns": (f"{CLAUDE}-max-turns", "claude", "the trace on stdout tells no final answer"),
    "refused": (f"{CODEX}-refused-401", "codex", "the trace on stdout tells no final answer"),
    "no-event": (b"Fixed the typo.", "claude", "the trace on stdout holds no event of the format c"),
}


def test_a_printed_transcript_without_an_answer_is_no_output(tmp_path):
    """Though its text holds what is expected: in what was asked for, or in what a tool returned."""
    checks = "invariants:\n  it: {check: {type: regex, pattern: '.'}}\n  other: {check: {type: passfail}}\n"
    called, found = run_cases(
        tmp_path,
        {
            name: (transcript, PRINT, {"trace": {"format": source, "stdout": True}}, checks)
            for name, (transcript, source, _) in WITHOUT_AN_ANSWER.items()
        },
    )
    assert called.code == 1, called.err
    for name, (*_, why) in WITHOUT_AN_ANSWER.items():
        case = found[name]
        assert case.cell["verdict"] == "fail", name
        assert {entry["status"] for entry in case.checks.values()} == {"fail"}, name
        assert all(why in entry["message"] for entry in case.checks.values()), name
        assert case.cell["agent"]["output"] == "", name


def test_an_output_that_is_declared_besides_a_printed_transcript_is_that(tmp_path):
    agent = "cat $KEYSTONE_AGENT_DIR/t.jsonl; echo mine >answer.txt"
    checks = "invariants: {it: {check: {type: exact, expected: mine}}}\n"
    (tmp_path / "agent").mkdir()
    shutil.copy(SAMPLES / f"{CLAUDE}.jsonl", tmp_path / "agent" / "t.jsonl")
    told = {"type": "command", "command": agent, "dir": "agent", "output": {"file": "answer.txt"},
            "trace": {"format": "claude", "stdout": True}}  # fmt: skip
    called = run_spec(tmp_path, f"version: 1\nid: a\ntask: {{prompt: x}}\nagent: {json.dumps(told)}\n{checks}")
    assert called.code == 0, called.checks


FAILED_TURN = b"""{"type": "thread.started", "thread_id": "x"}
{"type": "turn.started"}
{"type": "turn.failed", "error": {"message": "stream disconnected"}}
"""
NOTHING = """
invariants:
  none: {check: {type: file_absent, path: x.txt}}
"""


@pytest.mark.parametrize("must", [False, True])
def test_a_transcript_that_says_that_the_run_failed_is_told_first_and_may_disqualify(tmp_path, must):
    command = 'cat "{{ agent.dir }}/t.jsonl"; exit 0'
    says = {"trace": {"format": "codex", "stdout": True}, "must_exit_zero": must}
    called = run_spec(tmp_path, lay_out(tmp_path, FAILED_TURN, command, says, checks=NOTHING))
    (cell,) = called.cells
    said = "own transcript says that it failed: stream disconnected"
    assert (called.code, cell["verdict"]) == ((1, "fail") if must else (0, "pass"))
    assert cell["agent"]["failure"] == "the agent's own transcript says that it failed: stream disconnected"
    summary = (called.output / "summary.md").read_text("utf-8")
    for report in (called.err, summary, (called.output / "report.html").read_text("utf-8")):
        assert said in report


def test_a_transcript_that_only_warns_changes_nothing(tmp_path):
    says = {"trace": {"format": "codex", "stdout": True}, "must_exit_zero": True}
    called = run_spec(tmp_path, lay_out(tmp_path, CODEX, 'cat "{{ agent.dir }}/t.jsonl"', says, checks=NOTHING))
    assert (called.code, called.cells[0]["agent"]["failure"]) == (0, "")
