"""`Evidence.observed`: from a file of the workspace, from stdout, from an AgentResult."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from support.traces import CLAUDE, SAMPLES

from keystone_action.errors import HarnessError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.trace import Trace, Usage
from keystone_action.runner.cell import seal as observing
from keystone_action.runner.cell.grading import trace_source, usage
from keystone_action.runner.cell.seal import notices, observe
from keystone_action.scoring.fields import USAGE_NAMES
from keystone_action.spec.models.agents import CommandAgent, PythonAgent

TRANSCRIPT = (SAMPLES / f"{CLAUDE}.jsonl").read_text("utf-8")


@pytest.fixture
def workspace(tmp_path):
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def agent(**fields):
    return CommandAgent.model_validate({"type": "command", "command": ["true"], **fields})


def from_file(workspace, path="t.jsonl", kind="claude"):
    copy = workspace.parent / "copy.jsonl"
    found = observe(agent(trace={"format": kind, "path": path}), AgentRun(), workspace, copy)
    assert json.loads(copy.read_text("utf-8").splitlines()[0])["payload"]["problem"] == found.problem
    return found


def test_a_file_of_the_workspace(workspace):
    (workspace / "out").mkdir()
    (workspace / "out" / "t.jsonl").write_text(TRANSCRIPT, "utf-8")
    found = from_file(workspace, "out/t.jsonl")
    assert (found.source, len(found.tool_calls), found.usage.tokens) == ("claude", 5, 6570)
    assert notices(found) == ()


def test_stdout(workspace):
    run = printed(workspace, TRANSCRIPT.encode())
    found = observe(agent(trace={"format": "claude", "stdout": True}), run, workspace, workspace.parent / "copy")
    assert len(found.tool_calls) == 5


def printed(workspace, data):
    file = workspace.parent / "agent.stdout"
    file.write_bytes(data)
    return AgentRun(stdout="cut in the middle", stdout_bytes=len(data), transcript=file)


def test_stdout_that_is_too_large_is_not_counted(workspace, monkeypatch):
    monkeypatch.setattr(observing, "TRACE_LIMIT", 1000)
    run = printed(workspace, TRANSCRIPT.encode())
    found = observe(agent(trace={"format": "claude", "stdout": True}), run, workspace, workspace.parent / "copy")
    assert found.tool_calls is None
    assert found.problem == (f"the trace on stdout has {run.stdout_bytes:,} bytes; of a trace at most 1,000 are read")


def link_out(path):
    (path.parent.parent / "secret.jsonl").write_text(TRANSCRIPT, "utf-8")
    path.symlink_to(path.parent.parent / "secret.jsonl")


UNUSABLE = {
    "missing": (lambda path: None, "does not exist"),
    "directory": (lambda path: path.mkdir(), "is not a regular file"),
    "fifo": (os.mkfifo, "is not a regular file"),
    "link that leads out": (link_out, "out of the workspace"),
    "dangling link": (lambda path: path.symlink_to("nowhere"), "does not exist"),
    "loop": (lambda path: path.symlink_to("t.jsonl"), "loop"),
    "empty": (lambda path: path.touch(), "the trace t.jsonl is empty"),
    "no transcript": (lambda path: path.write_text("hello\n"), "holds no event of the format claude"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_files_that_are_no_trace(workspace, case):
    make, told = UNUSABLE[case]
    make(workspace / "t.jsonl")
    found = from_file(workspace)
    assert told in found.problem
    assert (found.tool_calls, found.usage) == (None, Usage())
    assert found.problem in notices(found)


def test_a_file_that_is_too_large(workspace, monkeypatch):
    monkeypatch.setattr(observing, "TRACE_LIMIT", 10)
    (workspace / "t.jsonl").write_text(TRANSCRIPT, "utf-8")
    assert "of a trace at most 10 are read" in from_file(workspace).problem


def test_no_descriptor_is_left_open(workspace):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for make, _ in UNUSABLE.values():
        path = workspace / "t.jsonl"
        make(path)
        from_file(workspace)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_no_descriptor_left_to_read_it_with_is_no_failure_of_the_agent(workspace):
    (workspace / "t.jsonl").write_text(TRANSCRIPT, "utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(HarnessError, match="failed on this machine: Too many open files"):
            from_file(workspace)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert from_file(workspace).problem == ""


def test_an_agent_result_with_tool_calls(workspace):
    calls = ({"name": "search", "arguments": {"q": "x"}, "result": {"n": 1}}, {"name": "Bash", "arguments": {}})
    run = AgentRun(output="done", tool_calls=calls, token_usage={"input_tokens": 7, "cost_usd": 0.5})
    found = observe(agent(output={"json": "stdout"}), run, workspace, workspace.parent / "copy")
    assert [(call.name, call.kind, call.status, call.result) for call in found.tool_calls] == [
        ("search", "search", "ok", '{"n": 1}'),
        ("Bash", "execute", None, ""),
    ]
    assert (found.source, found.usage, found.final_output) == ("agent_result", Usage(7, None, 0.5), "done")
    assert found.permissions is None


def test_an_agent_result_without_tool_calls(workspace):
    copy = workspace.parent / "copy"
    assert observe(agent(output={"json": "stdout"}), AgentRun(output="done"), workspace, copy) is None
    assert not copy.exists()
    told = observe(agent(output={"json": "stdout"}), AgentRun(token_usage={"prompt_tokens": 3}), workspace, copy)
    assert (told.tool_calls, told.usage) == (None, Usage(3))
    none = observe(agent(output={"json": "stdout"}), AgentRun(tool_calls=()), workspace, copy)
    assert none.tool_calls == ()


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf"), "3", True, 10**30])
def test_an_agent_result_with_senseless_numbers(workspace, number):
    run = AgentRun(tool_calls=(), token_usage={"cost_usd": number})
    found = observe(agent(), run, workspace, workspace.parent / "copy")
    assert found.problem.startswith("the agent's result is malformed: expected a")


def test_a_result_that_was_asked_for_and_is_none(workspace):
    run = AgentRun(problem="the JSON document on stdout is malformed: it is not JSON", stdout="x", output="")
    copy = workspace.parent / "copy"
    assert observe(agent(output={"json": "stdout"}), run, workspace, copy).problem == run.problem
    python = PythonAgent(type="python", entrypoint="a:B", dir=".")
    assert observe(python, run, workspace, copy).problem == run.problem
    assert observe(agent(output={"file": "answer.txt"}), run, workspace, copy) is None


def test_the_usage_of_a_cell():
    unknown = dict.fromkeys(USAGE_NAMES)
    assert usage(None, ran=False) == dict.fromkeys(USAGE_NAMES, 0)
    assert usage(None, ran=True) == unknown
    seen = Trace(source="codex", tool_calls=(), usage=Usage(input_tokens=50, cost_usd=0.25))
    found = {"input_tokens": 50, "cost_usd": 0.25, "tool_calls": 0, "spent_usd": 0.25}
    assert usage(seen, ran=True) == unknown | found
    assert usage(Trace(source="codex", usage=seen.usage, problem="it is empty"), ran=True) == unknown


def test_the_usage_of_a_cell_behind_the_gateway():
    seen = Trace(source="gateway", tool_calls=(), usage=Usage(50, 7, 0.25, 1000, 30, 4))
    found = usage(seen, ran=True)
    assert found == dict(zip(USAGE_NAMES, (50, 7, 1000, 30, 0.25, 0, 4, 0.25), strict=True))
    assert usage(seen, ran=True, spent_usd=0.0) == found | {"spent_usd": 0.0}
    without_price = replace(seen, usage=replace(seen.usage, cost_usd=None))
    assert usage(without_price, ran=True) == found | {"cost_usd": None, "spent_usd": None}


@pytest.mark.parametrize(
    ("trace", "source"),
    [
        (None, "none"),
        (Trace(source="claude"), "agent"),
        (Trace(source="agent_result"), "agent"),
        (Trace(source="gateway"), "gateway"),
        (Trace(source="claude", problem="it is empty"), "none"),
    ],
)
def test_whose_word_a_trace_is(trace, source):
    assert trace_source(trace) == source
