"""One input at a time: read, trimmed, checked; what is wrong is collected, so that all of it is said at once.

The runner passes an input as `INPUT_<NAME>`: upper case, blanks as `_`, dashes kept. It enforces neither `required`
nor types, and an input that was left out arrives as an empty text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keystone_action.errors import UsageError
from keystone_action.options.model import Options
from keystone_action.options.option import Setting
from keystone_action.options.values import PARAMETER_NAME, UnreadableError

_SECRET = frozenset(setting.option.input for setting in Options.settings() if setting.option.secret)
"""Inputs whose values no message repeats."""

_RESERVED = frozenset({"entrypoint", "args"})
"""Names that the runner itself reads for container actions."""

_LONGEST = 100
"""Characters of a value that a message repeats."""


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

    def _words(self, text: str) -> tuple[str, ...]:
        """A list, separated by new lines or commas; empty entries don't count."""
        entries = re.split(r"[,\r\n]", text)
        return tuple(self._here(entry.strip()) for entry in entries if entry.strip())

    def _here(self, entry: str) -> str:
        """`${{ github.workspace }}` is the runner's name of the workspace, which it turns into ours at the beginning of
        an input only, and not further on in a list."""
        parent, repository = (self.environ.get(name, "") for name in ("RUNNER_WORKSPACE", "GITHUB_REPOSITORY"))
        theirs = f"{parent}/{repository.rpartition('/')[2]}"
        if not parent or not f"{entry}/".startswith(f"{theirs}/"):
            return entry
        return self.environ.get("GITHUB_WORKSPACE", "") + entry[len(theirs) :]

    def value(self, setting: Setting, directory: Path, workspace: Path) -> Any:
        """The value of an option's input; None when it is empty or wrong. directory: what paths are relative to."""
        name, default = setting.option.input, setting.option.input_default
        text = self.text(name)
        if text is None and (not default or "${{" in default):
            return None
        if text in setting.words:
            return text
        words = self._words(default if text is None else text)
        if setting.type is Path or (setting.is_list and setting.item is Path):
            inside = (workspace, *(self.runner_temp() if setting.option.inside != "workspace" else ()))
            if not setting.is_list:
                return self._resolve(name, text or default, directory, inside)
            return self._paths(name, words, directory, inside) or None
        if setting.type is Mapping:
            return self._parameters(setting, text or "")
        if setting.is_list:
            return tuple(value for word in words if (value := self._read(setting, word)) is not None) or None
        return self._read(setting, text or default)

    def _read(self, setting: Setting, text: str) -> Any:
        try:
            return setting.read(text)
        except UnreadableError as error:
            found = error.found or (text if setting.is_list else None)
            self.problem(setting.option.input, error.expected, found=found)
            return None

    def _parameters(self, setting: Setting, text: str) -> dict[str, str]:
        """`name=value`, one a line; on one line a comma separates only where another `name=` follows, since values may
        hold commas."""
        found: dict[str, str] = {}
        for line in text.splitlines():
            for item in re.split(rf",(?=\s*{PARAMETER_NAME}\s*=)", line):
                pair = self._read(setting, item.strip()) if item.strip() else None
                if pair is not None and found.setdefault(pair[0], pair[1].strip()) != pair[1].strip():
                    both = f"{pair[0]}={found[pair[0]]} and {pair[0]}={pair[1].strip()}"
                    self.problem(setting.option.input, f"{pair[0]} once", found=both)
        return found

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
        path = self.path(name, workspace, (workspace,))
        if path is None:
            return workspace
        if not path.is_dir():
            self.problem(name, "a directory that exists in the workspace")
            return workspace
        return path

    def path(self, name: str, base: Path, inside: tuple[Path, ...]) -> Path | None:
        """An absolute path, links followed, that stays inside one of the folders."""
        value = self.text(name)
        return None if value is None else self._resolve(name, value, base, inside)

    def _paths(self, name: str, words: tuple[str, ...], base: Path, inside: tuple[Path, ...]) -> tuple[Path, ...]:
        """A list of such paths."""
        found = (self._resolve(name, word, base, inside) for word in words)
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
        shown = " is not set" if value is None else "" if name in _SECRET else f" is {_cut(value)!r}"
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
