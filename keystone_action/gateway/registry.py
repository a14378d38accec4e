"""The APIs of models by their names, and which of their requests pass (contract, 5.6 "What passes")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from urllib.parse import parse_qsl

from keystone_action.gateway.api import ModelApi

_SEGMENT = r"[A-Za-z0-9._~@:+-]+"
_ANTHROPIC = (
    ("POST", r"/v1/messages", "messages"),
    ("POST", r"/v1/messages/count_tokens", ""),
    ("GET", rf"/v1/models(/{_SEGMENT})?", ""),
)
_OPENAI = (
    ("POST", r"/v1/responses", "responses"),
    ("POST", r"/v1/chat/completions", "chat"),
    ("GET", rf"/v1/models(/{_SEGMENT})?", ""),
)
_OF_VERTEX = re.compile(r"/v1(?:beta1)?/publishers/google(?=/models/)")
"""How paths of Google's SDK begin where it is told to use Vertex AI with a key. All else is the same."""
_GEMINI = (
    ("POST", rf"/v1(alpha|beta)?/models/{_SEGMENT}:(generateContent|streamGenerateContent)", "generate"),
    ("POST", rf"/v1(alpha|beta)?/models/{_SEGMENT}:countTokens", ""),
    ("GET", r"/v1(alpha|beta)?/models(/[A-Za-z0-9._~@+-]+)?", ""),
)
ROUTES = {"anthropic": _ANTHROPIC, "openai": _OPENAI, "gemini": _GEMINI}
SHOWN = {
    "anthropic": "POST /v1/messages, POST /v1/messages/count_tokens, GET /v1/models",
    "openai": "POST /v1/responses, POST /v1/chat/completions, GET /v1/models",
    "gemini": "POST /v1beta/models/MODEL:generateContent, :streamGenerateContent, :countTokens, GET /v1beta/models",
}
"""What there is, for a refusal."""
_FORMS = {"sse", "json"}
_NEVER_OF_GEMINI = {"callback", "fields", "access_token", "oauth_token"}
"""Parameters that every API of Google has: other forms of an answer, parts of it, other credentials. Names that begin
with `$` are more of them."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A request that passes."""

    below: str
    """The path below the base URL of the provider."""
    provider: ModelApi | None
    """How the request is read; None for one that costs nothing: counting tokens, lists of models."""
    counted: ModelApi | None = None
    """How the body of a request is read that only has its tokens counted."""


def route_of(api: str, method: str, path: str) -> ApiRoute | None:
    """path: below the provider's name, as it was sent, its percent signs not decoded. None = it does not pass."""
    if ".." in path or "//" in path or "%" in path:
        return None
    if api == "gemini":
        path = _OF_VERTEX.sub("/v1beta", path)
    for wanted, pattern, reader in ROUTES[api]:
        if method == wanted and re.fullmatch(pattern, path):
            below = path.removeprefix("/v1") if api == "openai" else path
            provider = provider_for(api, reader)
            return (
                ApiRoute(below, provider) if reader else ApiRoute(below, None, provider if method == "POST" else None)
            )
    return None


def problem_of_query(api: str, query: str) -> str:
    """Why a query doesn't pass; empty when it does. An answer in a form that we can't read would hide what it says."""
    if api != "gemini":
        return ""
    for name, value in parse_qsl(query.replace(";", "&"), keep_blank_values=True):
        known = name.strip().casefold()
        if known == "alt" and value not in _FORMS:
            return f"alt={value[:20]} is not let through; alt=sse and alt=json are"
        if known.startswith("$") or known in _NEVER_OF_GEMINI:
            return f"the query parameter {known[:20]} is not let through"
    return ""


@cache
def provider_for(api: str, reader: str = "") -> ModelApi:
    """How requests and answers of an API are read, and how it tells an error."""
    if api == "anthropic":
        from keystone_action.gateway.anthropic import Anthropic

        return Anthropic()
    if api == "gemini":
        from keystone_action.gateway.gemini import Gemini

        return Gemini()
    if reader == "responses":
        from keystone_action.gateway.openai_responses import OpenAiResponses

        return OpenAiResponses()
    from keystone_action.gateway.openai_chat import OpenAiChat

    return OpenAiChat()
