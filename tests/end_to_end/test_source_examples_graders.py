"""The examples of 004_722b8593dcd13c4e.txt, "Graders", by our check types' own fields, to a passing and a failing
verdict: a grader is an invariant, with its weight and gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.graded_tests import files_of
from support.model_server import ModelServer, answer
from support.source_examples import BothWays, as_invariants, both_ways, printing

WRITES = "Path('a.py').write_text(f'def add(a, b):\\n    return a {\"+\" if good else \"-\"} b\\n')\n"
"""An agent whose addition is one, or isn't."""
PYTEST_HIDDEN = """
from a import add
def test_small(): assert add(1, 2) == 3
def test_zero(): assert add(0, 0) == 0
"""


@pytest.fixture(scope="module")
def packages(packages: Path) -> dict[str, str | bytes]:
    """pytest for the sandbox's python3, as files of the agent's directory."""
    return files_of(packages, "agent/packages")


def graded(directory: Path, graders: str, agent: str, threshold: float = 1.0, **fields: Any) -> BothWays:
    example = as_invariants(graders) + f"scoring: {{pass_threshold: {threshold}}}\n"
    return both_ways(directory, example, agent, **fields)


def with_pytest(
    directory: Path, graders: str, agent: str, packages: dict[str, str | bytes], author: dict[str, str], **fields: Any
) -> BothWays:
    setup = {"env": {"PYTHONPATH": "{{ agent.dir }}/packages"}}
    return graded(directory, graders, agent, author={**packages, **author}, setup=setup, **fields)


def scores(found: BothWays, name: str) -> list[float | None]:
    return [one["score"] for one in found.check(name)]


COMMAND = """
- {type: command, cmd: "test -f done", expect_exit: 0}
"""


def test_command(tmp_path: Path) -> None:
    """ "Run a command in the produced sandbox; pass iff it exits as expected.\""""
    found = graded(tmp_path, COMMAND, "if good: Path('done').touch()")
    assert scores(found, "command-0") == [1.0, 0.0]


FILES = """
- type: files
  weight: 1.0
  expect_dir: ./graders/expected        # each file here must exist & match byte-for-byte
  patterns: ["retry", "backoff"]        # each regex must appear somewhere in the sandbox
"""


def test_files(tmp_path: Path) -> None:
    """ "Score = fraction of checks that pass.\""""
    agent = """
Path("deep").mkdir()
Path("deep/b.txt").write_text("b\\n" if good else "b")
Path("client.py").write_text("retry(backoff=2)" if good else "retry()")
"""
    author = {"graders/expected/deep/b.txt": "b\n"}
    assert scores(graded(tmp_path, FILES, agent, author=author), "files-0") == [1.0, 1 / 3]


PYTEST = """
- {type: pytest, weight: 4.0, inject: ["./hidden/test_x.py"]}
"""


NODE = """
- type: tests                      # any language
  weight: 4.0
  cmd: "node --test hidden.test.js"
  inject: ["./hidden/x.test.js"]
  # junit_xml: "target/surefire-reports/TEST-*.xml"   # parse JUnit XML for counts
"""
NODE_HIDDEN = """const test = require("node:test"), assert = require("assert"), {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("zero", () => assert.equal(add(0, 0), 0));"""


def test_tests_of_node(tmp_path: Path) -> None:
    """The file that the example's command names takes in the one that it injects."""
    agent = "Path('solution.js').write_text(f'exports.add = (a, b) => a {\"+\" if good else \"-\"} b;')"
    author, start = {"hidden/x.test.js": NODE_HIDDEN}, {"hidden.test.js": 'require("./x.test.js");'}
    assert scores(graded(tmp_path, NODE, agent, author=author, start=start), "tests-0") == [1.0, 0.5]


GATE = """
- {type: tests, gate: true, cmd: "...", junit_xml: "..."}         # a regression gate
"""
SUREFIRE = "target/surefire-reports/TEST-*.xml"
BUILD = """import os, sys
cases = "".join(f'<testcase name="{i}">{"" if os.path.exists(f"ok{i}") else "<failure/>"}</testcase>' for i in (1, 2))
os.makedirs("target/surefire-reports")
open("target/surefire-reports/TEST-all.xml", "w").write(f'<testsuite tests="2">{cases}</testsuite>')
sys.exit("failure" in cases)
"""


def test_a_regression_gate(tmp_path: Path) -> None:
    """A gate "disqualifies the cell (→ 0) when it doesn't fully pass". cmd and junit_xml filled in."""
    graders = GATE.replace('"..."', '"python3 build.py"', 1).replace('"..."', f'"{SUREFIRE}"')
    agent = "for name in ('ok1', 'ok2') if good else ('ok1',): Path(name).touch()"
    found = graded(tmp_path, graders + COMMAND.replace("done", "ok1"), agent, 0.1, start={"build.py": BUILD})
    assert scores(found, "tests-0") == [1.0, 0.5]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


SWEBENCH = """
- type: swebench
  weight: 4.0
  inject: [{src: hidden/test_x.py, dest: testing/test_x.py}]
  fail_to_pass: ["testing/test_x.py::test_bug"]
  pass_to_pass: ["testing/test_x.py::test_unrelated"]
  # cmd_prefix: "python3 -m pytest -q -p no:cacheprovider"
"""
SWEBENCH_HIDDEN = """
from solution import add, double
def test_bug(): assert add(1, 2) == 3
def test_unrelated(): assert double(2) == 4
"""


@pytest.mark.parametrize(
    ("left", "score", "prefix"),
    [
        ("def add(a, b): return a - b\ndef double(a): return a * 2\n", 0.0, ""),
        ("def add(a, b): return a + b\ndef double(a): return 0\n", 1.0, "cmd_prefix"),
    ],
    ids=["not-mended", "broken"],
)
def test_swebench(tmp_path: Path, packages: dict[str, str | bytes], left: str, score: float, prefix: str) -> None:
    """ "a FAIL_TO_PASS set (the bug's tests, scored for credit) plus a PASS_TO_PASS set (existing tests that must stay
    green, scored as a built-in gate).\""""
    graders = SWEBENCH.replace("# cmd_prefix", prefix) if prefix else SWEBENCH
    fixed = "def add(a, b): return a + b\ndef double(a): return a * 2\n"
    agent = f"Path('solution.py').write_text({fixed!r} if good else {left!r})"
    author = {"hidden/test_x.py": SWEBENCH_HIDDEN}
    found = with_pytest(tmp_path, graders, agent, packages, author, start={"testing/x": ""}, threshold=0.1)
    assert scores(found, "swebench-0") == [1.0, score]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


IMPLEMENTED = """
- {type: implemented, gate: true}                      # scan all *.py (excludes test_*)
"""
IMPLEMENTED_FILES = """
- {type: implemented, gate: true, files: ["a.py"]}     # scan specific files
"""
STUB = "def add(a, b):\n    raise NotImplementedError\n"


@pytest.mark.parametrize(
    ("graders", "bad"),
    [
        (IMPLEMENTED, f"# add them\n{STUB}"),
        (IMPLEMENTED_FILES, STUB.replace("raise NotImplementedError", "return a + b  # x")),
    ],
    ids=["all-stub", "files-unchanged"],
)
def test_implemented(tmp_path: Path, graders: str, bad: str) -> None:
    """ "the agent actually wrote an implementation (not just a stub or a comment)": a gate that adds no credit."""
    real = "def add(a, b):\n    return a + b\n"
    agent = f"Path('a.py').write_text('def add(*of): return sum(of)' if good else {bad!r})\nPath('done').touch()\n"
    start = {"a.py": real if "return" in bad else STUB}
    found = graded(tmp_path, graders + COMMAND, agent, 0.1, start=start)
    assert scores(found, "implemented-0") == [1.0, 0.0]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)
    assert found.check("implemented-0")[0]["weight"] == 0.0


MODEL_JUDGE = """
- type: model_judge
  weight: 1.0
  rubric: ./graders/rubric.md
  model: claude-opus-4-8            # a single judge, or a jury:
  # models: [claude-opus-4-8, claude-sonnet-4-6]
  pass_threshold: 0.7
"""


@pytest.mark.parametrize("jury", [False, True], ids=["one", "jury"])
def test_model_judge(tmp_path: Path, jury: bool) -> None:
    """ "Sends the rubric + task prompt + produced output to one or more judge models.\""""
    graders = MODEL_JUDGE
    if jury:
        graders = MODEL_JUDGE.replace("model: claude-opus-4-8 ", "# ").replace("# models", "models")
    author = {"graders/rubric.md": "# Does it rhyme?"}
    with ModelServer(lambda received: answer(0.9 if "roses" in received.prompt else 0.2)) as models:
        agent = "print('roses are red' if good else 'no')"
        found = graded(tmp_path, graders, agent, 0.7, author=author, environ=models.environ())
    assert scores(found, "model_judge-0") == [0.9, 0.2]
    for request in models.requests:
        assert "# Does it rhyme?" in request.prompt
        assert "do it" in request.prompt
    assert {request.body["model"] for request in models.requests} == {
        "claude-opus-4-8", *(["claude-sonnet-4-6"] if jury else [])
    }  # fmt: skip


def test_without_a_key_a_judge_is_skipped_and_left_out(tmp_path: Path) -> None:
    """ "Auto-skips when ANTHROPIC_API_KEY is unset, so offline runs aren't penalized.\""""
    author = {"graders/rubric.md": "# Does it rhyme?"}
    found = graded(tmp_path, MODEL_JUDGE + COMMAND, "if good: Path('done').touch()", author=author)
    assert [one["status"] for one in found.check("model_judge-0")] == ["skip", "skip"]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


def used(*tools: str, cost: float = 0.1, tokens: int = 1000) -> dict[str, Any]:
    """An AgentResult: a trace with these calls and that usage."""
    usage = {"input_tokens": tokens, "output_tokens": 0, "cost_usd": cost}
    return {"output": "done", "tool_calls": [{"name": name} for name in tools], "token_usage": usage}


PRINTS_JSON = {"output": {"json": "stdout"}}
TRACE = """
- type: trace
  weight: 1.0
  require_tools: [{kind: write}]     # ≥1 tool_call of each listed Tool Kind
  # max_tool_calls: 30               # budgets on tool calls / tokens / cost
"""


@pytest.mark.parametrize("bad", [["Read"], ["Write"] * 31], ids=["no-write", "31-calls"])
def test_trace(tmp_path: Path, bad: list[str]) -> None:
    """ "Binary budgets (a cliff at the threshold).\""""
    graders = TRACE.replace("# max_tool_calls", "max_tool_calls")
    agent = printing(used(*["Write"] * 30), used(*bad))
    assert scores(graded(tmp_path, graders, agent, of_agent=PRINTS_JSON), "trace-0") == [1.0, 0.5]


DENIED = """
- type: trace
  weight: 1.0
  require_tools: [{kind: write}]
  require_no_denied: true            # no permission request ended in a deny
"""


def test_trace_without_a_denied_permission(tmp_path: Path) -> None:
    agent = """
events = [("tool_call", {"tool_call_id": "1", "name": "Write", "kind": "write"}),
          ("permission_request", {"request_id": "2", "tool_call_id": "1"}),
          ("permission_response", {"request_id": "2", "outcome": "allow" if good else "deny"})]
lines = [{"seq": n, "id": str(n), "ts": n, "type": type, "payload": data} for n, (type, data) in enumerate(events)]
for line in lines: print(json.dumps(line))
"""
    traced = {"trace": {"format": "touchstone", "stdout": True}}
    assert scores(graded(tmp_path, DENIED, agent, of_agent=traced), "trace-0") == [1.0, 0.5]


EFFICIENCY = """
- type: efficiency
  weight: 2.0
  target_cost_usd: 0.30     # full credit at/under; ramps down above
  target_tokens: 2000
  target_tool_calls: 20
  pass_threshold: 0.8
"""


def test_efficiency(tmp_path: Path) -> None:
    """ "at/under target → 1.0, then target/actual once over (2× over → 0.5). The cell score is the mean across the
    configured metrics.\""""
    agent = printing(used(*["Read"] * 20, cost=0.3, tokens=2000), used(*["Read"] * 20, cost=0.6, tokens=4000))
    found = graded(tmp_path, EFFICIENCY, agent, of_agent=PRINTS_JSON)
    assert scores(found, "efficiency-0") == [1.0, pytest.approx((0.5 + 0.5 + 1.0) / 3)]


def test_traces_that_are_not_there_are_skipped(tmp_path: Path) -> None:
    """ "A grader that can't apply (e.g. a trace grader with no Trace) is marked skipped and excluded from the weighted
    total, rather than failing.\""""
    found = graded(tmp_path, DENIED + EFFICIENCY + COMMAND, "if good: Path('done').touch()")
    assert [one["status"] for one in found.check("trace-0")] == ["skip", "skip"]
    assert [one["status"] for one in found.check("efficiency-1")] == ["skip", "skip"]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


COMBINED = PYTEST + IMPLEMENTED + DENIED.replace("  require_no_denied: true ", "  # ") + EFFICIENCY


@pytest.mark.parametrize(
    ("bad", "passed", "composite"),
    [
        ("Path('a.py').write_text('def add(a, b): pass')", 0.0, 0.0),
        (
            "Path('a.py').write_text('def add(a, b): return a - b'); tools = ['Read'] * 40",
            0.5,
            (2.0 + 0.0 + 2 * 2.5 / 3) / 7,
        ),
    ],
    ids=["non-attempt", "wrong-and-wasteful"],
)
def test_correctness_paired_with_efficiency(
    tmp_path: Path, packages: dict[str, str | bytes], bad: str, passed: float, composite: float
) -> None:
    """ "a pytest/swebench grader for correctness (most of the weight), an implemented gate so non-attempts score zero,
    a trace grader to require the right kind of work, and an efficiency grader." Of pytest: "value = passed / (passed +
    failed + errors)"; hidden "so they never sit in the sandbox the model saw.\""""
    agent = f"""
assert not list(Path().rglob("test_x.py"))
tools = ["Write"]
{WRITES}
if not good: {bad}
usage = {{"input_tokens": 1000, "output_tokens": 0, "cost_usd": 0.1}}
print(json.dumps({{"output": "x", "tool_calls": [{{"name": one}} for one in tools], "token_usage": usage}}))
"""
    author = {"hidden/test_x.py": PYTEST_HIDDEN}
    found = with_pytest(tmp_path, COMBINED, agent, packages, author, of_agent=PRINTS_JSON, start={"a.py": STUB})
    assert scores(found, "pytest-0") == [1.0, passed]
    assert [cell["agent"]["exit_code"] for cell in (found.good, found.bad)] == [0, 0]
    assert found.good["composite"] == 1.0
    assert found.bad["composite"] == pytest.approx(composite)
