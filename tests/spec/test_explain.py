"""`keystone explain`: what the reference says of one place of a spec, for a terminal."""

from __future__ import annotations

import pytest
from support.field_examples import places

from keystone_action.cli.main import main
from keystone_action.errors import UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.field_texts import field_texts
from keystone_action.spec.format_reference import explain_field
from keystone_action.spec.models.spec import Spec

TYPES = CheckTypes()


def test_a_field_has_its_type_default_meaning_and_examples() -> None:
    text = explain_field("agent.timeout", TYPES)
    assert text.startswith("timeout: duration (90, 90s, 10m), default 10m\n\nHow long the agent may run.")
    assert text.endswith("\n\n    timeout: 5m\n    timeout: 90")


def test_a_mapping_has_its_keys() -> None:
    text = explain_field("services.routes.match", TYPES)
    assert text.startswith("match: mapping, optional\n")
    assert "\n\nKeys:\n  headers  Headers by name" in text
    assert explain_field("", TYPES).startswith("A spec file.")
    assert all(f"\n  {name} " in explain_field("", TYPES) for name in Spec.model_fields)


def test_what_is_different_for_each_type_is_told_for_each() -> None:
    text = explain_field("agent.args", TYPES)
    assert text.startswith("type: cli\n\nargs: list of texts, optional\n\nThe arguments, each one as it is.")
    assert "\n\ntype: claude-code, codex, " in text
    assert "type: " not in explain_field("agent.env", TYPES)


@pytest.mark.parametrize("path", ["check.sql", "invariants.check.sql", "scenarios.invariants.check.sql"])
def test_a_check_type_has_its_keys(path: str) -> None:
    assert explain_field(path, TYPES).startswith("Asks a database service")
    assert explain_field(f"{path}.query", TYPES).startswith("query: text, required")


def test_a_check_without_a_type_leads_to_the_types() -> None:
    assert "file_exists" in explain_field("check", TYPES)
    assert "`keystone explain check.TYPE`" in explain_field("invariants.check", TYPES).replace("\n", " ")


@pytest.mark.parametrize("place", [place for place in places() if place.root is Spec], ids=lambda one: one.steps)
def test_every_field_of_the_format_is_explained(place: object) -> None:
    steps = []
    model = place.model
    while place.above is not None:
        steps.insert(0, place.steps.partition("[")[0].partition(".")[0])
        place = place.above
    for name, text in field_texts(model).items():
        found = explain_field(".".join([*steps, model.model_fields[name].alias or name]), TYPES)
        assert text.description.split()[0] in found


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("agent.timeuot", "agent has no field 'timeuot'; did you mean timeout?"),
        ("agnet", "a spec has no field 'agnet'; did you mean agent?"),
        ("check.sqll", "there is no check type 'sqll'; did you mean sql?"),
        ("agent.timeout.x", "agent.timeout has no field 'x'"),
    ],
)
def test_a_path_that_leads_nowhere_names_the_nearest(path: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain_field(path, TYPES)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("file_content", "there is `keystone explain check.file_content`"),
        ("budget", "there is `keystone explain check.budget`, `keystone explain gateway.budget`"),
        ("pass_threshold", "there is `keystone explain scoring.pass_threshold`"),
        ("routes", "there is `keystone explain services.routes`"),
    ],
)
def test_a_name_without_its_place_leads_to_where_it_is(name: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain_field(name, TYPES)
    assert caught.value.help == told
    for place in told.split("`")[1::2]:
        assert explain_field(place.removeprefix("keystone explain "), TYPES)


def test_no_line_is_wider_than_a_terminal_but_examples() -> None:
    for path in ("", "agent", "services", "check.custom"):
        lines = [line for line in explain_field(path, TYPES).splitlines() if not line.startswith("    ")]
        assert max(map(len, lines)) <= 100


def test_the_command_prints_it_and_refuses_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "agent.timeout"]) == 0
    assert capsys.readouterr().out == explain_field("agent.timeout", TYPES) + "\n"
    assert main(["explain", "agent.tiemout"]) == 2
    assert "did you mean timeout?" in capsys.readouterr().err
