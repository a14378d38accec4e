"""Where answers come from when they are live: a provider of models, reached with its real key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode, urlsplit

if TYPE_CHECKING:
    import httpx

Headers = list[tuple[str, str]]

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
CREDENTIALS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "proxy-authorization", "cookie"})
_OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of one hop (RFC 9110, 7.6.1) and those that are set anew for the next."""
_OF_THE_ANSWER = _OF_THE_CONNECTION | {"content-encoding", "set-cookie", "alt-svc", "strict-transport-security"}
_CONNECT_SECONDS = 30.0
_SILENT_SECONDS = 600.0
"""How long a provider may think before its next byte: as long as its own clients wait."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One provider of a spec. base: its URL, as clients of that API are given it. key: "" = none is sent."""

    name: str
    api: str
    base: str
    key: str = field(default="", repr=False)

    def url(self, path: str, query: str) -> str:
        """Of a request for this path below the base. A key in the query is ours, too."""
        pairs = parse_qsl(query, keep_blank_values=True)
        if any(name == "key" for name, _ in pairs):
            query = urlencode([(name, value) for name, value in pairs if name != "key"])
        return f"{self.base.rstrip('/')}{path}" + (f"?{query}" if query else "")

    def headers(self, headers: Iterable[tuple[str, str]]) -> Headers:
        """Those of an agent's request as the provider gets them: every credential is replaced."""
        sent = list(headers)
        named = {
            name.strip().lower() for key, value in sent if key.lower() == "connection" for name in value.split(",")
        }
        dropped = CREDENTIALS | _OF_THE_CONNECTION | named | {"accept-encoding"}
        kept = [(name, value) for name, value in sent if name.lower() not in dropped]
        kept.append(("accept-encoding", "identity"))
        if self.key:
            bearer = any(name.lower() == "authorization" for name, _ in sent)
            kept.append(_credential(self.api, self.key, bearer=bearer))
        return kept


def _credential(api: str, key: str, *, bearer: bool) -> tuple[str, str]:
    if api == "gemini":
        return ("x-goog-api-key", key)
    if api == "anthropic" and not bearer:
        return ("x-api-key", key)
    return ("authorization", f"Bearer {key}")


def answer_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Those of a provider's answer as the agent gets them."""
    return [(name, value) for name, value in headers if name.lower() not in _OF_THE_ANSWER]


class Client:
    """Asks providers. Lives in one event loop. trust: a bundle of certificates, None = the usual ones."""

    def __init__(self, trust: str | None = None) -> None:
        import ssl

        import httpx

        timeout = httpx.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        context = ssl.create_default_context(cafile=trust)
        self._client = httpx.AsyncClient(verify=context, timeout=timeout, limits=limits, follow_redirects=False)

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: Headers, body: bytes | None
    ) -> AsyncIterator[httpx.Response]:
        """Its answer, the body still to be read. Raises httpx.HTTPError."""
        request = self._client.build_request(method, url, headers=headers, content=body)
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
