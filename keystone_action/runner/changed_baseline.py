"""A baseline that lies in the repository is a part of the gate: a change can bring one along that nothing is worse
than."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.runner.base_commit import BaseCommit, BaseFiles, open_base
from keystone_action.runner.baseline import FILE
from keystone_action.runner.named_files import COUNT_LIMIT, count_lines
from keystone_action.sandbox import git
from keystone_action.scoring.results import SpecChange


def is_committed(directory: Path, path: Path) -> bool:
    """Whether the commit that is checked out holds this file, or something in this folder. One that a step has put
    there is none of the change's."""
    try:
        top = os.fsdecode(git.run("rev-parse", "--show-toplevel", directory=directory).rstrip(b"\n"))
        if not path.is_relative_to(top):
            return False
        words = ("ls-tree", "--name-only", "HEAD", "--", path.relative_to(top).as_posix())
        return bool(git.run(*words, directory=Path(top)))
    except git.GitFailed:
        return False


def changed_baseline(base: BaseCommit, directory: Path, path: Path) -> SpecChange | None:
    """What a change did to its baseline; None when nothing. path: as it was named, a file or a folder."""
    shown = os.path.relpath(path, directory)
    try:
        files = open_base(base, directory)
        sentence = _difference(files, path)
    except (UsageError, git.GitFailed, OSError) as error:
        why = error.sentences if isinstance(error, UsageError) else " ".join(str(error).split())
        sentence = f"whether this baseline is of the change itself is not known: {why}"
    return SpecChange(shown, "changed", (sentence,)) if sentence else None


def _difference(files: BaseFiles, path: Path) -> str:
    place = path / FILE if path.is_dir() else path
    if not place.is_relative_to(files.root):
        return ""
    relative = files.tree.resolved(place.relative_to(files.root).as_posix())
    entry = None if relative is None else files.tree.entries.get(relative)
    if entry is None or relative is None:
        return "baseline added"
    size = place.stat().st_size if place.is_file() else 0
    if max(entry.size, size) > COUNT_LIMIT:
        return "" if entry.id == _blob(files, place) else f"baseline changed ({entry.size:,} → {size:,} bytes)"
    before, after = files.tree.read([relative])[relative], place.read_bytes()
    return "" if before == after else f"baseline changed ({count_lines(before, after)})"


def _blob(files: BaseFiles, path: Path) -> str:
    words = ("hash-object", "--no-filters", "--", str(path))
    return git.run(*words, directory=files.top.parent / "objects").decode("ascii").strip()
