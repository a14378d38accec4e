"""Which variables lead an agent's programs to the gateway (research: what each client looks for)."""

from __future__ import annotations

from keystone_action.gateway.upstreams import ModelAddress, agent_variables, provider_of_api


def address(name: str) -> ModelAddress:
    return ModelAddress(f"http://127.0.0.1:1/{name}", "key")


def test_every_client_finds_what_it_looks_for() -> None:
    addresses = {"anthropic": address("a"), "openai": address("o/v1"), "gemini": address("g")}
    assert agent_variables(addresses, {name: name for name in addresses}) == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1/a",
        "ANTHROPIC_API_BASE": "http://127.0.0.1:1/a",
        "ANTHROPIC_API_KEY": "key",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/o/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:1/o/v1",
        "OPENAI_API_KEY": "key",
        "COPILOT_PROVIDER_BASE_URL": "http://127.0.0.1:1/o/v1",
        "COPILOT_PROVIDER_API_KEY": "key",
        "COPILOT_OFFLINE": "true",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:1/g",
        "GEMINI_API_BASE_URL": "http://127.0.0.1:1/g",
        "GEMINI_API_KEY": "key",
    }


def test_of_two_providers_with_one_api_that_with_its_name_is_meant_else_the_first() -> None:
    apis = {"router": "openai", "other": "openai", "openai": "openai"}
    assert found(apis)["OPENAI_BASE_URL"].endswith("/openai")
    del apis["openai"]
    assert found(apis)["OPENAI_BASE_URL"].endswith("/router")
    assert "ANTHROPIC_API_KEY" not in found(apis)
    assert provider_of_api("gemini", apis) is None


def found(apis: dict[str, str]) -> dict[str, str]:
    return agent_variables({name: address(name) for name in apis}, apis)
