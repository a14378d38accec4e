"""Unions of a spec, told apart by what was written: a text, a list or a mapping, or by the mapping's `type`.

pydantic would otherwise try every member and report the failures of all; so only the one that was meant is reported.
Tags are in angle brackets, so that no tag is ever taken for a key of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

from pydantic import BaseModel, Discriminator, Field, Tag

_WORDS: dict[str, str] = {}


def text_like(pattern: str, words: str, **constraints: Any) -> Any:
    """A `Field` for texts of a pattern; `words` is what a message says was expected."""
    _WORDS[pattern] = words
    return Field(pattern=pattern, **constraints)


def words_of_pattern(pattern: str) -> str:
    """What a pattern asks for, in words; the pattern itself when it has none."""
    return _WORDS.get(pattern, f"a text that matches {pattern}")


First = TypeVar("First")
Second = TypeVar("Second")

TEXT, LIST, MAPPING = "<text>", "<list>", "<mapping>"


def text_or_list(value: Any) -> str:
    """For unions without a mapping: a mapping is reported as no text."""
    return LIST if isinstance(value, list | tuple) else TEXT


def text_or_mapping(value: Any) -> str:
    """For unions without a list: a list is reported as no text."""
    return MAPPING if isinstance(value, dict | BaseModel) else TEXT


def by_type(
    types: tuple[str, ...], *, merge: Mapping[str, str] | None = None, default: str | None = None
) -> Callable[[Any], str | None]:
    """The member of a union by `type`: `<name>`. merge maps types that share a member; default is the type of a
    mapping that names none. None (no member) for anything else."""
    members = {name: f"<{(merge or {}).get(name, name)}>" for name in types}

    def member(value: Any) -> str | None:
        found = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", None)
        return members.get(found) if isinstance(found, str) else None

    return member


if TYPE_CHECKING:
    TextOrList = Union[First, Second]  # noqa: UP007 - a generic alias
    TextOrMapping = Union[First, Second]  # noqa: UP007
else:

    class TextOrList:
        """`TextOrList[str, list[str]]`: which of the two, by what was written."""

        def __class_getitem__(cls, members: tuple[Any, Any]) -> Any:
            text, items = members
            return Annotated[
                Union[Annotated[text, Tag(TEXT)], Annotated[items, Tag(LIST)]],  # noqa: UP007
                Discriminator(text_or_list),
            ]

    class TextOrMapping:
        """`TextOrMapping[str, SomeModel]`: which of the two, by what was written."""

        def __class_getitem__(cls, members: tuple[Any, Any]) -> Any:
            text, mapping = members
            return Annotated[
                Union[Annotated[text, Tag(TEXT)], Annotated[mapping, Tag(MAPPING)]],  # noqa: UP007
                Discriminator(text_or_mapping),
            ]
