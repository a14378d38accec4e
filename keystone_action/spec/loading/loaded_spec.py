"""How a spec is run where the format of Keystone specs has no key for it: translations of other formats set this.

A spec's scenarios: one, or one for each record of a dataset or entry of `scenarios`.
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
    """Every function of that name in a Python file of the workspace gets the body `raise NotImplementedError`.
    where: `file:line:column` of the entry."""

    file: str
    function: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class OwnScorers:
    """Scorer classes that a spec's author brings. directory: the folder of their modules, relative to the spec.
    modules: what is imported for them, in that order. places: the name of each scorer that the spec uses, built-in
    ones included → where it is first named."""

    directory: str
    modules: tuple[str, ...]
    places: Mapping[str, SourcePosition]


@dataclass(frozen=True, kw_only=True)
class RunRules:
    """The defaults are the rules of every Keystone spec, whose file can't change them.

    has_expressions: whether `{{ }}` in the spec's texts are expressions; those of agents always are.
    names_keys: whether the file is written in the keys of a Keystone spec, so that messages may name these.
    id_from_name: the id is made from a name that nobody promised to be unique; it is numbered where it is taken.
    agents: the agents of cells that do not run the spec's, by the values of the parameters `agent_parameters`; by the
    scenario's id when there are none of these.
    agent_gets_context: whether a `python` agent gets parameters and services beside its input.
    agent_retries: how often an agent that failed (raised, ended with another code than 0, took too long) runs again.
    stubs: functions that lose their body once the fixtures are there.
    workspace_left_out, agent_left_out: names and globs of names that are not copied into the workspace, or with the
    agent's own code.
    only_gates: nothing gives credit, so no cell passes.
    every_check_decides: a cell passes exactly when every check that was not skipped does. The composite decides
    nothing then, unless the call gives a threshold.
    fail_fast: no further cell of this spec starts after one that did not pass.
    own_scorers: scorer classes that are looked up before the first agent starts.
    without_variable: what to do instead of setting a variable of the environment that this spec asks for, in words.
    further_roots: directories outside the repository, ours alone, that absolute paths of the author's may lead into.
    """

    has_expressions: bool = True
    names_keys: bool = True
    id_from_name: bool = False
    agents: Mapping[tuple[str, ...], Agent] = field(default_factory=dict)
    agent_parameters: tuple[str, ...] = ()
    agent_gets_context: bool = True
    agent_retries: int = 0
    stubs: tuple[Stub, ...] = ()
    workspace_left_out: tuple[str, ...] = ()
    agent_left_out: tuple[str, ...] = ()
    only_gates: bool = False
    every_check_decides: bool = False
    fail_fast: bool = False
    own_scorers: OwnScorers | None = None
    without_variable: str = ""
    further_roots: tuple[Path, ...] = ()

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
    """One task with its invariants.

    id: unique in the spec, safe as a file name. prompt: replaces the task's, None = the task's own. record: what
    `{{ record.… }}` gives (id, input, expected, metadata, tags), None without dataset and scenarios. invariants: added
    to the spec's. where: `file:line` of a dataset's record. fields: what the file calls the fields, or columns, that it
    has for it.
    """

    id: str
    prompt: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] | None = None
    invariants: Mapping[str, Invariant] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    where: str = ""
    fields: tuple[str, ...] = field(default=(), compare=False)


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


def enclosing_root(directory: Path) -> Path:
    """The directory that no path of a spec may leave: the repository around it; without one, our own working
    directory when the spec is below it, else the spec's directory."""
    for candidate in (directory, *directory.parents):
        if (candidate / ".git").exists():
            return candidate
    here = Path.cwd().resolve()
    return here if directory.is_relative_to(here) else directory
