"""A spec that can be run: its models, its scenarios, its files, and the rules of its run.

A translation of another format sets rules for which the format of Keystone specs has no key (`RunRules`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import UsageError
from keystone_action.spec.loading.diagnostics import Diagnostic
from keystone_action.spec.models.gateway import Gateway
from keystone_action.spec.models.spec import Invariant, ScenarioItem, Spec

if TYPE_CHECKING:
    from keystone_action.spec.loading.diagnostics import SourcePosition
    from keystone_action.spec.models.agents import Agent


@dataclass(frozen=True, slots=True)
class Stub:
    """Every function of that name in a Python file of the workspace gets the body `raise NotImplementedError`."""

    file: str
    function: str
    where: str = ""
    """`file:line:column` of the entry in the spec."""


@dataclass(frozen=True, slots=True)
class OwnScorers:
    """Scorer classes that a spec's author brings."""

    directory: str
    """The folder of their modules, relative to the spec."""
    modules: tuple[str, ...]
    """The modules that are imported for them, in this order."""
    places: Mapping[str, SourcePosition]
    """The name of each scorer that the spec uses, built-in ones too → where it is first named."""


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """How a spec is run. The defaults are the rules of every Keystone spec, whose file can't change them."""

    has_expressions: bool = True
    """Whether `{{ }}` in the spec's texts are expressions. In the texts of agents they always are."""
    names_keys: bool = True
    """Whether the file is written in the keys of a Keystone spec, so that messages may name them."""
    id_from_name: bool = False
    """Whether the id is made from a name that need not be unique; where the id is taken, a number is added."""
    agents: Mapping[tuple[str, ...], Agent] = field(default_factory=dict)
    """The agents of cells that don't run the spec's own: by the values of `agent_parameters`, or by the scenario's id
    when there are no such parameters."""
    agent_parameters: tuple[str, ...] = ()
    agent_gets_context: bool = True
    """Whether a `python` agent gets parameters and services beside its input."""
    agent_retries: int = 0
    """How often an agent runs again that raised, ended with a code other than 0, or took too long."""
    stubs: tuple[Stub, ...] = ()
    """Functions that lose their body after the fixtures have been applied."""
    workspace_left_out: tuple[str, ...] = ()
    """Names, and globs of names, that are not copied into the workspace."""
    agent_left_out: tuple[str, ...] = ()
    """The same for the agent's own code."""
    only_gates: bool = False
    """Whether nothing gives credit, so that no cell passes."""
    every_check_decides: bool = False
    """Whether a cell passes exactly when every check passes that was not skipped. The composite decides nothing then,
    unless the call gives a threshold."""
    fail_fast: bool = False
    """Whether no further cell of this spec starts after one that did not pass."""
    own_scorers: OwnScorers | None = None
    """Scorer classes that are looked up before the first agent starts."""
    advice_on_missing_variable: str = ""
    """What the author can do instead of setting a variable of the environment that this spec needs; empty when nothing
    else helps."""
    further_roots: tuple[Path, ...] = ()
    """Directories outside the repository, which only we can enter, that absolute paths of the author's may lead
    into."""

    def agent_for(self, scenario: str, params: Mapping[str, Any]) -> Agent | None:
        """The agent of a cell; None where it is the spec's."""
        if not self.agents:
            return None
        names = self.agent_parameters
        return self.agents.get(tuple(str(params.get(name)) for name in names) if names else (scenario,))


RECORD = ("id", "input", "expected", "metadata", "tags")
"""The fields of a record."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One task with its invariants."""

    id: str
    """Unique in the spec, and safe as a file name."""
    prompt: str | None = None
    """Replaces the prompt of the task; None = the task's own."""
    params: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    """What `{{ record.… }}` gives (id, input, expected, metadata, tags); None without `dataset` and `scenarios`."""
    invariants: Mapping[str, Invariant] = field(default_factory=dict)
    """Added to the spec's."""
    tags: tuple[str, ...] = ()
    where: str = ""
    """`file:line` of a dataset's record."""
    fields: tuple[str, ...] = field(default=(), compare=False)
    """How the file calls the fields, or columns, that it has for this scenario."""


def inline_scenarios(spec: Spec) -> Iterator[Scenario]:
    """Those of `scenarios`, in order; entries without an id are `scenario-1`, `scenario-2`, … by their place."""
    uses_record = isinstance(spec.task.prompt, str) and re.search(r"(?<!\\)\{\{\s*record\b", spec.task.prompt)
    for index, item in enumerate(spec.scenarios or []):
        identity = item.id or f"scenario-{index + 1}"
        yield Scenario(
            id=identity,
            prompt=_prompt(item, uses_record=bool(uses_record)),
            params=item.params,
            record=_record(identity, item),
            fields=_given(item),
            invariants=item.invariants,
            tags=tuple(item.tags),
        )


def _prompt(item: ScenarioItem, *, uses_record: bool) -> str | None:
    if item.prompt is not None:
        return item.prompt
    return item.input if isinstance(item.input, str) and not uses_record else None


def _given(item: ScenarioItem) -> tuple[str, ...]:
    has = {"id", *(name for name in RECORD if name in item.model_fields_set)}
    return tuple(name for name in RECORD if name in has or (name == "input" and item.prompt is not None))


def _record(identity: str, item: ScenarioItem) -> dict[str, Any]:
    return {
        "id": identity,
        "input": item.prompt if item.input is None else item.input,
        "expected": item.expected,
        "metadata": item.metadata,
        "tags": list(item.tags),
    }


def only_scenario(spec: Spec) -> Scenario:
    """The one of a spec that declares none: it has the spec's id."""
    return Scenario(id=spec.id)


def safe_id(text: str) -> str:
    """A record's id as a scenario's: what file names don't take becomes `-`; an empty text when nothing is left."""
    return _UNSAFE.sub("-", text).strip("-.")[:128]


@dataclass(frozen=True)
class LoadedSpec(RunRules):
    """A spec that can be run, and the rules by which it runs."""

    spec: Spec
    path: Path
    directory: Path
    """What the author's paths are relative to."""
    sha256: str
    """Of the file and everything that it extends."""
    warnings: tuple[Diagnostic, ...]
    lines: Mapping[str, int]
    """Invariant, or `forbidden.RULE` → line of its name in the file; for one that a base file brings, the line of
    `extends`."""
    author_files: tuple[Path, ...]
    """Every existing file and directory that the spec names, resolved."""
    withheld: frozenset[Path]
    """The files that the agent may not see; the spec and its bases are among them."""
    scenarios: tuple[Scenario, ...]
    """At least one."""
    parameter_names: frozenset[str]
    """Declared by the matrix, `include` or a scenario, or used by an expression."""
    prompt: str
    """The text of the task's prompt."""
    prompt_is_literal: bool
    """Whether the prompt comes from a file, so that no expression in it is filled in."""
    library: Callable[[], bytes] = bytes
    """Gives modules that Python code in a sandbox finds after all others, as a zip archive; empty when there are
    none."""
    checkout_directory: Path | None = None
    """What `workspace` and `agent.dir` are relative to when the spec comes from another commit than they do; None =
    `directory`."""
    sql_files: tuple[Path, ...] = ()
    """The scripts of sql fixtures, and the files that they include: these may be larger than the memory, and what is
    included the agent may not see."""
    code_warnings: tuple[Diagnostic, ...] = ()
    """Those of the warnings that are about the files of `agent.dir`."""
    changed_recordings: frozenset[str] = frozenset()
    """Names of files in `recordings` that differ from those of the base commit."""
    recordings_uncompared: str = ""
    """Why `changed_recordings` is not known, when it should be; empty otherwise."""

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
        """The folder that `workspace` or `agent.dir` names. Raises UsageError when the checkout has no such folder: a
        spec of another commit was checked against the files of that commit."""
        if self.checkout_directory is None:
            return self.directory / text
        # The folder that the spec was in may not be there any more.
        path = Path(os.path.normpath(self.checkout_directory / text))
        if not path.is_dir() or not path.resolve().is_relative_to(enclosing_root(self.checkout_directory)):
            raise UsageError(
                f"{self.path}: {text!r} of the spec, which comes from the base commit, is not a folder of this "
                "checkout",
                help="workspace and agent.dir are taken from the checkout, also with spec-from: base",
            )
        return path

    @property
    def warning_sentences(self) -> tuple[str, ...]:
        """The warnings with their place, on one line each."""
        return tuple(f"{one.path}:{one.line}:{one.column}: {one.sentence}" for one in self.warnings)


def enclosing_root(directory: Path) -> Path:
    """The directory that no path of a spec may leave: the repository around it; without one, our own working
    directory when the spec is below it, else the spec's directory."""
    for candidate in (directory, *directory.parents):
        if (candidate / ".git").exists():
            return candidate
    here = Path.cwd().resolve()
    return here if directory.is_relative_to(here) else directory
