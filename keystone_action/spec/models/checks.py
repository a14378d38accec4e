"""The `check:` of an invariant, read by its own type. The types come from outside: this room knows none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import listing, nearest, show
from keystone_action.spec.models.base import CheckModel


@dataclass
class CheckReader:
    """Turns mappings into checks. renamed: by the identity of a mapping, the author's key for each of our own names,
    where an alias was upgraded (`upgraded` keeps those mappings alive)."""

    types: Mapping[str, type[CheckModel]]
    found: dict[str, type[CheckModel]] = field(default_factory=dict)
    renamed: dict[int, dict[str, str]] = field(default_factory=dict)
    upgraded: list[Any] = field(default_factory=list)

    def __call__(self, document: Any) -> CheckModel:
        """Raises PydanticCustomError or ValidationError, as validators do."""
        if not isinstance(document, dict):
            raise _error("check", expected="a mapping with a type", found=True)
        name = document.get("type")
        if not isinstance(name, str):
            if "type" in document:
                raise _error("type", expected="the name of a check type", found=True, at="type", value=name)
            raise _error("the key 'type' is missing", expected=f"one of {listing(self.types)}")
        model = self._model(name)
        try:
            upgraded = model.upgrade(dict(document))
            if upgraded.keys() != document.keys():
                self._remember(document, upgraded)
            return model.model_validate(upgraded, by_alias=True, by_name=False)
        except (ValidationError, PydanticCustomError):
            raise
        except Exception as error:
            # A check type may be anybody's; what it can't read is reported at its place, like all else.
            reason = f"{type(error).__name__}: {error}"
            raise _error(f"check type {show(name)} can't read this check: {reason}") from error

    def _model(self, name: str) -> type[CheckModel]:
        if name in self.found:
            return self.found[name]
        if name not in self.types:
            known = list(self.types)
            close = nearest(name, known)
            expected = f"one of {listing(known)}"
            raise _error(f"unknown check type {show(name)}", expected=expected, suggestion=close, at="type")
        try:
            self.found[name] = self.types[name]
        except UsageError as error:
            raise _error(error.message, help=error.help, at="type") from None
        return self.found[name]

    def _remember(self, document: dict[str, Any], upgraded: dict[str, Any]) -> None:
        names = {
            new: old
            for new, value in upgraded.items()
            if new not in document
            for old, written in document.items()
            if written is value and old not in upgraded
        }
        self.renamed[id(document)] = names
        self.upgraded.append(document)


def _error(message: str, *, found: bool = False, value: Any = None, **context: str) -> PydanticCustomError:
    words: dict[str, Any] = {"message": message, **context}
    if found:
        words["found"] = show(value)
    return PydanticCustomError("check_type", "{message}", words)
