"""What spec.md says of judges, sentence by sentence, by the real command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, run_spec, spec
from support.model_server import ModelServer, answer

JUDGE = "{type: llm_as_judge, criteria: be good}"
SILENT = "{type: command, command: 'true'}"


def judged(directory: Path, agent: str, check: str = JUDGE, **server: Any) -> Called:
    with ModelServer([answer(0.9)]) as models:
        environ = {**models.environ(), "HOME": str(directory / "home")} if server.get("key", True) else None
        return run_spec(directory, spec(agent, check, scoring="{pass_threshold: 0.5}"), environ=environ)


@pytest.mark.parametrize(
    "check", [JUDGE, "{type: llm_as_judge, criteria: be good, input_from: 'file:nothing'}"], ids=["output", "file"]
)
@pytest.mark.parametrize("agent", ["{type: none}", SILENT], ids=["no agent", "silent agent"])
def test_without_a_key_it_is_skip_whatever_there_is_to_judge(tmp_path: Path, agent: str, check: str) -> None:
    """5.1: "No key: `skip`"; "When all weighted checks were skipped: … `error: nothing was graded`"."""
    called = judged(tmp_path, agent, check, key=False)
    assert (called.code, called.checks["it_holds"]["status"]) == (3, "skip")
    assert "ANTHROPIC_API_KEY" in called.checks["it_holds"]["message"]
    assert "nothing was graded" in called.cells[0]["error"]
    assert called.document["counts"]["skipped_checks"] == 1


def test_a_missing_json_result_fails_the_judge_that_needs_it(tmp_path: Path) -> None:
    """5.1: "`fail`: … a declared trace or JSON result that is missing or malformed (for the checks that need it)"."""
    called = judged(tmp_path, "{type: command, command: 'echo no', output: {json: stdout}}")
    assert (called.code, called.checks["it_holds"]["status"]) == (1, "fail")


def test_an_agent_result_is_what_is_judged_and_counted(tmp_path: Path) -> None:
    """1.1: "`output` … {json: stdout} = an `AgentResult` document"; 5.3: "`token_usage` has `input_tokens` or
    `prompt_tokens`"; 3: `usage` and `judge_usage` apart."""
    document = json.dumps({"output": "deed", "tool_calls": [{"name": "t"}], "token_usage": {"prompt_tokens": 7}})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "result.json").write_text(document, "utf-8")
    called = judged(
        tmp_path, "{type: command, command: 'cat {{ agent.dir }}/result.json', dir: code, output: {json: stdout}}"
    )
    assert (called.code, called.cells[0]["agent"]["output"]) == (0, "deed")
    assert (called.document["usage"]["input_tokens"], called.document["usage"]["tool_calls"]) == (7, 1)
    assert called.document["judge_usage"]["requests"] == 1
