"""The specs of a call, read, and the repositories cloned that a dialect needs to translate a file.

This is what `keystone validate` needs, and no more: its start-up is a budget.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.files.git import commands as git
from keystone_action.files.removal import remove_tree
from keystone_action.files.temporary import process_directory
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.author_files import POINTER_BYTES, files_below, is_pointer, pointer_error
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.discovery import discover
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.loading.spec_source import CloneFailed

if TYPE_CHECKING:
    from keystone_action.options.model import Options


def discover_specs(options: Options) -> list[Path]:
    """The files of a call's specs. Raises UsageError."""
    caller = options.caller
    return discover(options.cells.specs, caller.directory, caller.dialects, tolerate_missing=caller.tolerate_missing)


def load_specs(options: Options) -> list[LoadedSpec]:
    """All specs of a call. Raises UsageError, or SpecError with the errors of every file that has some."""
    loaded, errors = load_paths(discover_specs(options), options)
    errors |= pointers_named(loaded)
    if errors:
        raise SpecError.join(list(errors.values()))
    return loaded


def pointers_named(specs: Iterable[LoadedSpec]) -> dict[Path, SpecError]:
    """Errors for the files that specs name and that Git LFS did not fetch: read as if they were the content itself,
    they would make the agent fail. Files below `workspace` and `agent.dir` are not looked at: they are the agent's."""
    return {
        file: pointer_error(str(file))
        for loaded in specs
        for path in loaded.author_files
        for file in ((path,) if path.is_file() else _files_below(path) if path in loaded.withheld else ())
        if _is_pointer(file)
    }


def _files_below(path: Path) -> Iterator[Path]:
    # More than is read is refused by the check that needs it.
    with contextlib.suppress(ValueError, OSError):
        yield from (path / name for name in files_below(path))


def _is_pointer(path: Path) -> bool:
    try:
        return path.stat().st_size <= POINTER_BYTES and is_pointer(path.read_bytes())
    except OSError:
        return False


def load_paths(paths: Sequence[Path], options: Options) -> tuple[list[LoadedSpec], dict[Path, SpecError]]:
    """The specs in these files, and the errors of those that have some. Raises UsageError for a bad call."""
    types = CheckTypes()
    loaded: list[LoadedSpec] = []
    errors: dict[Path, SpecError] = {}
    for path in paths:
        try:
            loaded.append(
                load(
                    path,
                    types,
                    given_parameters=tuple(options.cells.params),
                    dialects=options.caller.dialects,
                    agent=options.cells.agent,
                    clone=CLONES,
                )
            )
        except SpecError as error:
            errors[path] = error
    return _number_ids(loaded), errors


def _number_ids(loaded: Sequence[LoadedSpec]) -> list[LoadedSpec]:
    """These specs; one whose id is made from a name is numbered, with a warning, when another one before it, or a spec
    that chose its id, has that id (spec.md 5.5): results are joined on ids."""
    taken = {one.spec.id for one in loaded if not one.id_from_name}
    found = []
    for one in loaded:
        if one.id_from_name:
            name, number = one.spec.id, 2
            while name in taken:
                suffix = f"-{number}"
                name, number = one.spec.id[: 128 - len(suffix)].rstrip("-") + suffix, number + 1
            taken.add(name)
            found.append(one if name == one.spec.id else _rename_spec(one, name))
        else:
            found.append(one)
    return found


def _rename_spec(loaded: LoadedSpec, name: str) -> LoadedSpec:
    message = f"another suite has the id '{loaded.spec.id}' too; this one is {name} in results"
    warning = Diagnostic(str(loaded.path), 1, 1, message, help="give each suite a name of its own")
    spec = loaded.spec.model_copy(update={"id": name})
    return replace(loaded, spec=spec, warnings=(*loaded.warnings, warning))


CLONE_SECONDS = 300.0
_SAID = 600
"""Characters of what git said that a message repeats."""


class Clones:
    """Clones in a directory that only we can enter, each repository and commit once; removed when our process ends."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._made: dict[tuple[str, str], Path] = {}

    def __call__(self, url: str, commit: str) -> Path:
        """The files of a repository at a commit, branch or tag, without its history. Raises CloneFailed."""
        key = (url, commit)
        if key not in self._made:
            self._made[key] = self._clone(url, commit)
        return self._made[key]

    def _clone(self, url: str, commit: str) -> Path:
        if self._root is None:
            self._root = process_directory()
        target = self._root / str(len(self._made))
        try:
            target.mkdir()
            git.run_git("init", "-q", "--template=", str(target), directory=self._root)
            git.run_git("remote", "add", "origin", url, directory=target)
            self._fetch(target, commit)
        except (git.GitFailed, OSError) as failed:
            remove_tree(target)
            said = re.sub(r"(://)[^/?#\s]*@", r"\1", " ".join(str(failed).split()))
            raise CloneFailed(said if len(said) <= _SAID else f"…{said[-_SAID:]}") from None
        remove_tree(target / ".git")
        return target

    def _fetch(self, target: Path, commit: str) -> None:
        """One commit where the server gives it by its name; else everything, since a shortened name, or one that the
        server does not give, can only be told from the whole history."""
        try:
            git.run_git("fetch", "-q", "--depth=1", "--", "origin", commit, directory=target, timeout=CLONE_SECONDS)
            git.run_git("checkout", "-q", "--detach", "FETCH_HEAD", directory=target, timeout=CLONE_SECONDS)
        except git.GitFailed as failed:
            if not re.fullmatch(r"[0-9a-f]{4,64}", commit):
                raise
            everything = "+refs/heads/*:refs/remotes/origin/*"
            try:
                git.run_git(
                    "fetch", "-q", "--tags", "--", "origin", everything, directory=target, timeout=CLONE_SECONDS
                )
            except git.GitFailed:
                raise failed from None
            git.run_git("checkout", "-q", "--detach", commit, directory=target, timeout=CLONE_SECONDS)


CLONES = Clones()
"""Those of this process."""
