"""What differs between two versions of a spec, in sentences that a reviewer reads before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.dialects.known import DIALECTS
from keystone_action.gate.leaves import short_value
from keystone_action.gate.spec_changes import MAX_DIFFERENCES, differences
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.loader import LoadedSpec, load

BASE: dict[str, Any] = {
    "version": 1,
    "id": "small",
    "task": {"prompt": "do it"},
    "agent": {"type": "command", "command": "true"},
    "invariants": {
        "tests_pass": {"gate": True, "check": {"type": "command_exit", "command": "pytest -q"}},
        "x": {"weight": 2, "check": {"type": "file_exists", "path": "x"}},
        "y": {"gate": True, "check": {"type": "file_exists", "path": "y"}},
    },
    "scoring": {"pass_threshold": 0.85},
}


def loaded(folder: Path, document: dict[str, Any]) -> LoadedSpec:
    folder.mkdir(exist_ok=True)
    (folder / "keystone.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return load(folder / "keystone.yaml", CheckTypes())


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with one place of it set, or removed with None."""
    copy = yaml.safe_load(yaml.safe_dump(document))
    *folders, last = path.split(".")
    inner = copy
    for part in folders:
        inner = inner.setdefault(part, {})
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return copy


def test_a_value_is_quoted_where_one_could_not_see_what_it_is() -> None:
    values = ["a b", "ä", " a", "", "a\x85b", "a\u202eb", None, 0.5, True, [1], "a\nb", "a" * 61]
    shown = ["a b", "ä", '" a"', '""', r'"a\u0085b"', r'"a\u202eb"', "none", "0.5", "true", "[1]", "", ""]
    assert [short_value(value) for value in values] == shown


def said(tmp_path: Path, after: dict[str, Any], before: dict[str, Any] = BASE) -> tuple[str, ...]:
    return differences(
        loaded(tmp_path / "a", before), loaded(tmp_path / "b", after), places=(tmp_path / "a", tmp_path / "b")
    )


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("scoring.pass_threshold", 0.5, "threshold 0.85 → 0.5"),
        ("scoring", None, "threshold 0.85 → 1"),
        ("scoring.replica_aggregation", "any", "replica_aggregation all → any"),
        ("scoring.replica_aggregation", {"at_least": 1}, 'replica_aggregation all → {"at_least": 1}'),
        ("scoring.retry_errors", 3, "retry_errors 0 → 3"),
        ("invariants.tests_pass", None, "removed: tests_pass (a gate)"),
        ("invariants.x", None, "removed: x"),
        ("invariants.x.weight", 1, "weight of x 2 → 1"),
        ("invariants.y.gate", False, "gate y removed"),
        ("invariants.x.gate", True, "gate x added"),
        ("invariants.y.gate", "passed", "gate y true → passed"),
        ("invariants.y.on_skip", "ignore", "y: on_skip none → ignore"),
        ("invariants.x.check.path", "other", "x: check.path x → other"),
        ("invariants.tests_pass.check.command", "true || " + "pytest " * 20, "tests_pass: check.command changed"),
        ("invariants.tests_pass.check.command", ["true"], 'tests_pass: check.command pytest -q → ["true"]'),
        ("invariants.z", {"check": {"type": "file_exists", "path": "z"}}, "added: z"),
        ("agent.command", "cheat", "agent.command true → cheat"),
        ("task.prompt", "line\nline", "task.prompt changed"),
        ("determinism", {"seed": 7}, "determinism.seed none → 7"),
        ("resources", {"timeout": "1h"}, "resources.timeout 900 → 3600"),
        ("parallelism", {"replicas": 2}, "parallelism.replicas 1 → 2"),
    ],
)
def test_one_difference(tmp_path: Path, path: str, value: Any, sentence: str) -> None:
    assert said(tmp_path, changed(BASE, path, value)) == (sentence,)


def test_what_can_let_more_pass_comes_first(tmp_path: Path) -> None:
    after = changed(BASE, "task.prompt", "do it well")
    for path, value in (
        ("invariants.x.check.path", "other"),
        ("invariants.x.weight", 1),
        ("invariants.y.gate", False),
        ("invariants.tests_pass", None),
        ("scoring.pass_threshold", 0.5),
    ):
        after = changed(after, path, value)
    assert said(tmp_path, after) == (
        "threshold 0.85 → 0.5",
        "removed: tests_pass (a gate)",
        "gate y removed",
        "weight of x 2 → 1",
        "x: check.path x → other",
        "task.prompt do it → do it well",
    )


def test_comments_layout_defaults_and_aliases_mean_nothing(tmp_path: Path) -> None:
    before = changed(BASE, "invariants.c", {"check": {"type": "command", "cmd": "true", "expect_exit": 0}})
    after = changed(BASE, "invariants.c", {"weight": 1.0, "check": {"type": "command", "cmd": "true"}})
    assert said(tmp_path, after, before) == ()


def test_scenarios_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    check = {"check": {"type": "file_exists", "path": "q"}}
    before = changed(BASE, "scenarios", [{"id": "one", "invariants": {"q": check}}, {"id": "two"}, {"id": "three"}])
    after = changed(BASE, "scenarios", [{"id": "three"}, {"id": "one", "prompt": "less"}, {"id": "four"}])
    assert said(tmp_path, after, before) == (
        "removed scenarios: two",
        "scenario one: removed: q",
        "scenario one: prompt none → less",
        "added scenarios: four",
    )


def test_so_many_that_the_rest_is_counted(tmp_path: Path) -> None:
    check = {"type": "file_exists", "path": "q"}
    before = changed(BASE, "invariants", {f"i{n}": {"weight": 2, "check": check} for n in range(50)})
    after = changed(BASE, "invariants", {f"i{n}": {"weight": 1, "check": check} for n in range(50)})
    found = said(tmp_path, after, before)
    assert len(found) == MAX_DIFFERENCES + 1
    assert found[-1] == "and 20 more differences"


def test_no_crowd_of_small_differences_hides_what_was_taken_away(tmp_path: Path) -> None:
    before = changed(
        BASE, "invariants", {f"check_{n}": {"check": {"type": "file_exists", "path": "x"}} for n in range(40)}
    )
    gated = {"sealed": {"gate": True, "check": {"type": "file_exists", "path": "z"}}}
    before["scenarios"] = [{"id": "hard"}, {"id": "kept", "invariants": gated}]
    after = yaml.safe_load(yaml.safe_dump(before))
    for check in after["invariants"].values():
        check["weight"] = 1.5
    after["scenarios"] = [{"id": "kept", "invariants": {"sealed": {**gated["sealed"], "gate": False}}}]
    found = said(tmp_path, after, before)
    assert found[:2] == ("removed scenarios: hard", "scenario kept: gate sealed removed")
    assert len(found) == MAX_DIFFERENCES + 1


def test_a_gate_that_is_lowered_stands_before_a_crowd_too(tmp_path: Path) -> None:
    many = {f"check_{n}": {"check": {"type": "file_exists", "path": "x"}} for n in range(40)}
    lowered = {"gate": True, "check": {"type": "budget", "max_tool_calls": 10}}
    before = changed(
        BASE, "invariants", {**many, "sealed": {"gate": True, "check": {**many["check_0"]["check"]}}, "cheap": lowered}
    )
    after = yaml.safe_load(yaml.safe_dump(before))
    for name in many:
        after["invariants"][name]["weight"] = 1.5
    after["invariants"]["sealed"]["gate"] = "passed"
    after["invariants"]["cheap"]["check"]["max_tool_calls"] = 1000
    found = said(tmp_path, after, before)
    assert found[:2] == ("gate sealed true → passed", "cheap: check.max_tool_calls 10 → 1000")


def test_other_tools_files_differ_by_what_they_ask_besides(tmp_path: Path) -> None:
    (tmp_path / "harnesses.yaml").write_text("mine: {command: ['true']}\n")
    case = {"id": "case", "task": {"prompt": "x"}, "graders": [{"type": "command", "cmd": "true"}]}

    def of(name: str, **more: Any) -> LoadedSpec:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "case.yaml").write_text(
            yaml.safe_dump({**case, "matrix": {"harnesses": ["echo"], "models": ["m"]}, **more})
        )
        return load(folder / "case.yaml", CheckTypes(), dialects=DIALECTS)

    before, same = of("a"), of("b")
    assert differences(before, same, places=(before.directory, same.directory)) == ()
    weaker = of("c", graders=[{"type": "command", "cmd": "true || false"}])
    found = differences(before, weaker, places=(before.directory, weaker.directory))
    assert found, "a grader's command is part of the gate"
    assert any("true || false" in one for one in found)


@given(st.sampled_from(["scoring.pass_threshold", "invariants.x.weight"]), st.floats(0, 1), st.floats(0, 1))
def test_a_number_is_said_exactly_when_it_differs(
    tmp_path_factory: pytest.TempPathFactory, path: str, one: float, other: float
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    found = said(folder, changed(BASE, path, other), changed(BASE, path, one))
    assert len(found) == (one != other)


def test_a_folder_shown_to_the_agent_stands_before_ordinary_differences(tmp_path: Path) -> None:
    after = {**BASE, "resources": {"readable": ["/srv/tools"], "pids": 9}, "description": "other words"}
    found = said(tmp_path, after)
    assert found[0] == "resources.readable has one folder more: /srv/tools"
    assert len(found) == 3


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("gateway", "off", "gateway none → off"),
        ("gateway", {"models": ["*"]}, "gateway"),
        ("forbidden", {"tools": ["fetch"]}, "forbidden.tools"),
        ("agent.trace", {"format": "claude", "stdout": True}, "agent.trace"),
    ],
)
def test_what_evidence_comes_from_stands_before_ordinary_differences(
    tmp_path: Path, path: str, value: Any, sentence: str
) -> None:
    after = changed(changed(BASE, path, value), "task.prompt", "do another thing")
    first, second = said(tmp_path, after)
    assert first.startswith(sentence)
    assert "prompt" in second
