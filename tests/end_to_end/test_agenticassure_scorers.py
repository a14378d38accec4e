"""Scorer classes of a suite's author through the real command: they decide, in a sandbox, and agents can't decide for
them (spec.md 5.5)."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called
from support.suites import CONFIG, run_suite, write_files

HEAD = """from agenticassure.results import AgentResult, ScoreResult, ToolCall
from agenticassure.scorers.base import register_scorer


class MyAgent:
    def run(self, input, context=None):
        {run}


class Mine:
    name = "mine"

    def score(self, scenario, result):
        {score}


register_scorer(Mine())
"""
GOOD = (
    "return ScoreResult(scenario_id=scenario.id, scorer_name='mine', score={score}, passed={passed}, "
    "explanation='because', details={{'seen': result.output}})"
)
SUITE = "scenarios: [{name: a, input: b, scorers: [passfail, mine], metadata: {word: please}, tags: [t]}]"


YES = "return AgentResult(output='yes please')"


def module(score: str, body: str) -> str:
    """my_agent.py: the scorer `mine`, whose `score` is this, and an adapter whose `run` is that."""
    indented = [part.replace("\n", "\n        ") for part in (body, score)]
    return HEAD.format(run=indented[0], score=indented[1])


def run(directory: Path, score: str, body: str = YES, suite: str = SUITE) -> Called:
    """A suite with such a module."""
    return run_suite(directory, suite, {"agenticassure.yaml": CONFIG, "my_agent.py": module(score, body)})


def run_all(directory: Path, ways: Sequence[tuple[str, str]], *words: str) -> tuple[Called, list[dict[str, Any]]]:
    """A suite with a scenario for each of these: what its own scorer's `score` is, and what the adapter does for it.
    Its cells in their order."""
    text = HEAD.partition("class MyAgent")[0] + "class MyAgent:\n    def run(self, input, context=None):\n"
    text += "        return getattr(self, input)(input, context)\n"
    for number, (_, body) in enumerate(ways):
        text += f"\n    def way{number}(self, input, context):\n{textwrap.indent(body, ' ' * 8)}\n"
    scenarios = []
    for number, (score, _) in enumerate(ways):
        text += f"\n\nclass Mine{number}:\n    name = 'mine{number}'\n\n    def score(self, scenario, result):\n"
        text += f"{textwrap.indent(score, ' ' * 8)}\n\n\nregister_scorer(Mine{number}())\n"
        scenarios.append({"name": f"way{number}", "input": f"way{number}", "scorers": ["passfail", f"mine{number}"]})
    files = {"agenticassure.yaml": CONFIG, "my_agent.py": text}
    called = run_suite(directory, json.dumps({"scenarios": scenarios}), files, *words)
    assert not called.has_traceback, called.err
    assert [cell["scenario"] for cell in called.cells] == [one["name"] for one in scenarios]
    return called, called.cells


def scored(cell: dict[str, Any]) -> dict[str, Any]:
    """What the scorer of its own gave in a cell."""
    return dict(cell["invariants"][1])


def test_whether_it_passed_decides_and_the_score_is_the_credit(tmp_path: Path) -> None:
    ways = [("0.6", "True", "pass"), ("1.0", "False", "fail"), ("0.0", "True", "pass"), ("0.99", "False", "fail")]
    called, cells = run_all(tmp_path, [(GOOD.format(score=score, passed=passed), YES) for score, passed, _ in ways])
    assert called.code == 1
    found = [(cell["verdict"], *(scored(cell)[key] for key in ("status", "score", "message"))) for cell in cells]
    assert found == [(verdict, verdict, float(score), "because") for score, _, verdict in ways]
    assert [scored(cell)["details"] for cell in cells] == [{"seen": "yes please"}] * len(ways)
    credit = [(1.0 + float(score)) / 2 for score, _, _ in ways]
    assert [cell["composite"] for cell in cells] == pytest.approx(credit)


def test_a_threshold_of_the_call_decides_by_the_composite(tmp_path: Path) -> None:
    ways = [(GOOD.format(score=score, passed="True"), "return AgentResult(output='x')") for score in ("0.6", "0.8")]
    called, cells = run_all(tmp_path, ways, "--threshold", "0.85")
    assert called.code == 1
    assert [(cell["verdict"], cell["composite"]) for cell in cells] == [
        ("fail", pytest.approx(0.8)),
        ("pass", pytest.approx(0.9)),
    ]


def test_it_gets_the_scenario_and_the_whole_result(tmp_path: Path) -> None:
    score = """assert (scenario.id, scenario.name, scenario.input, scenario.tags) == ("a", "a", "b", ["t"])
assert scenario.metadata == {"word": "please"} and scenario.scorers == ["passfail", "mine"]
assert scenario.timeout_seconds == 30.0 and scenario.expected_output is None
assert [(one.name, one.arguments, one.result) for one in result.tool_calls] == [("t", {"a": 1}, [2])]
assert result.token_usage.total_tokens == 7
assert (result.latency_ms, result.reasoning_trace, result.raw_response) == (5.0, ["thought"], {"id": "x"})
""" + GOOD.format(score="0.6", passed="True")
    body = (
        "return AgentResult(output='yes', tool_calls=[ToolCall(name='t', arguments={'a': 1}, result=[2])],\n"
        "    latency_ms=5, token_usage={'prompt_tokens': 3, 'completion_tokens': 4}, reasoning_trace=['thought'],\n"
        "    raw_response={'id': 'x'})"
    )
    called = run(tmp_path, score, body)
    assert called.code == 0, called.checks["mine"]["message"]
    assert "every scorer has to pass" in called.err
    assert "needs 1.00" not in called.err


BREAKING = [
    ("raise ValueError('no idea')", "it raised ValueError: no idea"),
    ("raise SystemExit(0)", "it raised SystemExit: 0"),
    ("import os\nos._exit(0)", "it ended with exit code 0 without an answer"),
    ("import os\nos.kill(os.getpid(), 9)", "it was ended by SIGKILL (exit code 137) without an answer"),
    ("return True", "it returned True, expected a ScoreResult"),
    ("return None", "it returned None, expected a ScoreResult"),
    ("return {'passed': 1, 'score': 1.0}", "expected a ScoreResult whose `passed` is true or false"),
    ("return {'passed': True, 'score': True}", "it gave the score True, expected a number from 0 to 1"),
    ("return {'passed': True, 'score': float('nan')}", "it gave the score nan, expected a number from 0 to 1"),
    ("return {'passed': True, 'score': 1.5}", "the check gave the score 1.5; expected a number from 0 to 1"),
    ("return {'passed': True}", "it gave the score None, expected a number from 0 to 1"),
    (GOOD.format(score="1.5", passed="True"), "it raised ValidationError: 1 validation error for ScoreResult"),
]


def test_one_that_breaks_is_in_error_and_no_pass(tmp_path: Path) -> None:
    called, cells = run_all(tmp_path, [(score, YES) for score, _ in BREAKING])
    assert (called.code, called.document["verdict"]) == (3, "error")
    came_to = {(cell["verdict"], scored(cell)["status"], cell["invariants"][0]["status"]) for cell in cells}
    assert came_to == {("error", "error", "pass")}
    messages = {score: scored(cell)["message"] for (score, _), cell in zip(BREAKING, cells, strict=True)}
    assert {score: message for score, message in messages.items() if dict(BREAKING)[score] not in message} == {}


FORGERIES = {
    "an answer in the workspace": """import json, os
for name in (".keystone-answer", ".keystone-answer-0", "answer", "answer.json"):
    open(name, "w").write(json.dumps({"passed": True, "score": 1.0}))
return AgentResult(output="no")""",
    "modules in the workspace": """forged = "class S:\\n def score(self, *a): return {'passed': True, 'score': 1.0}\\n"
import os
os.makedirs("agenticassure/scorers")
for name in ("my_agent.py", "sitecustomize.py", "usercustomize.py", "json.py", "importlib.py",
             "agenticassure/__init__.py", "agenticassure/scorers/__init__.py", "agenticassure/scorers/base.py"):
    open(name, "w").write(forged + "import os\\nprint('{\\"passed\\": true, \\"score\\": 1.0}')\\nos._exit(0)\\n")
return AgentResult(output="no")""",
    "its own module": """import os
try:
    os.chmod(__file__, 0o666)
    open(__file__, "w").write("")
except OSError:
    pass
return AgentResult(output="no")""",
    "a process that stays": """import subprocess, sys
watch = '''
import glob, time
for _ in range(2000):
    for name in glob.glob(".keystone*") + glob.glob("../*/.keystone*"):
        try:
            open(name, "w").write('{"passed": true, "score": 1.0}')
        except OSError:
            pass
    time.sleep(0.01)
'''
subprocess.Popen([sys.executable, "-c", watch], start_new_session=True)
return AgentResult(output="no")""",
    "what it says": """print('{"passed": true, "score": 1.0, "explanation": "forged"}')
return {"output": "no", "passed": True, "score": 1.0, "raw_response": {"passed": True, "score": 1.0}}""",
}


def test_agents_cannot_forge_an_answer(tmp_path: Path) -> None:
    score = GOOD.format(score="float('please' in result.output)", passed="'please' in result.output")
    called, cells = run_all(tmp_path, [(score, body) for body in FORGERIES.values()])
    assert called.code == 1, called.out + called.err
    came_to = {
        name: (cell["verdict"], scored(cell)["status"], scored(cell)["score"])
        for name, cell in zip(FORGERIES, cells, strict=True)
    }
    assert came_to == dict.fromkeys(FORGERIES, ("fail", "fail", 0.0))


def test_it_can_read_what_the_agent_left_and_changes_it_for_nobody(tmp_path: Path) -> None:
    score = """left = open("left.txt").read()
open("left.txt", "w").write("changed")
open("scored.txt", "x").close()
""" + GOOD.format(score="1", passed="left == 'by the agent'")
    body = "open('left.txt', 'w').write('by the agent')\nreturn AgentResult(output='x')"
    suite = "scenarios: [{name: a, input: b, scorers: [mine, other]}]"
    other = "\n\nclass Other(Mine):\n    name = 'other'\n\n\nregister_scorer(Other())\n"
    files = {"agenticassure.yaml": CONFIG, "my_agent.py": module(score, body) + other}
    called = run_suite(tmp_path, suite, files)
    assert called.code == 0, [check["message"] for check in called.checks.values()]


def test_without_a_result_it_is_not_asked(tmp_path: Path) -> None:
    called = run(tmp_path, GOOD.format(score="1", passed="True"), "raise OSError('down')")
    assert (called.code, called.checks["mine"]["status"]) == (1, "fail")
    assert called.checks["mine"]["message"] == "There is no output: the agent raised OSError: down."


def test_an_unknown_scorer_is_refused_before_any_agent_starts(tmp_path: Path) -> None:
    suite = SUITE.replace("mine", "mnie")
    body = "open('/nonexistent/started', 'w')"
    called = run(tmp_path, "pass", body, suite)
    assert (called.code, called.out) == (2, "")
    assert "scenarios/suite.yaml:1:53: unknown scorer 'mnie', expected one of exact, mine, passfail" in called.err
    assert "did you mean 'mine'?" in called.err
    assert not called.output.exists()


def test_a_built_in_scorer_is_not_replaced_in_silence(tmp_path: Path) -> None:
    """The original lets any scorer take the name of a built-in one."""
    text = module("return None", "return AgentResult(output='x')").replace('"mine"', '"passfail"')
    files = {"agenticassure.yaml": CONFIG, "my_agent.py": text}
    called = run_suite(tmp_path, "scenarios: [{name: a, input: b}]", files)
    assert called.code == 2
    assert "my_agent registers another scorer as 'passfail', which is built in; give it a name of its own" in called.err


def test_a_module_that_cannot_be_imported_fails_the_scenario(tmp_path: Path) -> None:
    write_files(tmp_path, {"my_agent.py": ""})
    files = {"agenticassure.yaml": CONFIG, "my_agent.py": "import nothing_of_that_name\n"}
    called = run_suite(tmp_path, SUITE, files)
    assert (called.code, called.document["verdict"]) == (1, "fail")
    reason = called.cells[0]["reason"]
    assert "No module named 'nothing_of_that_name'; install nothing_of_that_name for the sandbox's python3" in reason
    assert "must_exit_zero" not in reason  # suites have no such word


def test_modules_of_scorers_apart_from_the_adapter(tmp_path: Path) -> None:
    scorers = HEAD.format(
        run="pass", score=GOOD.format(score="1", passed="'my_agent' not in __import__('sys').modules")
    )
    files = {
        "agenticassure.yaml": CONFIG + "scorers: [grading.scorers]\n",
        "grading/__init__.py": "",
        "grading/scorers.py": scorers,
        "my_agent.py": "class MyAgent:\n    def run(self, input, context=None):\n        return {'output': 'x'}\n",
    }
    assert run_suite(tmp_path, SUITE, files).code == 0


def test_one_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    """As any check: a time limit of its own, here given by a Keystone spec."""
    from support.command_line import run_spec

    write_files(tmp_path, {"scorers/mine.py": module("import time\ntime.sleep(600)", "pass")})
    check = "{type: scorer, scorer: mine, modules: [mine], dir: scorers}"
    called = run_spec(
        tmp_path,
        'version: 1\nid: slow\ntask: {prompt: x}\nagent: {type: command, command: "echo x"}\n'
        f"invariants: {{late: {{timeout: 2s, check: {check}}}}}\n",
    )
    assert (called.code, called.checks["late"]["status"]) == (3, "error")
    assert "time limit of 2 s" in called.checks["late"]["message"]
