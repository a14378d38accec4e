"""A program: says where a JSON document breaks a JSON Schema. Imports nothing of ours; run by `own_process`.

stdin: {"schema": …, "text": the document's text}. stdout: {"problems": [[path, message], …]}, or {"schema": sentence}
when the schema itself can't be used.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

SHOWN = 10


def find_problems(schema: Any, text: str) -> dict[str, Any]:
    """The first SHOWN problems, by their place in the document. References are resolved within the schema and the
    published meta-schemas; nothing is ever fetched."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable

    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        return {"schema": f"{'.'.join(map(str, error.absolute_path)) or 'it'}: {_short(error.message)}"}
    validator = kind(schema, registry=REGISTRY)
    try:
        found = list(itertools.islice(validator.iter_errors(json.loads(text.removeprefix("\ufeff"))), SHOWN))
    except Unresolvable as error:
        return {"schema": f"it refers to {error.ref!r}, which is not in it, and nothing is fetched"}
    return {"problems": [[list(error.absolute_path), _short(error.message)] for error in found]}


def _short(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:200]} … {message[-99:]}"


if __name__ == "__main__":
    json.dump(find_problems(**json.load(sys.stdin)), sys.stdout)
