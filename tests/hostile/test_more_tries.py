"""Agents that want to be run again until they happen to succeed: what breaks after their work buys no further try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called
from support.hostile import area, attack
from support.model_agents import behind, calls, fails, run, says, spec_of

__all__ = ["area"]

FAMILY = "retries"
SCRIPT = "leaves nothing, so that the author's script breaks"
OWN_CODE = "leaves code that breaks the check that runs it"
PROVOKED = "provokes a rate limit after its work went wrong"
AFTER_A_CALL = "has its provider fail once it was told what to do"
HANGS = "hangs until the cell's time is over"
COVERED = "breaks a rule, and then has the provider fail"

READS_REPORT = """
import json, sys
context = json.load(sys.stdin)
report = json.load(open(context["workspace_path"] + "/report.json"))
print(json.dumps({"passed": report["n"] == 1}))
"""
MADE = {"type": "file_exists", "path": "report.json"}
RIGHT = {"type": "custom", "script": "right.py"}
RETRIES = {"scoring": {"retry_errors": 5}}
DOES_NOTHING = "print('Done')"
WRITES = """open("report.json", "w").write('{"n": 1}')"""


def judged(area: Path, agent: str, checks: dict[str, Any], **gate: bool) -> Called:
    """gate: by the name of a check."""
    (area / "right.py").write_text(READS_REPORT)
    return attack(
        area, agent, {}, **RETRIES, invariants={n: {"check": c, "gate": n in gate} for n, c in checks.items()}
    )


@hostile(FAMILY, SCRIPT, held_by="a failed gate is a failure whatever broke, and a broken check runs no agent again")
def test_a_script_that_breaks_beside_a_failed_gate_is_told_and_buys_no_try(area: Path) -> None:
    called = judged(area, DOES_NOTHING, {"made": MADE, "right": RIGHT}, made=True)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["composite"], cell["attempts"]) == (1, "fail", 0.0, 1)
    assert "besides, check right broke: right.py ended with exit code 1" in cell["reason"]
    assert called.document["counts"]["broken_checks"] == 1
    assert "hostile failed (1 check broke): report.json does not exist" in called.err


@hostile(FAMILY, SCRIPT, held_by="a failed gate is a failure whatever broke, and a broken check runs no agent again")
@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ({"right": RIGHT}, "error"),
        ({"right": RIGHT, "other": {"type": "file_absent", "path": "x"}}, "error"),
        ({"right": RIGHT, "made": MADE}, "fail"),
    ],
    ids=["alone", "beside a pass", "beside a failure"],
)
def test_without_a_gate_it_buys_none_either(area: Path, checks: dict[str, Any], verdict: str) -> None:
    called = judged(area, DOES_NOTHING, checks)
    (cell,) = called.cells
    assert (cell["verdict"], cell["attempts"]) == (verdict, 1)
    assert called.code == {"error": 3, "fail": 1}[verdict]


@hostile(FAMILY, OWN_CODE, held_by="a check in error runs no agent again")
def test_a_check_that_runs_the_agent_s_code_buys_no_try(area: Path) -> None:
    breaks = "open('report.py', 'w').write('raise SystemExit(3)')"
    script = "import json, subprocess, sys\nsubprocess.run([sys.executable, 'report.py'], check=True)"
    (area / "runs.py").write_text(script)
    called = attack(area, breaks, {"runs": {"type": "custom", "script": "runs.py", "runs_in": "sandbox"}}, **RETRIES)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 1)


@honest(FAMILY, SCRIPT, OWN_CODE)
def test_an_agent_that_did_its_work_passes_in_one_try(area: Path) -> None:
    called = judged(area, WRITES, {"made": MADE, "right": RIGHT}, made=True)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (0, "pass", 1)
    assert "hostile passed: 2 of 2 checks" in called.err


ASKS_UNTIL_REFUSED = """
for turn in range(40):
    status, answer = ask([user(f"turn {turn}")])
    if status != 200:
        sys.exit(1)
print("done")
"""
LS = ("toolu_1", "Bash", {"command": "ls"})
REMOVES = ("toolu_2", "Bash", {"command": "rm -rf src"})


@hostile(FAMILY, PROVOKED, held_by="after a rate limit a cell is run again once at most")
@pytest.mark.parametrize("before", [(), (says("hello"),)], ids=["at once", "after an answer"])
def test_a_rate_limit_buys_one_further_try(tmp_path: Path, before: tuple[Any, ...]) -> None:
    with behind(*before, *[fails(429)] * 20) as (provider, environ):
        called = run(tmp_path, spec_of(ASKS_UNTIL_REFUSED, **RETRIES), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 2)
    assert "models ended with an error (2 tries): the provider failed: 429" in called.err
    assert len(provider.asked) == len(before) + 2


@hostile(FAMILY, AFTER_A_CALL, held_by="once a tool was called a cell is run again once at most")
def test_a_provider_that_fails_after_a_call_of_a_tool_buys_one_further_try(tmp_path: Path) -> None:
    with behind(*[calls(LS), fails(529)] * 10) as (_, environ):
        called = run(tmp_path, spec_of(ASKS_UNTIL_REFUSED, **RETRIES), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 2)


@honest(FAMILY, PROVOKED, AFTER_A_CALL)
def test_an_agent_that_no_provider_answered_is_run_as_often_as_the_spec_says(tmp_path: Path) -> None:
    with behind(*[fails(529)] * 3, says("done")) as (_, environ):
        called = run(tmp_path, spec_of(ASKS_UNTIL_REFUSED, **RETRIES), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (0, "pass", 4)
    assert "models passed (4 tries): 1 of 1 check" in called.err
    assert sum("the provider failed: 529" in notice for notice in cell["notices"]) == 3


@pytest.mark.waits
@hostile(FAMILY, HANGS, held_by="what broke after the agent had started is run again once at most")
def test_a_cell_whose_time_its_agent_used_up_is_run_again_once(area: Path) -> None:
    hangs = "import time\ntime.sleep(600)"
    limits = {"agent": {"timeout": "10m"}, "resources": {"timeout": "4s"}}
    called = attack(area, hangs, {"made": MADE}, **RETRIES, **limits)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 2)
    assert "it was in: agent" in cell["error"]


@honest(FAMILY, HANGS)
def test_an_agent_that_ends_within_the_cell_s_time_is_run_once(area: Path) -> None:
    limits = {"agent": {"timeout": "10m"}, "resources": {"timeout": "1m"}}
    called = attack(area, WRITES, {"made": MADE}, **RETRIES, **limits)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (0, "pass", 1)


@hostile(FAMILY, COVERED, held_by="a violated rule is a failure whatever broke")
def test_a_rule_that_was_broken_is_a_failure_though_the_provider_failed(tmp_path: Path) -> None:
    forbidden = {"commands": ["rm -rf"]}
    with behind(calls(REMOVES), *[fails(429)] * 20) as (_, environ):
        called = run(tmp_path, spec_of(ASKS_UNTIL_REFUSED, forbidden=forbidden, **RETRIES), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["composite"], cell["attempts"]) == (1, "fail", 0.0, 1)
    assert cell["reason"].startswith("forbidden.commands was violated")
    assert "besides, the provider failed: 429" in cell["reason"]


@honest(FAMILY, COVERED)
def test_a_rule_that_was_kept_leaves_a_failed_provider_an_error(tmp_path: Path) -> None:
    with behind(calls(LS), *[fails(429)] * 20) as (_, environ):
        called = run(tmp_path, spec_of(ASKS_UNTIL_REFUSED, forbidden={"commands": ["rm -rf"]}), environ)
    (cell,) = called.cells
    assert (called.code, cell["verdict"], cell["attempts"]) == (3, "error", 1)
