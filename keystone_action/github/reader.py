"""One input at a time: read, trimmed, checked; what is wrong is collected, so that all of it is said at once.

The runner passes an input as `INPUT_<NAME>`: upper case, blanks as `_`, dashes kept. It enforces neither `required`
nor types, and an input that was left out arrives as an empty text.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from keystone_action.errors import UsageError

SECRET_INPUTS = frozenset({"github-token", "registry-password", "registry-username"})
"""Inputs whose values no message repeats."""

_RESERVED = frozenset({"entrypoint", "args"})
"""Names that the runner itself reads for container actions."""

_LONGEST = 100
"""Characters of a value that a message repeats."""

ChoiceT = TypeVar("ChoiceT", bound=str)


def variable(name: str) -> str:
    """The environment variable that carries an input."""
    return "INPUT_" + name.replace(" ", "_").upper()


class InputReader:
    """Reads inputs from an environment.

    names: the inputs that were asked for so far. problems: one error for each thing that is wrong.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.names: set[str] = set()
        self.problems: list[UsageError] = []

    def text(self, name: str) -> str | None:
        """The trimmed value; None when empty."""
        self.names.add(name)
        return self.environ.get(variable(name), "").strip() or None

    def words(self, name: str) -> tuple[str, ...]:
        """A list, separated by new lines or commas; empty entries don't count."""
        entries = re.split(r"[,\r\n]", self.text(name) or "")
        return tuple(self._here(entry.strip()) for entry in entries if entry.strip())

    def _here(self, entry: str) -> str:
        """`${{ github.workspace }}` is the runner's name of the workspace, which it turns into ours at the beginning of
        an input only, and not further on in a list."""
        parent, repository = (self.environ.get(name, "") for name in ("RUNNER_WORKSPACE", "GITHUB_REPOSITORY"))
        theirs = f"{parent}/{repository.rpartition('/')[2]}"
        if not parent or not f"{entry}/".startswith(f"{theirs}/"):
            return entry
        return self.environ.get("GITHUB_WORKSPACE", "") + entry[len(theirs) :]

    def boolean(self, name: str, *, default: bool) -> bool:
        """`true` or `false`, in any case, and nothing else."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in {"true", "false"}:
            self.problem(name, "true or false")
            return default
        return value.lower() == "true"

    def integer(self, name: str, low: int, high: int) -> int | None:
        """A whole number in [low, high]."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
            self.problem(name, f"a whole number from {low} to {high}")
            return None
        return int(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A finite number in [low, high]."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(value) if value.isascii() and "_" not in value else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            self.problem(name, f"a number from {low:g} to {high:g}")
            return None
        return number

    def choice(self, name: str, choices: tuple[ChoiceT, ...]) -> ChoiceT:
        """One of the choices; the first is the default."""
        value = self.text(name)
        for choice in choices:
            if value == choice:
                return choice
        if value is not None:
            self.problem(name, "one of " + ", ".join(choices))
        return choices[0]

    def duration(self, name: str) -> float | None:
        """Seconds from `90`, `90s`, `10m` or `1h30m`."""
        from pydantic_core import PydanticCustomError

        from keystone_action.spec.models.base import parse_duration

        value = self.text(name)
        if value is None:
            return None
        try:
            return parse_duration(value)
        except PydanticCustomError:
            self.problem(name, "a duration like 90, 90s, 10m or 1h30m")
            return None

    def workspace(self) -> Path:
        """The checkout, from GITHUB_WORKSPACE."""
        value = self.environ.get("GITHUB_WORKSPACE", "")
        if not value or not Path(value).is_dir():
            found = f"is {value!r}, which is no directory" if value else "is not set"
            self.problems.append(
                UsageError(f"GITHUB_WORKSPACE {found}", help="outside of a workflow, use: keystone run SPEC")
            )
            return Path.cwd()
        return Path(value).resolve()

    def runner_temp(self) -> tuple[Path, ...]:
        """The runner's folder for temporary files, where it is visible in here."""
        value = self.environ.get("RUNNER_TEMP", "")
        return (Path(value).resolve(),) if value and Path(value).is_dir() else ()

    def directory(self, name: str, workspace: Path) -> Path:
        """A directory that exists in the workspace; the workspace itself by default."""
        path = self.path(name, workspace, inside=(workspace,))
        if path is None:
            return workspace
        if not path.is_dir():
            self.problem(name, "a directory that exists in the workspace")
            return workspace
        return path

    def path(self, name: str, base: Path, *, inside: tuple[Path, ...]) -> Path | None:
        """An absolute path, links followed, that stays inside one of the folders."""
        value = self.text(name)
        return None if value is None else self._resolve(name, value, base, inside)

    def paths(self, name: str, base: Path, *, inside: tuple[Path, ...]) -> tuple[Path, ...]:
        """A list of such paths."""
        found = (self._resolve(name, word, base, inside) for word in self.words(name))
        return tuple(path for path in found if path is not None)

    def _resolve(self, name: str, value: str, base: Path, inside: tuple[Path, ...]) -> Path | None:
        try:
            path = (base / value).resolve()
        except (OSError, ValueError, RuntimeError):
            self.problem(name, "a path")
            return None
        if not any(path.is_relative_to(folder) for folder in inside):
            kinds = ("the workspace", "the runner's temporary folder")
            places = " or ".join(f"{kind} ({folder})" for kind, folder in zip(kinds, inside, strict=False))
            self.problem(name, f"a path inside of {places}")
            return None
        return path

    def problem(self, name: str, expected: str, *, found: str | None = None) -> None:
        """Notes that an input is not what it should be."""
        value = self.text(name) if found is None else found
        shown = " is not set" if value is None else "" if name in SECRET_INPUTS else f" is {_cut(value)!r}"
        self.problems.append(UsageError(f"input {name}{shown}; expected {expected}"))

    def unknown(self) -> tuple[str, ...]:
        """Sentences about inputs that nobody asked for. One that looks like a misspelt input is a problem: a gate
        must not be weaker than its author wrote it."""
        known = {variable(name): name for name in self.names}
        warnings = []
        for key in sorted(self.environ):
            name = key.removeprefix("INPUT_").lower()
            if not key.startswith("INPUT_") or key in known or name in _RESERVED or not self.environ[key].strip():
                continue
            near = difflib.get_close_matches(name.replace("_", "-"), self.names, n=1, cutoff=0.8)
            if near:
                self.problems.append(UsageError(f"there is no input {name}; did you mean {near[0]}?"))
            else:
                warnings.append(f"there is no input {name}; it has no effect")
        return tuple(warnings)

    def raise_problems(self) -> None:
        """Raises the one problem there is, or one UsageError that lists them all."""
        if len(self.problems) == 1:
            raise self.problems[0]
        if self.problems:
            lines = "\n".join(f"- {problem.message}" for problem in self.problems)
            raise UsageError(f"{len(self.problems)} inputs are wrong:\n{lines}")


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
