"""A spec file → everything that the rest of the house needs to know of it, or every error in it.

loaded = load(Path("evals/keystone.yaml"), check_types)
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from keystone_action.errors import UsageError
from keystone_action.spec.expressions import Leaf, leaves
from keystone_action.spec.loading.diagnostics import Diagnostic, Position, SpecError, listing
from keystone_action.spec.loading.entrypoints import check_entrypoint
from keystone_action.spec.loading.extends import Merged, read_merged
from keystone_action.spec.loading.field_rules import FieldRules
from keystone_action.spec.loading.names import Scope, check_text, parameters_used
from keystone_action.spec.loading.problems import Problem, translate
from keystone_action.spec.loading.repair import Repaired, repair, whole
from keystone_action.spec.loading.rules import check_rules, find_unsupported, service_names_of
from keystone_action.spec.loading.run_rules import RunRules
from keystone_action.spec.loading.text_files import is_file
from keystone_action.spec.loading.translation import TranslationSource
from keystone_action.spec.loading.yaml_loader import KeyPath
from keystone_action.spec.models.base import CheckModel
from keystone_action.spec.models.checks import CheckReader
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.spec import Spec
from keystone_action.spec.models.task import PromptFile
from keystone_action.spec.scenarios import Scenario, inline_scenarios, only_scenario

if TYPE_CHECKING:
    from keystone_action.spec.loading.translation import Clone, Dialects, Translation

_KEYS_SHOWN = 8
_MOST_LOOKS = 8
"""At a spec from which what is wrong was taken: each look takes something more."""


@dataclass(frozen=True)
class LoadedSpec(RunRules):
    """A spec that can be run, with the rules by which it is.

    directory: what the author's paths are relative to. sha256: of the file and everything it extends. lines:
    invariant, or `forbidden.RULE` → line of its name in the file (for one that a base brings: of `extends`).
    author_files: every existing file and directory that the spec names, resolved. withheld: those that the agent
    may not see, the spec and its bases among them. scenarios: at least one. parameter_names: declared by matrix,
    include or a scenario, or used by an expression.
    prompt: the task's prompt; prompt_is_literal: it comes from a file, so it is never interpolated. library: modules
    that Python code in a sandbox finds after all others, as a zip archive; empty where there are none.
    checkout_directory: what `workspace` and `agent.dir` are relative to when the spec comes from another commit than
    they do; None = `directory`. code_warnings: those of the warnings that are about the files of `agent.dir`.
    changed_recordings: names of files in `recordings` that are not what they are at the base commit.
    recordings_uncompared: why that is not known, where it should be; empty otherwise.
    """

    spec: Spec
    path: Path
    directory: Path
    sha256: str
    warnings: tuple[Diagnostic, ...]
    lines: Mapping[str, int]
    author_files: tuple[Path, ...]
    withheld: frozenset[Path]
    scenarios: tuple[Scenario, ...]
    parameter_names: frozenset[str]
    prompt: str
    prompt_is_literal: bool
    library: Callable[[], bytes] = bytes
    checkout_directory: Path | None = None
    code_warnings: tuple[Diagnostic, ...] = ()
    changed_recordings: frozenset[str] = frozenset()
    recordings_uncompared: str = ""

    @property
    def recordings(self) -> str:
        """The folder of its cells' recordings, relative to `directory` (to read them) or `code_directory` (to write
        them), there or not."""
        gateway = self.spec.gateway
        named = gateway.recordings if isinstance(gateway, Gateway) else None
        return named or f"recordings/{self.spec.id}"

    @property
    def code_directory(self) -> Path:
        """What `workspace` and `agent.dir` are relative to."""
        return self.checkout_directory or self.directory

    def code_path(self, text: str) -> Path:
        """The folder that `workspace` or `agent.dir` names. Raises UsageError when it is none of the checkout's: a
        spec of another commit was checked where everything was in order."""
        if self.checkout_directory is None:
            return self.directory / text
        # The folder that the spec was in may not be there any more.
        path = Path(os.path.normpath(self.checkout_directory / text))
        if not path.is_dir() or not path.resolve().is_relative_to(enclosing_root(self.checkout_directory)):
            raise UsageError(
                f"{self.path}: {text!r} of the spec, which comes from the base commit, is no folder of this checkout",
                help="workspace and agent.dir are taken from the checkout, also with spec-from: base",
            )
        return path

    @property
    def warning_sentences(self) -> tuple[str, ...]:
        """The warnings with their place, on one line each."""
        return tuple(f"{one.path}:{one.line}:{one.column}: {one.sentence}" for one in self.warnings)


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
            _refuse_foreign_file(merged)
        loading = _Loading(path, directory, root, merged, reader, frozenset(given_parameters), translation)
        found = loading.run()
        return found if dialects is None else replace(found, library=dialects.library)


def _refuse_foreign_file(merged: Merged) -> None:
    """Raises SpecError with one error for a file of something else: five missing keys, and unknown ones beside them,
    would say less."""
    required = [name for name, field in Spec.model_fields.items() if field.is_required()]
    if merged.problems or not isinstance(merged.data, dict):
        return  # what else is wrong may have hidden what the file is
    if not set(merged.data).isdisjoint((*required, "extends")):
        return
    place = merged.document.place_of(merged.document.node)
    keys = listing(str(key) for key in list(merged.data)[:_KEYS_SHOWN])
    raise SpecError(
        [
            Diagnostic.at(
                place,
                f"this is not a Keystone spec: it has none of {listing(required)}",
                found=f"the keys {keys}" if keys else "an empty mapping",
                help="specs, Touchstone cases and AgenticAssure suites are read; `keystone init` writes a first spec",
            )
        ]
    )


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


def enclosing_root(directory: Path) -> Path:
    """The directory that no path of a spec may leave: the repository around it; without one, our own working
    directory when the spec is below it, else the spec's directory."""
    for candidate in (directory, *directory.parents):
        if (candidate / ".git").exists():
            return candidate
    here = Path.cwd().resolve()
    return here if directory.is_relative_to(here) else directory


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
        self.warnings += [self._place(one) for leaf in texts for one in fields.warn(leaf)]
        of_code = tuple(self._place(one) for one in check_entrypoint(scope, self.directory, self.root))
        self.warnings += of_code
        return replace(self._make_loaded_spec(spec, scope, texts, fields, prompt), code_warnings=of_code)

    def _valid_spec(self) -> tuple[Spec | None, Repaired]:
        """The spec; or, after reporting what is wrong, what is left of it without that. What is left is looked at
        again, as often as something new is found: rules about several fields hold for those that are right alone."""
        repaired = whole(self.merged.data)
        for _ in range(_MOST_LOOKS):
            try:
                return self._validate(repaired.data), repaired
            except ValidationError as error:
                problems = translate(error, repaired.data, self.reader.found, self.reader.renamed)
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
        from keystone_action.spec.loading.text_files import read_text

        path = self.directory / prompt.file
        if not is_file(path) or not path.resolve().is_relative_to(self.root):
            return ""
        try:
            text = read_text(path, str(self.path.parent / prompt.file))
        except SpecError as error:
            self.diagnostics += error.diagnostics
            return ""
        if not text.strip():
            self._report([Problem(("task", "prompt", "file"), "the prompt's file is empty")])
        return text

    def _make_loaded_spec(
        self, spec: Spec, scope: Scope, texts: list[Leaf], fields: FieldRules, prompt: str
    ) -> LoadedSpec:
        expressions = texts if self.rules.has_expressions else []
        used = {name for leaf in expressions for name in parameters_used(leaf)}
        of_scenarios = {name for scenario in scope.scenarios for name in scenario.params}
        return LoadedSpec(
            spec=spec,
            path=self.path,
            directory=self.directory,
            sha256=self.merged.sha256,
            warnings=tuple(dict.fromkeys(self.warnings)),
            lines=self._lines(spec),
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

    def _position(self, problem: Problem) -> Position:
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
