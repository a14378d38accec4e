"""Which spec files a call names: files, directories and globs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.spec.globs import Globs, has_wildcard
from keystone_action.spec.walking import is_folder, walk

if TYPE_CHECKING:
    from keystone_action.spec.loading.spec_source import Dialects

_NAMES = ("keystone.yaml", "keystone.yml")
_SUFFIXES = (".keystone.yaml", ".keystone.yml")
_SKIPPED = {".git", ".venv", "node_modules", "__pycache__", ".keystone"}
_RESULTS = {"results.json", "journal.jsonl"}
_OF_RESULTS = {"cells", "services"}
"""What a run leaves, and the folders beside it: they may be thousands, and hold what agents and services printed."""


def discover(
    patterns: Sequence[str],
    directory: Path,
    dialects: Dialects | None = None,
    *,
    tolerate_missing: bool = False,
) -> list[Path]:
    """The spec files that `patterns` name, each once, in the order given (directories and globs sorted).

    A file is taken as it is. A directory is searched for `keystone.yaml`, `*.keystone.yaml` and the YAML files that
    the dialects recognise. A glob (`*`, `?`, `[…]`, `**`) takes every file it matches when it ends in `.yaml` or
    `.yml`, else those that a directory is searched for.
    tolerate_missing: for a list of defaults: a literal one may be missing when another is there.

    Raises UsageError: no pattern, a literal name that does not exist, or nothing found at all.
    """
    if not patterns:
        raise UsageError("no spec was named", help="keystone run keystone.yaml")
    found: dict[str, Path] = {}
    for pattern in patterns:
        for path in _expand(pattern, directory, dialects, tolerate_missing=tolerate_missing):
            found.setdefault(os.path.realpath(path), path)  # of a link that leads to itself, too
    if not found and list(patterns) == ["."]:
        above = _above(directory)
        hint = f"did you mean {above}?" if above else "`keystone init` writes a first spec"
        raise UsageError(
            f"there is no keystone.yaml or *.keystone.yaml in {directory} or below it",
            help=f"{hint}; a spec elsewhere, or of another name, is read when it is named",
        )
    if not found:
        raise UsageError(
            f"no spec found in {', '.join(patterns)} (looked from {directory})",
            help="name a spec file, or a directory with keystone.yaml or *.keystone.yaml; `keystone init` writes one",
        )
    return list(found.values())


def _expand(pattern: str, directory: Path, dialects: Dialects | None, *, tolerate_missing: bool) -> list[Path]:
    path = directory / pattern
    if path.is_dir():
        return sorted(specs_below(path, dialects))
    if path.exists() or path.is_symlink():
        return [path]
    if any(character in pattern for character in "*?["):
        return _glob(pattern, directory, dialects)
    if tolerate_missing:
        return []
    raise UsageError(f"{pattern} does not exist (looked from {directory})", help=_nearest(path, pattern))


def specs_below(directory: Path, dialects: Dialects | None) -> Iterator[Path]:
    """The specs in a directory and those below it, in no order."""
    for folder, folders, files in walk(directory):
        skipped = _SKIPPED | _OF_RESULTS if set(files) >= _RESULTS else _SKIPPED
        folders[:] = [name for name in folders if name not in skipped]
        yield from (path for name in files if _is_spec(path := Path(folder) / name, dialects))


def _glob(pattern: str, directory: Path, dialects: Dialects | None) -> list[Path]:
    from bracex import ExpansionLimitException, expand

    try:
        patterns = expand(pattern, keep_escapes=True)
    except ExpansionLimitException:
        raise UsageError(f"{pattern} stands for more than 1,000 patterns") from None
    takes_all = pattern.endswith((".yaml", ".yml"))
    found = {directory / name for one in patterns for name in _matching(one, directory)}
    return sorted(path for path in found if takes_all or _is_spec(path, dialects))


def _matching(pattern: str, directory: Path) -> Iterator[str]:
    """The files that match, relative to the directory. A link to a directory is entered where `*` or a name stands for
    it, not where `**` does."""
    parts = pattern.split("/")
    literal = next((index for index, part in enumerate(parts) if has_wildcard(part)), len(parts) - 1)
    globs = Globs(["/".join(parts[literal:])], dot=True)
    waiting = [("/".join(parts[:literal]) or ("/" if literal else ""), globs.start)]
    while waiting:
        folder, state = waiting.pop()
        if _SKIPPED & set(folder.split("/")):
            continue
        for entry in _entries(directory / folder):
            path = f"{folder.rstrip('/')}/{entry.name}" if folder else entry.name
            folder_there = is_folder(entry)
            after = globs.step(state, entry.name, spans=not (folder_there and entry.is_symlink()))
            if folder_there and after:
                waiting.append((path, after))
            elif globs.accepts(after) and entry.name not in _SKIPPED:
                yield path


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Nothing of a folder that can't be listed."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_spec(path: Path, dialects: Dialects | None) -> bool:
    if path.name in _NAMES or path.name.endswith(_SUFFIXES):
        return True
    return dialects is not None and path.name.endswith((".yaml", ".yml")) and dialects.recognises(path)


def _nearest(path: Path, pattern: str) -> str:
    from keystone_action.spec.loading.diagnostics import nearest

    if not path.parent.is_dir():
        return f"there is no directory {path.parent}"
    there = {entry.name for entry in path.parent.iterdir()} - _SKIPPED
    named = [f"{path.name}{ending}" for ending in (".yaml", ".keystone.yaml") if f"{path.name}{ending}" in there]
    near = named[0] if named else nearest(path.name, sorted(there))
    return f"did you mean {Path(pattern).with_name(near)}?" if near else "`keystone init` writes a first spec"


def _above(directory: Path) -> str:
    """The nearest spec in a folder around this one, as a path from here; empty when there is none."""
    for number, folder in enumerate(directory.parents, 1):
        for name in _NAMES:
            if (folder / name).is_file():
                return "/".join([".."] * number + [name])
    return ""
