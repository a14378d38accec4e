"""Classes with typed fields: keyword constructors, defaults, validation, `model_dump` and its like. What pydantic's
models do for the package that this one stands in for, as far as adapters and scorers use it."""

from __future__ import annotations

import builtins
import copy
import json
import math
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Convert = Callable[[Any], Any]
Self = TypeVar("Self", bound="Model")
_MISSING: Any = object()


class ValidationError(ValueError):
    """What is wrong with the values that a model was made of."""

    def __init__(self, model: str, problems: list[str]) -> None:
        count = f"{len(problems)} validation error{'' if len(problems) == 1 else 's'}"
        super().__init__("\n".join([f"{count} for {model}", *problems]))
        self.problems = problems

    def errors(self) -> list[dict[str, Any]]:
        """The problems as mappings with `loc` and `msg`."""
        parted = [line.partition(": ") for line in self.problems]
        return [{"loc": (name,), "msg": message} for name, _, message in parted]


class Field:
    """A field of a model. convert raises ValueError or TypeError. default: a value, or a function that makes one."""

    def __init__(self, convert: Convert, default: Any = _MISSING) -> None:
        self.convert = convert
        self.default = default

    @property
    def required(self) -> bool:
        """Whether a value has to be given."""
        return self.default is _MISSING

    def make(self) -> Any:
        """The default, a new one each time."""
        return self.default() if callable(self.default) else self.default


class Model:
    """Base of the models. `names`: other words for fields."""

    fields: ClassVar[builtins.dict[str, Field]] = {}
    names: ClassVar[builtins.dict[str, str]] = {}

    def __init__(self, **values: Any) -> None:
        problems = []
        for old, new in self.names.items():
            if old in values and new not in values:
                values[new] = values.pop(old)
        for name, field in self.fields.items():
            if name not in values:
                if field.required:
                    problems.append(f"{name}: Field required")
                else:
                    self.__dict__[name] = field.make()
                continue
            try:
                self.__dict__[name] = field.convert(values[name])
            except (TypeError, ValueError) as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise ValidationError(type(self).__name__, problems)

    def __repr__(self) -> str:
        return "{}({})".format(type(self).__name__, ", ".join("{}={!r}".format(*item) for item in self._items()))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def _items(self) -> list[tuple[str, Any]]:
        return [(name, self.__dict__[name]) for name in self.fields]

    def model_dump(
        self, *, mode: str = "python", include: Any = None, exclude: Any = None, exclude_none: bool = False, **_: Any
    ) -> builtins.dict[str, Any]:
        """The fields as a dict, models in them too. mode: `json` makes every value one that JSON has."""
        found = {}
        for name, value in self._items():
            left_out = (include is not None and name not in include) or (exclude is not None and name in exclude)
            if not left_out and not (exclude_none and value is None):
                found[name] = _dump(value, mode, exclude_none)
        return json.loads(json.dumps(found, default=str)) if mode == "json" else found

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        """The fields as a JSON text."""
        return json.dumps(self.model_dump(mode="json", **options), indent=indent)

    def model_copy(self: Self, *, update: builtins.dict[str, Any] | None = None, deep: bool = False) -> Self:
        """Another one with the same values, but for `update`."""
        found = copy.deepcopy(self) if deep else copy.copy(self)
        found.__dict__.update(update or {})
        return found

    @classmethod
    def model_validate(cls: type[Self], value: Any, **_: Any) -> Self:
        """One of a mapping; one as it is."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValidationError(cls.__name__, [f"value: expected a mapping, found {type(value).__name__}"])
        return cls(**value)

    @classmethod
    def model_validate_json(cls: type[Self], text: Any, **_: Any) -> Self:
        """One of a JSON text."""
        return cls.model_validate(json.loads(text))

    # What older code calls them.
    dict = model_dump
    json = model_dump_json
    copy = model_copy


def _dump(value: Any, mode: str, exclude_none: bool) -> Any:
    if isinstance(value, Model):
        return value.model_dump(mode=mode, exclude_none=exclude_none)
    if isinstance(value, (list, tuple)):
        return [_dump(item, mode, exclude_none) for item in value]
    if isinstance(value, dict):
        return {key: _dump(item, mode, exclude_none) for key, item in value.items()}
    return value


def text(value: Any) -> str:
    """A text; nothing else is one."""
    if not isinstance(value, str):
        raise TypeError(f"Input should be a valid string, found {type(value).__name__}")
    return value


def number(value: Any) -> float:
    """A number, or a text of one."""
    if isinstance(value, (bool, int, float, str)):
        return float(value)
    raise TypeError(f"Input should be a valid number, found {type(value).__name__}")


def whole(value: Any) -> int:
    """A whole number, or a text of one."""
    found = number(value)
    if not math.isfinite(found) or found != int(found):
        raise ValueError(f"Input should be a valid integer, found {value!r}")
    return int(value) if isinstance(value, int) else int(found)


def share(value: Any) -> float:
    """A number from 0 to 1."""
    found = number(value)
    if not 0.0 <= found <= 1.0:
        raise ValueError(f"Input should be from 0 to 1, found {value!r}")
    return found


def boolean(value: Any) -> bool:
    """True or false, or 0 or 1."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"Input should be a valid boolean, found {value!r}")


def mapping(value: Any) -> dict[str, Any]:
    """A dict whose keys are texts."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"Input should be a valid dictionary of names, found {type(value).__name__}")
    return dict(value)


def anything(value: Any) -> Any:
    """Whatever it is."""
    return value


def optional(convert: Convert) -> Convert:
    """That, or None."""
    return lambda value: None if value is None else convert(value)


def several(convert: Convert) -> Convert:
    """A list of that."""

    def converted(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"Input should be a valid list, found {type(value).__name__}")
        return [convert(item) for item in value]

    return converted
