"""Reading a Touchstone case: fields with the place of their names and values, and all that is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import Node

from keystone_action.dialects.nodes import items_of, pairs_of
from keystone_action.spec.loading.author_files import read_author_text
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, listing, nearest, show_value
from keystone_action.spec.loading.yaml_loader import Document


@dataclass(frozen=True, slots=True)
class CaseField:
    """A value of the file."""

    name: str
    key: Node
    """The node of its name; for an item of a list, that of the list."""
    node: Node
    value: Any


@dataclass(slots=True)
class CaseReader:
    """Takes values out of one file; what does not fit is a problem at its place, and is left out."""

    document: Document
    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    def problem(
        self,
        node: Node,
        message: str,
        *,
        expected: str = "",
        found: str = "",
        suggestion: str = "",
        help: str = "",  # noqa: A002 - as in Diagnostic
    ) -> None:
        """Report an error at a node."""
        self.problems.append(
            Diagnostic.at(
                self.document.place_of(node),
                message,
                expected=expected,
                found=found,
                suggestion=suggestion,
                help=help,
            )
        )

    def warning(self, node: Node, message: str) -> None:
        """Report what is read, but not as its author may expect."""
        self.warnings.append(Diagnostic.at(self.document.place_of(node), message))

    def fields(
        self,
        of: CaseField,
        known: Collection[str],
        refused: Mapping[str, str] | None = None,
        required: Iterable[str] = (),
    ) -> dict[str, CaseField]:
        """The fields of a mapping that are known and not null.

        refused: names that Touchstone knows and we can't honour, with what to do instead.
        """
        if not isinstance(of.value, dict):
            self.problem(of.node, f"{of.name}: expected a mapping", found=show_value(of.value))
            return {}
        found: dict[str, CaseField] = {}
        for name, (key, node) in pairs_of(of.node).items():
            if name not in of.value:
                continue  # no text as a key: reported when the file was read
            one = CaseField(f"{of.name}.{name}" if of.name else name, key, node, of.value[name])
            if name in known:
                if one.value is not None:
                    found[name] = one
            elif refused is not None and name in refused:
                self.refuse(one, refused[name])
            else:
                close = nearest(name, [*known, *(refused or ())])
                expected = f"one of {listing(sorted(known or refused or ()))}"
                self.problem(key, f"unknown key {show_value(name)}", expected=expected, suggestion=close)
        for name in required:
            if name not in found:
                self.problem(of.key, f"the key '{name}' is missing in {of.name}" if of.name else _missing(name))
        return found

    def refuse(self, one: CaseField, advice: str) -> None:
        """Report a field that can't be honoured, unless it asks for nothing."""
        if one.value not in (None, False, "", [], {}):
            self.problem(one.key, f"{one.name} of a Touchstone case can't be honoured here", help=advice)

    def items(self, of: CaseField | None) -> list[CaseField]:
        """The items of a list; none for an absent one."""
        if of is None:
            return []
        if not isinstance(of.value, list):
            self.problem(of.node, f"{of.name}: expected a list", found=show_value(of.value))
            return []
        nodes = items_of(of.node)
        return [
            CaseField(f"{of.name}[{index}]", node, node, value)
            for index, (node, value) in enumerate(zip(nodes, of.value, strict=False))
        ]

    def text(self, of: CaseField | None, default: str = "") -> str:
        """A text that is not blank."""
        if of is None:
            return default
        if isinstance(of.value, str) and of.value.strip():
            return of.value
        self.problem(of.node, f"{of.name}: expected a text", found=show_value(of.value))
        return default

    def texts(self, of: CaseField | None) -> list[CaseField]:
        """The items of a list of texts."""
        return [item for item in self.items(of) if self.text(item)]

    def file(self, item: CaseField, directory: Path, root: Path) -> tuple[Path, str] | None:
        """An author's text file that is read now, and its text."""
        path = directory / str(item.value)
        if not path.resolve().is_relative_to(root):
            self.problem(item.node, f"{item.name}: {show_value(item.value)} leaves {root}")
            return None
        try:
            return path, read_author_text(path, str(path))
        except SpecError as error:
            self.problem(item.node, f"{item.name}: {show_value(item.value)} {error.diagnostics[0].message}")
            return None

    def boolean(self, of: CaseField | None, *, default: bool = False) -> bool:
        """true or false."""
        if of is None or isinstance(of.value, bool):
            return default if of is None else of.value
        self.problem(of.node, f"{of.name}: expected true or false", found=show_value(of.value))
        return default

    def number(self, of: CaseField | None, default: float, *, above: float = 0) -> float:
        """A finite number above a bound."""
        if of is None:
            return default
        value = of.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= above:
            self.problem(of.node, f"{of.name}: expected a number above {above:g}", found=show_value(value))
            return default
        if value >= 10**9:
            self.problem(of.node, f"{of.name}: expected a number below 1,000,000,000", found=show_value(value))
            return default
        return float(value)

    def choice(self, of: CaseField | None, words: Collection[str], default: str) -> str:
        """One of some words."""
        if of is None:
            return default
        if isinstance(of.value, str) and of.value in words:
            return of.value
        close = nearest(of.value, words) if isinstance(of.value, str) else ""
        expected = f"one of {listing(words)}"
        self.problem(of.node, f"{of.name}: unknown", found=show_value(of.value), expected=expected, suggestion=close)
        return default

    def strings(self, of: CaseField | None) -> dict[str, CaseField]:
        """A mapping of names to texts (numbers and booleans become text): variables."""
        if of is None:
            return {}
        if not isinstance(of.value, dict):
            self.problem(of.node, f"{of.name}: expected a mapping", found=show_value(of.value))
            return {}
        found = {}
        for name, (key, node) in pairs_of(of.node).items():
            value = of.value.get(name)
            if isinstance(value, str | int):
                found[name] = CaseField(f"{of.name}.{name}", key, node, value)
            else:
                self.problem(node, f"{of.name}.{name}: expected a text", found=show_value(value))
        return found


def _missing(name: str) -> str:
    return f"the key '{name}' is missing"
