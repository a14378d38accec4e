"""Data in a page as JSON inside a `<script type="application/json">`, which browsers neither run nor read as markup."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keystone_action.report.escape import json_without_commands, visible

_ENTITIES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def inert_json(value: Any) -> str:
    """value as one line of JSON in ASCII without `<`, `>` and `&`: nothing in it ends the element or begins another.
    Nor is there a workflow command in it."""
    return json_without_commands(_encode(value).translate(_ENTITIES))


def shown(value: Any) -> Any:
    """value with every text as `visible` makes it, keys of mappings too."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible(str(key)): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value
