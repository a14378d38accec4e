"""The section `gateway`: when there is one, what it may say, and where its addresses may stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.check_types import CHECKS

from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.gateway import Gateway

Errors = Callable[..., list[str]]
Load = Callable[..., LoadedSpec]


def spec(gateway: str = "", env: str = "", more: str = "", agent: str = "type: command, command: [run]") -> str:
    section = f"gateway: {gateway}\n" if gateway else ""
    given = f', env: {{X: "{env}"}}' if env else ""
    return f"version: 1\nid: sample\ntask: {{prompt: do it}}\nagent: {{{agent}{given}}}\n{section}{more}\n{CHECKS}"


def test_there_is_none_unless_something_asks_for_it(load_text: Load) -> None:
    assert load_text(spec()).spec.model_gateway is None
    assert load_text(spec("off")).spec.model_gateway is None
    found = load_text(spec("{}")).spec.model_gateway
    assert found == Gateway()
    assert found.provider_names == ("anthropic", "openai", "gemini")


ROUTER = '{name: router, api: openai, base_url: "https://llm.example/v1", key: "{{ secrets.K }}"}'


def test_providers_have_names_that_expressions_of_the_agent_know(load_text: Load) -> None:
    text = spec(f"{{providers: [anthropic, {ROUTER}]}}", "{{ gateway.router.url }}{{ gateway.anthropic.key }}")
    assert load_text(text.replace("{providers", "\n  {providers", 1) + "secrets: [K]\n").spec.model_gateway is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (spec("on"), "gateway, found 'on', expected off"),
        (spec("{provider: []}"), "unknown key 'provider'"),
        (spec("{providers: []}"), "providers"),
        (spec("{providers: [antropic]}"), "expected anthropic, openai or gemini, did you mean 'anthropic'?"),
        (spec("{providers: [openai, openai]}"), "the provider 'openai' is there twice"),
        (spec("{providers: [{name: x, api: cohere}]}"), "found 'cohere'"),
        (spec('{providers: [{name: x, api: openai, base_url: "ftp://x"}]}'), "base_url"),
        (spec('{providers: [{name: x, api: openai, base_url: "https://x/v1?key=1"}]}'), "base_url"),
        (spec('{providers: [{name: x, api: openai, base_url: "https://me:pass@x/v1"}]}'), "without user, password"),
        (spec("{budget: {max_cost_usd: -1}}"), "max_cost_usd, found the number -1, expected a number of at least 0"),
        (spec("{budget: {max_tokens: 1.5}}"), "max_tokens, found the number 1.5, expected a whole number"),
        (spec("{budget: {max_requests: true}}"), "max_requests, found true"),
        (spec("{prices: {x: {input: 1}}}"), "output"),
        (spec("{prices: {x: {input: .nan, output: 1}}}"), "input"),
        (spec("{models: []}"), "models"),
        (spec("{ignore: ['(']}"), "is not a regular expression"),
        (spec("{mode: replays}"), "mode"),
        (spec("{recordings: ../elsewhere}"), "is not a folder below the spec's"),
        (spec("{recordings: /recordings}"), "is not a folder below the spec's"),
        (spec("{recordings: .}"), "is not a folder below the spec's"),
        (spec("{recordings: '{{ params.x }}'}"), "an expression in"),
        (spec("{provider_tools: maybe}"), "provider_tools"),
        (spec(env="{{ gateway.openai.url }}"), "there are some with `gateway: {}` only"),
        (spec("off", "{{ gateway.openai.url }}"), "there are some with `gateway: {}` only"),
        (spec("{}", "{{ gateway.opnai.url }}"), "did you mean 'gateway.openai'?"),
        (spec("{}", "{{ gateway.openai.uri }}"), "did you mean 'gateway.openai.url'?"),
        (spec("{}", "{{ gateway.openai }}"), "gateway.openai.key, gateway.openai.url"),
        (spec("{providers: [openai]}", "{{ gateway.gemini.url }}"), "expected one of gateway.openai"),
        (spec("{}", more='setup: {env: {X: "{{ gateway.openai.key }}"}}'), "addresses are for the agent"),
        (
            spec(
                '{providers: [{name: x, api: openai, key: "{{ params.k }}"}]}', more="parallelism: {matrix: {k: [1]}}"
            ),
            "the gateway knows secrets only",
        ),
        (spec("off", more="forbidden: {tools: [execute]}"), "forbidden.tools needs the gateway"),
        (spec("off", more="forbidden: {commands: [rm]}"), "forbidden.commands needs the gateway"),
    ],
)
def test_what_is_wrong_is_said(errors_of: Errors, text: str, expected: str) -> None:
    found = "\n".join(errors_of(text))
    assert expected in found
