"""`scorer`: a scorer class of the author's, asked in a real sandbox. What suites do with it:
end_to_end/test_agenticassure_scorers.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.context import grade, make_check

from keystone_action.evidence.agent_run import AgentRun
from keystone_action.invariants.check import Outcome

pytestmark = pytest.mark.sandbox

MODULE = """from agenticassure.results import ScoreResult
from agenticassure.scorers.base import register_scorer


class Polite:
    name = "polite"

    def score(self, scenario, result):
        found = scenario.metadata.get("word", "please") in result.output
        return ScoreResult(scenario_id=scenario.id, scorer_name="polite", score=0.75 if found else 0.25, passed=found,
                           explanation=f"{scenario.name}: {scenario.input}", details={"calls": len(result.tool_calls)})


register_scorer(Polite())
"""
CHECK = {"type": "scorer", "scorer": "polite", "modules": ["pkg.polite"], "dir": "scorers"}


def asked(tmp_path: Path, agent: AgentRun, module: str = MODULE, **fields: Any) -> Outcome:
    package = tmp_path / "spec" / "scorers" / "pkg"
    package.mkdir(parents=True)
    (package / "polite.py").write_text(module)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return grade({**CHECK, **fields}, workspace, directory=tmp_path / "spec", evidence={"agent": agent})


def test_it_passes(tmp_path: Path) -> None:
    agent = AgentRun(exit_code=0, output="yes please", tool_calls=({"name": "t", "arguments": {}, "result": None},))
    outcome = asked(tmp_path, agent)
    assert (outcome.status, outcome.score, outcome.message) == ("pass", 0.75, "check: Do it.")
    assert outcome.details == {"calls": 1}


def test_it_fails(tmp_path: Path) -> None:
    scenario = {"name": "mine", "input": "other", "metadata": {"word": "kindly"}}
    outcome = asked(tmp_path, AgentRun(exit_code=0, output="yes please"), scenario=scenario)
    assert (outcome.status, outcome.score, outcome.message) == ("fail", 0.25, "mine: other")


def test_coroutines_are_run_and_dicts_read(tmp_path: Path) -> None:
    module = MODULE.replace("    def score", "    async def score").replace("ScoreResult(", "dict(")
    assert asked(tmp_path, AgentRun(output="please"), module).status == "pass"


def test_a_text_under_details_is_the_message(tmp_path: Path) -> None:
    """002: "Every ScoreResult includes a details string that explains exactly what happened during scoring"."""
    module = MODULE.replace('explanation=f"{scenario.name}: {scenario.input}", ', "").replace(
        '{"calls": len(result.tool_calls)}', '"why it is so"'
    )
    assert asked(tmp_path, AgentRun(output="please"), module).message == "why it is so"


def test_details_that_json_has_not(tmp_path: Path) -> None:
    module = MODULE.replace('{"calls": len(result.tool_calls)}', '{"a": {1, }, "b": float("inf")}')
    outcome = asked(tmp_path, AgentRun(output="please"), module)
    assert (outcome.status, dict(outcome.details)) == ("pass", {})


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import lost", "the module pkg.polite can't be imported: ModuleNotFoundError: No module named 'lost'"),
        ("def f(:", "the module pkg.polite can't be imported: SyntaxError"),
        ("raise SystemExit(0)", "the module pkg.polite can't be imported: SystemExit: 0"),
        (
            "x = 1",
            "no scorer 'polite' is registered when pkg.polite is imported, only exact, passfail, regex, similarity",
        ),
        (MODULE.replace("def score", "def grade"), "it raised AttributeError"),
    ],
)
def test_modules_that_give_no_scorer(tmp_path: Path, module: str, said: str) -> None:
    outcome = asked(tmp_path, AgentRun(output="please"), module)
    assert outcome.status == "error"
    assert f"the scorer polite: {said}" in outcome.message


def test_without_a_result_of_the_agent_it_fails(tmp_path: Path) -> None:
    outcome = asked(tmp_path, AgentRun(problem="the agent raised X"))
    assert (outcome.status, outcome.message) == ("fail", "There is no output: the agent raised X.")


def test_a_result_that_is_none_is_the_agents_fault(tmp_path: Path) -> None:
    outcome = asked(tmp_path, AgentRun(output="please", reported={"reasoning_trace": "not a list"}))
    assert outcome.status == "fail"
    assert "The agent's result is malformed: AgentResult: ValidationError" in outcome.message


def test_a_scenario_that_is_none_is_the_specs(tmp_path: Path) -> None:
    outcome = asked(tmp_path, AgentRun(output="please"), scenario={"expected_tools": 3})
    assert outcome.status == "error"
    assert "Scenario: ValidationError" in outcome.message


def test_modules_of_the_agents_own_code(tmp_path: Path) -> None:
    document = {key: item for key, item in CHECK.items() if key != "dir"}
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    evidence = {"agent": AgentRun(output="please")}
    with tempfile.TemporaryDirectory() as folder:  # where the sandbox's user may pass
        code = Path(folder)
        (code / "pkg").mkdir()
        (code / "pkg" / "polite.py").write_text(MODULE)
        code.chmod(0o755)
        found = grade(document, workspace, evidence=evidence, agent_directory=code, readable=(code,))
    assert found.status == "pass", found.message
    without = grade(document, workspace, evidence=evidence)
    assert (without.status, "there is no `dir`" in without.message) == ("error", True)


@pytest.mark.parametrize(
    "fields",
    [{"scorer": ""}, {"modules": []}, {"modules": ["a-b"]}, {"modules": ["../a"]}, {"scenario": []}, {"module": "x"}],
)
def test_what_is_no_check(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({**CHECK, **fields})
