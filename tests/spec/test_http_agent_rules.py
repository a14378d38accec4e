"""What a spec may say of an agent that is a service."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.check_types import CHECKS, HEAD

from keystone_action.errors import UsageError
from keystone_action.spec.agent_service import agent_service, is_elsewhere
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.plan import Selection, plan

Errors = Callable[..., list[str]]
Load = Callable[..., LoadedSpec]

CONTAINER = "services: [{name: bot, image: a-bot, ports: [80]}, {name: shop, type: http_mock}]\n"
ELSEWHERE = "https://agents.example.com/chat"
OWN = '"{{ services.bot.url }}/chat"'


def text(agent: str, more: str = "", checks: str = CHECKS) -> str:
    return HEAD.replace("{type: none}", f"{{type: http, {agent}}}") + more + checks


@pytest.mark.parametrize(
    ("url", "service", "elsewhere"),
    [
        (OWN, "bot", False),
        ('"http://{{ services.bot.host }}:{{ services.bot.port }}/{{ turn }}"', "bot", False),
        ("http://bot/chat", "bot", False),
        ("http://BOT:8000/chat", "bot", False),
        ('"{{ services.shop.url }}/chat"', None, False),
        ("http://shop/chat", None, False),
        ("http://bot.:8000/chat", "bot", False),
        ("https://bot.example.com", None, True),
        ('"https://example.com/?back={{ services.bot.url }}"', None, True),
        ('"https://example.com/{{ services.bot.url }}"', None, True),
        ('"https://example.com#{{ gateway.openai.url }}"', None, True),
        ('"{{ services.bot.url }}@example.com/"', None, True),
        ('"http://{{ services.bot.host }}.example.com/"', None, True),
        ('"http://example.com:{{ services.bot.port }}/"', None, True),
        ('"http://{{ task.prompt }}@bot/"', None, True),
        ("https://example.com/bot", None, True),
        ('"{{ params.at }}"', None, True),
        ('"{{ gateway.openai.url }}/chat/completions"', None, False),
    ],
)
def test_which_service_it_is(load_text: Load, url: str, service: str | None, elsewhere: bool) -> None:
    given = "gateway: {}\nparallelism: {matrix: {at: ['http://bot/', 'http://x/']}}\n"
    spec = load_text(text(f"url: {url}", CONTAINER + given)).spec
    assert (agent_service(spec, spec.agent, {}), is_elsewhere(spec, spec.agent)) == (service, elsewhere)


def test_a_parameter_can_say_which_service_it_is(load_text: Load) -> None:
    given = "parallelism: {matrix: {at: ['http://bot/', 'http://x/']}}\n"
    spec = load_text(text('url: "{{ params.at }}"', CONTAINER + given)).spec
    found = [agent_service(spec, spec.agent, {"at": at}) for at in ("http://bot/", "http://x/")]
    assert found == ["bot", None]


@pytest.mark.parametrize(("service", "own"), [("bot", "bot"), ("shop", None)])
def test_a_host_that_a_service_stands_in_for_is_that_service(load_text: Load, service: str, own: str | None) -> None:
    given = f"base: x\nnetwork: {{dns_overrides: {{agents.example.com: {service}}}}}\n"
    spec = load_text(text(f"url: {ELSEWHERE}", CONTAINER + given)).spec
    assert (agent_service(spec, spec.agent, {}), is_elsewhere(spec, spec.agent)) == (own, False)


def test_other_agents_are_no_service(load_text: Load) -> None:
    spec = load_text(HEAD + CONTAINER + CHECKS).spec
    assert (agent_service(spec, spec.agent, {}), is_elsewhere(spec, spec.agent)) == (None, False)


NAMED = CONTAINER + "setup: {commands: ['curl {{ services.bot.url }}']}\n"
SHARED = CONTAINER.replace("image: a-bot", "image: a-bot, isolation: database")
BY_PARAMETER = 'url: "http://{{ params.host }}/"'


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (NAMED, "setup.commands.0: 'services.bot.url': the service bot is the agent in the cell"),
        (SHARED, "services.0.isolation: the service bot is the agent, for one cell in the cell"),
    ],
)
def test_what_a_parameter_makes_the_agent_is_looked_at_before_anything_runs(
    load_text: Load, more: str, why: str
) -> None:
    loaded = load_text(text(BY_PARAMETER, more + "parallelism: {matrix: {host: [shop, bot]}}\n"))
    with pytest.raises(UsageError) as refused:
        plan([loaded], Selection(params={}))
    assert why in refused.value.message
    assert len(plan([loaded], Selection(params={"host": "shop"})).cells) == 1
    fine = load_text(text(BY_PARAMETER, CONTAINER + "parallelism: {matrix: {host: [shop, bot]}}\n"))
    assert len(plan([fine], Selection(params={})).cells) == 2


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("method: POST", "the key 'url' is missing"),
        ('url: ""', "url"),
        ("url: http://a, method: 'GET /'", "expected a method such as POST"),
        ("url: http://a, output_path: 'a['", "expected a path in JSON"),
        ("url: http://a, body: [1]", "body"),
        ("url: http://a, env: {A: b}", "an agent of the type http has no 'env'"),
        ("url: http://a, dir: .", "an agent of the type http has no 'dir'"),
        ("url: http://a, stdin: prompt", "an agent of the type http has no 'stdin'"),
        ("url: http://a, output: {file: x}", "an agent of the type http has no 'output'"),
        ("url: http://a, trace: {format: claude, path: x}", "an agent of the type http has no 'trace'"),
        ('url: "http://a/{{ turn.text }}"', "unknown name 'turn.text', did you mean 'turn'?"),
        ('url: "http://a/{{ turns }}"', "unknown name 'turns'"),
        ('url: http://a, body: {a: ["{{ conversation.id }}"]}', "unknown name 'conversation.id'"),
        ('url: http://a, headers: {X: "{{ task.promt }}"}', "did you mean 'task.prompt'?"),
        ('url: http://a, body: "{{ record.input }}"', "there are records with `dataset` or `scenarios` only"),
        ('url: http://a, body: "{{ turn"', "'{{' without '}}'"),
    ],
)
def test_what_is_refused(errors_of: Errors, agent: str, expected: str) -> None:
    (found,) = errors_of(text(agent))
    assert expected in found
    assert found.startswith("4:")


@pytest.mark.parametrize("name", ["turn", "conversation"])
def test_turn_is_for_requests_alone(errors_of: Errors, name: str) -> None:
    (found,) = errors_of(text("url: http://a", f"setup: {{commands: ['echo {{{{ {name} }}}}']}}\n"))
    assert f"unknown name '{name}'" in found


@pytest.mark.parametrize("rule", ["tools: [Bash]", "commands: ['rm']"])
def test_calls_of_an_agent_elsewhere_can_t_be_forbidden(errors_of: Errors, load_text: Load, rule: str) -> None:
    forbidden = f"forbidden: {{{rule}}}\n"
    name = rule.partition(":")[0]
    for url in (ELSEWHERE, '"{{ services.other.url }}/"', '"{{ params.at }}"'):
        more = CONTAINER.replace("]\n", ", {name: other, type: external, url: 'http://x'}]\n")
        more += "parallelism: {matrix: {at: ['http://bot/']}}\n"
        (found,) = errors_of(text(f"url: {url}", more + forbidden))
        assert f"forbidden.{name} can't be kept: nobody sees what an agent does that runs elsewhere" in found
    load_text(text(f"url: {OWN}", CONTAINER + forbidden))
    # Its own word is declared, and the report says whose word it is.
    load_text(text(f"url: {ELSEWHERE}, tool_calls_path: calls", forbidden + "gateway: off\n"))
    assert errors_of(text(f"url: {ELSEWHERE}, tool_calls_path: calls", forbidden))
    assert errors_of(text(f"url: {ELSEWHERE}", forbidden + "gateway: off\n"))


def test_hosts_of_an_agent_elsewhere_can_t_be_forbidden(errors_of: Errors, load_text: Load) -> None:
    forbidden = "base: x\nforbidden: {http_except: [agents.example.com, shop]}\n"
    (found,) = errors_of(text(f"url: {ELSEWHERE}", CONTAINER + forbidden))
    assert "forbidden.http_except can't be kept" in found
    load_text(text(f"url: {OWN}", CONTAINER + forbidden))


def test_a_mock_stands_in_for_a_host_of_an_agent_that_is_a_container(load_text: Load) -> None:
    given = CONTAINER + "base: x\nnetwork: {dns_overrides: {api.example.com: shop}}\n"
    load_text(text(f"url: {OWN}", given))
    load_text(text(f"url: {ELSEWHERE}", given))


@pytest.mark.parametrize("rule", ["audit: {processes: true}", "forbidden: {file_writes_outside: ['ok/**']}"])
@pytest.mark.parametrize("url", [ELSEWHERE, OWN])
def test_what_only_a_sandbox_shows_is_refused(errors_of: Errors, load_text: Load, rule: str, url: str) -> None:
    (found,) = errors_of(text(f"url: {url}", CONTAINER + rule + "\n"))
    assert "can't be kept: nothing of an agent of the type http runs in the cell's sandbox" in found
    load_text(HEAD + CONTAINER + rule + "\n" + CHECKS)


def test_an_agent_elsewhere_has_no_budget_unless_it_is_led_to_the_gateway(errors_of: Errors, load_text: Load) -> None:
    budget = CONTAINER + "gateway: {budget: {max_tool_calls: 1}}\n"
    (found,) = errors_of(text(f"url: {ELSEWHERE}", budget))
    assert "gateway.budget can't be kept: an agent that runs elsewhere asks its models by itself" in found
    load_text(text(f"url: {OWN}", budget))
    load_text(text(f"url: {ELSEWHERE}, body: {{models: '{{{{ gateway.openai.url }}}}'}}", budget))
    load_text(text(f"url: {ELSEWHERE}", CONTAINER + "gateway: {}\n"))


def test_it_can_t_be_given_a_time(errors_of: Errors) -> None:
    (found,) = errors_of(text(f"url: {ELSEWHERE}", "determinism: {clock: '2026-01-01T00:00:00Z'}\n"))
    assert "determinism.clock can't be given to an agent of the type http" in found


def test_the_agent_s_service_is_one_cell_s(errors_of: Errors) -> None:
    shared = CONTAINER.replace("ports: [80]", "ports: [80], isolation: database")
    (found,) = errors_of(text(f"url: {OWN}", shared))
    assert "the service bot is the agent, for one cell" in found


@pytest.mark.parametrize(
    "more",
    [
        "setup: {commands: ['curl {{ services.bot.url }}']}\n",
        "fixtures: [{type: git_repo, url: '{{ services.bot.url }}', path: x}]\n",
    ],
)
def test_nothing_but_the_agent_can_name_its_service(errors_of: Errors, more: str) -> None:
    (found,) = errors_of(text(f"url: {OWN}", CONTAINER + more))
    assert "'services.bot.url': the service bot is the agent" in found
