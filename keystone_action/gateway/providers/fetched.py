"""What makes a provider reach out by itself, without a tool: addresses in a request, and models that search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

_FREE = {"args", "arguments", "input", "response", "annotations", "citations", "action"}
"""Under these names stands what models and tools said: no provider fetches it."""
_ADDRESSES = {"url", "image_url", "file_url", "video_url", "audio_url", "file_data", "fileUri", "file_uri"}
_REMOTE = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
"""How an address begins that is no `data:` URL."""
_SEARCHING = ("*-search", "*-search-*", "*:online", "sonar*", "*/sonar*")
_LOOKED_AT_LIMIT = 500_000
"""Lists and objects of a request."""


def reaches_out(body: Mapping[str, Any], model: str, *names: str) -> tuple[str, ...]:
    """In words, what a request makes its provider reach out for. names: under which the conversation stands."""
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
