"""The fields of an AgenticAssure suite and what may stand in each (its schema of 0.4.0; spec.md 5.5).

What the original only notices when a scenario runs (a scorer's missing reference, malformed arguments) is found here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keystone_action.dialects.nodes import FileFindings
from keystone_action.spec.loading.diagnostics import Diagnostic, listing, nearest, show_value
from keystone_action.spec.loading.yaml_loader import KeyPath

if TYPE_CHECKING:
    from keystone_action.spec.loading.yaml_loader import Document


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value must be, and the words for it."""

    words: str
    holds: Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list)


TEXT = Kind("a text", lambda value: isinstance(value, str))
NAME = Kind("a text that is not blank", lambda value: isinstance(value, str) and bool(value.strip()))
PATTERN = Kind("a text that is not empty", lambda value: isinstance(value, str) and bool(value))
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
SECONDS = Kind("a number of seconds above 0", lambda value: _number(value) and 0 < value < 10**9)
TRIES = Kind("a whole number from 0 to 100", lambda value: _number(value) and value == int(value) and 0 <= value <= 100)
SHARE = Kind("a number from 0 to 1", lambda value: _number(value) and 0 <= value <= 1)
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
NAMES = Kind("a list of texts", _texts)
"""Its items are looked at one by one, so that each has its place."""

ROOT = {"suite": MAPPING, "scenarios": LIST}
SUITE = {"name": NAME, "description": TEXT, "config": MAPPING, "tags": NAMES, "adapter": NAME, "scorer": NAME}
CONFIG = {"default_timeout": SECONDS, "retries": TRIES, "default_scorers": NAMES, "fail_fast": BOOLEAN}
SCENARIO = {
    "name": NAME,
    "input": TEXT,
    "description": TEXT,
    "expected_output": TEXT,
    "expected_tools": NAMES,
    "expected_tool_args": MAPPING,
    "tags": NAMES,
    "metadata": MAPPING,
    "scorers": NAMES,
    "timeout_seconds": SECONDS,
}
METADATA = {"regex_pattern": PATTERN, "exact_normalize": BOOLEAN, "similarity_threshold": SHARE}
"""The keys that built-in scorers read; any other is for scorers of the suite's author."""


@dataclass(slots=True)
class SuiteFields:
    """Reads fields and tells what is wrong with them, at their places."""

    document: Document
    findings: FileFindings

    def mapping(
        self, value: Any, path: KeyPath, known: Mapping[str, Kind], *, required: Iterable[str] = (), what: str
    ) -> dict[str, Any]:
        """The fields of a mapping that are as they should be; the others are told of, and unknown keys."""
        if not isinstance(value, dict):
            self.wrong(path, what, MAPPING, value)
            return {}
        for key in value:
            if key not in known:
                expected, near = f"one of {listing(sorted(known))}", nearest(key, known)
                self.problem(
                    (*path, key), f"unknown key {show_value(key)}", expected=expected, suggestion=near, key=True
                )
        for key in required:
            if key not in value:
                self.problem(path, f"the key '{key}' is missing", key=True)
        return {key: item for key, item in value.items() if key in known and self.fits(item, (*path, key), known[key])}

    def fits(self, value: Any, path: KeyPath, kind: Kind) -> bool:
        """Whether a value is of its kind; if not, that is told."""
        if not kind.holds(value):
            self.wrong(path, str(path[-1]), kind, value)
            return False
        if kind is not NAMES:
            return True
        wrong = [index for index, item in enumerate(value) if not NAME.holds(item)]
        for index in wrong:
            self.wrong((*path, index), f"{path[-1]}[{index}]", NAME, value[index])
        return not wrong

    def wrong(self, path: KeyPath, what: str, kind: Kind, value: Any) -> None:
        """Tell of a value that is of another kind than it should be."""
        advice = "put it into quotes" if kind in (TEXT, NAME, PATTERN, NAMES) and _number(value) else ""
        self.problem(path, what, expected=kind.words, found=show_value(value), help=advice)

    def problem(self, path: KeyPath, message: str, *, key: bool = False, **more: str) -> None:
        """Tell what makes the file unfit."""
        self.findings.problems.append(Diagnostic.at(self.document.position(path, key=key), message, **more))

    def warning(self, path: KeyPath, message: str, *, key: bool = False, **more: str) -> None:
        """Tell what should be known of the file."""
        self.findings.warnings.append(Diagnostic.at(self.document.position(path, key=key), message, **more))
