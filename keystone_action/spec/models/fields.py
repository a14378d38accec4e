"""What every model of a spec file is made of: the strict base, markers that give a field its meaning, and unions.

A marker in a field's annotation is all that the rest of the house needs to know about the field: the loader checks
paths, patterns and service names at the field's line, withholding collects the author's files, and the sandbox looks up
the first word of commands. A check type of a third party gets all of it by annotating its fields.

The members of a union are told apart by what was written: a text, a list, a mapping, or the mapping's `type`. pydantic
would otherwise try every member and report the failures of all; this way only the one that was meant is reported. Tags
are in angle brackets, so that no tag is ever taken for a key of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?")
_SECONDS_OR_UNITS = rf"(?:\d+(?:\.\d+)?|(?=\d){_DURATION.pattern})"
_SIZE_TEXT = r"\d+(?:\.\d+)?\s*(?:[KMGTkmgt]i?)?[Bb]?"
"""For editors, whose regular expressions have no flags."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


class StrictModel(BaseModel):
    """A mapping of the spec: unknown keys are errors, values are not coerced, instances don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True, defer_build=True)


@dataclass(frozen=True)
class AuthorPath:
    """A file or directory of the spec's author: relative to the spec, read before the agent runs, withheld from it.

    kind: `file`, `directory` or `any`, as it must exist when the spec is loaded.
    withheld: whether the agent may not see it (scripts, hidden tests, rubrics). A directory that is withheld is a
    check's: all its files are read, so at least one is there and none is a link that leads out.
    """

    kind: Literal["file", "directory", "any"] = "file"
    withheld: bool = True


@dataclass(frozen=True)
class WorkspacePath:
    """A path that the agent leaves: relative to the workspace; absolute or `..` is a load error.

    glob: whether `*`, `?`, `[` and `**` are patterns.
    """

    glob: bool = False


@dataclass(frozen=True)
class ShellCommand:
    """A command run through `sh -c` when it is a string: its first word is looked up, expressions of
    `record.*` and `task.*` in it are load errors."""


@dataclass(frozen=True)
class RegexPattern:
    """A regular expression in the syntax of the `regex` package; compiled when the spec is loaded."""


@dataclass(frozen=True)
class Template:
    """A text that is filled again later, by what only exists then: expressions whose first name is one of `later`
    are left as they are (`{{ request.path }}` in the response of a mock)."""

    later: tuple[str, ...] = ("request",)


@dataclass(frozen=True)
class PlainText:
    """A name or a piece of data: `{{ }}` in it is an error (`literal` False) or just two braces (`literal` True)."""

    literal: bool = False


@dataclass(frozen=True)
class ServiceName:
    """The name of an entry of `services`.

    kinds: which kinds fit, by what the service is (`database`: sql can be asked; `recording`: an http_mock with
    `record: true`; `calls`: an mcp_mock that records; `any`).
    """

    kinds: Literal["any", "database", "recording", "calls"] = "any"


@dataclass(frozen=True)
class InputSource:
    """What a check looks at (`input_from`): one of `fixed`, `file:<path>` below the workspace, or `<service>.<field>`
    of a mock that records."""

    fixed: tuple[str, ...] = ("agent_output", "stdout", "workspace", "diff", "trace", "conversation")

    def refers_to(self, value: str) -> tuple[WorkspacePath | ServiceName, str] | None:
        """What in a value is to be checked like a field of its own: the marker, and the path or name it is for."""
        if value in self.fixed:
            return None
        if value.startswith("file:"):
            return WorkspacePath(), value.removeprefix("file:")
        return ServiceName("recording"), value.partition(".")[0]


def parse_duration(value: Any) -> float:
    """Seconds from `90`, `90s`, `10m`, `1h30m` or `250ms`. Raises PydanticCustomError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unreadable("duration", value, "a duration like 90, 90s, 10m or 1h30m")
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return parse_duration(float(text))
        match = _DURATION.fullmatch(text)
        if not text or match is None:
            raise _unreadable("duration", value, "a duration like 90, 90s, 10m or 1h30m")
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
        value = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    if not 0 < value < 10**9:
        raise _unreadable("duration", value, "a duration above zero and below 30 years")
    return float(value)


def parse_size(value: Any) -> int:
    """Bytes from `1024`, `512Mi`, `2G`. Raises PydanticCustomError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _unreadable("size", value, "a size like 512Mi or 2G")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise _unreadable("size", value, "a size like 512Mi or 2G")
        size = float(match[1]) * _UNITS[(match[2] or "").lower()]
        value = int(size) if size < 2**63 else 2**63
    if not 0 < value < 2**63:
        raise _unreadable("size", value, "a size above zero")
    return int(value)


def _unreadable(kind: str, value: Any, expected: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "expected {expected}", {"expected": expected, "found": repr(value)})


def scalar_text(value: Any) -> Any:
    """The text of an integer or a boolean, where only text makes sense (`env: {PORT: 8080}`); all else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else value


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"type": ["string", "number"], "pattern": f"^\\s*{_SECONDS_OR_UNITS}\\s*$", "exclusiveMinimum": 0}),
]
"""Seconds."""
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "pattern": f"^\\s*{_SIZE_TEXT}\\s*$", "exclusiveMinimum": 0}),
]
"""Bytes."""
Text = Annotated[str, BeforeValidator(scalar_text), WithJsonSchema({"type": ["string", "integer", "boolean"]})]
"""A text that may be written as an integer or a boolean."""


class CheckModel(StrictModel):
    """The `check:` of an invariant, as the spec has it. Check types derive from `invariants.base.Check`.

    `type_name` is what `check.type` says; `aliases` are other words for it; `upgrade` turns the mapping
    written under an alias into this type's own fields (a Touchstone `command` has `cmd`, ours has `command`).
    """

    type_name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    gate_weight: ClassVar[float] = 1.0
    """The weight of an invariant of this type that is a gate and gives none."""

    type: str

    @property
    def doubt_as_gate(self) -> str:
        """Why it is doubtful that an invariant of this check is a gate, as a sentence without a full stop; empty where
        nothing is."""
        return ""

    @classmethod
    def upgrade(cls, document: dict[str, Any]) -> dict[str, Any]:
        """The mapping under `check:` with the names of an alias replaced by this type's own. Must not drop keys."""
        return document


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

TEXT, LIST, MAPPING, NUMBER = "<text>", "<list>", "<mapping>", "<number>"


def text_or_list(value: Any) -> str:
    """For unions without a mapping: a mapping is reported as no text."""
    return LIST if isinstance(value, list | tuple) else TEXT


def text_or_mapping(value: Any) -> str:
    """For unions without a list: a list is reported as no text."""
    return MAPPING if isinstance(value, dict | BaseModel) else TEXT


def number_or_mapping(value: Any) -> str:
    """For unions without a text: a text is reported as no number."""
    return MAPPING if isinstance(value, dict | BaseModel) else NUMBER


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
    NumberOrMapping = Union[First, Second]  # noqa: UP007
else:

    def _either(choose: Callable[[Any], str], *tags: str) -> Any:
        """`TextOrList[str, list[str]]`: which of the two, by what was written."""

        class Either:
            def __class_getitem__(cls, members: tuple[Any, Any]) -> Any:
                first, second = (Annotated[one, Tag(tag)] for one, tag in zip(members, tags, strict=True))
                return Annotated[Union[first, second], Discriminator(choose)]  # noqa: UP007

        return Either

    TextOrList = _either(text_or_list, TEXT, LIST)
    TextOrMapping = _either(text_or_mapping, TEXT, MAPPING)
    NumberOrMapping = _either(number_or_mapping, NUMBER, MAPPING)
