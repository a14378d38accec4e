"""The copy that tests run on: the agent's work, with everything that decides about tests as the author has it.

In this order: changes to protected files are taken back, the hidden files are put in, and a directory of ours with a
name that nobody can have guessed is made for what a runner writes. All of it after the last process of the agent's.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from pydantic import Field
from pydantic_core import PydanticCustomError

from keystone_action.errors import raise_unless_agent
from keystone_action.files.copies import give_to_owner
from keystone_action.files.globs import RestoredFiles, let_in, matcher, put_file, restore_protected
from keystone_action.files.paths import PathProblem, display_path, read_inside
from keystone_action.invariants.check import Outcome
from keystone_action.invariants.test_runs.stand_ins import (
    NOTES,
    PROGRAMS,
    Held,
    ModuleRule,
    guarded_command,
    guarded_environment,
    passed_over_sentence,
    read_notes,
    split_search_path,
    taken_away_sentence,
    write_order,
)
from keystone_action.spec.globs import escape
from keystone_action.spec.models.fields import AuthorPath, StrictModel, TextOrMapping, WorkspacePath

if TYPE_CHECKING:
    from keystone_action.files.snapshot import Change, FileState
    from keystone_action.invariants.check import CheckContext
    from keystone_action.sandbox.protocol import Sandbox

_ANYWHERE = (
    "conftest.py", "pytest.ini", "tox.ini", "sitecustomize.py", "usercustomize.py", "*.pth",
    # Other spellings of the same: configuration, start-up modules as packages or byte code, cached byte code (which an
    # interpreter may take, unchecked, for a file that was restored), and metadata that makes pytest load a plug-in,
    # which Python finds in upper case, too.
    ".pytest.ini", "pytest.toml", ".pytest.toml", "sitecustomize.*", "usercustomize.*", "sitecustomize/__init__.*",
    "usercustomize/__init__.*", "*.pyc",
    "*.[dD][iI][sS][tT]-[iI][nN][fF][oO]/entry_points.txt", "*.[eE][gG][gG]-[iI][nN][fF][oO]/entry_points.txt",
)  # fmt: skip
_FOLDERS = re.compile(r"sitecustomize|usercustomize|.*\.(dist|egg)-info", re.IGNORECASE | re.DOTALL)
"""Names of folders in which the patterns above protect a file: a link of such a name leads to a file of any path."""
_COMMENT_BYTES = 1 << 16
_NO_CODE = re.compile(rb"[ \t\f]*(#.*)?")
_AT_THE_ROOT = ("pytest", "_pytest", "pluggy", "iniconfig", "unittest")
"""Modules that `python3 -m pytest` and `-m unittest` would take from the workspace instead of their own."""
PROTECTED = (
    *(f"**/{name}" for name in _ANYWHERE),
    *(f"{name}.py" for name in _AT_THE_ROOT),
    *(f"{name}/__init__.*" for name in _AT_THE_ROOT),
)
"""Always protected (spec.md 5.3)."""


class Placement(StrictModel):
    """A hidden file, and where it goes."""

    src: Annotated[str, Field(min_length=1), AuthorPath("file", withheld=True)]
    """The hidden file, relative to the spec.

    Example: `hidden/test_totals.py`
    """
    dest: Annotated[str, Field(min_length=1), WorkspacePath()]
    """Where it goes in the workspace; with a `/` at its end, under its own name there.

    Example: `tests/`
    """


Inject = TextOrMapping[Annotated[str, Field(min_length=1), AuthorPath("file", withheld=True)], Placement]
Protect = Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]


def destinations(inject: Sequence[str | Placement]) -> dict[str, str]:
    """Where each hidden file goes → the author's path; a bare one lands at the workspace's root under its own name.

    Raises PydanticCustomError when two go to one place.
    """
    found: dict[str, str] = {}
    for entry in inject:
        source, wanted = (entry.src, entry.dest) if isinstance(entry, Placement) else (entry, "./")
        name = PurePosixPath(source).name
        place = str(PurePosixPath(wanted) / name if wanted.endswith("/") else PurePosixPath(wanted))
        if place in found:
            raise PydanticCustomError(
                "inject", "{message}", {"message": f"two files are injected at {place}: {found[place]} and {source}"}
            )
        found[place] = source
    return found


class CannotPrepare(Exception):  # noqa: N818 - an outcome: the check fails
    """The agent left something that tests can't be put into; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class GradedCopy:
    """A copy of the workspace that is ready for tests."""

    sandbox: Sandbox
    private: str
    """Our directory in it, relative."""
    taken_back: RestoredFiles
    """Changes to protected files that were undone."""
    injected: Mapping[str, bytes]
    untrusted: frozenset[str]
    """Files that the agent added or changed and that are still as it left them."""
    originals: Path | None
    guard: Path | None = None
    """Where the import guard is; None without one."""
    allowed: tuple[str, ...] = ()
    """The files that the guard lets be."""
    planted: tuple[str, ...] = ()
    """Modules of the agent's that were taken out."""
    held: tuple[str, ...] = ()
    """Modules of Python that have to be what runs."""
    rivals: Mapping[str, str] = field(default_factory=dict)
    """Files of the agent's that were taken away because they would have run instead of another one → that one."""
    trusted: tuple[str, ...] = ()
    """Folders in it, as code inside names them, that are wholly the author's and hold the author's own pytest."""

    @property
    def inside(self) -> str:
        """Our directory, as code in the sandbox names it."""
        return str(PurePosixPath(self.sandbox.workspace_inside) / self.private)

    def authors(self, path: str) -> bytes | None:
        """The author's bytes at a path: injected, or of the snapshot; None where there is nothing of the author's."""
        if path in self.injected or self.originals is None:
            return self.injected.get(path)
        try:
            return read_inside(self.originals, path)
        except PathProblem:
            return None

    def write(self, name: str, content: bytes) -> str:
        """Put a file of ours into our directory; returns its path inside."""
        place = self.sandbox.workspace / self.private / name
        place.write_bytes(content)
        give_to_owner(self.sandbox.workspace, place)
        return f"{self.inside}/{name}"

    @property
    def details(self) -> dict[str, Any]:
        """For results.json: what of the agent's was undone."""
        found = {"restored": list(self.taken_back.restored), "removed": list(self.taken_back.removed)}
        return {name: paths[:100] for name, paths in found.items() if paths}

    def guarded_environment(
        self, environment: Mapping[str, str], keys: str | None = None, node_keys: str | None = None
    ) -> tuple[dict[str, str], list[str]]:
        """The environment for a command whose interpreters take no module from the workspace that they have already,
        and what its PYTHONPATH has in the workspace: the guard sees to that. keys, node_keys: the files of
        keys for runs of unittest and of node's tests, None where they are not recorded. Blocks."""
        outside, inside = split_search_path(environment.get("PYTHONPATH"), self.sandbox.workspace_inside)
        if self.guard is None:
            return dict(environment), inside
        write_order(
            self.guard,
            workspace=self.sandbox.workspace_inside,
            allowed=self.allowed,
            held=self.held,
            injected={path: content for path, content in self.injected.items() if path.endswith(".py")},
            path=inside,
            notes=f"{self.inside}/{NOTES}",
            keys=keys,
            node_keys=node_keys,
        )
        return guarded_environment(environment, self.guard, outside, node=node_keys is not None), inside

    def guarded_command(self, command: str | list[str]) -> str | list[str]:
        """A command whose own assignments to PYTHONPATH have the guard, too."""
        return command if self.guard is None else guarded_command(command, self.guard)

    def with_passed_over(self, outcome: Outcome) -> Outcome:
        """The outcome of a run on this copy, with what of the agent's modules was passed over. Blocks."""
        noted = read_notes(self.sandbox.workspace, f"{self.private}/{NOTES}")
        paths = [path for path in dict.fromkeys([*self.planted, *noted]) if path not in self.rivals]
        if not paths and not self.rivals:
            return outcome
        details = dict(outcome.details)
        for name, found in (("passed_over", paths), ("taken_away", list(self.rivals))):
            if found:
                details[name] = [display_path(path) for path in found[:100]]
        first, newline, rest = outcome.message.partition("\n")
        said = passed_over_sentence(paths) + taken_away_sentence(self.rivals)
        return replace(outcome, message=first + said + newline + rest, details=details)


async def prepare_copy(
    context: CheckContext, inject: Mapping[str, str], protect: Sequence[str], rule: ModuleRule | None = None
) -> GradedCopy:
    """A fresh copy, ready for tests. rule: for modules of the agent's that would stand in for others, None for no such
    rule. Raises OSError when an author's file is gone, CannotPrepare, SandboxError."""
    injected = {place: context.author_file(source) for place, source in inject.items()}
    guard = context.give(_programs()) if rule is not None else None
    sandbox = await context.sandbox()
    wanted = tuple(pattern for pattern in protect if not pattern.startswith("!"))
    return await anyio.to_thread.run_sync(_prepare, context, sandbox, injected, wanted, rule, guard)


def _programs() -> dict[str, bytes]:
    """The import guard and what it loads."""
    return {name: Path(__file__).with_name(ours).read_bytes() for name, ours in PROGRAMS.items()}


def _prepare(
    context: CheckContext,
    sandbox: Sandbox,
    injected: Mapping[str, bytes],
    protect: tuple[str, ...],
    rule: ModuleRule | None,
    guard: Path | None,
) -> GradedCopy:
    files, workspace = context.evidence.files, sandbox.workspace
    originals, changes = files.originals, files.changes
    trusted = _with_pytest(originals, context.check_environment.get("PYTHONPATH"), sandbox.workspace_inside)
    protected = (*PROTECTED, *protect, *_whole(trusted))
    held = _held(context.evidence.files.before, injected, protected) if rule is not None else Held(())
    taken_away: dict[str, str] = {}
    try:
        taken_back = restore_protected(workspace, originals, changes, protected)
        done = {*taken_back.restored, *taken_back.removed}
        links = [change for change in changes if _is_linked_folder(change) and change.path not in done]
        taken_back += restore_protected(workspace, originals, links, ("**",))
        planted = rule.find_planted(changes, injected) if rule is not None else []
        if rule is not None:
            others = [change for change in changes if change.path not in done]
            found = held.rivals(others, context.evidence.files.before, rule.exempts)
            taken_away = {
                path: instead_of
                for path, instead_of in found.items()
                if not (instead_of.endswith("/") and _says_nothing(workspace, path))
            }
        planted_or_rival = [*planted, *(change for change in changes if change.path in taken_away)]
        restore_protected(workspace, originals, planted_or_rival, ("**",))
        for place, content in injected.items():
            put_file(workspace, place, content, originals)
    except (PathProblem, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, PathProblem):
            raise_unless_agent(error, "putting the tests in place")
        raise CannotPrepare(f"the tests can't be put in place: {error}") from None
    private = f".keystone-check-{secrets.token_hex(8)}"
    let_in(workspace)
    (workspace / private).mkdir(0o755)
    give_to_owner(workspace, workspace / private)
    settled = {*taken_back.restored, *taken_back.removed, *injected, *(change.path for change in planted), *taken_away}
    return GradedCopy(
        sandbox=sandbox,
        private=private,
        taken_back=taken_back,
        injected=injected,
        untrusted=frozenset(change.path for change in changes if change.path not in settled),
        originals=originals,
        guard=guard,
        allowed=tuple(rule.find_allowed(context.evidence, injected)) if rule is not None else (),
        planted=tuple(change.path for change in planted),
        held=tuple(sorted(path for path in held.paths if path.endswith(".py"))),
        rivals=taken_away,
        trusted=tuple(f"{sandbox.workspace_inside}/{folder}" for folder in trusted),
    )


def _held(before: Mapping[str, FileState], injected: Collection[str], protected: Sequence[str]) -> Held:
    """What is injected, and the author's files among those that are protected."""
    is_protected = matcher([pattern.rstrip("/") for pattern in protected], dot=True, inside=True)
    authors = {path for path, state in before.items() if state.kind == "file" and is_protected(path)}
    return Held.of({*authors, *injected})


def _says_nothing(workspace: Path, path: str) -> bool:
    """Whether a file only makes a package of its folder: an `__init__.py` without code, as agents leave it beside tests
    of their own. A command of the author's may need it (`unittest discover -s tests -t .`). In another encoding a
    comment could hold code."""
    try:
        lines = read_inside(workspace, path, limit=_COMMENT_BYTES).splitlines()
    except PathProblem:
        return False
    is_source = PurePosixPath(path).name == "__init__.py"
    return is_source and all(_NO_CODE.fullmatch(line) and b"coding" not in line for line in lines)


def _with_pytest(originals: Path | None, search_path: str | None, workspace: str) -> list[str]:
    """The folders below the workspace that PYTHONPATH names and in which the author's snapshot has a pytest."""
    _, inside = split_search_path(search_path, workspace)
    folders = [os.path.relpath(entry, workspace) for entry in inside]
    found = [folder for folder in folders if folder != "." and not folder.startswith("..")]
    return [folder for folder in found if originals is not None and (originals / folder / "pytest").is_dir()]


def _whole(folders: Sequence[str]) -> list[str]:
    """Patterns for folders, all that is in them, and the folders that they are in."""
    return [
        *(f"{escape(folder)}/**" for folder in folders),
        *(escape(str(place)) for folder in folders for place in (PurePosixPath(folder), *PurePosixPath(folder).parents)
          if str(place) != "."),
    ]  # fmt: skip


def _is_linked_folder(change: Change) -> bool:
    is_link = change.after is not None and change.after.kind == "link"
    return is_link and _FOLDERS.fullmatch(PurePosixPath(change.path).name) is not None
