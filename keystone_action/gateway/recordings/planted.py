"""Keys of providers, by how they look: they belong into no file, also where nobody told us their values."""

from __future__ import annotations

import re
from typing import Any

from keystone_action.gateway.recordings.walking import with_texts

_KEYS = {
    "a key of Anthropic": r"sk-ant-[a-z]{2,8}\d\d-[A-Za-z0-9_-]{60,}",
    "a key of OpenAI": r"sk-(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}",
    "a key of Google": r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",
}
_PATTERNS = {kind: re.compile(rf"(?<![A-Za-z0-9]){pattern}") for kind, pattern in _KEYS.items()}


def planted_key(value: Any) -> str:
    """Whose key a JSON value seems to hold; empty when none."""
    found: list[str] = []

    def look(text: str) -> str:
        found.extend(kind for kind, pattern in _PATTERNS.items() if pattern.search(text))
        return text

    with_texts(value, look)
    return found[0] if found else ""
