"""tests, pytest and swebench through the real command: what the agent can't see, and can't decide about."""

from __future__ import annotations

import pytest
from support.command_line import run_spec

SPEC = """version: 1
id: hidden
task: {{prompt: "do it"}}
workspace: start
agent: {{type: command, command: [python3, "{{{{ agent.dir }}}}/agent.py"], dir: agent}}
invariants:
  it: {{weight: 4.0, check: {check}}}
  other: {{check: {{type: command_exit, command: "true"}}}}
scoring: {{pass_threshold: {threshold}}}
"""
NODE = """const test = require("node:test"), assert = require("assert"), {add} = require("./solution.js");
test("small", () => assert.equal(add(1, 2), 3)); test("zero", () => assert.equal(add(0, 0), 0));"""


def run(tmp_path, check: str, agent: str, *, threshold: float = 1.0, given: dict[str, str] | None = None):
    for directory in ("agent", "start", "hidden"):
        (tmp_path / directory).mkdir()
    (tmp_path / "agent" / "agent.py").write_text(f"from pathlib import Path\n{agent}\n")
    (tmp_path / "hidden" / "x.test.js").write_text(NODE)
    (tmp_path / "hidden" / "test_x.py").write_text("def test_bug(): pass\n")
    for name, text in (given or {}).items():
        (tmp_path / "start" / name).write_text(text)
    called = run_spec(tmp_path, SPEC.format(check=check, threshold=threshold))
    assert not called.has_traceback
    return called


@pytest.mark.parametrize(("operator", "score"), [("+", 1.0), ("-", 0.5)])
def test_hidden_tests_of_node(tmp_path, operator, score):
    agent = f"""
assert not list(Path().rglob("x.test.js"))
Path("solution.js").write_text("exports.add = (a, b) => a {operator} b;")
"""
    called = run(tmp_path, '{type: tests, cmd: "node --test x.test.js", inject: ["./hidden/x.test.js"]}', agent)
    entry = called.checks["it"]
    assert (entry["status"], entry["score"]) == ("pass" if score == 1 else "fail", score), entry
    assert called.code == (0 if score == 1 else 1)
    assert called.document["composite"] == (4 * score + 1) / 5


def test_protected_files_come_back_and_the_agents_own_go(tmp_path):
    agent = 'Path("check.sh").write_text("true"); Path("conftest.py").write_text("x"); Path("more.sh").write_text("x")'
    check = '{type: tests, cmd: "sh check.sh", protect: ["*.sh"]}'
    called = run(tmp_path, check, agent, given={"check.sh": "test ! -e more.sh && test ! -e conftest.py && exit 7"})
    entry = called.checks["it"]
    assert entry["status"] == "fail"
    assert (entry["details"]["exit_code"], entry["details"]["restored"]) == (7, ["check.sh"])
    assert entry["details"]["removed"] == ["conftest.py", "more.sh"]


def test_a_broken_pass_to_pass_makes_the_composite_zero(tmp_path):
    (tmp_path / "packages").mkdir()
    check = '{type: swebench, fail_to_pass: ["test_gone.py::test"], pass_to_pass: ["test_gone.py::test_other"]}'
    called = run(tmp_path, check, "pass", threshold=0.1)
    entry = called.checks["it"]
    assert entry["status"] == "fail"
    assert (called.code, called.document["composite"]) == (1, 0.0)
    assert called.document["specs"][0]["cells"][0]["invariants"][0]["disqualified"] is True


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("{type: tests}", ["expected cmd"]),
        ("{type: tests, cmd: 'true', inject: [hidden/gone.py]}", ["hidden/gone.py"]),
        ("{type: pytest, inject: [hidden]}", ["is a directory"]),
        ("{type: pytest, inject: [{src: hidden/test_x.py, dest: ../test_x.py}]}", ["'..'"]),
        ("{type: tests, cmd: 'true', junit_xml: /tmp/x.xml}", ["absolute"]),
        ("{type: tests, cmd: 'true', junit: x.xml}", ["junit_xml"]),
        ("{type: pytest, cmd: make test}", ["python3 -m pytest"]),
        ("{type: swebench}", ["fail_to_pass"]),
    ],
)
def test_bad_calls_are_refused_before_anything_runs(tmp_path, check, words):
    called = run(tmp_path, check, "Path('/dev/null')")
    assert called.code == 2
    for word in (*words, "keystone.yaml:"):
        assert word in called.err
