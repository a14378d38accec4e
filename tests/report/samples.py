"""Runs as they happen, for the golden files and for everything that renders."""

from __future__ import annotations

from dataclasses import replace

from support.sample_parts import (
    AGENT,
    EMAIL,
    HOSTILE,
    NO_LOGS,
    QUALITY,
    RECONCILED,
    TESTS_FAIL,
    TESTS_PASS,
    cell,
    check,
    run,
    spec,
)

from keystone_action.scoring.aggregate import decide_spec
from keystone_action.scoring.results import (
    AgentResult,
    ForbiddenResult,
    GroupResult,
    PassRate,
    PlanInfo,
    RunResult,
    SandboxInfo,
)
from keystone_action.scoring.shards import shard_notice


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
        usage={
            "input_tokens": 10_412,
            "output_tokens": 1_208,
            "cache_read_tokens": 0,
            "cache_write_tokens": 0,
            "cost_usd": 0.0431,
            "tool_calls": 14,
            "requests": 9,
            "spent_usd": 0.0431,
        },
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
        prompts=("Make the tests pass.\nDon't change them.", "Now say what was wrong."),
    )
    return run(
        spec(
            "fix-tests",
            failed,
            verdict="fail",
            composite=0.0,
            threshold_source="input",
            pass_rate=PassRate(0.0, 0.0, 0.79, 1),
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
            pass_rate=PassRate(0.9, 0.596, 0.982, 10),
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


def broken_beside_a_failure() -> RunResult:
    """A gate that failed, and a composite that what broke could not have saved, each beside a check that broke."""
    script = check(
        "numbers_agree", "error", type="custom", weight=0.2, message="agree.py ended with exit code 1\nno file"
    )
    told = "besides, check numbers_agree broke: agree.py ended with exit code 1"
    gate = cell(
        "fix-tests.r0",
        script,
        TESTS_FAIL,
        verdict="fail",
        composite=0.0,
        reason=f"gate tests_pass scored 0.00, and a gate needs 1.00; {told}",
    )
    low = cell(
        "fix-tests.r1",
        script,
        NO_LOGS,
        EMAIL,
        replica=1,
        verdict="fail",
        composite=0.375,
        reason=f"composite 0.38 is below the threshold 0.85, and 0.63 is the most it could be; {told}",
        attempts=2,
        notices=("attempt 1: service db was not ready within 60 s",),
        counted_as_zero=("numbers_agree",),
    )
    group = GroupResult("reconcile", {}, "fail", 0.1875, 0, 2, "0 of 2 replicas passed, all must")
    failed = spec("fix-tests", gate, low, verdict="fail", composite=0.1875, groups=(group,), pass_rate=None)
    return run(failed, verdict="fail", composite=0.1875)


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
            pass_rate=PassRate(0.667, 0.208, 0.939, 3),
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
        pass_rate=PassRate(0.833, 0.552, 0.953, 12),
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
        prompts=(HOSTILE, HOSTILE),
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


def forbidden() -> RunResult:
    """Two broken rules, one that holds, and checks that all passed."""
    writes = "\n".join(
        f"db: table audit_{n}: delete of {n} rows at 2026-11-20T08:00:0{n}Z, seen in the server's own log of changes"
        for n in range(2, 5)
    )
    leak = "the secret TOKEN is in stdout, line 12, the agent's own output"
    broken = cell(
        "reconcile-customers",
        RECONCILED,
        EMAIL,
        verdict="fail",
        composite=0.0,
        reason=f"forbidden.db_writes_outside was violated: {writes.splitlines()[0]};"
        f" forbidden.secrets_in_logs was violated: {leak}",
        forbidden=(
            ForbiddenResult("db_writes_outside", violated=True, details=writes),
            ForbiddenResult("secrets_in_logs", violated=True, details=leak),
            ForbiddenResult("file_writes_outside", violated=False),
        ),
    )
    lines = {"forbidden.db_writes_outside": 31, "forbidden.secrets_in_logs": 32, "forbidden.file_writes_outside": 33}
    judged = spec("reconcile-customers", broken, verdict="fail", composite=0.0, pass_rate=PassRate(0.0, 0.0, 0.79, 1))
    return run(
        replace(judged, positions={**judged.positions, **lines}),
        verdict="fail",
        composite=0.0,
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
            pass_rate=PassRate(0.0, 0.0, 0.79, 1),
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


def scenarios() -> RunResult:
    """Two of five scenarios failed, and one broke: the share that is needed can't be reached any more."""
    cells = []
    for number, verdict in enumerate(("pass", "pass", "fail", "fail", "error")):
        found = {"pass": TESTS_PASS, "fail": TESTS_FAIL}.get(verdict)
        cells.append(
            cell(
                f"fix-tests.task-{number}.r0",
                *([found] if found else []),
                scenario=f"task-{number}",
                verdict=verdict,
                composite={"pass": 1.0, "fail": 0.0}.get(verdict),
                reason="gate tests_pass scored 0.00, and a gate needs 1.00" if verdict == "fail" else "",
                error="service db did not start" if verdict == "error" else None,
            )
        )
    rules = {"scenarios": "at least 0.9", "pass_threshold": 0.5}
    decided = decide_spec(spec("fix-tests", **rules), cells)
    return run(decided, verdict=decided.verdict, composite=decided.composite)


def cancelled() -> RunResult:
    done = cell("fix-tests.r0", TESTS_PASS)
    return run(spec("fix-tests", done), verdict="pass", cancelled=True)


SAMPLES = {
    "pass": passing,
    "gate_failure": gate_failure,
    "high_composite_failure": high_composite_failure,
    "check_error": check_error,
    "broken_beside_a_failure": broken_beside_a_failure,
    "flaky": flaky,
    "skipped_judge": skipped_judge,
    "matrix": matrix,
    "hostile": hostile,
    "forbidden": forbidden,
    "no_such_program": no_such_program,
    "usage_error": usage_error,
    "cancelled": cancelled,
    "scenarios": scenarios,
}
