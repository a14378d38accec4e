"""The body of a request to a model: read strictly, so that no provider reads it differently; and what in it makes a
provider reach out by itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from keystone_action.evidence.trace_readers.builder import NAME_LIMIT, mapping, text
from keystone_action.gateway.ledger import Refusal

_MODELS = ("models", "fallback_models", "fallbacks", "context_window_fallbacks", "content_policy_fallbacks", "route")
"""Where routers (OpenRouter, LiteLLM and others) are told of models that may answer in place of the first one."""
_ORDERS = {"", "fallback", "sort"}
"""What `route` is otherwise: a way to choose among them."""
_UPSTREAMS = frozenset(
    {
        *("api_base", "api_key", "api_type", "api_version", "azure_ad_token", "azure_endpoint", "base_url", "endpoint"),
        *("aws_access_key_id", "aws_bedrock_runtime_endpoint", "aws_profile_name", "aws_region_name", "aws_role_name"),
        *("aws_secret_access_key", "aws_session_token", "aws_sts_endpoint", "aws_web_identity_token", "region_name"),
        *("vertex_ai_location", "vertex_ai_project", "vertex_credentials", "vertex_location", "vertex_project"),
        *("custom_llm_provider", "deployment_id", "extra_headers", "extra_query", "litellm_params", "model_list"),
        *("organization", "proxy", "router_settings", "user_config"),
        *("bootstrap_host", "bootstrap_port", "kv_transfer_params"),
    }
)
"""Fields by which LiteLLM, vLLM and SGLang ask somebody else, or on another account."""
_ROUTED = ("order", "only")
"""Of OpenRouter's `provider` and of gateways of its kind: who is to answer."""
_WITHIN = ("extra_body", "generateContentRequest", "generate_content_request")
"""Objects whose fields a router, or Gemini where it counts tokens, takes for those of the body."""
_NAMES_READ = frozenset(
    {
        *_MODELS,
        *_UPSTREAMS,
        *_WITHIN,
        "background",
        "cachedContent",
        "cached_content",
        "contents",
        "functions",
        "input",
        "mcp_servers",
        "messages",
        "model",
        "plugins",
        "prompt",
        "provider",
        "providerOptions",
        "search_parameters",
        "service_tier",
        "stream",
        "stream_options",
        "system",
        "systemInstruction",
        "tools",
        "web_search_options",
    }
)
"""What limits and rules read of a body."""
_IN_OTHER_LETTERS = {name.casefold(): name for name in _NAMES_READ}
_MODELS_LIMIT = 100
"""Other models that a body may name."""
MARKS_LIMIT = 1_000_000
"""Of the marks that begin or part values: each costs far more memory and time than its byte."""


class _TwiceError(ValueError):
    """A name stands twice in one object."""


def parsed_body(body: bytes) -> dict[str, Any]:
    """The object that a body is. Raises Refusal.

    A name that stands twice, or in other letters, is refused: which one counts differs between providers, so a
    request could ask us for a cheap model and the provider for a dear one.
    """
    if _has_too_many_marks(body):
        raise Refusal(413, f"a request may have {MARKS_LIMIT:,} values")
    try:
        parsed = json.loads(body.decode("utf-8"), object_pairs_hook=_object)
    except _TwiceError as error:
        raise Refusal(400, f"the body has the name {error} twice in one object") from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Refusal(400, "the body is not a JSON object")
    for name in parsed:
        meant = _IN_OTHER_LETTERS.get(name.casefold())
        if meant is not None and name != meant:
            raise Refusal(400, f"the body has the name {name[:50]} where {meant} is meant")
    return parsed


def _has_too_many_marks(body: bytes) -> bool:
    if _marks(body) <= MARKS_LIMIT:
        return False
    # Those in texts cost nothing.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # Each mark brings at most a name and a text, with two quotes each.
    if plain.count(b'"') > 4 * MARKS_LIMIT:
        return True
    return _marks(b"".join(plain.split(b'"')[::2])) > MARKS_LIMIT


def _marks(body: bytes) -> int:
    return sum(body.count(mark) for mark in (b"{", b"[", b","))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _TwiceError(next(name for name, _ in pairs if name in seen or seen.add(name))[:50])  # type: ignore[func-returns-value]
    return found


def body_digest(parsed: Mapping[str, Any], body: bytes) -> str:
    """A digest that is equal for bodies that say the same: clients may send a request again with its names in another
    order."""
    try:
        content = json.dumps(parsed, sort_keys=True).encode()
    except RecursionError:
        content = body
    return hashlib.sha256(content).hexdigest()


def with_usage(body: bytes, parsed: Mapping[str, Any]) -> tuple[bytes, bool]:
    """The body of a streamed chat with `stream_options.include_usage`, and whether we added that."""
    options = parsed.get("stream_options")
    if "stream_options" not in parsed:
        # All other bytes stay: a provider's cache of prompts goes by them.
        place = body.index(b"{") + 1
        comma = b"," if parsed else b""
        return body[:place] + b'"stream_options":{"include_usage":true}' + comma + body[place:], True
    if not isinstance(options, dict | None) or (options or {}).get("include_usage") is True:
        return body, False
    changed = {**parsed, "stream_options": {**(options or {}), "include_usage": True}}
    return json.dumps(changed).encode(), True


def bodies_of(parsed: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The body, and the objects in it whose fields are taken for the body's own."""
    found = [parsed]
    for one in found:
        found += [one[name] for name in _WITHIN if isinstance(one.get(name), dict)]
    return found


def other_models(parsed: Mapping[str, Any], model: str) -> tuple[str, ...]:
    """The models that a body names besides the one that is asked. Raises Refusal."""
    told = [text(one, "model").removeprefix("models/") for one in bodies_of(parsed)]
    named = [name for one in bodies_of(parsed) for name in _models_in(one)]
    gateways = [mapping(mapping(one, "providerOptions"), "gateway") for one in bodies_of(parsed)]
    named += [name for one in gateways for name in _models_in(one)]
    found = dict.fromkeys(filter(None, (part.strip() for name in (*told, *named) for part in name.split(","))))
    if len(found) > _MODELS_LIMIT:
        raise Refusal(400, f"a request may name {_MODELS_LIMIT} models")
    return tuple(name for name in found if name[:NAME_LIMIT] != model)


def _models_in(body: Mapping[str, Any]) -> Iterator[str]:
    for name in _MODELS:
        found = _names_in(body.get(name))
        yield from (one for one in found if name != "route" or one not in _ORDERS)


def _names_in(value: Any) -> list[str]:
    """Names of models as a list, as objects with a `model`, or as lists by the model that they stand in for."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += [one["model"]] if "model" in one else one.values()
    return found


def _objects_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in a value, at any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def upstreams_named(parsed: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a body that would lead it elsewhere than to the provider of the spec."""
    found = [name for one in bodies_of(parsed) for name in one if name in _UPSTREAMS and one[name] is not None]
    fallbacks = (inner for one in bodies_of(parsed) for name in _MODELS for inner in _objects_in(one.get(name)))
    found += [name for one in fallbacks for name in one if name in _UPSTREAMS and one[name] is not None]
    routing = {
        "provider": [one.get("provider") for one in bodies_of(parsed)],
        "providerOptions": [mapping(one, "providerOptions").get("gateway") for one in bodies_of(parsed)],
    }
    for name, told in routing.items():
        found += [name for one in told if isinstance(one, str) or (isinstance(one, dict) and _is_routed(one))]
    return tuple(dict.fromkeys(found))


def _is_routed(routing: Mapping[str, Any]) -> bool:
    return any(routing.get(name) for name in _ROUTED)


_FREE = {"args", "arguments", "input", "response", "annotations", "citations", "action"}
"""Under these names stands what models and tools said: no provider fetches it."""
_ADDRESSES = {"url", "image_url", "file_url", "video_url", "audio_url", "file_data", "fileUri", "file_uri"}
_REMOTE = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""How an address begins, unless it is a `data:` URL."""
_SEARCHING = ("*-search", "*-search-*", "*:online", "sonar*", "*/sonar*")
_LOOKED_AT_LIMIT = 500_000
"""Lists and objects of a request."""


def reaches_out(body: Mapping[str, Any], model: str, *names: str) -> tuple[str, ...]:
    """What a request makes its provider fetch or search, in words. names: the fields with the conversation."""
    found = ["search model"] if any(fnmatchcase(model.lower(), glob) for glob in _SEARCHING) else []
    return (*found, *_address([body.get(name) for name in names]))


def _address(waiting: list[Any]) -> tuple[str, ...]:
    looked_at = 0
    while waiting:
        value = waiting.pop()
        looked_at += 1
        if looked_at > _LOOKED_AT_LIMIT:
            return ("more parts than can be looked at",)
        if isinstance(value, list):
            waiting += [one for one in value if isinstance(one, dict | list)]
        elif isinstance(value, dict):
            if any(isinstance(value.get(name), str) and _REMOTE.match(value[name]) for name in _ADDRESSES):
                return ("url source",)
            waiting += [one for name, one in value.items() if name not in _FREE and isinstance(one, dict | list)]
    return ()
