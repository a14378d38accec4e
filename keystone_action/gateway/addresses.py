"""Where a cell's agent reaches the gateway, and the variables that lead its programs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """One provider as an agent is given it. url: as clients of that API want it: anthropic without /v1, openai with
    /v1, gemini without a version. key: worthless, the cell's own."""

    url: str
    key: str

    def as_mapping(self) -> dict[str, str]:
        """The keys that expressions have: `{{ gateway.NAME.url }}`."""
        return {"url": self.url, "key": self.key}


_URLS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE", "COPILOT_PROVIDER_BASE_URL"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_BASE_URL"),
}
"""What clients of each API look for: SDKs, litellm (*_API_BASE), older SDKs of Gemini, GitHub's Copilot CLI."""
_KEYS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY", "COPILOT_PROVIDER_API_KEY"),
    "gemini": ("GEMINI_API_KEY",),
}
_ALONE: Mapping[str, Mapping[str, str]] = {"openai": {"COPILOT_OFFLINE": "true"}}


def provider_of_api(api: str, apis: Mapping[str, str]) -> str | None:
    """The name of the provider that is meant where only an API is named. apis: by the names of providers; that with
    the API's name is meant, else the first; None where there is none."""
    names = [name for name, one in apis.items() if one == api]
    return None if not names else api if api in names else names[0]


def agent_variables(addresses: Mapping[str, ModelAddress], apis: Mapping[str, str]) -> dict[str, str]:
    """The variables for an agent. addresses, apis: by the names of providers."""
    variables: dict[str, str] = {}
    for api in _URLS:
        name = provider_of_api(api, apis)
        if name is None:
            continue
        address = addresses[name]
        variables |= dict.fromkeys(_URLS[api], address.url)
        variables |= dict.fromkeys(_KEYS[api], address.key)
        variables |= _ALONE.get(api, {})
    return variables
