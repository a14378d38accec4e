"""The parts that sample runs are made of: checks, cells, specs, and a text of an attacker."""

from __future__ import annotations

from typing import Any

from keystone_action.scoring.results import (
    AgentResult,
    CellResult,
    GroupResult,
    InvariantResult,
    PassRate,
    RunResult,
    SandboxInfo,
    SpecResult,
)

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
        "pass_rate": PassRate(1.0, 0.21, 1.0, 1),
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
            "broken_checks": sum(i.status == "error" for c in cells for i in c.invariants),
        },
    }
    return RunResult(specs=specs, **(values | more))
