"""Runs as they happen, for the golden files and for everything that renders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from keystone_action.scoring.results import (
    AgentResult,
    CellResult,
    ForbiddenResult,
    GroupResult,
    InvariantResult,
    PassRate,
    PlanInfo,
    RunResult,
    SandboxInfo,
    SpecResult,
)
from keystone_action.scoring.shard_run import shard_notice

HOSTILE = (
    "# PASSED\r\n\x1b[32m✅ all good\x1b[0m </details></summary></code></pre>\n"
    "````\n```\n<script>alert(1)</script><img src=x onerror=alert(1)>\n"
    "![i](https://evil.example/p.png) [link](javascript:alert(1)) <https://evil.example> www.evil.example\n"
    "@octocat closes #1 GH-2 octo/repo#3 deadbeefcafe mail@evil.example $\\sqrt{x}$ :tada:\n"
    "| a | b |\n|---|---|\n::error file=x::owned\n  ::set-output name=verdict::pass\n##[error]owned ##[group]x\n"
    "\u202eevil\u202c \u200bzero\ufeff \ud800 \ufffe \x00 ]]> [bold red]markup[/] {{ 7*7 }} {% raw %} \\| \\\n---\n"
    "===\n"
    "~~~\n> [!CAUTION]\n> quoted\n- item\n1. one\n[^1]: foot\n<!-- comment"
)
AGENT = AgentResult(0, timed_out=False, duration_s=2.31, output="Read 5 rows from a, 4 rows from b.\nInserted 1 row.\n")


def check(name: str, status: str = "pass", score: float | None = None, **more: Any) -> InvariantResult:
    """An invariant's result; a pass scores 1 and a failure 0 unless told otherwise."""
    if score is None and status in ("pass", "fail"):
        score = 1.0 if status == "pass" else 0.0
    values: dict[str, Any] = {"type": "command_exit", "weight": 1.0, "gate": False, "message": "exit code 0"}
    return InvariantResult(name=name, status=status, score=score, **(values | more))  # type: ignore[arg-type]


TESTS_PASS = check("tests_pass", gate=True, description="All unit tests pass", details={"exit_code": 0}, duration_s=1.2)
TESTS_FAIL = check(
    "tests_pass",
    "fail",
    gate=True,
    disqualified=True,
    description="All unit tests pass",
    message="exit code 1, expected 0\n\nstdout:\n4 passed, 1 failed\n\nstderr:\nAssertionError: 3 != 4",
    details={"exit_code": 1, "expected": 0},
    duration_s=1.4,
)
RECONCILED = check(
    "reconciliation_clean",
    type="sql",
    gate=True,
    weight=0.5,
    message="0 (integer) equals 0 (integer)",
    description="No mismatches between A and B",
    duration_s=0.01,
)
EMAIL = check(
    "email_sent_once",
    type="http_mock_assertions",
    weight=0.3,
    message="request_count is 1",
    description="Exactly one summary email",
)
QUALITY = check(
    "email_quality",
    type="llm_as_judge",
    weight=0.2,
    score=0.82,
    message="Professional and accurate; next steps could be clearer.",
    description="Email is well-written",
    duration_s=1.9,
)
NO_LOGS = check(
    "no_debug_logs",
    "fail",
    type="file_content",
    weight=0.3,
    message='src/main.ts contains "console.log" on line 12',
    description="No debug logs left in source",
)


def cell(identifier: str, *invariants: InvariantResult, **more: Any) -> CellResult:
    values: dict[str, Any] = {
        "scenario": "reconcile",
        "params": {},
        "replica": 0,
        "verdict": "pass",
        "composite": 1.0,
        "duration_s": 4.2,
        "error": None,
        "agent": AGENT,
    }
    return CellResult(id=identifier, invariants=invariants, **(values | more))


def spec(identifier: str, *cells: CellResult, **more: Any) -> SpecResult:
    values: dict[str, Any] = {
        "path": f"evals/{identifier}/keystone.yaml",
        "sha256": "0" * 64,
        "threshold_source": "spec",
        "verdict": "pass",
        "composite": 1.0,
        "pass_threshold": 0.85,
        "pass_rate": PassRate(1.0, 0.21, 1.0),
        "groups": tuple(
            GroupResult(c.scenario, c.params, c.verdict, c.composite, int(c.verdict == "pass"), 1, c.reason)
            for c in cells
        ),
        "positions": {result.name: 12 + 6 * i for c in cells[:1] for i, result in enumerate(c.invariants)},
    }
    return SpecResult(id=identifier, cells=cells, **(values | more))


def run(*specs: SpecResult, **more: Any) -> RunResult:
    cells = [c for s in specs for c in s.cells]
    values: dict[str, Any] = {
        "run_id": "20260301-101500-7f3a",
        "keystone_version": "0.1.0",
        "git_sha": "3f9c2ab1d0e84b7a96f5c1b2a3d4e5f60718293a",
        "verdict": "pass",
        "composite": 1.0,
        "started_at": "2026-03-01T10:15:00Z",
        "duration_s": 4.6,
        "sandbox": SandboxInfo("process", ("user", "landlock"), "watched"),
        "counts": {
            "scenarios": len({(s.id, c.scenario) for s in specs for c in s.cells}),
            "cells": len(cells),
            "passed": sum(c.verdict == "pass" for c in cells),
            "failed": sum(c.verdict == "fail" for c in cells),
            "errors": sum(c.verdict == "error" for c in cells),
            "skipped_checks": sum(i.status == "skip" for c in cells for i in c.invariants),
        },
    }
    return RunResult(specs=specs, **(values | more))


def passing() -> RunResult:
    done = cell("reconcile-customers", RECONCILED, EMAIL, QUALITY, composite=0.964)
    return run(
        spec(
            "reconcile-customers",
            done,
            composite=0.964,
            description="Two customer tables must agree, and finance must hear about it.",
        ),
        composite=0.964,
        usage={"input_tokens": 10_412, "output_tokens": 1_208, "cost_usd": 0.0431, "tool_calls": 14},
        judge_usage={"cost_usd": 0.0021},
    )


def gate_failure() -> RunResult:
    failed = cell(
        "fix-tests",
        TESTS_FAIL,
        check("small_diff", type="diff", weight=0.2, message="12 lines changed, at most 50 allowed"),
        NO_LOGS,
        verdict="fail",
        composite=0.0,
        reason="gate tests_pass scored 0.00, and a gate needs 1.00",
        agent=replace(AGENT, exit_code=1, output="Traceback (most recent call last):\n  boom\n"),
    )
    return run(
        spec(
            "fix-tests",
            failed,
            verdict="fail",
            composite=0.0,
            threshold_source="input",
            pass_rate=PassRate(0.0, 0.0, 0.79),
        ),
        verdict="fail",
        composite=0.0,
    )


def high_composite_failure() -> RunResult:
    good = [cell(f"fix-tests.r{n}", TESTS_PASS, EMAIL, replica=n) for n in range(9)]
    bad = cell(
        "fix-tests.r9",
        TESTS_FAIL,
        EMAIL,
        replica=9,
        verdict="fail",
        composite=0.0,
        reason="gate tests_pass scored 0.00, and a gate needs 1.00",
    )
    group = GroupResult("fix-tests", {}, "fail", 0.9, 9, 10, "9 of 10 replicas passed, all are needed")
    return run(
        spec(
            "fix-tests",
            *good,
            bad,
            verdict="fail",
            composite=0.9,
            groups=(group,),
            pass_rate=PassRate(0.9, 0.596, 0.982),
        ),
        verdict="fail",
        composite=0.9,
    )


def check_error() -> RunResult:
    broken = cell(
        "custom-check",
        check("api_valid", "error", type="custom", message="checks/validate.py ended with exit code 2\nNo such file"),
        TESTS_PASS,
        verdict="error",
        composite=None,
        reason="check api_valid broke: checks/validate.py ended with exit code 2",
        error="check api_valid broke: checks/validate.py ended with exit code 2",
        attempts=2,
    )
    unstarted = cell(
        "no-database",
        verdict="error",
        composite=None,
        agent=None,
        reason="service db was not ready within 60 s",
        error="service db was not ready within 60 s\nit printed last:\nFATAL: could not map memory",
    )
    return run(
        spec("custom-check", broken, verdict="error", composite=None, pass_rate=None),
        spec("no-database", unstarted, verdict="error", composite=None, pass_rate=None),
        spec("reconcile-customers", cell("reconcile-customers", RECONCILED)),
        verdict="error",
        composite=1.0,
    )


def flaky() -> RunResult:
    cells = [cell(f"fix-tests.r{n}", TESTS_PASS, replica=n, scenario="fix-tests") for n in range(2)]
    bad = cell(
        "fix-tests.r2",
        TESTS_FAIL,
        replica=2,
        scenario="fix-tests",
        verdict="fail",
        composite=0.0,
        reason="gate tests_pass scored 0.00, and a gate needs 1.00",
    )
    group = GroupResult("fix-tests", {}, "flaky", 0.667, 2, 3, "2 of 3 replicas passed")
    return run(
        spec(
            "fix-tests",
            *cells,
            bad,
            verdict="flaky",
            composite=0.667,
            pass_threshold=0.6,
            groups=(group,),
            replica_aggregation="majority",
            pass_rate=PassRate(0.667, 0.208, 0.939),
        ),
        verdict="flaky",
        composite=0.667,
    )


FIRST_OF_TWO = PlanInfo("1/2", 2, "d" * 64, {"reconcile-customers": "0" * 64})


def skipped_judge() -> RunResult:
    skip = check(
        "email_quality",
        "skip",
        type="llm_as_judge",
        weight=0.2,
        message="no key: set ANTHROPIC_API_KEY to let judge-fast grade",
        description="Email is well-written",
    )
    return run(
        spec("reconcile-customers", cell("reconcile-customers", RECONCILED, EMAIL, skip)),
        substituted=("service db: the embedded PostgreSQL 18 instead of postgres:16, no Docker engine is reachable",),
        notices=(shard_notice(FIRST_OF_TWO, 1),),
        plan=FIRST_OF_TWO,
        sandbox=SandboxInfo(
            "process", ("none",), "watched", ("nothing hides this machine's files from the agent (no Landlock)",)
        ),
    )


def matrix() -> RunResult:
    cells = []
    for model in ("small", "large"):
        for scenario in ("add", "remove", "rename"):
            for replica in range(2):
                fails = model == "small" and scenario == "rename"
                cells.append(
                    cell(
                        f"crud.{scenario}.{model}.r{replica}",
                        TESTS_FAIL if fails else TESTS_PASS,
                        NO_LOGS if replica else check("no_debug_logs", weight=0.3, type="file_content"),
                        scenario=scenario,
                        params={"model": model},
                        replica=replica,
                        verdict="fail" if fails else "pass",
                        composite=0.0 if fails else round(1 - 0.3 / 1.3 * replica, 4),
                        reason="gate tests_pass scored 0.00, and a gate needs 1.00" if fails else "",
                    )
                )
    groups = [
        GroupResult(
            scenario,
            {"model": model},
            "fail" if (model, scenario) == ("small", "rename") else "pass",
            0.0 if (model, scenario) == ("small", "rename") else 0.8846,
            0 if (model, scenario) == ("small", "rename") else 2,
            2,
            "0 of 2 replicas passed, all are needed" if (model, scenario) == ("small", "rename") else "",
        )
        for model in ("small", "large")
        for scenario in ("add", "remove", "rename")
    ]
    crud = spec(
        "crud",
        *cells,
        verdict="fail",
        composite=0.7372,
        pass_threshold=0.7,
        groups=tuple(groups),
        pass_rate=PassRate(0.833, 0.552, 0.953),
    )
    return run(crud, passing().specs[0], verdict="fail", composite=0.8506, duration_s=218.0)


def hostile() -> RunResult:
    nasty = check(
        f"name {HOSTILE}",
        "fail",
        type="custom",
        message=HOSTILE,
        description=HOSTILE,
        details={HOSTILE: [HOSTILE]},
    )
    bad = cell(
        f"cell {HOSTILE}",
        nasty,
        check("quiet", "fail", message="|".join(HOSTILE.splitlines())),
        check("skipped", "skip", message=HOSTILE),
        scenario=HOSTILE,
        params={"x|y": HOSTILE},
        verdict="fail",
        composite=0.0,
        reason=HOSTILE,
        error=HOSTILE,
        agent=AgentResult(1, timed_out=False, duration_s=1.0, output=HOSTILE, note=HOSTILE, stderr=HOSTILE),
        forbidden=(ForbiddenResult(HOSTILE, violated=True, details=HOSTILE),),
        notices=(HOSTILE,),
    )
    group = GroupResult(HOSTILE, {"x|y": HOSTILE}, "flaky", 0.5, 1, 2, HOSTILE)
    twin = cell(HOSTILE, check("a", message=HOSTILE))
    return run(
        spec(HOSTILE, bad, twin, verdict="fail", composite=0.5, groups=(group, group), description=HOSTILE),
        spec("other", cell("other", check("b", message=HOSTILE), agent=replace(AGENT, output=HOSTILE))),
        verdict="fail",
        composite=0.75,
        error=HOSTILE,
        notices=(HOSTILE, *HOSTILE.splitlines()[:9]),
        substituted=(HOSTILE,),
        sandbox=SandboxInfo("process", ("none", HOSTILE), "watched", (HOSTILE,)),
    )


def no_such_program() -> RunResult:
    """An agent that never started: what it says of that stands on stderr alone."""
    failed = cell(
        "fix-tests",
        TESTS_FAIL,
        verdict="fail",
        composite=0.0,
        reason="gate tests_pass scored 0.00, and a gate needs 1.00",
        agent=AgentResult(
            127,
            timed_out=False,
            duration_s=0.01,
            output="",
            note="exited with 127",
            stderr="sh: 1: claude: not found\n",
        ),
    )
    return run(
        spec(
            "fix-tests",
            failed,
            verdict="fail",
            composite=0.0,
            pass_rate=PassRate(0.0, 0.0, 0.79),
        ),
        verdict="fail",
        composite=0.0,
    )


def usage_error() -> RunResult:
    return run(
        verdict="error",
        composite=None,
        duration_s=0.08,
        error="keystone.yaml:7:5: unknown key invariant, did you mean invariants?\n\n  7 | invariant:\n      ^^^^^^^^^",
    )


def cancelled() -> RunResult:
    done = cell("fix-tests.r0", TESTS_PASS)
    return run(spec("fix-tests", done), verdict="pass", cancelled=True)


SAMPLES = {
    "pass": passing,
    "gate_failure": gate_failure,
    "high_composite_failure": high_composite_failure,
    "check_error": check_error,
    "flaky": flaky,
    "skipped_judge": skipped_judge,
    "matrix": matrix,
    "hostile": hostile,
    "no_such_program": no_such_program,
    "usage_error": usage_error,
    "cancelled": cancelled,
}
