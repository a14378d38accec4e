"""What the markers of `spec/models/fields.py` demand of a field's text, in sections and in all check types."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from keystone_action.spec.expressions import ExpressionError, Leaf, interpolate, names_used
from keystone_action.spec.loading.author_files import files_below, sql_files
from keystone_action.spec.loading.diagnostics import listing, nearest, show_value
from keystone_action.spec.loading.names import Scope
from keystone_action.spec.loading.problems import Problem
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.fields import (
    AuthorPath,
    InputSource,
    RegexPattern,
    ServiceName,
    ShellCommand,
    WorkspacePath,
)
from keystone_action.spec.models.spec import Invariant
from keystone_action.spec.models.task import SqlFixture

MAX_VARIANTS = 10_000
"""Combinations of parameters and records that are tried for one path with expressions."""
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_COMMAND_KEYS = frozenset({"command", "commands", "cmd", "args", "binary", "env", "wait_for", "start"})


@dataclass
class FieldRules:
    """Checks texts and collects the author's files that they name."""

    scope: Scope
    directory: FilePath
    root: FilePath
    """The directory that no path may leave."""
    author_files: dict[FilePath, None] = field(default_factory=dict)
    withheld: set[FilePath] = field(default_factory=set)
    scripts: dict[FilePath, None] = field(default_factory=dict)
    """Of sql fixtures."""

    @property
    def _has_expressions(self) -> bool:
        return self.scope.rules.has_expressions

    def sql_files(self) -> tuple[FilePath, ...]:
        """The scripts of sql fixtures and what they include, which is the author's, too, and withheld."""
        texts = (one.sql for one in self.scope.spec.fixtures if isinstance(one, SqlFixture) and one.sql is not None)
        found = sql_files(self.scripts, texts, self.directory)
        included = [path for path in found if path not in self.scripts]
        self.author_files |= dict.fromkeys(included)
        self.withheld.update(included)
        return found

    def check(self, leaf: Leaf) -> Iterator[Problem]:
        """What is wrong with one text."""
        for marker in leaf.markers:
            if isinstance(marker, AuthorPath):
                yield from self._author_path(leaf, marker)
            elif isinstance(marker, WorkspacePath):
                yield from _workspace_path(leaf, leaf.value)
            elif isinstance(marker, RegexPattern):
                yield from self._pattern(leaf)
            elif isinstance(marker, ServiceName):
                yield from self._service(leaf, leaf.value, marker)
            elif isinstance(marker, InputSource):
                yield from self._input_source(leaf, marker)

    def warnings(self, texts: Sequence[Leaf]) -> Iterator[Problem]:
        """What is suspicious, in these texts and in gates."""
        for leaf in texts:
            yield from self._warn_of_text(leaf)
        spec = self.scope.spec
        of_scenarios = enumerate(spec.scenarios or [])
        held: list[tuple[KeyPath, Mapping[str, Invariant]]] = [(("invariants",), spec.invariants)]
        held += [(("scenarios", index, "invariants"), one.invariants) for index, one in of_scenarios]
        for path, invariants in held:
            for name, one in invariants.items():
                if one.gate and (doubt := one.check.doubt_as_gate):
                    yield Problem((*path, name, "gate"), f"the gate '{name}': {doubt}", on_key=True)

    def _warn_of_text(self, leaf: Leaf) -> Iterator[Problem]:
        """A variable that looks as if a shell would fill it in, and a service's name as a host
        name, which resolves nowhere but in a container's network."""
        yield from self._warn_of_variables(leaf)
        if "//" not in leaf.value or not self._is_command(leaf) or self._is_in_containers(leaf):
            return
        for name in _hosts(leaf.value):
            if name in self.scope.service_names:
                message = f"'//{name}' is the service's name, which is not a host name here"
                index = leaf.value.find("//")
                yield Problem(leaf.path, message, help=f"use {{{{ services.{name}.url }}}}", offset=index)

    def _warn_of_variables(self, leaf: Leaf) -> Iterator[Problem]:
        found = _VARIABLE.fullmatch(leaf.value) if leaf.path[-2:-1] == ("env",) and leaf.path[0] != "services" else None
        if found is not None:
            name = found[1] or found[2]
            ours = "env" if leaf.path[:2] == ("agent", "env") else "secrets"
            message = f"'{leaf.value}' stays as it is: no shell fills in the values of env"
            yield Problem(leaf.path, message, help=f"use {{{{ {ours}.{name} }}}}")

    def _is_in_containers(self, leaf: Leaf) -> bool:
        """Whether names of services are host names where this text is used: in a service's own container they are,
        even if the agent runs in the process sandbox."""
        return self.scope.spec.base is not None or leaf.path[0] == "services"

    def _is_command(self, leaf: Leaf) -> bool:
        return leaf.marker(ShellCommand) is not None or not _COMMAND_KEYS.isdisjoint(leaf.path)

    def _author_path(self, leaf: Leaf, marker: AuthorPath) -> Iterator[Problem]:
        for text in self._variants(leaf):
            found = self._one_author_path(text, marker)
            if isinstance(found, FilePath):
                self.author_files.setdefault(found)
                if leaf.path[0] == "fixtures" and leaf.path[-1] == "file":
                    self.scripts.setdefault(found)
                if marker.withheld:
                    self.withheld.add(found)
            else:
                message, advice = found
                yield Problem(leaf.path, message, help=advice)

    def _variants(self, leaf: Leaf) -> Sequence[str]:
        """The texts that a path with expressions can become; the text itself when it has none."""
        if "{{" not in leaf.value or not self._has_expressions:
            return (leaf.value,)
        try:
            return variants(leaf.value, self.scope)
        except ExpressionError:
            return ()

    def _one_author_path(self, text: str, marker: AuthorPath) -> FilePath | tuple[str, str]:
        """The file, or what is wrong with it and what to do."""
        what = "directory" if marker.kind == "directory" else "file"
        relative = f"paths are relative to {self.directory}"
        if not text or "\0" in text:
            return f"an empty name of a {what}", relative
        roots = (self.root, *self.scope.rules.further_roots)
        if os.path.isabs(text) and not any(FilePath(text).is_relative_to(one) for one in roots[1:]):  # noqa: PTH117
            return f"the path {show_value(text)} is absolute", f"name it {relative.removeprefix('paths are ')}"
        path = self.directory / text
        try:
            resolved = path.resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError):
            return f"there is no {what} {show_value(text)}", _nearby(path) or relative
        except (OSError, RuntimeError) as error:
            return f"{show_value(text)} can't be read: {getattr(error, 'strerror', None) or 'links in a circle'}", ""
        if not any(resolved.is_relative_to(one) for one in roots):
            return f"the path {show_value(text)} leaves {self.root}", "nothing outside it is read"
        return _readable(resolved, text, marker)

    def _pattern(self, leaf: Leaf) -> Iterator[Problem]:
        if "{{" in leaf.value and self._has_expressions:
            return
        problem = _compile_pattern(leaf.value)
        if problem:
            yield Problem(leaf.path, f"{show_value(leaf.value)} is not a regular expression: {problem}")

    def _service(self, leaf: Leaf, name: str, marker: ServiceName) -> Iterator[Problem]:
        if "{{" in name:
            return  # reported where expressions are checked
        known = sorted(self.scope.service_names)
        if name not in self.scope.service_names:
            expected = f"one of {listing(known)}" if known else ""
            advice = "" if known else "this spec has no services"
            if "services" not in self.scope.damaged or known:
                message = f"there is no service {show_value(name)}"
                yield Problem(leaf.path, message, expected=expected, suggestion=nearest(name, known), help=advice)
            return
        service = next((one for one in self.scope.spec.services if one.name == name), None)
        if service is not None:
            yield from _fits(leaf, service, marker)

    def _input_source(self, leaf: Leaf, marker: InputSource) -> Iterator[Problem]:
        if "{{" in leaf.value:
            return
        refers = marker.refers_to(leaf.value)
        if refers is None:
            return
        inner, text = refers
        if isinstance(inner, WorkspacePath):
            yield from _workspace_path(leaf, text)
        elif text not in self.scope.service_names and "services" not in self.scope.damaged:
            words = [*marker.fixed, "file:<path>", "<service>.<field>"]
            close = nearest(leaf.value, marker.fixed)
            expected = f"one of {listing(words)}"
            yield Problem(
                leaf.path, "nothing to look at", found=show_value(leaf.value), expected=expected, suggestion=close
            )
        else:
            yield from self._service(leaf, text, inner)


_RECORDED = {"recording": ("http_mock", "requests"), "calls": ("mcp_mock", "calls")}
"""What a service must record for a field that names it: its kind, and what it records."""


def _fits(leaf: Leaf, service: Any, marker: ServiceName) -> Iterator[Problem]:
    if marker.kinds == "database" and not service.is_database:
        message = f"the service '{service.name}' is not a database"
        yield Problem(leaf.path, message, expected="a service of type postgres, mysql or sqlite", found=service.kind)
    if marker.kinds not in _RECORDED:
        return
    kind, what = _RECORDED[marker.kinds]
    if service.kind != kind:
        message = f"the service '{service.name}' records no {what}"
        yield Problem(leaf.path, message, expected=f"a service of type {kind}", found=service.kind)
    elif not service.record:
        message = f"the service '{service.name}' does not record its {what}"
        yield Problem(leaf.path, message, help="add `record: true` to it")


def _workspace_path(leaf: Leaf, text: str) -> Iterator[Problem]:
    if not text or "\0" in text:
        yield Problem(leaf.path, "an empty path", expected="a path in the workspace")
    elif text.startswith("/"):
        yield Problem(leaf.path, f"the path {show_value(text)} is absolute", expected="one relative to the workspace")
    elif ".." in re.split(r"[/\\]", text):
        yield Problem(leaf.path, f"'..' in {show_value(text)}", expected="a path that stays in the workspace")


@functools.lru_cache(maxsize=4096)
def _compile_pattern(pattern: str) -> str:
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        return str(error)
    except (RecursionError, OverflowError, ValueError, MemoryError) as error:
        return f"too complicated ({type(error).__name__})"
    return ""


def _readable(path: FilePath, text: str, marker: AuthorPath) -> FilePath | tuple[str, str]:
    is_directory = path.is_dir()
    if marker.kind == "file" and is_directory:
        return f"{show_value(text)} is a directory", "name a file"
    if marker.kind == "directory" and not is_directory:
        return f"{show_value(text)} is not a directory", "name a directory"
    if not is_directory and not path.is_file():
        return f"{show_value(text)} is not a regular file", "devices, sockets and FIFOs are not read"
    if not os.access(path, os.R_OK | (os.X_OK if is_directory else 0)):
        return f"{show_value(text)} can't be read", "check its permissions"
    if is_directory and marker.withheld:
        try:
            files_below(path)
        except ValueError as problem:
            return f"{show_value(text)} {problem}", "all its files are read before the agent runs"
    return path


def _nearby(path: FilePath) -> str:
    try:
        names = os.listdir(path.parent)  # noqa: PTH208 - names only
    except OSError:
        return ""
    close = nearest(path.name, names)
    return f"did you mean '{close}'?" if close else ""


def _hosts(text: str) -> list[str]:
    return re.findall(r"//(?:[^/@\s\"']*@)?([A-Za-z0-9_-]+)(?=[:/\s\"'?#]|$)", text)


def variants(text: str, scope: Scope) -> list[str]:
    """Every text that this one can become by parameters and records, each once.

    Raises ExpressionError for names that are not known before the cells run.
    """
    used = [name.split(".") for name in names_used(text)]
    unknown = next((parts for parts in used if parts[0] not in ("params", "record")), None)
    if unknown is not None:
        raise ExpressionError(f"'{'.'.join(unknown)}' is not known when files are read")
    parameters = sorted({parts[1] for parts in used if parts[0] == "params" and len(parts) > 1})
    if scope.given_parameters.intersection(parameters):
        return []
    found: dict[str, None] = {}
    for scenario in scope.scenarios:
        for combination in itertools.islice(_combinations(parameters, scope), MAX_VARIANTS):
            names = {"params": {**scenario.params, **combination}, "record": scenario.record or {}}
            found.setdefault(interpolate(text, names))
            if len(found) >= MAX_VARIANTS:
                return list(found)
    return list(found)


def _combinations(names: Sequence[str], scope: Scope) -> Iterator[dict[str, Any]]:
    """The values that these parameters can have together: of the matrix and of `include`, less what is excluded."""
    parallelism = scope.spec.parallelism
    choices: list[list[tuple[str, Any]]] = []
    for name in names:
        included = [entry[name] for entry in parallelism.include if name in entry]
        values = [*parallelism.matrix.get(name, ()), *included]
        if values:
            choices.append([(name, value) for value in values])
    for chosen in itertools.product(*choices):
        combination = dict(chosen)
        if not any(entry and entry.items() <= combination.items() for entry in parallelism.exclude):
            yield combination
