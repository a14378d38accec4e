"""One option of a run: how it is written, on the command line and in a workflow, and how such a text is read.

A field of a model (`model.py`) is made an option by `option(…)`. Its type and bounds are pydantic's; from them
`Setting` knows how a text is read and what is said of one that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from keystone_action.options.values import UnreadableError

_WHOLE = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How people write an option, beside its type, default and description, which are the field's own."""

    flag: str = ""
    """On the command line, such as `--replicas`; empty for the words without a flag, such as spec files."""
    commands: tuple[str, ...] = ()
    """The commands of `keystone` that take it; for a flag without any, `run` is meant."""
    metavar: str = ""
    """What stands for the value in help."""
    input: str = ""
    """The input of the action; empty for none."""
    input_default: str = ""
    """The default in action.yml, where it is not the field's own."""
    input_note: str = ""
    """What its description says in action.yml alone."""
    default_note: str = ""
    """What help says of a default that is not written down as a value."""
    variable: str = ""
    """The variable of the environment that the command line reads it from."""
    parse: Callable[[str], Any] | None = None
    """Reads one text, where the type is not enough to know how. Raises UnreadableError."""
    inside: Literal["workspace", "workspace or temporary"] = "workspace"
    """Of a path in a workflow: where it has to lie."""
    secret: bool = False
    """No message repeats its value."""
    exclusive: bool = False
    """Of the options of a command that have this, a call gives one at most."""


def option(
    description: str, default: Any = None, *, ge: float | None = None, le: float | None = None, **how: Any
) -> Any:
    """A field that is an option. ge, le: its bounds. how: the fields of `Option`."""
    made = Option(**({"commands": ("run",)} | how if "flag" in how else how))
    return Field(default, description=description, ge=ge, le=le, repr=not made.secret, json_schema_extra={"is": made})  # type: ignore[dict-item]


class Group(BaseModel):
    """Options of one concern: they are read by its attributes, and filled by name."""

    # What checks values is built at the first use: help and most commands need none of it.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True)


@dataclass(frozen=True)
class Setting:
    """A field that is an option, as those see it who read texts or write pages."""

    name: str
    """Of the field."""
    field: FieldInfo
    """Its type, default, bounds and description."""

    @property
    def option(self) -> Option:
        """How it is written."""
        extra: Any = self.field.json_schema_extra
        return extra["is"]  # type: ignore[no-any-return]

    @cached_property
    def _types(self) -> tuple[Any, ...]:
        annotation = self.field.annotation
        parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        return tuple(one for one in parts if one is not type(None))

    @property
    def type(self) -> Any:
        """Of its value: bool, int, float, str, Path, tuple, Mapping or Literal."""
        return get_origin(self._types[0]) or self._types[0]

    @property
    def is_list(self) -> bool:
        """Whether it holds several values, which are written one by one."""
        return self.type is Mapping or (self.type is tuple and get_args(self._types[0])[-1] is Ellipsis)

    @property
    def item(self) -> Any:
        """The type of a value of a list."""
        return get_args(self._types[0])[0]

    @property
    def choices(self) -> tuple[str, ...]:
        """The words it can be; empty where it can be others."""
        return get_args(self._types[0]) if self.type is Literal else ()

    @property
    def words(self) -> tuple[str, ...]:
        """Words that an input can be in place of a value, such as `auto` for a path."""
        return tuple(word for one in self._types[1:] if get_origin(one) is Literal for word in get_args(one))

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest number it can be."""
        found = {name: getattr(one, name) for one in self.field.metadata for name in ("ge", "le") if hasattr(one, name)}
        return found["ge"], found["le"]

    @property
    def input_default(self) -> str:
        """The default that action.yml has; empty for none."""
        if self.option.input_default or self.field.default in (None, (), {}):
            return self.option.input_default
        return str(self.field.default).lower() if self.type in (bool, int) or self.choices else ""

    @property
    def input_help(self) -> str:
        """What action.yml says of it."""
        told = [str(self.field.description), self.option.input_note]
        if self.option.default_note and not self.option.input_default:
            told.append(f"If empty, {self.option.default_note}.")
        if self.is_list and self.type is tuple:
            told.append("One a line or separated by commas.")
        return " ".join(filter(None, told))

    @property
    def help(self) -> str:
        """What the command line says of it."""
        default = self.option.default_note or (self.field.default if self.choices and self.field.default else "")
        told = default and not self.field.is_required()
        return f"{self.field.description} [{default}]" if told else str(self.field.description)

    def read(self, text: str) -> Any:
        """The value of a text; of a list, one of its values. Raises UnreadableError."""
        if self.option.parse is not None:
            return self.option.parse(text)
        if self.choices:
            return self._choice(text)
        if self.type is bool:
            return self._boolean(text)
        if self.type in (int, float):
            return self._number(text)
        return Path(text) if self.type is Path or (self.is_list and self.item is Path) else text

    def _choice(self, text: str) -> str:
        if text not in self.choices:
            raise UnreadableError("one of " + ", ".join(self.choices))
        return text

    def _boolean(self, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise UnreadableError("true or false")
        return text.lower() == "true"

    def _number(self, text: str) -> float:
        low, high = self.bounds
        if self.type is int:
            value: float | None = int(text) if _WHOLE.fullmatch(text) else None
        else:
            try:
                value = float(text) if text.isascii() and "_" not in text else None
            except ValueError:
                value = None
        if value is None or not low <= value <= high:
            kind = "a whole number" if self.type is int else "a number"
            raise UnreadableError(f"{kind} from {low:,g} to {high:,.0f}")
        return value


def settings_of(group: type[Group]) -> tuple[Setting, ...]:
    """The options of a model, in the order in which pages show them."""
    return tuple(Setting(name, field) for name, field in group.model_fields.items() if field.json_schema_extra)


class Fillable(Group):
    """A model whose fields are groups: filled and changed by the names of their fields, wherever these are."""

    _places: ClassVar[Mapping[str, str]]
    """The group of each field."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        pairs = [(name, group) for group, one in cls.groups() for name in one.model_fields]
        cls._places = dict(pairs)
        assert len(cls._places) == len(pairs), "two groups have a field of one name"

    @classmethod
    def groups(cls) -> Iterator[tuple[str, type[Group]]]:
        """The attribute and the model of each group."""
        for name, field in cls.model_fields.items():
            assert isinstance(field.annotation, type)
            yield name, field.annotation

    @classmethod
    def settings(cls) -> Iterator[Setting]:
        """Every option, in the order in which pages show them."""
        for _, group in cls.groups():
            yield from settings_of(group)

    @classmethod
    def has(cls, name: str) -> bool:
        """Whether a field of this name is in one of the groups."""
        return name in cls._places

    @classmethod
    def of(cls, **values: Any) -> Self:
        """With these values, each under the name of its field. Raises KeyError for a name that no group has."""
        found: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            found.setdefault(cls._places[name], {})[name] = value
        return cls(**found)

    def having(self, **values: Any) -> Self:
        """The same, but for these values. Raises KeyError for a name that no group has."""
        changed: dict[str, Group] = {}
        for name, value in values.items():
            place = self._places[name]
            changed[place] = (changed.get(place) or getattr(self, place)).model_copy(update={name: value})
        return self.model_copy(update=changed)
