"""Where two documents differ, and values as a sentence shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_SHOWN = 60
_WORDS = {"pass_threshold": "threshold", "agent_retries": "retries"}


def leaves(path: str, old: Any, new: Any) -> Iterator[str]:
    """Each place where two documents differ, the innermost."""
    if old == new and type(old) is type(new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            yield from leaves(f"{path}.{key}" if path else str(key), old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from leaves(f"{path}[{index}]", one, other)
    else:
        name = _WORDS.get(path, path)
        before, after = short_value(old), short_value(new)
        yield f"{name} {before} → {after}" if before and after and before != after else f"{name} changed"


def short_value(value: Any) -> str:
    """A short value as the file has it, quoted where one could not see what it is; empty for one that is too long to
    show."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    is_plain = isinstance(value, str) and value.isprintable() and value.strip() == value and value
    text = value if is_plain else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN and not (isinstance(value, str) and "\n" in value) else ""
