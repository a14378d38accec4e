"""What the docstrings below the fields of a model say. They are read from the source when somebody asks for them, so a
start of the program pays nothing for them:

    timeout: Duration = 600.0
    \"""How long the agent may run.

    Example: `5m`
    \"""

A field that has `Field(description=…, examples=…)` instead keeps these, as check types of other packages may. A field
without either has the words of the model that it is inherited from; `type` has those of its model.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, get_args

from pydantic import BaseModel

from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.spec.loading.yaml_loader import construct, parse
from keystone_action.spec.models.base import CheckModel

_EXAMPLE = "Example: "


@dataclass(frozen=True)
class FieldText:
    """description: paragraphs with a blank line between them, each on one line. examples: as a spec has them."""

    description: str = ""
    examples: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The examples as values."""
        return tuple(_value(text) for text in self.examples)


@cache
def field_texts(model: type[BaseModel]) -> Mapping[str, FieldText]:
    """What is said of each field of a model, by its attribute's name; empty texts where nothing is."""
    return {name: _field_text(model, name) for name in model.model_fields}


def description(model: type[BaseModel]) -> str:
    """What a model's docstring says."""
    return paragraphs(inspect.cleandoc(model.__doc__ or ""))


def paragraphs(text: str) -> str:
    """The text with each paragraph on one line: Markdown joins lines anyway."""
    return "\n\n".join(" ".join(one.split()) for one in text.split("\n\n"))


def _field_text(model: type[BaseModel], name: str) -> FieldText:
    field = model.model_fields[name]
    if field.description:
        return FieldText(paragraphs(field.description), tuple(map(_as_yaml, field.examples or ())))
    found = next((text for text in _inherited(model, name) if text), "")
    if not found and name == "type":
        words = (model.type_name,) if issubclass(model, CheckModel) else get_args(field.annotation)
        return FieldText(description(model).partition("\n")[0], words)
    lines = inspect.cleandoc(found).splitlines()
    said = "\n".join(line for line in lines if not line.startswith(_EXAMPLE)).strip()
    examples = [line.removeprefix(_EXAMPLE).strip() for line in lines if line.startswith(_EXAMPLE)]
    return FieldText(paragraphs(said), tuple(one.removeprefix("`").removesuffix("`") for one in examples))


def _inherited(model: type[BaseModel], name: str) -> Iterator[str]:
    for one in model.__mro__:
        if one not in (BaseModel, object):
            yield attribute_docstrings(one).get(name, "")


def attribute_docstrings(kind: type) -> Mapping[str, str]:
    """What stands below the attributes of a class, by their names; nothing where its source is not there."""
    return _docstrings(kind.__module__).get(kind.__qualname__, {})


@cache
def _docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """By class and attribute. Nothing for a module whose source is not there."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    return dict(_of_classes(tree.body, ""))


def _of_classes(body: list[ast.stmt], above: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{above}{node.name}", dict(_of_attributes(node.body))
            yield from _of_classes(node.body, f"{above}{node.name}.")


def _of_attributes(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            value = text.value.value  # type: ignore[attr-defined]
            if isinstance(value, str):
                yield field.target.id, value


def _value(text: str) -> Any:
    """What an example is as a value of a spec. Raises ValueError for one that is not YAML on one line."""
    try:
        document = parse(f"value: {text}\n", "example")
        data, problems = (None, []) if document is None else construct(document)
    except SpecError:
        data, problems = None, []
    if problems or not isinstance(data, dict) or data.keys() != {"value"}:
        raise ValueError(f"the example {text!r} is not a value of a spec")
    return data["value"]


def _as_yaml(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
