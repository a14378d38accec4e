"""Tables of fields for the pages, made from a model and its docstrings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from keystone_action.spec.field_texts import default_words, field_texts, type_words


def field_table(
    model: type[BaseModel], names: Iterable[str], anchor: str, links: Mapping[str, str] | None = None
) -> str:
    """A row for each of these fields. anchor: what stands before the key in a row's own anchor. links: by field, where
    the keys of its mappings are told. Raises ValueError for a field without a description or an example."""
    rows = [_row(model, name, anchor, (links or {}).get(name, "")) for name in names]
    return "\n".join(["| field | value | default | meaning |", "|---|---|---|---|", *rows])


def _row(model: type[BaseModel], name: str, anchor: str, link: str) -> str:
    field, said = model.model_fields[name], field_texts(model)[name]
    if not said.description or not said.examples:
        raise ValueError(f"{model.__name__}.{name} has no description or no example: write them below it")
    key = field.alias or name
    words = type_words(field.annotation, field.metadata)
    if link:
        words = words.replace("(keys below)", f"([keys]({link}))")
    shown = ", ".join(f"`{key}: {one}`" for one in said.examples)
    meaning = f"{' '.join(said.description.split())} Example{'s' if len(said.examples) > 1 else ''}: {shown}"
    cells = [f'<a id="{anchor}{key}"></a>`{key}`', words, default_words(field), meaning]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
