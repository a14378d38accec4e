"""Names that expressions may use, checked when the spec is loaded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.check_types import CHECKS, HEAD

Errors = Callable[..., list[str]]

SERVICES = """services:
  - {name: db, type: postgres}
  - {name: api, type: http_mock}
secrets: [TOKEN]
parallelism: {matrix: {model: [a, b]}, include: [{extra: 1}]}
"""


def command(text: str) -> str:
    """A spec whose agent has this text in its environment."""
    return f"""version: 1
id: sample
task: {{prompt: "{{{{ params.model }}}}", system: be kind}}
agent:
  type: command
  command: [run]
  env: {{X: "{text}"}}
{SERVICES}{CHECKS}"""


@pytest.mark.parametrize(
    "text",
    [
        "{{ params.model }}",
        "{{ params.extra }}",
        "{{ services.db.url }}{{ services.db.password }}",
        "{{ services.api.port }}",
        "{{ secrets.TOKEN }}",
        "{{ task.prompt }}{{ task.system }}",
        "{{ workspace }}",
        "{{ cell.id }}{{ cell.replica }}{{ cell.seed }}",
        "{{ env.LANG }}",
        r"\\{{ whatever }}",
    ],
)
def test_known_names(load_text: Callable[..., object], text: str) -> None:
    assert load_text(command(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{{ params.modle }}",
            "unknown name 'params.modle', expected one of params.extra, params.model, did you mean 'params.model'?",
        ),
        ("{{ service.db.url }}", "did you mean 'services'?"),
        ("{{ services.dbb.url }}", "did you mean 'services.db'?"),
        ("{{ services.db.uri }}", "did you mean 'services.db.url'?"),
        ("{{ services.db }}", "unknown name 'services.db', expected one of services.db.database"),
        ("{{ services.api.password }}", "expected one of services.api.host, services.api.port, services.api.url"),
        ("{{ secrets.TOKN }}", "did you mean 'secrets.TOKEN'?"),
        ("{{ task.promt }}", "did you mean 'task.prompt'?"),
        ("{{ workspace.path }}", "did you mean 'workspace'?"),
        ("{{ cell.name }}", "expected one of cell.id, cell.replica, cell.seed"),
        ("{{ record.input }}", "there are records with `dataset` or `scenarios` only"),
        ("{{ agent.dir }}", "'agent.dir' is not set"),
        ("{{ env.GITHUB_TOKEN }}", "'env.GITHUB_TOKEN' can't be used"),
        ("{{ env.ACTIONS_ID_TOKEN_REQUEST_URL }}", "never handed on"),
        ("{{ env.INPUT_X }}", "never handed on"),
        ("{{ env }}", "'env' is not a variable, expected env.NAME"),
        ("{{ params.model", "'{{' without '}}'"),
    ],
)
def test_unknown_names(errors_of: Errors, text: str, expected: str) -> None:
    (found,) = errors_of(command(text))
    assert expected in found
    assert found.startswith("7:12: ")


def test_the_caret_stands_below_the_expression(errors_of: Errors) -> None:
    (found,) = errors_of(command("abc {{ params.model }} {{ params.x }}"))
    assert found.startswith(f"7:{13 + len('abc {{ params.model }} ')}: unknown name 'params.x'")


def test_parameters_of_the_call_are_known_parameters(load_text: Callable[..., object], errors_of: Errors) -> None:
    text = HEAD.replace("do it", '"{{ params.given }}"') + CHECKS
    (found,) = errors_of(text)
    assert "declare it in parallelism.matrix, or give it with --param" in found
    loaded = load_text(text, given_parameters=("given",))
    assert loaded.parameter_names == {"given"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["command: 'echo {{ task.prompt }}'", "command: 'echo {{ record.input }}'"])
def test_data_never_reaches_a_shell(errors_of: Errors, field: str) -> None:
    head = HEAD.replace("agent: {type: none}", f"agent: {{type: command, {field}}}\nscenarios: [{{input: x}}]")
    (found,) = errors_of(head + CHECKS)
    assert "in a command that a shell reads; use $KEYSTONE_PROMPT, or write the command as a list" in found


def test_data_may_be_an_argument_of_a_list(load_text: Callable[..., object]) -> None:
    agent = "agent: {type: command, command: [run, '{{ record.input }}', '{{ task.prompt }}']}\nscenarios: [{input: x}]"
    assert load_text(HEAD.replace("agent: {type: none}", agent) + CHECKS)


@pytest.mark.parametrize(
    "section",
    [
        "setup: {commands: ['echo {{ task.prompt }}']}",
        "services: [{name: db, type: postgres, wait_for: 'x {{ task.prompt }}'}]",
        "invariants: {a: {check: {type: command_exit, command: 'x {{ task.prompt }}'}}}",
    ],
)
def test_every_shell_command_is_watched(errors_of: Errors, section: str) -> None:
    text = HEAD + section + "\n" + ("" if "invariants" in section else CHECKS)
    assert any("in a command that a shell reads" in one for one in errors_of(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id: '{{ params.x }}'", "expected kebab-case"),
        ("tags: ['{{ workspace }}']", "expressions don't work in names"),
        ("base: '{{ params.x }}'", "expressions don't work here"),
        ("invariants: {a: {check: {type: sql, service: '{{ x }}', query: q}}}", "expressions don't work in names"),
        ("task: {prompt: '{{ task.prompt }}'}", "the task can't refer to itself"),
        ("setup: {env: {A: '{{ env.HOME }}'}}", "the host's environment is for agent.env and secrets only"),
    ],
)
def test_where_expressions_do_not_work(errors_of: Errors, text: str, expected: str) -> None:
    key = text.split(":", maxsplit=1)[0]
    lines = [line for line in (HEAD + CHECKS).splitlines() if not line.startswith(f"{key}:")]
    assert any(expected in one for one in errors_of("\n".join([*lines, text])))


def test_a_description_is_for_people(load_text: Callable[..., object]) -> None:
    checks = "invariants: {a: {description: '{{ x', check: {type: file_exists, path: x}}}\n"
    assert load_text(HEAD + "description: 'uses {{ x }}'\n" + checks)


SCENARIOS = """scenarios:
  - {id: one, input: hi, params: {city: Rome}, metadata: {level: 1}}
  - {id: two, input: ho, params: {city: Oslo}}
"""


def test_records_and_parameters_of_scenarios(load_text: Callable[..., object], errors_of: Errors) -> None:
    prompt = "'{{ record.input }} {{ params.city }} {{ record.id }} {{ record.tags }}'"
    assert load_text(HEAD.replace("do it", prompt) + SCENARIOS + CHECKS)
    (found,) = errors_of(HEAD.replace("do it", "'{{ record.metadata.level }}'") + SCENARIOS + CHECKS)
    assert "the record 'two' has no such field" in found
    (found,) = errors_of(HEAD.replace("do it", "'{{ record.answer }}'") + SCENARIOS + CHECKS)
    assert "expected one of record.expected, record.id" in found
    without = SCENARIOS.replace("params: {city: Oslo}", "params: {}")
    (found,) = errors_of(HEAD.replace("do it", "'{{ params.city }}'") + without + CHECKS)
    assert "the scenario 'two' has no such parameter" in found


def test_a_check_of_a_scenario_is_for_its_own_record(load_text: Callable[..., object]) -> None:
    own = "invariants: {own: {check: {type: file_exists, path: '{{ record.metadata.level }}.txt'}}}"
    assert load_text(HEAD + SCENARIOS.replace("metadata: {level: 1}", "metadata: {level: 1}, " + own) + CHECKS)


def test_what_a_mock_fills_later_is_left_alone(load_text: Callable[..., object], errors_of: Errors) -> None:
    routes = "services: [{name: api, type: http_mock, routes: [{path: /x, json: {id: '%s'}}]}]\n"
    assert load_text(HEAD + routes % "{{ request.path | upper }}" + CHECKS)
    (found,) = errors_of(HEAD + routes % "{{ reqest.path }}" + CHECKS)
    assert "unknown name 'reqest.path'" in found
