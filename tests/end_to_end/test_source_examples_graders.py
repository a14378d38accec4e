"""The examples of 004_722b8593dcd13c4e.txt, "Graders", by our check types' own fields, to a passing and a failing
verdict: a grader is an invariant, with its weight and gate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.graded_tests import files_of
from support.model_server import ModelServer, answer
from support.source_examples import BothWays, as_invariants, both_ways, printing, run_examples

WRITES = "Path('a.py').write_text(f'def add(a, b):\\n    return a {\"+\" if good else \"-\"} b\\n')\n"
"""An agent whose addition is one, or isn't."""
PYTEST_HIDDEN = """
from a import add
def test_small(): assert add(1, 2) == 3
def test_zero(): assert add(0, 0) == 0
"""


EXAMPLES: dict[str, dict[str, Any]] = {}
"""By name, what is run; each is added where its graders stand."""
SETUP = {"env": {"PYTHONPATH": "{{ agent.dir }}/packages"}}
"""Of those that need a pytest for the sandbox's python3."""


def graded(graders: str, agent: str, threshold: float = 1.0, **fields: Any) -> dict[str, Any]:
    """An example with these graders."""
    return {"example": as_invariants(graders) + f"scoring: {{pass_threshold: {threshold}}}\n", "agent": agent, **fields}


Run = Callable[[str], BothWays]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, packages: Path) -> Run:
    """All examples in one call; one of them."""
    files = files_of(packages, "agent/packages")
    examples = {
        name: {**fields, "author": {**files, **fields["author"]}} if "setup" in fields else fields
        for name, fields in EXAMPLES.items()
    }
    return run_examples(tmp_path_factory, "examples-of-graders", examples)


def scores(found: BothWays, name: str) -> list[float | None]:
    return [one["score"] for one in found.check(name)]


COMMAND = """
- {type: command, cmd: "test -f done", expect_exit: 0}
"""


IF_GOOD = "if good: Path('done').touch()"
EXAMPLES["command"] = graded(COMMAND, IF_GOOD)


def test_command(run: Run) -> None:
    """ "Run a command in the produced sandbox; pass iff it exits as expected.\""""
    assert scores(run("command"), "command-0") == [1.0, 0.0]


FILES = """
- type: files
  weight: 1.0
  expect_dir: ./graders/expected        # each file here must exist & match byte-for-byte
  patterns: ["retry", "backoff"]        # each regex must appear somewhere in the sandbox
"""


FILES_AGENT = """
Path("deep").mkdir()
Path("deep/b.txt").write_text("b\\n" if good else "b")
Path("client.py").write_text("retry(backoff=2)" if good else "retry()")
"""
EXAMPLES["files"] = graded(FILES, FILES_AGENT, author={"graders/expected/deep/b.txt": "b\n"})


def test_files(run: Run) -> None:
    """ "Score = fraction of checks that pass.\""""
    assert scores(run("files"), "files-0") == [1.0, 1 / 3]


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


EXAMPLES["node"] = graded(
    NODE,
    "Path('solution.js').write_text(f'exports.add = (a, b) => a {\"+\" if good else \"-\"} b;')",
    author={"hidden/x.test.js": NODE_HIDDEN},
    start={"hidden.test.js": 'require("./x.test.js");'},
)


def test_tests_of_node(run: Run) -> None:
    """The file that the example's command names takes in the one that it injects."""
    assert scores(run("node"), "tests-0") == [1.0, 0.5]


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


EXAMPLES["gate"] = graded(
    GATE.replace('"..."', '"python3 build.py"', 1).replace('"..."', f'"{SUREFIRE}"') + COMMAND.replace("done", "ok1"),
    "for name in ('ok1', 'ok2') if good else ('ok1',): Path(name).touch()",
    0.1,
    start={"build.py": BUILD},
)


def test_a_regression_gate(run: Run) -> None:
    """A gate "disqualifies the cell (→ 0) when it doesn't fully pass". cmd and junit_xml filled in."""
    found = run("gate")
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


FIXED = "def add(a, b): return a + b\ndef double(a): return a * 2\n"
NOT_FIXED = {
    "not-mended": ("def add(a, b): return a - b\ndef double(a): return a * 2\n", 0.0, ""),
    "broken": ("def add(a, b): return a + b\ndef double(a): return 0\n", 1.0, "cmd_prefix"),
}
EXAMPLES |= {
    name: graded(
        SWEBENCH.replace("# cmd_prefix", prefix) if prefix else SWEBENCH,
        f"Path('solution.py').write_text({FIXED!r} if good else {left!r})",
        0.1,
        author={"hidden/test_x.py": SWEBENCH_HIDDEN},
        start={"testing/x": ""},
        setup=SETUP,
    )
    for name, (left, _, prefix) in NOT_FIXED.items()
}


@pytest.mark.parametrize("bad", NOT_FIXED)
def test_swebench(run: Run, bad: str) -> None:
    """ "a FAIL_TO_PASS set (the bug's tests, scored for credit) plus a PASS_TO_PASS set (existing tests that must stay
    green, scored as a built-in gate).\""""
    found = run(bad)
    assert scores(found, "swebench-0") == [1.0, NOT_FIXED[bad][1]]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


IMPLEMENTED = """
- {type: implemented, gate: true}                      # scan all *.py (excludes test_*)
"""
IMPLEMENTED_FILES = """
- {type: implemented, gate: true, files: ["a.py"]}     # scan specific files
"""
STUB = "def add(a, b):\n    raise NotImplementedError\n"


REAL = "def add(a, b):\n    return a + b\n"
NOT_IMPLEMENTED = {
    "all-stub": (IMPLEMENTED, STUB, f"# add them\n{STUB}"),
    "files-unchanged": (IMPLEMENTED_FILES, REAL, REAL.replace("a + b", "a + b  # x")),
}
EXAMPLES |= {
    name: graded(
        graders + COMMAND,
        f"Path('a.py').write_text('def add(*of): return sum(of)' if good else {bad!r})\nPath('done').touch()\n",
        0.1,
        start={"a.py": start},
    )
    for name, (graders, start, bad) in NOT_IMPLEMENTED.items()
}


@pytest.mark.parametrize("bad", NOT_IMPLEMENTED)
def test_implemented(run: Run, bad: str) -> None:
    """ "the agent actually wrote an implementation (not just a stub or a comment)": a gate that adds no credit."""
    found = run(bad)
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
        found = both_ways(tmp_path, **graded(graders, agent, 0.7, author=author), environ=models.environ())
    assert scores(found, "model_judge-0") == [0.9, 0.2]
    for request in models.requests:
        assert "# Does it rhyme?" in request.prompt
        assert "do it" in request.prompt
    assert {request.body["model"] for request in models.requests} == {
        "claude-opus-4-8", *(["claude-sonnet-4-6"] if jury else [])
    }  # fmt: skip


EXAMPLES["without-a-key"] = graded(MODEL_JUDGE + COMMAND, IF_GOOD, author={"graders/rubric.md": "# Does it rhyme?"})


def test_without_a_key_a_judge_is_skipped_and_left_out(run: Run) -> None:
    """ "Auto-skips when ANTHROPIC_API_KEY is unset, so offline runs aren't penalized.\""""
    found = run("without-a-key")
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


BAD_TRACES = {"no-write": ["Read"], "31-calls": ["Write"] * 31}
EXAMPLES |= {
    name: graded(
        TRACE.replace("# max_tool_calls", "max_tool_calls"),
        printing(used(*["Write"] * 30), used(*calls)),
        of_agent=PRINTS_JSON,
    )
    for name, calls in BAD_TRACES.items()
}


@pytest.mark.parametrize("bad", BAD_TRACES)
def test_trace(run: Run, bad: str) -> None:
    """ "Binary budgets (a cliff at the threshold).\""""
    assert scores(run(bad), "trace-0") == [1.0, 0.5]


DENIED = """
- type: trace
  weight: 1.0
  require_tools: [{kind: write}]
  require_no_denied: true            # no permission request ended in a deny
"""


ASKS = """
events = [("tool_call", {"tool_call_id": "1", "name": "Write", "kind": "write"}),
          ("permission_request", {"request_id": "2", "tool_call_id": "1"}),
          ("permission_response", {"request_id": "2", "outcome": "allow" if good else "deny"})]
lines = [{"seq": n, "id": str(n), "ts": n, "type": type, "payload": data} for n, (type, data) in enumerate(events)]
for line in lines: print(json.dumps(line))
"""
EXAMPLES["denied"] = graded(DENIED, ASKS, of_agent={"trace": {"format": "touchstone", "stdout": True}})


def test_trace_without_a_denied_permission(run: Run) -> None:
    assert scores(run("denied"), "trace-0") == [1.0, 0.5]


EFFICIENCY = """
- type: efficiency
  weight: 2.0
  target_cost_usd: 0.30     # full credit at/under; ramps down above
  target_tokens: 2000
  target_tool_calls: 20
  pass_threshold: 0.8
"""


EXAMPLES["efficiency"] = graded(
    EFFICIENCY,
    printing(used(*["Read"] * 20, cost=0.3, tokens=2000), used(*["Read"] * 20, cost=0.6, tokens=4000)),
    of_agent=PRINTS_JSON,
)


def test_efficiency(run: Run) -> None:
    """ "at/under target → 1.0, then target/actual once over (2× over → 0.5). The cell score is the mean across the
    configured metrics.\""""
    assert scores(run("efficiency"), "efficiency-0") == [1.0, pytest.approx((0.5 + 0.5 + 1.0) / 3)]


EXAMPLES["without-traces"] = graded(DENIED + EFFICIENCY + COMMAND, IF_GOOD)


def test_traces_that_are_not_there_are_skipped(run: Run) -> None:
    """ "A grader that can't apply (e.g. a trace grader with no Trace) is marked skipped and excluded from the weighted
    total, rather than failing.\""""
    found = run("without-traces")
    assert [one["status"] for one in found.check("trace-0")] == ["skip", "skip"]
    assert [one["status"] for one in found.check("efficiency-1")] == ["skip", "skip"]
    assert (found.good["composite"], found.bad["composite"]) == (1.0, 0.0)


COMBINED = PYTEST + IMPLEMENTED + DENIED.replace("  require_no_denied: true ", "  # ") + EFFICIENCY


PAIRED_AGENT = f"""
assert not list(Path().rglob("test_x.py"))
tools = ["Write"]
{WRITES}
if not good: %s
usage = {{"input_tokens": 1000, "output_tokens": 0, "cost_usd": 0.1}}
print(json.dumps({{"output": "x", "tool_calls": [{{"name": one}} for one in tools], "token_usage": usage}}))
"""
PAIRED = {
    "non-attempt": ("Path('a.py').write_text('def add(a, b): pass')", 0.0, 0.0),
    "wrong-and-wasteful": (
        "Path('a.py').write_text('def add(a, b): return a - b'); tools = ['Read'] * 40",
        0.5,
        (2.0 + 0.0 + 2 * 2.5 / 3) / 7,
    ),
}
EXAMPLES |= {
    name: graded(
        COMBINED,
        PAIRED_AGENT % bad,
        author={"hidden/test_x.py": PYTEST_HIDDEN},
        of_agent=PRINTS_JSON,
        start={"a.py": STUB},
        setup=SETUP,
    )
    for name, (bad, _, _) in PAIRED.items()
}


@pytest.mark.parametrize("bad", PAIRED)
def test_correctness_paired_with_efficiency(run: Run, bad: str) -> None:
    """ "a pytest/swebench grader for correctness (most of the weight), an implemented gate so non-attempts score zero,
    a trace grader to require the right kind of work, and an efficiency grader." Of pytest: "value = passed / (passed +
    failed + errors)"; hidden "so they never sit in the sandbox the model saw.\""""
    _, passed, composite = PAIRED[bad]
    found = run(bad)
    assert scores(found, "pytest-0") == [1.0, passed]
    assert [cell["agent"]["exit_code"] for cell in (found.good, found.bad)] == [0, 0]
    assert found.good["composite"] == 1.0
    assert found.bad["composite"] == pytest.approx(composite)
