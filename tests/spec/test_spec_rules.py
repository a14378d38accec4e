"""Rules of more than one field, and what this version refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.check_types import CHECKS, HEAD

from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.agents import LoopAgent

Errors = Callable[..., list[str]]
Load = Callable[..., LoadedSpec]
CHECK = "check: {type: file_exists, path: x}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("services: [{name: a, type: postgres}, {name: a, type: http_mock}]", "the service 'a' is there twice"),
        ("services: [{name: a-b, type: postgres}, {name: a_b, type: postgres}]", "'a-b' and 'a_b' are too alike"),
        (
            "services: [{name: sandbox, type: http_mock}]",
            "a service called 'sandbox' can't be reached; give it another",
        ),
        ("services: [{name: localhost, type: postgres}]", "a service called 'localhost' can't be reached"),
        ("services: [{name: ip6-localhost, image: redis}]", "a service called 'ip6-localhost' can't be reached"),
        ("services: [{name: A b, type: postgres}]", "expected a-z, 0-9 and single dashes or underscores"),
        ("services: [{name: a, image: 'postgres:16', type: postgress}]", "did you mean 'postgres'?"),
        ("services: [{name: a, type: sqlite}]", "the key 'path' is missing"),
        ("services: [{name: a, type: external}]", "the key 'url' is missing"),
        ("services: [{name: a, type: postgres, path: x}]", "unknown key 'path'"),
        ("services: [{name: a, type: http_mock, default_response: 99}]", "expected a number of at least 200"),
        (
            "services: [{name: a, type: http_mock, routes: [{path: /a, status: 101}]}]",
            "expected a number of at least 200",
        ),
        (
            "services: [{name: a, type: http_mock, routes: [{path: /, response: a, json: 1}]}]",
            "'json' beside 'response', expected one of 'response' or 'json' or 'file'",
        ),
        (
            "services: [{name: a, type: http_mock, routes: [{path: /, response: a, sequence: [{status: 200}]}]}]",
            "'response' beside 'sequence'; put it into the sequence",
        ),
        (
            "services: [{name: a, type: http_mock, routes: [{path: /, fault: boom}]}]",
            "expected reset, empty or garbage",
        ),
        ("secrets: [A, {name: A}]", "the secret 'A' is there twice"),
        ("secrets: [{name: A, source: env, from: generated}]", "'from' beside 'source'"),
        ("fixtures: [{type: http, url: x}]", "unknown type of fixture, found 'http', expected one of git_repo, sql"),
        ("fixtures: [{type: sql, service: db}]\nservices: [{name: db, type: postgres}]", "neither 'sql' nor 'file'"),
        ("setup: {files: [{path: a}]}", "neither 'content' nor 'from' is there"),
        ("setup: {files: [{path: a, content: x, from: y}]}", "'from' beside 'content'"),
        (
            "parallelism: {replicas: 2}\nscoring: {replica_aggregation: {at_least: 3}}",
            "at_least is above the 2 replicas",
        ),
        ("scoring: {scenarios: {at_least: 0}}", "at_least, found the number 0, expected a number above 0"),
        ("scoring: {scenarios: {at_least: 17}}", "at_least, found the number 17, expected a number of at most 1"),
        ("scoring: {scenarios: {at_least: .nan}}", "at_least, found the number nan, expected a finite number"),
        ("scoring: {scenarios: some}", "found 'some', expected all"),
        ("scoring: {replica_aggregation: most}", "found 'most', expected all, any, majority or mean"),
        ("scoring: {pass_threshold: 1.5}", "expected a number of at most 1"),
        ("scoring: {pass_threshold: -0.1}", "expected a number of at least 0"),
        ("scoring: {pass_threshold: .nan}", "pass_threshold, found the number nan, expected a"),
        ("scoring: {pass_threshold: '0.5'}", "found '0.5', expected a number"),
        ("parallelism: {matrix: {a: []}}", "a is empty, expected at least 1 entry"),
        ("parallelism: {matrix: {a: b}}", "a, found 'b', expected a list"),
        ("parallelism: {matrix: {'a b': [1]}}", "the name, found 'a b'"),
        (
            "parallelism: {matrix: {model: [1]}, exclude: [{modle: 1}]}",
            "'modle' is not in the matrix, did you mean 'model'?",
        ),
        (
            "parallelism: {matrix: {model: [1]}, include: [{modle: 1, effort: high}]}",
            "'modle' is not in the matrix, did you mean 'model'?",
        ),
        ("parallelism: {matrix: {model: [1]}, exclude: [{}]}", "an empty entry would exclude everything"),
        ("scenarios: []", "no scenarios; there is nothing to run"),
        ("scenarios: [{id: a, input: x}, {id: a, input: y}]", "the scenario 'a' is there twice"),
        ("scenarios: [{id: scenario-2, input: x}, {input: y}]", "the scenario 'scenario-2' is there twice"),
        ("scenarios: [{id: a/b, input: x}]", "expected letters, digits, '.', '_' and '-'"),
        ("scenarios: [{prompt: ' '}]", "the prompt is empty"),
        (f"scenarios: [{{input: x, invariants: {{there: {{{CHECK}}}}}}}]", "the invariant 'there' is there already"),
        ("resources: {timeout: 0}", "expected a duration above zero"),
        ("resources: {memory: lots}", "found 'lots', expected a size like 512Mi or 2G"),
        ("tags: [1]", "tags[0], found the number 1, expected a text; put it into quotes"),
        ("setup: {env: {A: [1]}}", "A, found a list, expected a text"),
        ("setup: {commands: ['']}", "commands[0] is empty"),
    ],
)
def test_rules(errors_of: Errors, lines: str, expected: str) -> None:
    assert any(expected in one for one in errors_of(HEAD + lines + "\n" + CHECKS))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("{prompt: '  '}", "the prompt is empty, expected what the agent is to do"),
        ("{prompt: {file: gone.md}}", "there is no file 'gone.md'"),
        ("{prompt: {file: blank.md}}", "the prompt's file is empty"),
        ("{prompt: {fil: gone.md}}", "unknown key 'fil', expected one of file, did you mean 'file'?"),
        ("{prompt: [a]}", "prompt, found a list, expected a text"),
        ("{system: x}", "the key 'prompt' is missing"),
        ("{prompt: x, files: [../up]}", "files keep their relative path in the workspace"),
        ("{prompt: x, turns: [b, ' ']}", "the turn is empty, expected what is said to the agent in this turn"),
        ("{prompt: x, turns: b}", "turns, found 'b', expected a list"),
        ("{prompt: x, turns: [{file: b}]}", "expected a text"),
        ("{prompt: x, turns: ['{{ task.prompt }}']}", "the task can't refer to itself"),
        ("{prompt: x, turns: [b]}", "the agent none can't go on with a conversation; say all of it in the prompt"),
    ],
)
def test_tasks(errors_of: Errors, write: Callable[..., object], task: str, expected: str) -> None:
    write("\n", "blank.md")
    assert any(expected in one for one in errors_of(HEAD.replace("{prompt: do it}", task) + CHECKS))


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("{type: python, entrypoint: 'a:B'}", "the key 'dir' is missing"),
        ("{type: python, entrypoint: a, dir: .}", "expected module:Class"),
        ("{type: command}", "the key 'command' is missing"),
        ("{type: command, command: ''}", "command is empty"),
        ("{type: command, command: {a: b}}", "command, found a mapping, expected a text"),
        ("{type: cli, command: x}", "the key 'binary' is missing"),
        ("{type: none, output: {}}", "neither 'file' nor 'json' is there"),
        ("{type: none, output: {file: a, json: stdout}}", "'json' beside 'file'"),
        ("{type: none, output: {file: /a}}", "the path '/a' is absolute"),
        ("{type: none, output: stdin}", "output, found 'stdin', expected stdout"),
        ("{type: none, stdin: yes}", "found 'yes', expected prompt"),
        ("{type: none, json_from: stdout}", "unknown key 'json_from'"),
        ("{command: x}", "the key 'type' is missing, expected one of command, cli, python, none"),
        ("none", "agent, found 'none', expected a mapping"),
    ],
)
def test_agents(errors_of: Errors, agent: str, expected: str) -> None:
    assert any(expected in one for one in errors_of(HEAD.replace("{type: none}", agent) + CHECKS))


def test_an_agent_that_has_no_sessions_is_refused_by_name(errors_of: Errors) -> None:
    spec = HEAD.replace("do it}", "x, turns: [b]}").replace("type: none", "type: mini-swe-agent, model: openai/m")
    (found,) = errors_of(spec + CHECKS)
    assert found.startswith("3:19: the agent mini-swe-agent can't go on with a conversation; say all of it in")


@pytest.mark.parametrize(
    ("invariants", "expected"),
    [
        (f"{{a: {{weight: 0, {CHECK}}}, b: {{weight: 0.0, {CHECK}}}}}", "every invariant has the weight 0"),
        (f"{{a: {{weight: -1, {CHECK}}}}}", "weight, found the number -1, expected a number of at least 0"),
        (f"{{a: {{weight: .inf, {CHECK}}}}}", "expected a finite number"),
        (f"{{a: {{weight: true, {CHECK}}}}}", "weight, found true, expected a number"),
        (f"{{a: {{gate: yes, {CHECK}}}}}", "gate, found 'yes', expected true or false or passed"),
        (f"{{a/b: {{{CHECK}}}}}", "the name, found 'a/b', expected letters, digits, '_' and '-'"),
        (f"[{{{CHECK}}}]", "invariants, found a list, expected a mapping"),
        ("{a: {type: file_exists, path: x}}", "the key 'check' is missing"),
        ("{a: {check: file_exists}}", "check, found 'file_exists', expected a mapping with a type"),
    ],
)
def test_invariants(errors_of: Errors, invariants: str, expected: str) -> None:
    found = errors_of(HEAD + f"invariants: {invariants}\n")
    assert any(expected in one for one in found), found


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("services: [{name: a, type: postgres, isolation: container}]", "isolation: container of an embedded server"),
        (
            "services: [{name: a, type: postgres, ports: [5432]}]",
            "'ports' of an embedded server is not supported",
        ),
        ("services: [{name: a, type: postgres, command: x}]", "'command' of an embedded server is not supported yet"),
        ("services: [{name: a, type: postgres, wait_for: x}]", "'wait_for' of an embedded server is not supported yet"),
        ("network: {egress: {default: deny, allow: ['https://a.example']}}", "allow[0]: expected a host like"),
        (
            "network: {dns_overrides: {a.b: api}}\nservices: [{name: api, type: http_mock}]",
            "network.dns_overrides can't be kept by the process sandbox",
        ),
        (
            "network: {dns_overrides: {a.b: db}}\nservices: [{name: db, type: postgres}]\nbase: x",
            "the service 'db' has no address in the cell's network, found postgres, expected an http_mock",
        ),
        ("network: {dns_overrides: {a.b: apy}}\nservices: [{name: api, type: http_mock}]\nbase: x", "no service 'apy'"),
        ("network: {dns_overrides: {A.b: api}}\nservices: [{name: api, type: http_mock}]\nbase: x", "write 'a.b'"),
        (
            "network: {dns_overrides: {'*.b': api}}\nservices: [{name: api, type: http_mock}]\nbase: x",
            "not a host name",
        ),
        ("network: {dns_overrides: {10.0.0.1: api}}\nservices: [{name: api, type: http_mock}]\nbase: x", "an address"),
        ("network: {dns_overrides: {localhost: api}}\nservices: [{name: api, type: http_mock}]\nbase: x", "itself"),
        ("network: {dns_overrides: {'a.b:80': api}}\nservices: [{name: api, type: http_mock}]\nbase: x", "is not"),
        ("determinism: {clock: '1969-12-31T23:59:59Z'}", "expected a time from 1970 on and before 2200, by UTC"),
        ("determinism: {clock: '1970-01-01T00:30:00+01:00'}", "expected a time from 1970 on and before 2200, by UTC"),
        ("determinism: {clock: '2026-01-01T00:00:00'}", "expected a date and time with its zone"),
        ("determinism: {clock: '2026-01-01'}", "expected a date and time with its zone"),
        ("determinism: {clock: '2026-02-30T00:00:00Z'}", "expected a date and time with its zone"),
        ("determinism: {clock: 1767225600}", "expected a date and time with its zone"),
        ("determinism: {clock: tomorrow}", "expected a date and time with its zone"),
        ("forbidden: {db_writes_outside: []}", "forbidden.db_writes_outside needs a database"),
        (
            "forbidden: {db_writes_outside: []}\nservices: [{name: a, image: mongo}, {name: b, type: http_mock}]",
            "forbidden.db_writes_outside needs a database",
        ),
        ("forbidden: {db_writes_outside: ['']}\nservices: [{name: a, type: sqlite, path: x}]", "[0] is empty"),
        ("forbidden: {http_except: []}", "forbidden.http_except can't be kept by the process sandbox"),
        (
            "forbidden: {http_except: [apy]}\nservices: [{name: api, type: http_mock}]\nbase: x",
            "'apy' is neither a service nor a host, did you mean 'api'",
        ),
        ("forbidden: {http_except: ['https://a.b']}\nbase: x", "http_except[0]: expected a host like"),
        ("forbidden: {http_except: ['']}\nbase: x", "http_except[0] is empty"),
        ("forbidden: {file_writes_outside: [/etc]}", "'/etc' is absolute"),
        ("forbidden: {file_writes_outside: [../up]}", "'..' in"),
        ("forbidden: {file_writes_outside: ['']}", "file_writes_outside[0] is empty"),
        ("forbidden: {secrets_in_logs: allow}", "secrets_in_logs, found 'allow'"),
        ("forbidden: {commands: ['(']}", "'(' is not a regular expression"),
    ],
)
def test_what_this_version_refuses(errors_of: Errors, lines: str, expected: str) -> None:
    (found,) = errors_of(HEAD + lines + "\n" + CHECKS)
    assert expected in found
    assert found.split(":")[0] == "5"


@pytest.mark.parametrize(("fields", "rest", "expected"), [
    ("", "", "the key 'model' is missing"),
    ("model: ''", "", "model is empty"),
    ("model: m, max_turns: 0", "", "max_turns"),
    ("model: m, max_turns: 1.5", "", "max_turns"),
    ("model: m, tools: [bash, bush]", "", "tools[1], found 'bush', expected bash, read"),
    ("model: m, tools: [bash, bash]", "", "the tool 'bash' is there twice"),
    ("model: m, tools: bash", "", "tools"),
    ("model: m, command: ls", "", "unknown key 'command'"),
    ("model: m, output: {json: stdout}", "", "agent.output.json means nothing for this agent"),
    ("model: m, trace: {format: claude, stdout: true}", "", "agent.trace.stdout means nothing for this agent"),
    ("model: m, stdin: prompt", "", "agent.stdin means nothing for this agent"),
    ("model: m", "gateway: off\n", "the agent type 'paragon' needs the gateway"),
    ("model: m", "gateway: {providers: [openai]}\n", "'paragon' needs a provider with the API anthropic"),
    ("model: m-2", "gateway: {models: ['m-1*', x]}\n", "gateway.models keeps the agent's model 'm-2' out"),
])  # fmt: skip
def test_a_tool_loop_that_could_not_work(errors_of: Errors, fields: str, rest: str, expected: str) -> None:
    (found,) = errors_of(HEAD.replace("{type: none}", f"{{type: paragon, {fields}}}") + rest + CHECKS)
    assert expected in found


@pytest.mark.parametrize("rest", [
    "gateway: {models: ['m-*']}\n",
    "gateway: {providers: [{name: mine, api: anthropic, base_url: 'http://127.0.0.1:9'}]}\n",
    "",
])  # fmt: skip
def test_a_tool_loop_that_can_work(load_text: Load, rest: str) -> None:
    loop = "{type: anthropic, model: m-1, tools: [], output: {file: answer.md}}"
    agent = load_text(HEAD.replace("{type: none}", loop) + rest + CHECKS).spec.agent
    assert isinstance(agent, LoopAgent)
    assert (agent.api, agent.max_turns, agent.tools) == ("anthropic", 50, [])


def test_fields_of_agents_that_this_version_refuses(errors_of: Errors) -> None:
    (found,) = errors_of(HEAD.replace("{type: none}", "{type: none, user: root}") + CHECKS)
    assert "the agent user 'root' is not supported yet" in found


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("{format: claude}", "neither 'path' nor 'stdout' is there"),
        ("{format: claude, stdout: true, path: x}", "beside"),
        ("{format: claude, stdout: false}", "stdout"),
        ("{format: opencode, stdout: true}", "format"),
        ("{format: codex, path: ../x}", "x"),
        ("{format: codex, path: /etc/passwd}", "passwd"),
    ],
)
def test_traces_that_can_be_read_from_nowhere(errors_of: Errors, trace: str, expected: str) -> None:
    (found,) = errors_of(HEAD.replace("{type: none}", f"{{type: none, trace: {trace}}}") + CHECKS)
    assert found.startswith("4:")
    assert expected in found


@pytest.mark.parametrize("kind", ["keystone", "touchstone", "claude", "codex", "gemini", "mini", "otel"])
def test_formats_of_traces(load_text: Load, kind: str) -> None:
    text = HEAD.replace("{type: none}", f"{{type: none, trace: {{format: {kind}, path: t.jsonl}}}}") + CHECKS
    trace = load_text(text).spec.agent.trace
    assert (trace.format, trace.path, trace.stdout) == (kind, "t.jsonl", None)


def test_what_says_nothing_is_no_use_of_it(load_text: Load) -> None:
    harmless = "network: {egress: {default: allow}}\naudit: {db_writes: false}\nforbidden: {}\ndeterminism: {seed: 7}\n"
    assert load_text(HEAD + harmless + CHECKS).spec.determinism.seed == 7


def test_requests_to_mocks_are_collected_when_that_is_asked_for_too(load_text: Load) -> None:
    assert load_text(HEAD + "audit: {http_calls: true}\n" + CHECKS).spec.audit.http_calls


def test_defaults_and_units(load_text: Load) -> None:
    text = """version: 1
id: sample
task: {prompt: do it}
agent: {type: command, command: [run, --fast], timeout: 1h30m, env: {PORT: 8080, ON: true}}
resources: {memory: 512Mi, disk: 2G, timeout: 90}
setup: {files: [{path: x, content: "", mode: "0755"}]}
services:
  - {name: db, image: registry:5000/library/postgres:16}
  - {name: ext, type: external, url: "postgres://u@h/d"}
  - {name: api, type: http_mock, routes: [{path: /, json: null}]}
secrets: [A, {name: B, from: generated}]
invariants: {a: {gate: passed, timeout: 250ms, check: {type: command, cmd: x, expect_exit: 3}}}
scoring: {replica_aggregation: {at_least: 1}}
"""
    spec = load_text(text).spec
    assert spec.agent.timeout == 5400.0
    assert spec.agent.env == {"PORT": "8080", "ON": "true"}
    assert (spec.resources.memory, spec.resources.disk, spec.resources.timeout) == (512 * 2**20, 2 * 10**9, 90.0)
    assert spec.setup.files[0].mode == 0o755
    assert [service.kind for service in spec.services] == ["postgres", "external", "http_mock"]
    assert spec.services[1].is_database
    assert "json_body" in spec.services[2].routes[0].model_fields_set  # type: ignore[union-attr]
    assert [secret.name for secret in spec.secrets] == ["A", "B"]
    assert spec.invariants["a"].gate == "passed"
    assert spec.invariants["a"].timeout == 0.25
    assert spec.invariants["a"].check.exit_code == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("postgres", "postgres"),
        ("postgres:16-alpine", "postgres"),
        ("ghcr.io/x/postgres@sha256:" + "0" * 64, "postgres"),
        ("localhost:5000/postgres", "postgres"),
        ("mysql:8", "mysql"),
        ("mariadb", "mysql"),
        ("postgrest/postgrest", "container"),
        ("me/mypostgres:1", "container"),
    ],
)
def test_images_of_databases_are_recognised(image: str, kind: str) -> None:
    from keystone_action.spec.models.services import ContainerService

    assert ContainerService(name="a", image=image).kind == kind


@pytest.mark.parametrize("name", ["sandbox-api", "local", "localhost-2", "ip6"])
def test_a_service_may_have_a_name_like_one_that_is_taken(load_text: Load, name: str) -> None:
    assert load_text(f"{HEAD}services: [{{name: {name}, type: http_mock}}]\n{CHECKS}").spec.services[0].name == name


@pytest.mark.parametrize(
    "include",
    [
        "[{model: 1, mode: fast}]",
        "[{mode: fast}]",
        "[{model: 1, effort: high}]",
        "[{b: 1}]",
        "[{level2: 1}]",
    ],
)
def test_a_further_parameter_is_not_a_misspelt_one(load_text: Load, include: str) -> None:
    """One beside the one that it is like, one that an expression uses, and those that are not like it."""
    uses = "setup: {env: {MODE: '{{ params.mode }}'}}\n" if include == "[{mode: fast}]" else ""
    matrix = "{model: [1], a: [1], level1: [1]}"
    assert load_text(HEAD + f"parallelism: {{matrix: {matrix}, include: {include}}}\n{uses}" + CHECKS).spec
