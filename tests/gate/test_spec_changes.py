"""What differs between two versions of a spec, in sentences that a reviewer reads before anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.dialects.known import DIALECTS
from keystone_action.gate.findings import short_value
from keystone_action.gate.spec_changes import MAX_DIFFERENCES, first_sentences, spec_findings
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load

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
    return differences(loaded(tmp_path / "a", before), loaded(tmp_path / "b", after))


def differences(before: LoadedSpec, after: LoadedSpec) -> tuple[str, ...]:
    return first_sentences(spec_findings(before, after, places=(before.directory, after.directory)))


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("scoring.pass_threshold", 0.5, "threshold 0.85 → 0.5"),
        ("scoring", None, "threshold 0.85 → 1"),
        ("scoring.replica_aggregation", "any", "replica_aggregation all → any"),
        ("scoring.replica_aggregation", {"at_least": 1}, 'replica_aggregation all → {"at_least": 1}'),
        ("scoring.retry_errors", 3, "retry_errors 0 → 3"),
        ("scoring.scenarios", {"at_least": 0.9}, 'scenarios all → {"at_least": 0.9}'),
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
        (
            "determinism",
            {"clock": "2026-01-01T00:00:00Z"},
            'determinism.clock none → "2026-01-01 00:00:00+00:00"',
        ),
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
    assert found[-1].startswith("and 20 more differences, of i36, i37, i38, i39, i4, i40, ")


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


LOOK = {"type": "file_content", "path": "a", "contains": "x"}


def crowd(tmp_path: Path, change: dict[str, dict[str, Any]], more: dict[str, Any] | None = None) -> tuple[str, ...]:
    """What is said of this change among thirty weights that are a little more than before."""
    many = {f"c{number:02}": {"weight": 1, "check": dict(LOOK)} for number in range(60)}
    before = {**BASE, "invariants": {**many, "z": {"weight": 1, "check": dict(LOOK)}}}
    after = yaml.safe_load(yaml.safe_dump(before)) | (more or {})
    for number in range(30):
        after["invariants"][f"c{number:02}"]["weight"] = 1.0001
    for name, fields in change.items():
        after["invariants"][name] = {**after["invariants"][name], **fields}
    return said(tmp_path, after, before)


def test_no_crowd_of_weights_that_hardly_change_hides_one_that_goes_or_a_pattern(tmp_path: Path) -> None:
    found = crowd(tmp_path, {"c07": {"weight": 0}, "z": {"check": {**LOOK, "contains": "y"}}})
    assert found[:2] == ("weight of c07 1 → 0", "z: check.contains x → y")
    assert found[2].startswith("weight of c00 1 → 1.0001")
    assert found[-1] == "and one more difference, of c29"


@pytest.mark.parametrize(
    ("change", "more", "sentence"),
    [
        ({"z": {"on_skip": "ignore"}}, {}, "z: on_skip none → ignore"),
        ({"z": {"check": {**LOOK, "contains": ["x"]}}}, {}, 'z: check.contains x → ["x"]'),
        ({"z": {"timeout": 9}}, {}, "z: timeout none → 9"),
        ({}, {"parallelism": {"matrix": {"m": [1, 2]}, "exclude": [{"m": 2}]}}, 'exclude [] → [{"m": 2}]'),
        ({}, {"scoring": {"pass_threshold": 0.85, "retry_errors": 5}}, "retry_errors 0 → 5"),
        ({}, {"scoring": {"pass_threshold": 0.85, "replica_aggregation": "any"}}, "replica_aggregation all → any"),
        ({}, {"scoring": {"pass_threshold": 0.84}}, "threshold 0.85 → 0.84"),
        ({}, {"scoring": {"pass_threshold": 0.85, "scenarios": {"at_least": 0.9}}}, "scenarios all → "),
        ({}, {"gateway": {"ignore": [".*"]}}, "gateway.ignore has one pattern more: .*"),
        ({}, {"gateway": {"prices": {"m": {"input": 0.0, "output": 0.0}}}}, "gateway.prices.m "),
        ({}, {"network": {"egress": {"allow": ["evil.example"]}}}, "network.egress.allow has one host more"),
        ({"z": {"check": {"type": "tests", "cmd": "t", "protect": ["!*"]}}}, {}, "z: check.protect"),
        ({}, {"tags": ["slow"]}, 'tags [] → ["slow"]'),
    ],
)
def test_what_a_crowd_does_not_hide(
    tmp_path: Path, change: dict[str, dict[str, Any]], more: dict[str, Any], sentence: str
) -> None:
    found = crowd(tmp_path, change, more)
    place = next(index for index, one in enumerate(found) if sentence in one)
    assert not any(one.startswith("weight of ") for one in found[:place])


def test_what_is_stricter_or_only_words_stands_behind_what_can_weaken(tmp_path: Path) -> None:
    after = changed(BASE, "scoring.pass_threshold", 0.9)
    after = changed(changed(after, "description", "other"), "invariants.x.check.path", "other")
    assert said(tmp_path, after) == ("x: check.path x → other", "threshold 0.85 → 0.9", 'description "" → other')


def test_a_check_that_went_does_not_hide_among_those_that_got_another_name(tmp_path: Path) -> None:
    many = {f"c{number:02}": {"check": {"type": "file_exists", "path": f"{number}"}} for number in range(30)}
    before = changed(BASE, "invariants", {**many, "gone": {"check": {"type": "file_exists", "path": "x"}}})
    after = changed(BASE, "invariants", {f"new_{name}": check for name, check in many.items()})
    found = said(tmp_path, after, before)
    assert found[0] == "removed: gone"
    assert found[1].startswith("renamed: c00 → new_c00, c01 → new_c01, ")


def test_the_gates_among_those_that_went_are_named_first(tmp_path: Path) -> None:
    many = {f"c{number:02}": {"check": {"type": "file_exists", "path": f"{number}"}} for number in range(60)}
    gate = {"gate": True, "check": {"type": "file_exists", "path": "x"}}
    before = changed(
        BASE, "invariants", {**many, "z_sealed": gate, "kept": gate, "z_heavy": {**many["c00"], "weight": 9}}
    )
    found = said(tmp_path, changed(BASE, "invariants", {"kept": gate}), before)
    assert found[0].startswith("removed: z_sealed (a gate), z_heavy, c00, c01, ")
    assert len(found[0]) < 200


def test_checks_that_outweigh_those_that_were_there_are_told(tmp_path: Path) -> None:
    trivial = {"weight": 1000, "check": {"type": "file_absent", "path": "never"}}
    found = said(tmp_path, changed(changed(BASE, "invariants.easy", trivial), "task.prompt", "x"))
    assert found == ("added: easy, which have 100% of the weight", "task.prompt do it → x")


def test_the_order_of_checks_is_a_difference(tmp_path: Path) -> None:
    after = {**BASE, "invariants": dict(reversed(BASE["invariants"].items()))}
    assert said(tmp_path, after) == ("the order of the checks changed",)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ({"type": "json", "path": "a", "values": {"a": True}}, {"a": 1}, "x: check.values.a true → 1"),
        ({"type": "json", "path": "a", "values": {"a": 1}}, {"a": 1.0}, "x: check.values.a changed"),
        ({"type": "json", "path": "a", "values": {"a": "1"}}, {"a": 1}, "x: check.values.a changed"),
        (
            {"type": "json", "path": "a", "values": {"a": [{"b": True}]}},
            {"a": [{"b": 1}]},
            "x: check.values.a[0].b true → 1",
        ),
        ({"type": "json", "path": "a", "values": {"a": {"b": None}}}, {"a": {}}, "x: check.values.a.b changed"),
        (
            {"type": "json", "path": "a", "values": {"a": {"equals": None, "exists": True}}},
            {"a": {"exists": True}},
            "x: check.values.a.equals null → none",
        ),
    ],
)
def test_a_change_of_a_type_or_of_a_null_is_one_of_what_is_meant(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], sentence: str
) -> None:
    old = changed(BASE, "invariants.x.check", before)
    assert said(tmp_path, changed(old, "invariants.x.check.values", after), old) == (sentence,)


def test_rows_of_another_type_are_others(tmp_path: Path) -> None:
    service = {"services": [{"name": "db", "type": "sqlite", "path": "a.db"}]}
    check = {"type": "sql", "service": "db", "query": "select 1", "rows": [[True]]}
    old = changed({**BASE, **service}, "invariants.x.check", check)
    assert said(tmp_path, changed(old, "invariants.x.check.rows", [[1]]), old) == ("x: check.rows[0][0] true → 1",)


def test_the_folder_of_the_checkout_in_a_text_is_not_cut_out_of_it(tmp_path: Path) -> None:
    look = {"type": "file_content", "path": "log", "not_contains": "ERROR"}
    old = changed(BASE, "invariants.x.check", look)
    new = changed(old, "invariants.x.check.not_contains", f"{tmp_path / 'b'}ERROR")
    (found,) = said(tmp_path, new, old)
    assert found.startswith("x: check.not_contains")
    assert said(tmp_path, new, new) == (), "a text that did not change"


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
    assert differences(before, same) == ()
    weaker = of("c", graders=[{"type": "command", "cmd": "true || false"}])
    found = differences(before, weaker)
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


def test_a_script_that_gets_to_see_the_agents_packages_is_a_change_and_as_a_gate_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "look.py").write_text("print()\n")
    check = {"type": "custom", "script": "look.py", "runs_in": "sandbox"}
    before = changed(BASE, "invariants.z", {"gate": True, "check": check})
    after = changed(before, "invariants.z.check.agent_packages", True)
    assert said(tmp_path, after, before) == ("z: check.agent_packages false → true",)
    assert loaded(tmp_path / "a", before).warnings == ()
    (warning,) = loaded(tmp_path / "b", after).warning_sentences
    assert "the gate 'z': with agent_packages the agent's code runs in the script" in warning
    not_a_gate = changed(after, "invariants.z.gate", False)
    assert loaded(tmp_path / "b", not_a_gate).warnings == ()
