"""Which failures are shown beside the code, in which order, and how many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keystone_action.github.log_commands import Annotation, annotations_of
from keystone_action.scoring.results import CellResult, ForbiddenResult, InvariantResult, RunResult, SpecResult

WORKSPACE = Path("/github/workspace")


def check(name: str, status: Any = "fail", **fields: Any) -> InvariantResult:
    fields = {"type": "file_exists", "weight": 1.0, "gate": False, "message": f"{name} says why", **fields}
    return InvariantResult(name=name, status=status, score=1.0 if status == "pass" else 0.0, **fields)


def cell(*checks: InvariantResult, verdict: Any = "fail", **fields: Any) -> CellResult:
    fields = {"id": "cell", "error": None, "composite": 0.5, **fields}
    return CellResult(
        scenario="s", params={}, replica=0, verdict=verdict, duration_s=1.0, agent=None, invariants=checks, **fields
    )


def spec(*cells: CellResult, spec_id: str = "demo", path: str = "evals/demo.yaml", **lines: int) -> SpecResult:
    return SpecResult(
        id=spec_id,
        path=path,
        sha256="",
        threshold_source="spec",
        verdict="fail",
        composite=0.5,
        pass_threshold=1.0,
        pass_rate=None,
        cells=cells,
        positions=lines,
    )


def failed_run(specs: tuple[SpecResult, ...]) -> RunResult:
    return RunResult(
        run_id="r",
        keystone_version="0",
        git_sha=None,
        verdict="fail",
        composite=0.5,
        started_at="",
        duration_s=1.0,
        specs=specs,
    )


def annotations(*specs: SpecResult, limit: int = 9, directory: Path = WORKSPACE) -> list[Annotation]:
    run = failed_run(specs)
    return annotations_of(run, directory=directory, workspace=WORKSPACE, limit=limit)


def test_a_failing_check_is_shown_at_its_line() -> None:
    assert annotations(spec(cell(check("tests"), check("fine", "pass")), tests=12)) == [
        Annotation("error", "tests says why", "demo: check tests failed", "evals/demo.yaml", 12)
    ]


def test_paths_start_at_the_top_of_the_repository() -> None:
    (below,) = annotations(spec(cell(check("a")), path="demo.yaml"), directory=WORKSPACE / "agents" / "one")
    (absolute,) = annotations(spec(cell(check("a")), path="/github/workspace/x/demo.yaml"))
    (upwards,) = annotations(spec(cell(check("a")), path="../demo.yaml"), directory=WORKSPACE / "agents")
    assert [below.file, absolute.file, upwards.file] == ["agents/one/demo.yaml", "x/demo.yaml", "demo.yaml"]


def test_worst_come_first() -> None:
    found = annotations(
        spec(cell(check("small"), verdict="pass"), spec_id="passed"),
        spec(
            cell(
                check("judge", "skip", type="llm_as_judge"),
                check("skipped", "skip"),
                check("light"),
                check("heavy", weight=5.0),
                check("gate", gate=True, disqualified=True),
                check("broken", "error"),
                verdict="error",
            )
        ),
    )
    assert [(one.level, one.title) for one in found] == [
        ("error", "demo: check broken broke"),
        ("error", "demo: gate gate failed"),
        ("error", "demo: check heavy failed"),
        ("error", "demo: check light failed"),
        ("warning", "passed: check small failed"),
        ("warning", "demo: judge judge was skipped"),
    ]


def test_what_cells_share_is_said_once() -> None:
    (found,) = annotations(spec(cell(check("a")), cell(check("a", message="another")), cell(verdict="pass")))
    assert found.message == "a says why\n(in 2 of 3 cells)"


def test_a_cell_without_a_failing_check_says_its_reason() -> None:
    found = annotations(
        spec(
            cell(verdict="error", error="service db never got ready", composite=None),
            cell(check("ok", "pass"), reason="composite 0.77 is below 0.85"),
        )
    )
    assert [(one.title, one.message.split("\n")[0], one.line) for one in found] == [
        ("demo: could not be graded", "service db never got ready", None),
        ("demo: failed", "composite 0.77 is below 0.85", None),
    ]


def test_a_violated_rule_is_shown() -> None:
    broken = ForbiddenResult("db_writes_outside", violated=True, details="wrote to audit")
    judged = spec(cell(forbidden=(broken, ForbiddenResult("tools", violated=False))))
    (found,) = annotations(replace(judged, positions={"forbidden.db_writes_outside": 7, "forbidden.tools": 8}))
    assert found.message == "wrote to audit"
    assert "db_writes_outside" in found.title
    assert found.line == 7


def test_what_does_not_fit_is_counted() -> None:
    found = annotations(spec(cell(*(check(f"c{n}") for n in range(20)))), limit=4)
    assert [one.level for one in found] == ["error"] * 3 + ["notice"]
    assert found[-1].message == "17 more in the summary"


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 50))
def test_the_runner_keeps_all_of_them(failing: int, skipped: int, limit: int) -> None:
    checks = [check(f"f{n}") for n in range(failing)]
    checks += [check(f"s{n}", "skip", type="llm_as_judge") for n in range(skipped)]
    found = annotations(spec(cell(*checks, verdict="fail" if failing else "pass")), limit=limit)
    assert len(found) <= limit
    for level in ("error", "warning", "notice"):
        assert sum(one.level == level for one in found) <= 9
    said = len([one for one in found if one.level != "notice"])
    told = int(found[-1].message.split()[0]) if found and found[-1].level == "notice" else 0
    assert limit == 0 or said + told == failing + skipped


def test_what_the_log_has_said_already_counts() -> None:
    run = failed_run((spec(cell(*(check(f"c{n}") for n in range(9)))),))
    found = annotations_of(run, directory=WORKSPACE, workspace=WORKSPACE, limit=50, issued={"error": 4, "warning": 10})
    assert [one.level for one in found] == ["error"] * 5 + ["notice"]
    assert found[-1].message == "4 more in the summary"


def test_nothing_is_shown_of_a_run_that_passed() -> None:
    assert annotations(spec(cell(check("a", "pass"), verdict="pass"))) == []
