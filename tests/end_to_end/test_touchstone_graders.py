"""Every block of 004_722b8593dcd13c4e.txt, "Graders", in a case.yaml as it stands there, run by `keystone run
case.yaml` for a harness of harnesses.yaml: to a passing verdict for one model and a failing one for the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.graded_tests import files_of
from support.model_server import ModelServer, answer
from support.source_examples import BothWays
from support.touchstone import models_of, run_case, run_cases, write_case

STUB = "def add(a, b):\n    raise NotImplementedError\n"
WRITES = "Path('a.py').write_text(f'def add(a, b):\\n    return a {\"+\" if good else \"-\"} b\\n')\n"
HIDDEN = "from a import add\ndef test_small(): assert add(1, 2) == 3\ndef test_zero(): assert add(0, 0) == 0\n"
DONE = '  - {type: command, cmd: "test -f done"}\n'
IF_GOOD = "if good: Path('done').touch()"
OF_SOURCE = {"source": {"path": "source"}}
COMMAND = DONE + '  - {type: command, cmd: "test -f bad", expect_exit: 1, timeout_s: 30, weight: 3}\n'
FILES = """
  - type: files
    weight: 1.0
    expect_dir: ./graders/expected        # each file here must exist & match byte-for-byte
    patterns: ["retry", "backoff"]        # each regex must appear somewhere in the sandbox
"""
NODE = """
  - type: tests                      # any language
    weight: 4.0
    cmd: "node --test hidden.test.js"
    inject: ["./hidden/x.test.js"]
"""
NODE_HIDDEN = """const test = require("node:test"), assert = require("assert"), {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("zero", () => assert.equal(add(0, 0), 0));"""
GATE = """
  - {type: tests, gate: true, cmd: "python3 build.py", junit_xml: "reports/TEST-*.xml"}         # a regression gate
"""
BUILD = """import os
cases = "".join(f'<testcase name="{i}">{"" if os.path.exists(f"ok{i}") else "<failure/>"}</testcase>' for i in (1, 2))
os.makedirs("reports")
open("reports/TEST-all.xml", "w").write(f'<testsuite tests="2">{cases}</testsuite>')
"""
SWEBENCH = """
  - type: swebench
    weight: 4.0
    inject: [{src: hidden/test_x.py, dest: testing/test_x.py}]
    fail_to_pass: ["testing/test_x.py::test_bug"]
    pass_to_pass: ["testing/test_x.py::test_unrelated"]
    cmd_prefix: "python3 -m pytest -q -p no:cacheprovider"
"""
SWEBENCH_HIDDEN = """from a import add, twice
def test_bug(): assert add(1, 2) == 3
def test_unrelated(): assert twice(2) == 4
"""
ALL_FILES = "  - {type: implemented, gate: true}                      # scan all *.py (excludes test_*)\n"
THESE_FILES = '  - {type: implemented, gate: true, files: ["a.py"]}     # scan specific files\n'
NOT_IMPLEMENTED = {
    "stub": (ALL_FILES, f"# add them\n{STUB}"),
    "pass": (ALL_FILES, "def add(a, b): pass\n"),
    "comment": (THESE_FILES, "# only a comment\n"),
}
MODEL_JUDGE = """
  - type: model_judge
    weight: 1.0
    rubric: ./graders/rubric.md
    model: claude-opus-4-8            # a single judge, or a jury:
    # models: [claude-opus-4-8, claude-sonnet-4-6]
    pass_threshold: 0.7
"""
RUBRIC = {"graders/rubric.md": "# Does it rhyme?"}
JUDGES = {
    "one": (MODEL_JUDGE, {"claude-opus-4-8"}),
    "jury": (
        MODEL_JUDGE.replace("model: claude-opus-4-8 ", "# ").replace("# models", "models"),
        {"claude-opus-4-8", "claude-sonnet-4-6"},
    ),
    "default": ("  - {type: model_judge, rubric: graders/rubric.md}\n", {"claude-opus-4-8"}),
}
TRACE = """
  - type: trace
    weight: 1.0
    require_tools: [{kind: write}]     # ≥1 tool_call of each listed Tool Kind
    require_no_denied: true            # no permission request ended in a deny
    # max_tool_calls: 30               # budgets on tool calls / tokens / cost
"""
DENIES = """
    calls('write')
    event('permission_request', request_id='1', tool_call_id='0')
    event('permission_response', request_id='1', outcome='deny')
"""
BAD_TRACES = {"no-write": "calls('read')", "31-calls": "calls('write', 31)", "denied": DENIES}
EFFICIENCY = """
  - type: efficiency
    weight: 2.0
    target_cost_usd: 0.30     # full credit at/under; ramps down above
    target_tokens: 2000
    target_tool_calls: 20
    pass_threshold: 0.8
"""
WITHOUT_A_TRACE = (
    TRACE
    + EFFICIENCY
    + "  - {type: tool_correctness, expected: [write]}\n"
    + "  - {type: trace, gate: true, require_tools: [{kind: write}]}\n"
)
PAIRED = '  - {type: pytest, weight: 4.0, inject: ["./hidden/test_x.py"]}\n  - {type: implemented, gate: true}\n'
CASES: dict[str, dict[str, Any]] = {
    "command": {"graders": COMMAND, "agent": "Path('done' if good else 'bad').touch()"},
    "files": {
        "graders": FILES,
        "agent": "Path('b.txt').write_text('b\\n')\nPath('c.py').write_text('retry(backoff=2)' if good else 'retry()')",
        "author": {"graders/expected/b.txt": "b\n"},
    },
    "node": {
        "graders": NODE,
        "agent": "Path('solution.js').write_text(f'exports.add = (a, b) => a {\"+\" if good else \"-\"} b;')",
        "author": {"hidden/x.test.js": NODE_HIDDEN, "source/hidden.test.js": 'require("./x.test.js");'},
        **OF_SOURCE,
    },
    "gate": {
        "graders": GATE + DONE,
        "agent": "for name in ('done', 'ok1', 'ok2') if good else ('done', 'ok1'): Path(name).touch()",
        "author": {"source/build.py": BUILD},
        **OF_SOURCE,
    },
    **{
        f"implemented-{name}": {
            "graders": graders + DONE,
            "agent": "Path('done').touch()\n"
            f"Path('a.py').write_text('def add(*of): return sum(of)' if good else {bad!r})",
            "author": {"source/a.py": STUB},
            "expect": {"pass_threshold": 0.1},
            **OF_SOURCE,
        }
        for name, (graders, bad) in NOT_IMPLEMENTED.items()
    },
    "without-a-key": {"graders": MODEL_JUDGE + DONE, "agent": IF_GOOD, "author": RUBRIC},
    **{
        f"trace-{name}": {
            "graders": TRACE.replace("# max_tool_calls", "max_tool_calls"),
            "agent": f"if good: calls('write', 30)\nelse: {bad}",
            "traced": True,
        }
        for name, bad in BAD_TRACES.items()
    },
    "efficiency": {
        "graders": EFFICIENCY,
        "agent": "calls('read', 20)\nfactor = 1 if good else 2\n"
        "event('usage', input_tokens=2000 * factor, output_tokens=0, cost_usd=0.3 * factor)",
        "traced": True,
    },
    "without-a-trace": {"graders": WITHOUT_A_TRACE + DONE, "agent": IF_GOOD},
    "tool-correctness": {
        "graders": "  - {type: tool_correctness, expected: [read, {kind: write}]}\n",
        "agent": "calls('read'); calls('write', 1 if good else 2)",
        "traced": True,
    },
}
WITH_PYTEST: dict[str, dict[str, Any]] = {
    "swebench": {
        "graders": SWEBENCH,
        "agent": "twice = 2 if good else 3\n"
        "Path('a.py').write_text(f'def add(a, b): return a + b\\ndef twice(a): return {twice} * a')",
        "author": {"hidden/test_x.py": SWEBENCH_HIDDEN},
        "expect": {"pass_threshold": 0.5},
    },
    "paired": {
        "graders": PAIRED + TRACE + EFFICIENCY,
        "agent": f"{WRITES}assert not list(Path().rglob('test_x.py'))\n"
        "calls('write' if good else 'read', 20 if good else 40)\n"
        "event('usage', input_tokens=1000, output_tokens=0, cost_usd=0.1)",
        "author": {"hidden/test_x.py": HIDDEN},
        "traced": True,
    },
}
Run = Callable[[str], BothWays]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Run:
    """All cases in one call; one of them, whose good model passed and whose bad one failed."""
    files = files_of(packages, "source/packages")
    environment = {"kind": "command", "commands": ["true"], "env": {"PYTHONPATH": "packages"}}
    with_pytest = {
        name: {**fields, "author": {"source/a.py": STUB, **files, **fields["author"]}, "environment": environment}
        for name, fields in WITH_PYTEST.items()
    }
    cases = {**CASES, **{name: {**fields, **OF_SOURCE} for name, fields in with_pytest.items()}}
    called = called_once(tmp_path_factory, "touchstone-graders", lambda directory: run_cases(directory, cases))
    assert called.code == 1, called.out + called.err
    return lambda name: models_of(called, name)


def scores(found: BothWays, name: str) -> list[float | None]:
    return [one["score"] for one in found.check(name)]


def composites(found: BothWays) -> tuple[float, float]:
    return found.good["composite"], found.bad["composite"]


def test_command(run: Run) -> None:
    """ "Run a command in the produced sandbox; pass iff it exits as expected.\""""
    found = run("command")
    assert scores(found, "command") == [1.0, 0.0]
    assert scores(found, "command-2") == [1.0, 0.0]
    assert found.check("command-2")[0]["weight"] == 3.0


def test_files(run: Run) -> None:
    """ "Two independent checks (use either or both). Score = fraction of checks that pass.\""""
    assert scores(run("files"), "files") == [1.0, pytest.approx(2 / 3)]


def test_tests_of_any_language(run: Run) -> None:
    assert scores(run("node"), "tests") == [1.0, 0.5]


def test_a_regression_gate(run: Run) -> None:
    """ "it never adds credit, it only disqualifies the cell (→ 0) when it doesn't fully pass.\""""
    found = run("gate")
    assert scores(found, "tests") == [1.0, 0.5]
    assert composites(found) == (1.0, 0.0)
    assert found.check("tests")[0]["weight"] == 0.0


def test_swebench(run: Run) -> None:
    """ "FAIL_TO_PASS … scored for credit"; "existing tests that must stay green, scored as a built-in gate.\""""
    found = run("swebench")
    assert scores(found, "swebench") == [1.0, 1.0]
    assert composites(found) == (1.0, 0.0)


@pytest.mark.parametrize("bad", NOT_IMPLEMENTED)
def test_implemented(run: Run, bad: str) -> None:
    """ "the agent actually wrote an implementation (not just a stub or a comment).\""""
    found = run(f"implemented-{bad}")
    assert scores(found, "implemented") == [1.0, 0.0]
    assert composites(found) == (1.0, 0.0)


def test_model_judge(tmp_path: Path) -> None:
    """ "Sends the rubric + task prompt + produced output to one or more judge models." Each case has a prompt of its
    own, by which its requests are known."""
    cases = {
        name: {
            "graders": graders,
            "agent": "print('roses are red' if good else 'no')",
            "author": RUBRIC,
            "expect": {"pass_threshold": 0.7},
            "task": {"prompt": f"do it as {name}"},
        }
        for name, (graders, _) in JUDGES.items()
    }
    with ModelServer(lambda received: answer(0.9 if "roses" in received.prompt else 0.2)) as server:
        called = run_cases(tmp_path, cases, server.environ())
    for name, (_, models) in JUDGES.items():
        assert scores(models_of(called, name), "model_judge") == [0.9, 0.2]
        asked = [request for request in server.requests if f"do it as {name}" in request.prompt]
        assert {request.body["model"] for request in asked} == models
        assert all("# Does it rhyme?" in request.prompt for request in asked)


def test_without_a_key_a_judge_is_skipped(run: Run) -> None:
    """ "Auto-skips when ANTHROPIC_API_KEY is unset, so offline runs aren't penalized.\""""
    found = run("without-a-key")
    assert [one["status"] for one in found.check("model_judge")] == ["skip", "skip"]
    assert composites(found) == (1.0, 0.0)


@pytest.mark.parametrize("bad", BAD_TRACES)
def test_trace(run: Run, bad: str) -> None:
    """ "Assert over the observed Trace": each of the three things asserted is one part."""
    assert scores(run(f"trace-{bad}"), "trace") == [1.0, pytest.approx(2 / 3)]


def test_efficiency(run: Run) -> None:
    """ "then target/actual once over (2× over → 0.5). The cell score is the mean across the configured metrics.\""""
    assert scores(run("efficiency"), "efficiency") == [1.0, pytest.approx((0.5 + 0.5 + 1.0) / 3)]


def test_without_a_trace_graders_of_it_are_skipped(run: Run) -> None:
    """ "marked skipped and excluded from the weighted total, rather than failing"; a gate that skips disqualifies
    nothing."""
    found = run("without-a-trace")
    for name in ("trace", "efficiency", "tool_correctness", "trace-2"):
        assert [one["status"] for one in found.check(name)] == ["skip", "skip"]
    assert composites(found) == (1.0, 0.0)
    assert "the harness mine leaves no trace: this grader is skipped there" in found.called.err


def test_tool_correctness_compares_kinds(run: Run) -> None:
    """Not on the page; the released version compares bare names with the kind of tool."""
    assert scores(run("tool-correctness"), "tool_correctness") == [1.0, pytest.approx(0.8)]


def test_correctness_paired_with_efficiency(run: Run) -> None:
    """ "a pytest/swebench grader for correctness (most of the weight), an implemented gate so non-attempts score zero,
    a trace grader to require the right kind of work, and an efficiency grader." Of pytest: "value = passed / (passed +
    failed + errors)"; hidden tests "never sit in the sandbox the model saw.\""""
    found = run("paired")
    assert scores(found, "pytest") == [1.0, 0.5]
    assert found.bad["agent"]["exit_code"] == 0
    assert composites(found) == (1.0, pytest.approx((4 * 0.5 + 0.5 + 2 * 2.5 / 3) / 7))


def test_nothing_but_gates_fails(tmp_path: Path) -> None:
    """A gate "never adds credit": a case that has nothing else can't pass (contract, 5.5)."""
    write_case(tmp_path, '  - {type: command, gate: true, cmd: "true"}\n')
    called = run_case(tmp_path)
    assert called.code == 1
    assert {(cell["verdict"], cell["composite"]) for cell in called.cells} == {("fail", 0.0)}
    assert all("nothing but gates" in cell["reason"] for cell in called.cells)
