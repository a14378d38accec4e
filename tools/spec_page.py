"""Writes the reference of docs/spec.md, every field of a spec file, from the models: `python -m tools.spec_page`.

Between two comments the page is made here; what stands before them is written by hand.
"""

from __future__ import annotations

import re
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from pathlib import Path

from pydantic import BaseModel

from keystone_action.spec.field_texts import description, field_texts, models_in
from keystone_action.spec.models.fields import CheckModel, StrictModel
from keystone_action.spec.models.spec import Spec
from tools.check_pages import check_types, index, rewritten
from tools.field_tables import field_table

PAGE = Path(__file__).parent.parent / "docs" / "spec.md"
SOURCE = "keystone_action/spec/models"
_TOP = "Top level"
_MORE: Mapping[str, str] = {
    "agent": "[Agents](agents.md) has an example for each agent that Keystone knows.",
    "agent.trace": "[Traces](traces.md) describes the formats.",
    "gateway": "[The model gateway](gateway.md) says what passes, what counts and what errors there are.",
    "resources": "See [the process sandbox](process-sandbox.md) and [containers](containers.md).",
    "services": "[Containers](containers.md) has an example, and says what cells share.",
    "audit": "[The audit log](audit.md) describes the lines.",
    "forbidden": "[Forbidden rules](forbidden.md) says how each rule is judged and what escapes it.",
    "scoring": "[What a change is compared with](baseline.md) is about earlier results.",
}
"""Where there is more about a section."""


@dataclass(frozen=True)
class Section:
    """A table of the page. place: such as `services.routes`. model: one that has these fields."""

    title: str
    place: str
    level: int
    anchor: str
    prose: str
    model: type[BaseModel]
    names: tuple[str, ...]

    @property
    def slug(self) -> str:
        """The heading's anchor, as GitHub makes it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def sections() -> list[Section]:
    """All, in the order of the page: the top level, then each section of a spec with what is in it."""
    top = Section(_TOP, "", 2, "spec.", description(Spec), Spec, tuple(Spec.model_fields))
    seen = {model for name in Spec.model_fields for _, model in _inner(Spec, name, "")}
    below = [one for name in Spec.model_fields for one in _sections_of(Spec, name, "", seen)]
    return [top, *below]


def described() -> str:
    """The generated part of the page, without its two comments."""
    found = sections()
    slugs: dict[str, str] = {}
    for one in found:
        slugs.setdefault(one.place, f"#{one.slug}")
    of_model = {one.model: f"#{one.slug}" for one in found if one.level == 2}
    of_model[CheckModel] = "checks/README.md"
    lines = [f"{'  ' * (one.place.count('.') or one.level - 2)}- [{one.title}](#{one.slug})" for one in found]
    parts = ["## Contents\n\n" + "\n".join([*lines, "- [Types of checks](#types-of-checks)"])]
    for one in found:
        links = {
            name: of_model.get(inner) or slugs[_plain(place)]
            for name in one.names
            for place, inner in _inner(one.model, name, one.place)
        }
        table = [field_table(one.model, one.names, one.anchor, links)] if one.names else []
        more = [_MORE[one.place]] if one.place in _MORE and slugs[one.place] == f"#{one.slug}" else []
        parts.append("\n\n".join([f"{'#' * one.level} {one.title}", one.prose, *more, *table]))
    checks = index(check_types()).replace("](", "](checks/")
    about = "What `check` of an invariant can be. [Checks](checks/README.md) says what all of them share."
    return "\n\n".join([*parts, f"## Types of checks\n\n{about}\n\n{checks}"])


def page(path: Path = PAGE) -> str:
    """What the page should say."""
    return rewritten(path.read_text("utf-8"), described(), SOURCE, "spec_page")


def main() -> int:
    """Rewrite the page where it differs."""
    text = page()
    if PAGE.read_text("utf-8") != text:
        PAGE.write_text(text, "utf-8")
        print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
    return 0


def _sections_of(model: type[BaseModel], name: str, above: str, seen: set[type[BaseModel]]) -> Iterator[Section]:
    """Those about what is in a field, and in what is in that."""
    key = model.model_fields[name].alias or name
    place = f"{above}.{key}".removeprefix(".")
    models = [one for _, one in _inner(model, name, above) if not above or one not in seen]
    models = [one for one in dict.fromkeys(models) if one is not CheckModel]
    if not models:
        return
    seen.update(models)
    shared = [one for one in _declaring(models) if len(models) > 1]
    if shared and not all(issubclass(one, shared[0]) for one in models):
        yield Section(f"`{place}`", place, 2, "", field_texts(model)[name].description, StrictModel, ())
    for owner in shared or models:
        users = [one for one in models if issubclass(one, owner)]
        names = tuple(get_annotations(owner)) if shared else _own_first(owner)
        yield _section(place, owner, users, models, names)
        for inner in names:
            yield from _sections_of(owner, inner, place, seen)


def _section(
    place: str,
    owner: type[BaseModel],
    users: list[type[BaseModel]],
    all_models: list[type[BaseModel]],
    names: tuple[str, ...],
) -> Section:
    level = 2 if "." not in place else 3
    title, anchor = f"`{place}`", f"{place}."
    if len(all_models) > 1 and len(users) < len(all_models):
        words = [word for user in users for word in _types(user)]
        title += f" of the type{'s' if len(words) > 1 else ''} {_list_of([f'`{word}`' for word in words])}"
        level, anchor = 3, f"{place}-{words[0]}." if owner in all_models else anchor
        names = tuple(name for name in names if name != "type")
    return Section(title, place, level, anchor, description(owner), owner, names)


def _declaring(models: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """The classes that the fields of several models come from, bases first: what they share is told once."""
    classes = [one for model in models for one in reversed(model.__mro__) if issubclass(one, StrictModel)]
    found = [one for one in dict.fromkeys(classes) if one is not StrictModel and get_annotations(one)]
    return sorted(found, key=lambda one: -sum(issubclass(model, one) for model in models))


def _own_first(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(sorted(model.model_fields, key=lambda name: name not in model.__annotations__))


def _inner(model: type[BaseModel], name: str, above: str) -> Iterator[tuple[str, type[BaseModel]]]:
    field = model.model_fields[name]
    yield from models_in(field.annotation, f"{above}.{field.alias or name}".removeprefix("."))


def _plain(place: str) -> str:
    return place.replace("[]", "").replace(".*", "")


def _types(model: type[BaseModel]) -> tuple[str, ...]:
    return typing.get_args(model.model_fields["type"].annotation)


def _list_of(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


if __name__ == "__main__":
    sys.exit(main())
