"""Bodies that name other models, or another place to be answered at, in the ways of routers."""

from __future__ import annotations

from typing import Any

import pytest
from support.gateway_world import CHUNK, USAGE, world
from support.scripted_provider import stream

from keystone_action.gateway.ledger import BudgetLimits

CHAT = "/openai/v1/chat/completions"
ALLOWED, OTHER = "gpt-5", "claude-opus-4-5"


def chat(**more: Any) -> dict[str, Any]:
    return {"model": ALLOWED, "stream": True, "messages": [{"role": "user", "content": "hi"}], **more}


MODELS: list[dict[str, Any]] = [
    {"models": [OTHER]},
    {"models": [ALLOWED, OTHER]},
    {"models": OTHER},
    {"route": OTHER},
    {"fallback_models": [OTHER]},
    {"fallbacks": [OTHER]},
    {"fallbacks": [{"model": OTHER}]},
    {"fallbacks": [{ALLOWED: [OTHER]}]},
    {"context_window_fallbacks": [{ALLOWED: [OTHER]}]},
    {"content_policy_fallbacks": [{ALLOWED: [OTHER]}]},
    {"extra_body": {"models": [OTHER]}},
    {"extra_body": {"model": OTHER}},
    {"extra_body": {"extra_body": {"fallbacks": [OTHER]}}},
    {"providerOptions": {"gateway": {"models": [OTHER]}}},
    {"extra_body": {"providerOptions": {"gateway": {"models": [OTHER]}}}},
    {"fallbacks": [f"{ALLOWED},{OTHER}"]},
    {"model": f"{ALLOWED}, {OTHER}"},
]
UPSTREAMS: list[dict[str, Any]] = [
    {"api_base": "https://elsewhere.example"},
    {"base_url": "https://elsewhere.example"},
    {"api_key": "sk-of-the-agent"},
    {"custom_llm_provider": "ollama"},
    {"extra_body": {"api_base": "https://elsewhere.example"}},
    {"extra_headers": {"x-litellm-api-base": "https://elsewhere.example"}},
    {"fallbacks": [{"model": ALLOWED, "api_base": "https://elsewhere.example"}]},
    {"extra_body": {"fallbacks": [{"model": ALLOWED, "api_base": "https://elsewhere.example"}]}},
    {"fallbacks": [{ALLOWED: [{"model": ALLOWED, "api_base": "https://elsewhere.example"}]}]},
    {"fallbacks": {ALLOWED: [{"model": ALLOWED, "api_base": "https://elsewhere.example"}]}},
    {"extra_body": {"providerOptions": {"gateway": {"only": ["elsewhere"]}}}},
    {"litellm_params": {"api_base": "https://elsewhere.example"}},
    {"model_list": [{"model_name": ALLOWED, "litellm_params": {}}]},
    {"user_config": {"model_list": []}},
    {"kv_transfer_params": {"remote_host": "10.0.0.1"}},
    {"provider": {"order": ["elsewhere"]}},
    {"provider": {"only": ["elsewhere"]}},
    {"provider": "elsewhere"},
    {"providerOptions": {"gateway": {"order": ["elsewhere"]}}},
]
HONEST: list[dict[str, Any]] = [
    {},
    {"models": [ALLOWED, "gpt-5-mini"], "route": "fallback"},
    {"fallbacks": [{"model": "gpt-5-mini"}]},
    {"fallbacks": [], "models": None, "api_base": None},
    {"provider": {"sort": "price", "data_collection": "deny", "allow_fallbacks": False}},
    {"providerOptions": {"anthropic": {"thinking": {"budgetTokens": 1}}}},
    {"extra_body": {"top_k": 3}},
    {"metadata": {"models": [OTHER], "api_base": "x"}},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"models": {}}}}}]},
    {"messages": [{"role": "user", "content": '{"models": ["claude-opus-4-5"], "api_base": "x"}'}]},
]


@pytest.mark.parametrize("more", MODELS)
def test_every_model_that_a_body_names_is_checked(more: dict[str, Any]) -> None:
    with world(models=("gpt-*",)) as one:
        found = one.ask(CHAT, chat(**more))
        assert found.status_code == 400
        assert f"the model {OTHER} is not let through; gateway.models has gpt-*" in found.json()["error"]["message"]
        assert one.behind.asked == []
    with world(stream(CHUNK, USAGE), models=("gpt-*", "claude-*")) as one:
        assert one.ask(CHAT, chat(**more)).status_code == 200


@pytest.mark.parametrize("more", UPSTREAMS)
def test_a_body_that_names_another_upstream_is_refused(more: dict[str, Any]) -> None:
    with world() as one:
        found = one.ask(CHAT, chat(**more))
        assert found.status_code == 400
        assert "fields that name another upstream are not let through: " in found.json()["error"]["message"]
        assert one.behind.asked == []


@pytest.mark.parametrize("more", HONEST)
def test_what_names_neither_passes(more: dict[str, Any]) -> None:
    with world(stream(CHUNK, USAGE), models=("gpt-*",)) as one:
        assert one.ask(CHAT, chat(**more)).status_code == 200


def test_a_model_that_may_answer_needs_a_price_under_a_limit_of_money() -> None:
    with world(limits=BudgetLimits(max_cost_usd=1)) as one:
        found = one.ask(CHAT, chat(models=["of-tomorrow"]))
        assert "the model of-tomorrow has no price" in found.json()["error"]["message"]


def test_a_model_in_the_body_of_gemini_is_checked_beside_the_one_in_its_path() -> None:
    path, body = "/gemini/v1beta/models/gem-1:generateContent", {"contents": []}
    with world(models=("gem-1",)) as one:
        assert one.ask(path, {**body, "model": "models/gem-2"}).status_code == 400
        assert one.ask(path, {**body, "model": "models/gem-1"}).status_code == 200


@pytest.mark.parametrize(
    "inner", [{"tools": [{"type": "web_search"}]}, {"web_search_options": {}}, {"plugins": [{"id": "web"}]}]
)
def test_what_a_router_takes_for_fields_of_the_body_is_read_like_it(inner: dict[str, Any]) -> None:
    with world(deny_tools_of_provider=True) as one:
        assert one.ask(CHAT, chat(extra_body=inner)).status_code == 400
        assert one.ask(CHAT, chat(extra_body={"tools": [], "top_k": 1})).status_code == 200


@pytest.mark.parametrize("name", ["Models", "API_BASE", "Fallbacks", "Extra_Body"])
def test_names_in_other_letters_are_refused(name: str) -> None:
    with world() as one:
        assert one.ask(CHAT, chat(**{name: []})).status_code == 400


def test_too_many_models_are_refused() -> None:
    with world() as one:
        found = one.ask(CHAT, chat(models=[f"m{number}" for number in range(200)]))
        assert (found.status_code, one.behind.asked) == (400, [])
