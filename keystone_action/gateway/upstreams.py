"""The two ends of the gateway: a provider of models, which is reached with its real key, and the addresses and
variables that lead the programs of an agent to the gateway."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus, urlsplit

if TYPE_CHECKING:
    import httpx

HeaderLines = list[tuple[bytes, bytes]]
"""Names and values, as they stand in a request or an answer."""

DEFAULT_BASES: Mapping[str, str] = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "gemini": "https://generativelanguage.googleapis.com",
}
VARIABLES: Mapping[str, tuple[str, str]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
}
"""Of each API: the variables of our own environment with its key and with where it is."""
CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key", b"proxy-authorization", b"cookie"})
_OF_THE_CONNECTION = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers of one hop (RFC 9110, 7.6.1) and those that are set anew for the next."""
_OF_THE_ANSWER = _OF_THE_CONNECTION | {b"content-encoding", b"set-cookie", b"alt-svc", b"strict-transport-security"}
_CREDENTIALS_IN_QUERIES = {"key", "api_key", "api-key", "apikey", "access_token", "oauth_token"}
_SHAPING = {b"x-goog-fieldmask", b"x-http-method-override", b"x-goog-user-project"}
"""Headers by which an agent would get a part of an answer, or another one, or ask on another's account."""
_CLEAN = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""A value that an HTTP server passes on; others are left out."""
_CONNECT_SECONDS = 20.0
SILENT_SECONDS = 600.0
"""How long a provider may think before its next byte: as long as its own clients wait."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One provider of a spec."""

    name: str
    api: str
    base: str
    """URL, as clients of that API are given it."""
    key: str = field(default="", repr=False)
    """Empty where none is sent."""
    variable: str = ""
    """The variable of our environment that the key is from; empty where it is from elsewhere."""

    @property
    def key_in_words(self) -> str:
        """What the provider refuses when it refuses the key."""
        if not self.key:
            return "a request without a key"
        return f"the key in {self.variable}" if self.variable else "the key that gateway.providers has for it"

    def url(self, path: str, query: str) -> str:
        """The URL of a request for this path below the base. Credentials in the query are left out."""
        kept = "&".join(pair for pair in query.split("&") if _name_in(pair) not in _CREDENTIALS_IN_QUERIES)
        return f"{self.base.rstrip('/')}{path}" + (f"?{kept}" if kept else "")

    def headers(self, headers: HeaderLines) -> HeaderLines:
        """The headers of an agent's request as the provider gets them: every credential is replaced."""
        dropped = CREDENTIALS | _OF_THE_CONNECTION | _SHAPING | _named_by_connection(headers) | {b"accept-encoding"}
        kept = [(name, value) for name, value in headers if name.lower() not in dropped]
        # We read the answer, and no client depends on its being compressed.
        kept.append((b"accept-encoding", b"identity"))
        if self.key:
            bearer = any(name.lower() == b"authorization" for name, _ in headers)
            kept.append(_credential(self.api, self.key.encode("ascii"), bearer=bearer))
        return kept


def _credential(api: str, key: bytes, *, bearer: bool) -> tuple[bytes, bytes]:
    if api == "gemini":
        return (b"x-goog-api-key", key)
    if api == "anthropic" and not bearer:
        return (b"x-api-key", key)
    return (b"authorization", b"Bearer " + key)


def _name_in(pair: str) -> str:
    return unquote_plus(pair.partition("=")[0]).strip().casefold()


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    return {
        one.strip().lower() for name, value in headers if name.lower() == b"connection" for one in value.split(b",")
    }


def answer_headers(headers: HeaderLines) -> HeaderLines:
    """The headers of a provider's answer as the agent gets them."""
    dropped = _OF_THE_ANSWER | _named_by_connection(headers)
    return [(name, value) for name, value in headers if name.lower() not in dropped and _CLEAN.fullmatch(value)]


class UpstreamClient:
    """The client that asks providers. It lives in one event loop. trust: a bundle of certificates; None = the usual
    ones. silent: seconds that a provider may take for its next byte."""

    def __init__(self, trust: str | None = None, silent: float = SILENT_SECONDS) -> None:
        import ssl

        import httpx

        # They would tell of headers and of what a provider answered, whoever listens to loggers.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._timeout = {"connect": _CONNECT_SECONDS, "read": silent, "write": silent, "pool": silent}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        context = ssl.create_default_context(cafile=trust)
        self._client = httpx.AsyncClient(verify=context, limits=limits, follow_redirects=False)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: HeaderLines, body: bytes | None
    ) -> AsyncIterator[httpx.Response]:
        """The provider's answer; its body is still to be read. Raises httpx.HTTPError, httpx.InvalidURL."""
        import httpx

        # Made here, not by the client, which would add cookies of earlier answers and headers of its own.
        request = httpx.Request(method, url, headers=headers, content=body, extensions={"timeout": self._timeout})
        response = await self._client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()


def is_below(url: str, base: str) -> bool:
    """Whether a URL leads to the same host as a base: a key goes nowhere else."""
    one, other = urlsplit(url), urlsplit(base)
    return (one.scheme, one.hostname, one.port) == (other.scheme, other.hostname, other.port)


@dataclass(frozen=True, slots=True)
class ModelAddress:
    """Where an agent reaches one provider."""

    url: str
    """As clients of that API want it: anthropic without /v1, openai with /v1, gemini without a version."""
    key: str
    """Worthless: it is the cell's own."""

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
    """The provider that is meant where only an API is named: the one with the API's name, else the first one; None
    where there is none. apis: by the names of providers."""
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
