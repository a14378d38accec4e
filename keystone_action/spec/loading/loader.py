"""A spec file → everything that the rest of the house needs to know of it, or every error in it.

    loaded = load(Path("evals/keystone.yaml"), check_types)

A misspelt key must not hide a missing file or an unknown name elsewhere. So after each error the spec is validated
again without the entries that are wrong (`repair`). The `check:` of an invariant is read by its own type, and the types
come from outside: this room knows none.
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from keystone_action.errors import UsageError
from keystone_action.spec.expressions import Leaf, leaves
from keystone_action.spec.loading.author_files import is_file
from keystone_action.spec.loading.diagnostics import Diagnostic, SourcePosition, SpecError, listing, nearest, show_value
from keystone_action.spec.loading.entrypoints import check_entrypoint
from keystone_action.spec.loading.field_rules import FieldRules
from keystone_action.spec.loading.loaded_spec import (
    LoadedSpec,
    RunRules,
    Scenario,
    enclosing_root,
    inline_scenarios,
    only_scenario,
)
from keystone_action.spec.loading.names import Scope, check_text, parameters_used
from keystone_action.spec.loading.problems import Problem, translate_errors
from keystone_action.spec.loading.rules import check_rules, find_unsupported, service_names_of
from keystone_action.spec.loading.spec_source import (
    Clone,
    Dialects,
    Merged,
    Translation,
    TranslationSource,
    read_merged,
    refuse_foreign_file,
)
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.fields import CheckModel
from keystone_action.spec.models.spec import Spec
from keystone_action.spec.models.task import PromptFile

_LISTS = frozenset({"services", "fixtures", "secrets", "scenarios"})
_STAND_INS: dict[str, Any] = {
    "version": 1,
    "id": "unnamed",
    "task": {"prompt": "unknown"},
    "agent": {"type": "none"},
}


@dataclass(frozen=True)
class Repaired:
    """The data of a spec without the entries that are wrong."""

    data: dict[str, Any]
    kept: dict[str, list[int]]
    """For each list the original index of each entry."""
    damaged: frozenset[str]
    """Sections that lost something other than unknown keys."""
    stand_ins: frozenset[str]
    """Sections whose content is not the author's."""

    def original(self, path: KeyPath) -> KeyPath:
        """A path in the repaired data as a path in the file."""
        if len(path) > 1 and path[0] in self.kept and isinstance(path[1], int):
            return (path[0], self.kept[str(path[0])][path[1]], *path[2:])
        return path


def unrepaired(data: dict[str, Any]) -> Repaired:
    """The data as the file has them."""
    return Repaired(data, {}, frozenset(), frozenset())


def repair(before: Repaired, unknown_keys: Iterable[KeyPath], wrong: Iterable[KeyPath]) -> Repaired:
    """The data without these keys and without the entries that these paths lead into."""
    result: dict[str, Any] = dict(before.data)
    damaged: set[str] = set()
    for path in unknown_keys:
        result = _without(result, path)
    units = {_unit(path) for path in wrong if path}
    kept: dict[str, list[int]] = {}
    for section in sorted({str(unit[0]) for unit in units}):
        damaged.add(section)
        _drop(result, section, {unit for unit in units if unit[0] == section}, kept)
    stand_ins = {name for name in _STAND_INS if name not in result}
    result.update({name: _STAND_INS[name] for name in stand_ins})
    if not isinstance(result.get("invariants"), dict) or not result["invariants"]:
        result["invariants"] = {"unnamed": {"check": CheckModel(type="unknown")}}
        stand_ins.add("invariants")
    indices = {
        section: [before.kept[section][index] for index in own] if section in before.kept else own
        for section, own in kept.items()
    }
    return Repaired(
        result, {**before.kept, **indices}, before.damaged | damaged | stand_ins, before.stand_ins | stand_ins
    )


def _unit(path: KeyPath) -> KeyPath:
    """What is dropped for an error at a path: the entry of a list or of `invariants`, else the whole section."""
    if len(path) > 1 and (path[0] in _LISTS or path[0] == "invariants"):
        return path[:2]
    return path[:1]


def _drop(result: dict[str, Any], section: str, units: set[KeyPath], kept: dict[str, list[int]]) -> None:
    before = result.get(section)
    entries = {unit[1] for unit in units if len(unit) > 1}
    if (section,) in units or not isinstance(before, list | dict):
        result.pop(section, None)
    elif isinstance(before, list):
        kept[section] = [index for index in range(len(before)) if index not in entries]
        result[section] = [before[index] for index in kept[section]]
    else:
        result[section] = {name: value for name, value in before.items() if name not in entries}


def _without(data: Any, path: KeyPath) -> Any:
    """A copy of the data without one key; what is not on the way to it is shared."""
    if not path:
        return data
    step, rest = path[0], path[1:]
    if isinstance(data, dict) and step in data:
        if not rest:
            return {key: value for key, value in data.items() if key != step}
        return {**data, step: _without(data[step], rest)}
    if isinstance(data, list) and isinstance(step, int) and step < len(data) and rest:
        return [*data[:step], _without(data[step], rest), *data[step + 1 :]]
    return data


@dataclass
class CheckReader:
    """Turns mappings into checks."""

    types: Mapping[str, type[CheckModel]]
    found: dict[str, type[CheckModel]] = field(default_factory=dict)
    renamed: dict[int, dict[str, str]] = field(default_factory=dict)
    """By the identity of a mapping that was upgraded from an alias: our own name of a key → the author's."""
    upgraded: list[Any] = field(default_factory=list)
    """Keeps those mappings alive."""

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
            raise _error(f"check type {show_value(name)} can't read this check: {reason}") from error

    def _model(self, name: str) -> type[CheckModel]:
        if name in self.found:
            return self.found[name]
        if name not in self.types:
            known = list(self.types)
            close = nearest(name, known)
            expected = f"one of {listing(known)}"
            raise _error(f"unknown check type {show_value(name)}", expected=expected, suggestion=close, at="type")
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
        words["found"] = show_value(value)
    return PydanticCustomError("check_type", "{message}", words)


_MOST_VALIDATIONS = 8
"""How often a spec with errors is validated. Before each time the entries that were wrong the last time are taken
out."""


def load(
    path: Path,
    check_types: Mapping[str, type[CheckModel]],
    *,
    given_parameters: Collection[str] = (),
    dialects: Dialects | None = None,
    agent: str | None = None,
    clone: Clone | None = None,
) -> LoadedSpec:
    """Load a spec file.

    check_types: name or alias → model; only `in`, `[]` and iteration are used, so it may be lazy. given_parameters:
    names that the call gives (`--param`), which the spec may use without declaring them. dialects: other formats that
    the file may be in. agent: `module:Class` of the call (`--agent`), for dialects. clone: gets repositories that a
    dialect needs, if there is a way to.

    Raises SpecError with every error of the file, UsageError for an agent that the file has no use for.
    """
    directory = path.parent.resolve()
    root = enclosing_root(directory)
    reader = CheckReader(check_types)
    with _without_collector():
        merged = read_merged(path, root)
        source = TranslationSource(merged, path, root, agent, clone)
        translation = None if dialects is None else dialects.translate(source)
        if translation is not None:
            merged = translation.applied_to(merged)
        else:
            refuse_foreign_file(merged)
        loading = _Loading(path, directory, root, merged, reader, frozenset(given_parameters), translation)
        found = loading.run()
        return found if dialects is None else replace(found, library=dialects.library)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Without the collector of cycles: thousands of small objects that all stay make it run again and again, for a
    third of the time that a large spec takes."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Loading:
    """One call of `load`: the state that its steps share."""

    def __init__(
        self,
        path: Path,
        directory: Path,
        root: Path,
        merged: Merged,
        reader: CheckReader,
        given: frozenset[str],
        translation: Translation | None,
    ) -> None:
        self.path, self.directory, self.root = path, directory, root
        self.merged, self.reader, self.given = merged, reader, given
        self.diagnostics: list[Diagnostic] = list(merged.problems)
        self.translated = translation is not None
        self.rules = RunRules() if translation is None else translation.rules
        self.warnings: list[Diagnostic] = [] if translation is None else [*translation.warnings]
        self.hidden: tuple[Path, ...] = () if translation is None else translation.hidden

    def run(self) -> LoadedSpec:
        spec, repaired = self._valid_spec()
        if spec is None:
            raise SpecError(self.diagnostics)
        scope = self._scope(spec, repaired)
        texts = [leaf for leaf in leaves(spec) if leaf.path[0] not in repaired.stand_ins]
        fields = FieldRules(scope, self.directory, self.root)
        for problems in (
            (problem for leaf in texts for problem in (*fields.check(leaf), *check_text(leaf, scope))),
            check_rules(scope),
            find_unsupported(scope),
        ):
            self._report(_in_file(problems, repaired))
        prompt = self._prompt(spec)
        if self.diagnostics:
            raise SpecError(self.diagnostics)
        self.warnings += [self._place(one) for one in fields.warnings(texts)]
        of_code = tuple(self._place(one) for one in check_entrypoint(scope, self.directory, self.root))
        self.warnings += of_code
        return replace(self._make_loaded_spec(spec, scope, texts, fields, prompt), code_warnings=of_code)

    def _valid_spec(self) -> tuple[Spec | None, Repaired]:
        """The spec. When it has errors, they are reported, and the spec is what is left without the wrong entries.
        Taking them out can show further errors: rules about several fields are checked only when each field is
        valid."""
        repaired = unrepaired(self.merged.data)
        for _ in range(_MOST_VALIDATIONS):
            try:
                return self._validate(repaired.data), repaired
            except ValidationError as error:
                problems = translate_errors(error, repaired.data, self.reader.found, self.reader.renamed)
            self._report(_in_file(problems, repaired))
            unknown = [one.path for one in problems if one.unknown_key]
            wrong = [one.path for one in problems if one.path not in unknown]
            repaired = repair(repaired, unknown, wrong)
        return None, repaired

    def _validate(self, data: Any) -> Spec:
        return Spec.model_validate(
            data,
            context={"resolve_check": self.reader, "translated": self.translated},
            by_alias=True,
            by_name=False,
        )

    def _scope(self, spec: Spec, repaired: Repaired) -> Scope:
        damaged = repaired.damaged
        scenarios: Iterable[Scenario]
        if spec.dataset is not None:
            scenarios = self._dataset(spec)
            damaged = damaged if scenarios else damaged | {"dataset"}
        elif spec.scenarios:
            scenarios = inline_scenarios(spec)
        else:
            scenarios = (only_scenario(spec),)
        return Scope(spec, tuple(scenarios), self.given, service_names_of(self.merged.data), damaged, self.rules)

    def _dataset(self, spec: Spec) -> list[Scenario]:
        from keystone_action.spec.loading.dataset import read_dataset

        dataset = spec.dataset
        assert dataset is not None
        path = self.directory / dataset.path
        # A path that is missing or leads outside is reported where all paths are checked.
        if not is_file(path) or not path.resolve().is_relative_to(self.root):
            return []
        try:
            return read_dataset(dataset, path, str(self.path.parent / dataset.path))
        except SpecError as error:
            self.diagnostics += error.diagnostics
            return []

    def _prompt(self, spec: Spec) -> str:
        """The text of the task's prompt; a file's is read here, so that an empty one is an error."""
        prompt = spec.task.prompt
        if not isinstance(prompt, PromptFile):
            return prompt
        from keystone_action.spec.loading.author_files import read_author_text

        path = self.directory / prompt.file
        if not is_file(path) or not path.resolve().is_relative_to(self.root):
            return ""
        try:
            text = read_author_text(path, str(self.path.parent / prompt.file))
        except SpecError as error:
            self.diagnostics += error.diagnostics
            return ""
        if not text.strip():
            self._report([Problem(("task", "prompt", "file"), "the prompt's file is empty")])
        return text

    def _make_loaded_spec(
        self, spec: Spec, scope: Scope, texts: list[Leaf], fields: FieldRules, prompt: str
    ) -> LoadedSpec:
        used = {name for leaf in (texts if self.rules.has_expressions else []) for name in parameters_used(leaf)}
        of_scenarios = {name for scenario in scope.scenarios for name in scenario.params}
        return LoadedSpec(
            spec=spec,
            path=self.path,
            directory=self.directory,
            sha256=self.merged.sha256,
            warnings=tuple(dict.fromkeys(self.warnings)),
            lines=self._lines(spec),
            sql_files=fields.sql_files(),
            author_files=tuple(fields.author_files),
            withheld=frozenset({*self.merged.files, *fields.withheld, *self.hidden}),
            scenarios=tuple(scope.scenarios),
            parameter_names=scope.declared_parameters | used | of_scenarios,
            prompt=prompt,
            prompt_is_literal=not self.rules.has_expressions or isinstance(spec.task.prompt, PromptFile),
            **vars(self.rules),
        )

    def _lines(self, spec: Spec) -> dict[str, int]:
        lines = {name: self._line(("invariants", name)) for name in spec.invariants}
        lines |= {f"forbidden.{name}": self._line(("forbidden", name)) for name in spec.forbidden.rules}
        for index, item in enumerate(spec.scenarios or []):
            for name in item.invariants:
                lines.setdefault(name, self._line(("scenarios", index, "invariants", name)))
        return lines

    def _line(self, path: KeyPath) -> int:
        position = self.merged.document.position(path, key=True)
        if position.path != str(self.path):
            position = self.merged.document.position(("extends",), key=True)
        return position.line

    def _report(self, problems: Iterable[Problem]) -> None:
        self.diagnostics += [self._place(problem) for problem in problems]

    def _place(self, problem: Problem) -> Diagnostic:
        position = self._position(problem)
        return Diagnostic.at(
            position,
            problem.message,
            expected=problem.expected,
            found=problem.found,
            suggestion=problem.suggestion,
            help=problem.help,
        )

    def _position(self, problem: Problem) -> SourcePosition:
        path = self._as_written(problem.path)
        return self.merged.document.position(path, key=problem.on_key, offset=problem.offset)

    def _as_written(self, path: KeyPath) -> KeyPath:
        """The path by the author's own keys, where an alias of a check type has other ones."""
        if not self.reader.renamed or "check" not in path:
            return path
        depth = path.index("check") + 1
        data = self.merged.data
        for step in path[:depth]:
            try:
                data = data[step]
            except (KeyError, IndexError, TypeError):
                return path
        names = self.reader.renamed.get(id(data), {})
        if len(path) > depth and path[depth] in names:
            return (*path[:depth], names[str(path[depth])], *path[depth + 1 :])
        return path


def _in_file(problems: Iterable[Problem], repaired: Repaired) -> Iterable[Problem]:
    for problem in problems:
        if not problem.path or problem.path[0] not in repaired.stand_ins:
            yield replace(problem, path=repaired.original(problem.path))
