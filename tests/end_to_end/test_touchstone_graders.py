"""Every block of 004_722b8593dcd13c4e.txt, "Graders", in a case.yaml as it stands there, run by `keystone run
case.yaml` for a harness of harnesses.yaml: to a passing verdict for one model and a failing one for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.graded_tests import files_of
from support.model_server import ModelServer, answer
from support.source_examples import BothWays
from support.touchstone import both_models, run_case, write_case

STUB = "def add(a, b):\n    raise NotImplementedError\n"
WRITES = "Path('a.py').write_text(f'def add(a, b):\\n    return a {\"+\" if good else \"-\"} b\\n')\n"
HIDDEN = "from a import add\ndef test_small(): assert add(1, 2) == 3\ndef test_zero(): assert add(0, 0) == 0\n"
DONE = '  - {type: command, cmd: "test -f done"}\n'


@pytest.fixture(scope="module")
def packages(packages: Path) -> dict[str, str | bytes]:
    """pytest for the sandbox's python3, as files of a source directory."""
    return files_of(packages, "source/packages")


def with_pytest(directory: Path, graders: str, agent: str, packages: dict[str, str | bytes], **fields: Any) -> BothWays:
    fields["author"] = {"source/a.py": STUB, **packages, **fields.get("author", {})}
    environment = {"kind": "command", "commands": ["true"], "env": {"PYTHONPATH": "packages"}}
    return both_models(directory, graders, agent, source={"path": "source"}, environment=environment, **fields)


def scores(found: BothWays, name: str) -> list[float | None]:
    return [one["score"] for one in found.check(name)]


def composites(found: BothWays) -> tuple[float, float]:
    return found.good["composite"], found.bad["composite"]


def test_command(tmp_path: Path) -> None:
    """ "Run a command in the produced sandbox; pass iff it exits as expected.\""""
    graders = DONE + '  - {type: command, cmd: "test -f bad", expect_exit: 1, timeout_s: 30, weight: 3}\n'
    found = both_models(tmp_path, graders, "Path('done' if good else 'bad').touch()")
    assert scores(found, "command") == [1.0, 0.0]
    assert scores(found, "command-2") == [1.0, 0.0]
    assert found.check("command-2")[0]["weight"] == 3.0


def test_files(tmp_path: Path) -> None:
    """ "Two independent checks (use either or both). Score = fraction of checks that pass.\""""
    graders = """
  - type: files
    weight: 1.0
    expect_dir: ./graders/expected        # each file here must exist & match byte-for-byte
    patterns: ["retry", "backoff"]        # each regex must appear somewhere in the sandbox
"""
    agent = "Path('b.txt').write_text('b\\n'); Path('c.py').write_text('retry(backoff=2)' if good else 'retry()')"
    found = both_models(tmp_path, graders, agent, author={"graders/expected/b.txt": "b\n"})
    assert scores(found, "files") == [1.0, pytest.approx(2 / 3)]


def test_tests_of_any_language(tmp_path: Path) -> None:
    graders = """
  - type: tests                      # any language
    weight: 4.0
    cmd: "node --test hidden.test.js"
    inject: ["./hidden/x.test.js"]
"""
    hidden = """const test = require("node:test"), assert = require("assert"), {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("zero", () => assert.equal(add(0, 0), 0));"""
    agent = "Path('solution.js').write_text(f'exports.add = (a, b) => a {\"+\" if good else \"-\"} b;')"
    author = {"hidden/x.test.js": hidden, "source/hidden.test.js": 'require("./x.test.js");'}
    found = both_models(tmp_path, graders, agent, author=author, source={"path": "source"})
    assert scores(found, "tests") == [1.0, 0.5]


def test_a_regression_gate(tmp_path: Path) -> None:
    """ "it never adds credit, it only disqualifies the cell (→ 0) when it doesn't fully pass.\""""
    graders = """
  - {type: tests, gate: true, cmd: "python3 build.py", junit_xml: "reports/TEST-*.xml"}         # a regression gate
"""
    build = """import os
cases = "".join(f'<testcase name="{i}">{"" if os.path.exists(f"ok{i}") else "<failure/>"}</testcase>' for i in (1, 2))
os.makedirs("reports")
open("reports/TEST-all.xml", "w").write(f'<testsuite tests="2">{cases}</testsuite>')
"""
    agent = "for name in ('done', 'ok1', 'ok2') if good else ('done', 'ok1'): Path(name).touch()"
    author = {"source/build.py": build}
    found = both_models(tmp_path, graders + DONE, agent, author=author, source={"path": "source"})
    assert scores(found, "tests") == [1.0, 0.5]
    assert composites(found) == (1.0, 0.0)
    assert found.check("tests")[0]["weight"] == 0.0


def test_swebench(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    """ "FAIL_TO_PASS … scored for credit"; "existing tests that must stay green, scored as a built-in gate.\""""
    graders = """
  - type: swebench
    weight: 4.0
    inject: [{src: hidden/test_x.py, dest: testing/test_x.py}]
    fail_to_pass: ["testing/test_x.py::test_bug"]
    pass_to_pass: ["testing/test_x.py::test_unrelated"]
    cmd_prefix: "python3 -m pytest -q -p no:cacheprovider"
"""
    hidden = "from a import add, twice\ndef test_bug(): assert add(1, 2) == 3\n"
    hidden += "def test_unrelated(): assert twice(2) == 4\n"
    agent = "Path('a.py').write_text(f'def add(a, b): return a + b\\ndef twice(a): return {2 if good else 3} * a')"
    expect = {"pass_threshold": 0.5}
    found = with_pytest(tmp_path, graders, agent, packages, author={"hidden/test_x.py": hidden}, expect=expect)
    assert scores(found, "swebench") == [1.0, 1.0]
    assert composites(found) == (1.0, 0.0)


ALL_FILES = "  - {type: implemented, gate: true}                      # scan all *.py (excludes test_*)\n"
THESE_FILES = '  - {type: implemented, gate: true, files: ["a.py"]}     # scan specific files\n'


@pytest.mark.parametrize(
    ("graders", "bad"),
    [(ALL_FILES, f"# add them\n{STUB}"), (ALL_FILES, "def add(a, b): pass\n"), (THESE_FILES, "# only a comment\n")],
)
def test_implemented(tmp_path: Path, graders: str, bad: str) -> None:
    """ "the agent actually wrote an implementation (not just a stub or a comment).\""""
    agent = f"Path('done').touch(); Path('a.py').write_text('def add(*of): return sum(of)' if good else {bad!r})"
    author, source = {"source/a.py": STUB}, {"path": "source"}
    found = both_models(tmp_path, graders + DONE, agent, author=author, source=source, expect={"pass_threshold": 0.1})
    assert scores(found, "implemented") == [1.0, 0.0]
    assert composites(found) == (1.0, 0.0)


MODEL_JUDGE = """
  - type: model_judge
    weight: 1.0
    rubric: ./graders/rubric.md
    model: claude-opus-4-8            # a single judge, or a jury:
    # models: [claude-opus-4-8, claude-sonnet-4-6]
    pass_threshold: 0.7
"""
RUBRIC = {"graders/rubric.md": "# Does it rhyme?"}


@pytest.mark.parametrize(
    ("graders", "models"),
    [
        (MODEL_JUDGE, {"claude-opus-4-8"}),
        (
            MODEL_JUDGE.replace("model: claude-opus-4-8 ", "# ").replace("# models", "models"),
            {"claude-opus-4-8", "claude-sonnet-4-6"},
        ),
        ("  - {type: model_judge, rubric: graders/rubric.md}\n", {"claude-opus-4-8"}),
    ],
    ids=["one", "jury", "default"],
)
def test_model_judge(tmp_path: Path, graders: str, models: set[str]) -> None:
    """ "Sends the rubric + task prompt + produced output to one or more judge models.\""""
    with ModelServer(lambda received: answer(0.9 if "roses" in received.prompt else 0.2)) as server:
        agent = "print('roses are red' if good else 'no')"
        fields = {"author": RUBRIC, "environ": server.environ(), "expect": {"pass_threshold": 0.7}}
        found = both_models(tmp_path, graders, agent, **fields)
    assert scores(found, "model_judge") == [0.9, 0.2]
    assert {request.body["model"] for request in server.requests} == models
    assert all("# Does it rhyme?" in request.prompt and "do it" in request.prompt for request in server.requests)


def test_without_a_key_a_judge_is_skipped(tmp_path: Path) -> None:
    """ "Auto-skips when ANTHROPIC_API_KEY is unset, so offline runs aren't penalized.\""""
    found = both_models(tmp_path, MODEL_JUDGE + DONE, "if good: Path('done').touch()", author=RUBRIC)
    assert [one["status"] for one in found.check("model_judge")] == ["skip", "skip"]
    assert composites(found) == (1.0, 0.0)


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


@pytest.mark.parametrize(
    ("bad", "score"),
    [
        ("calls('read')", 2 / 3),
        ("calls('write', 31)", 2 / 3),
        (DENIES, 2 / 3),
    ],
    ids=["no-write", "31-calls", "denied"],
)
def test_trace(tmp_path: Path, bad: str, score: float) -> None:
    """ "Assert over the observed Trace": each of the three things asserted is one part."""
    graders = TRACE.replace("# max_tool_calls", "max_tool_calls")
    found = both_models(tmp_path, graders, f"if good: calls('write', 30)\nelse: {bad}", traced=True)
    assert scores(found, "trace") == [1.0, pytest.approx(score)]


EFFICIENCY = """
  - type: efficiency
    weight: 2.0
    target_cost_usd: 0.30     # full credit at/under; ramps down above
    target_tokens: 2000
    target_tool_calls: 20
    pass_threshold: 0.8
"""


def test_efficiency(tmp_path: Path) -> None:
    """ "then target/actual once over (2× over → 0.5). The cell score is the mean across the configured metrics.\""""
    agent = "calls('read', 20)\nfactor = 1 if good else 2\n"
    agent += "event('usage', input_tokens=2000 * factor, output_tokens=0, cost_usd=0.3 * factor)"
    found = both_models(tmp_path, EFFICIENCY, agent, traced=True)
    assert scores(found, "efficiency") == [1.0, pytest.approx((0.5 + 0.5 + 1.0) / 3)]


def test_without_a_trace_graders_of_it_are_skipped(tmp_path: Path) -> None:
    """ "marked skipped and excluded from the weighted total, rather than failing"; a gate that skips disqualifies
    nothing."""
    gate = "  - {type: trace, gate: true, require_tools: [{kind: write}]}\n"
    calls = "  - {type: tool_correctness, expected: [write]}\n"
    found = both_models(tmp_path, TRACE + EFFICIENCY + calls + gate + DONE, "if good: Path('done').touch()")
    for name in ("trace", "efficiency", "tool_correctness", "trace-2"):
        assert [one["status"] for one in found.check(name)] == ["skip", "skip"]
    assert composites(found) == (1.0, 0.0)
    assert "the harness mine leaves no trace: this grader is skipped there" in found.called.err


def test_tool_correctness_compares_kinds(tmp_path: Path) -> None:
    """Not on the page; the released version compares bare names with the kind of tool."""
    graders = "  - {type: tool_correctness, expected: [read, {kind: write}]}\n"
    found = both_models(tmp_path, graders, "calls('read'); calls('write', 1 if good else 2)", traced=True)
    assert scores(found, "tool_correctness") == [1.0, pytest.approx(0.8)]


def test_correctness_paired_with_efficiency(tmp_path: Path, packages: dict[str, str | bytes]) -> None:
    """ "a pytest/swebench grader for correctness (most of the weight), an implemented gate so non-attempts score zero,
    a trace grader to require the right kind of work, and an efficiency grader." Of pytest: "value = passed / (passed +
    failed + errors)"; hidden tests "never sit in the sandbox the model saw.\""""
    graders = '  - {type: pytest, weight: 4.0, inject: ["./hidden/test_x.py"]}\n'
    graders += "  - {type: implemented, gate: true}\n" + TRACE + EFFICIENCY
    agent = (
        f"{WRITES}assert not list(Path().rglob('test_x.py'))\ncalls('write' if good else 'read', 20 if good else 40)\n"
    )
    agent += "event('usage', input_tokens=1000, output_tokens=0, cost_usd=0.1)"
    author = {"hidden/test_x.py": HIDDEN}
    found = with_pytest(tmp_path, graders, agent, packages, author=author, traced=True)
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
