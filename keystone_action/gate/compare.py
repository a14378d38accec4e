"""A change must not weaken its own gate unseen (contract, 5.4): the specs of a call beside those of the base commit.

`spec_from: head` runs the specs as they are and says what differs; `spec_from: base` runs those of the base commit,
with the files that they name, on the workspace and the agent of the checkout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.files.git import commands as git
from keystone_action.files.git.commands import GitFailed
from keystone_action.files.git.commits import submodules_of
from keystone_action.gate.base_commit import BaseCommit, BaseFiles, open_base, unreadable_base
from keystone_action.gate.findings import GateFinding, Level
from keystone_action.gate.named_files import (
    changed_files,
    changed_recordings,
    counted_lines,
    file_finding,
    named_files,
    same_content,
    shown_files,
    steering_findings,
)
from keystone_action.gate.spec_changes import first_sentences, spec_findings
from keystone_action.gate.workflow_files import workflow_changes
from keystone_action.runner.preflight import GatedSpecs
from keystone_action.runner.specs import discover_specs, load_paths, load_specs, pointers_named
from keystone_action.scoring.differences import SpecChange, SpecChanges
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.discovery import discover
from keystone_action.spec.loading.loaded_spec import LoadedSpec

if TYPE_CHECKING:
    from keystone_action.gate.change_base import ChangeBase
    from keystone_action.gate.workflow_files import WorkflowFile
    from keystone_action.options.model import Options

_NO_BASE = (
    "on a branch that is pushed, check out with `fetch-depth: 0`, which tells where it left the default one; where no"
    " base is meant, leave spec-from out"
)


@dataclass(frozen=True, slots=True)
class _Side:
    """The specs of one commit by their paths relative to the root; errors of those that can't be loaded. submodules:
    path → commit; of those of the base only the names are known."""

    root: Path
    specs: dict[str, LoadedSpec]
    errors: dict[str, SpecError]
    submodules: Mapping[str, str] = field(default_factory=dict)

    def file(self, relative: str) -> Path:
        return self.root / relative


def gated_specs(options: Options, compared: ChangeBase) -> GatedSpecs:
    """All specs of a call. Raises UsageError and SpecError as `load_specs` does; with `spec_from: base` also when there
    is not a base commit, it can't be read, or it has none of these specs."""
    base = compared.commit
    if options.cells.spec_from == "base":
        if base is None:
            why = compared.problem or "there is no base commit"
            raise UsageError(f"specs can't be taken from the base commit: {why}", help=_NO_BASE)
        return _from_base(options, base, compared.workflow)
    specs = load_specs(options)
    if base is None:
        problem = compared.problem
        return GatedSpecs(_uncompared(specs, problem), SpecChanges(None, "", problem=problem) if problem else None)
    try:
        files = _open_base(base, options)
        before = _side_of_base(base, files, options)
    except UsageError as error:
        changes = SpecChanges(base.sha, base.name, problem=error.sentences)
        return GatedSpecs(_uncompared(specs, error.message), changes)
    by_path = {_relative(one.path, files.root, options): one for one in specs}
    after = _Side(files.root, by_path, {}, submodules=_submodules_of_head(files))
    changes = SpecChanges(base.sha, base.name, specs=_changes(before, after, options), incomplete=base.incomplete)
    moved = _moved_specs(before, after)
    specs = [
        replace(one, changed_recordings=changed_recordings(before.specs.get(moved.get(name, name)), one))
        for name, one in by_path.items()
    ]
    return GatedSpecs(
        _uncompared(specs, base.incomplete), _with_workflows(changes, files, base, compared.workflow, options)
    )


def _uncompared(specs: list[LoadedSpec], why: str) -> list[LoadedSpec]:
    """With why it is not known whether the change touched their recordings; as they are where it is known."""
    return [replace(one, recordings_uncompared=why) for one in specs] if why else specs


def _from_base(options: Options, base: BaseCommit, workflow: WorkflowFile | None) -> GatedSpecs:
    files = _open_base(base, options)
    before = _side_of_base(base, files, options)
    if before.errors:
        found = [_at_head(one, files) for error in before.errors.values() for one in error.diagnostics]
        raise SpecError([replace(one, message=f"at the base commit: {one.message}") for one in found])
    if not before.specs:
        raise UsageError(
            f"there is no spec in {', '.join(options.cells.specs)} at {base.name} ({base.sha[:12]})",
            help="spec-from: base runs only what was there before; use spec-from: head for the first ones",
        )
    if pointers := sorted(pointers_named(before.specs.values())):
        name = pointers[0].relative_to(files.top).as_posix() if pointers[0].is_relative_to(files.top) else pointers[0]
        raise UsageError(
            f"{name} is a pointer of Git LFS at {base.name}, and spec-from: base takes files from commits",
            help="keep what specs name out of Git LFS, or use spec-from: head",
        )
    after = _side_of_head(files, options)
    changes = SpecChanges(base.sha, base.name, "base", _changes(before, after, options))
    changes = _with_workflows(changes, files, base, workflow, options)
    return GatedSpecs([_on_head(one, name, files, after) for name, one in before.specs.items()], changes)


def _with_workflows(
    changes: SpecChanges, files: BaseFiles, base: BaseCommit, workflow: WorkflowFile | None, options: Options
) -> SpecChanges:
    if workflow is None:
        return changes
    try:
        found = workflow_changes(files, workflow, options.caller.directory, base.remote)
    except (GitFailed, OSError) as error:
        why = f"whether its workflow changed is not known ({' '.join(str(error).split())})"
        return replace(changes, incomplete="; ".join(filter(None, (changes.incomplete, why))))
    return replace(changes, workflows=tuple(found))


def _open_base(base: BaseCommit, options: Options) -> BaseFiles:
    files = open_base(base, options.caller.directory)
    try:
        files.find(options.cells.specs, files.directory.relative_to(files.top).as_posix())
    except (GitFailed, OSError) as error:
        raise unreadable_base(base, error) from None
    return files


def _side_of_base(base: BaseCommit, files: BaseFiles, options: Options) -> _Side:
    """Raises UsageError when an object is missing."""
    there = options.having(directory=files.directory, specs=files.patterns)
    try:
        paths = discover(files.patterns, files.directory, options.caller.dialects, tolerate_missing=True)
    except UsageError:
        return _Side(files.top, {}, {})
    try:
        files.complete(paths, options.caller.dialects)
    except (GitFailed, OSError) as error:
        raise unreadable_base(base, error) from None
    specs, errors = load_paths(paths, there)
    names = {path: Path(os.path.abspath(path)).relative_to(files.top).as_posix() for path in paths}  # noqa: PTH100
    return _Side(
        files.top,
        {names[one.path]: one for one in specs},
        {names[path]: error for path, error in errors.items()},
        files.tree.submodules,
    )


def _side_of_head(files: BaseFiles, options: Options) -> _Side:
    """The specs of the checkout, which are only looked at: what is wrong with them decides nothing."""
    try:
        paths = discover_specs(options)
    except UsageError:
        paths = []
    try:
        specs, errors = load_paths(paths, options)
    except UsageError:
        specs, errors = [], {}
    return _Side(
        files.root,
        {_relative(one.path, files.root, options): one for one in specs},
        {_relative(path, files.root, options): error for path, error in errors.items()},
        submodules=_submodules_of_head(files),
    )


def _submodules_of_head(files: BaseFiles) -> dict[str, str]:
    if not files.tree.submodules:
        return {}
    try:
        return submodules_of(git.run_git("ls-tree", "-r", "-z", "HEAD", directory=files.root))
    except GitFailed:
        return {}


def _relative(path: Path, root: Path, options: Options) -> str:
    """A spec's path relative to the root; one outside of it stays as it is, and counts as added."""
    directory = options.caller.directory
    place = Path(os.path.normpath(directory.resolve() / os.path.relpath(path, directory)))
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)


def _on_head(loaded: LoadedSpec, relative: str, files: BaseFiles, head: _Side) -> LoadedSpec:
    """A spec of the base commit, to be run on the checkout's workspace and agent.

    What it keeps from the agent is kept from it in the checkout too, with what the checkout's own version hides.
    """
    hidden = {files.root / path.relative_to(files.top) for path in loaded.withheld if path.is_relative_to(files.top)}
    own = head.specs.get(relative)
    run = replace(
        loaded,
        path=files.root / relative,
        checkout_directory=(files.root / relative).parent,
        withheld=loaded.withheld | hidden | (own.withheld if own is not None else frozenset()),
        # The agent that runs is the checkout's.
        warnings=tuple(_at_head(one, files) for one in loaded.warnings if one not in loaded.code_warnings),
        code_warnings=(),
    )
    for text in (run.spec.workspace, run.spec.agent.dir):
        if text is not None and "{{" not in text:
            run.code_path(text)
    return run


def _at_head(diagnostic: Diagnostic, files: BaseFiles) -> Diagnostic:
    path = Path(diagnostic.path)
    if not path.is_relative_to(files.top):
        return diagnostic
    texts = {
        name: getattr(diagnostic, name).replace(str(files.top), str(files.root))
        for name in ("message", "expected", "found", "help")
    }
    return replace(diagnostic, path=str(files.root / path.relative_to(files.top)), **texts)


def _changes(before: _Side, after: _Side, options: Options) -> tuple[SpecChange, ...]:
    """Joined by path; a spec that moved is joined by its id. The one that can weaken the gate most comes first."""
    found: list[tuple[Level, SpecChange]] = []
    shown = options.caller.directory.resolve()
    names = {*before.specs, *before.errors}
    moved = _moved_specs(before, after)
    for name in (*after.specs, *after.errors):
        there = name if name in names else moved.get(name)
        path = os.path.relpath(after.file(name), shown)
        if there is None:
            found.append((Level.NONE, SpecChange(path, "added")))
        else:
            said = _compare(before, there, after, name)
            moved_from = [f"moved from {there}"] if there != name else []
            if said or moved_from:
                sentences = first_sentences(said.of_spec, said.beside)
                found.append((said.level, SpecChange(path, "changed", (*moved_from, *sentences))))
    gone = names - {*after.specs, *after.errors} - set(moved.values())
    found += [(Level.TAKEN, SpecChange(os.path.relpath(after.file(name), shown), "deleted")) for name in sorted(gone)]
    return tuple(
        change for _, change in sorted(found, key=lambda one: (one[0], one[1].change != "deleted", one[1].path))
    )


def _moved_specs(before: _Side, after: _Side) -> dict[str, str]:
    """Path here → path there, of specs with one id."""
    gone = {one.spec.id: name for name, one in before.specs.items() if name not in {*after.specs, *after.errors}}
    new = [name for name in after.specs if name not in before.specs and name not in before.errors]
    return {name: gone[spec_id] for name in new if (spec_id := after.specs[name].spec.id) in gone}


@dataclass(frozen=True, slots=True)
class _Said:
    """What became of one spec. beside: of the files that it names."""

    of_spec: Sequence[GateFinding] = ()
    beside: Sequence[GateFinding] = ()

    def __bool__(self) -> bool:
        return bool(self.of_spec or self.beside)

    @property
    def level(self) -> Level:
        return min((one.level for one in (*self.of_spec, *self.beside)), default=Level.NONE)


def _compare(before: _Side, there: str, after: _Side, here: str) -> _Said:
    if not after.file(here).is_file():  # opening a FIFO would wait for ever
        return _Said([GateFinding(Level.TAKEN, "the spec is not a regular file in this commit")])
    try:
        return _differences(before, there, after, here)
    except OSError as error:
        return _Said([GateFinding(Level.TAKEN, f"its files can't be compared: {error.filename}: {error.strerror}")])


def _differences(before: _Side, there: str, after: _Side, here: str) -> _Said:
    old, new = before.specs.get(there), after.specs.get(here)
    submodules = [GateFinding(Level.LOWERED, text) for text in _changed_submodules(before, after, new)]
    same_text = same_content(before.file(there), after.file(here))
    if old is None or new is None:
        lines = "" if same_text else f" ({counted_lines(before.file(there), after.file(here))})"
        errors = before.errors.get(there) or after.errors.get(here)
        where = "the base commit" if old is None else "this commit"
        why = errors.diagnostics[0].message if errors is not None else "no reason"
        return _Said(
            [GateFinding(Level.TAKEN, f"the spec{lines} can't be read as it is at {where}: {why}")], submodules
        )
    meant = spec_findings(old, new, places=(before.root, after.root))
    files = changed_files(named_files(old, before.root), named_files(new, after.root))
    readable = changed_files(*shown_files(old, (before.root, after.root)))
    beside = [
        *submodules,
        *file_finding("changed files", files),
        *file_finding("changed files in resources.readable, always the checkout's own", readable),
        *steering_findings(old, new),
    ]
    if not meant and not same_text:
        meant = [GateFinding(Level.NONE, "only its text changed, not what it means")]
    return _Said(meant, beside)


def _changed_submodules(before: _Side, after: _Side, loaded: LoadedSpec | None) -> Iterator[str]:
    """Those that hold what a spec names; all, when nobody knows what it names. What is in them is in no commit of the
    repository, so that a base that needs them can't be read."""
    named = None if loaded is None else named_files(loaded, after.root).files
    for path, commit in before.submodules.items():
        now = after.submodules.get(path)
        if now != commit and (named is None or any(name.startswith(f"{path}/") for name in named)):
            yield f"submodule {path} {commit[:12]} → {now[:12] if now else 'none'}"
