"""JSON that others wrote, read so that it means the same to everybody, or not at all."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> Any:
    """The value of a JSON text, which may begin with a byte order mark. Half surrogate pairs, which JSON can spell and
    UTF-8 can't, are replaced: results must always be writable.

    Raises ValueError with a sentence: no JSON, NaN and its like, a key that is there twice, nested too deep.
    """
    try:
        plain = text.removeprefix("\ufeff")
        return _encodable(json.loads(plain, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles))
    except RecursionError:
        raise ValueError("nested too deep") from None


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings are nested deeper than that."""
    here = [value]
    for _ in range(levels + 1):
        here = [
            item
            for one in here
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not here:
            return False
    return True


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        # Which of the two counts must not depend on the parser.
        raise ValueError("a key is there twice")
    return document
