"""A baseline that lies in the repository is a part of the gate: a change can bring one along that nothing is worse
than."""

from __future__ import annotations

import os
from pathlib import Path

from keystone_action.errors import UsageError
from keystone_action.files.git import commands as git
from keystone_action.files.git.commit_tree import submodules_of
from keystone_action.files.git.committed import checkout_of
from keystone_action.gate.base_commit import BaseCommit, BaseFiles, open_base
from keystone_action.gate.named_files import COUNT_LIMIT, count_lines
from keystone_action.runner.baseline import FILE
from keystone_action.scoring.results import SpecChange


def changed_baseline(base: BaseCommit, directory: Path, path: Path) -> SpecChange | None:
    """What a change did to its baseline; None when nothing. path: as it was named, a file or a folder."""
    shown = os.path.relpath(path, directory)
    try:
        files = open_base(base, checkout_of(directory, path))
        sentence = _difference(files, path)
    except (UsageError, git.GitFailed, OSError) as error:
        why = error.sentences if isinstance(error, UsageError) else " ".join(str(error).split())
        sentence = f"whether this baseline is of the change itself is not known: {why}"
    return SpecChange(shown, "changed", (sentence,)) if sentence else None


def _difference(files: BaseFiles, path: Path) -> str:
    place = path / FILE if path.is_dir() else path
    if not place.is_relative_to(files.root):
        return ""
    name = place.relative_to(files.root).as_posix()
    relative = files.tree.resolve(name)
    entry = None if relative is None else files.tree.entries.get(relative)
    if entry is None or relative is None:
        inside = files.tree.in_submodule(name)
        return "baseline added" if inside is None else _difference_inside(files, *inside, place)
    size = place.stat().st_size if place.is_file() else 0
    if max(entry.size, size) > COUNT_LIMIT:
        return "" if entry.id == _blob(files, place) else f"baseline changed ({entry.size:,} → {size:,} bytes)"
    before, after = files.tree.read([relative])[relative], place.read_bytes()
    return "" if before == after else f"baseline changed ({count_lines(before, after)})"


def _difference_inside(files: BaseFiles, before: str, submodule: str, place: Path) -> str:
    """Of a baseline that was in a submodule at the base: what is in it is in no commit of the repository, so that the
    commit which is named stands for it."""
    commit = files.tree.submodules[submodule]
    now = submodules_of(git.run("ls-tree", "-z", "HEAD", "--", submodule, directory=files.root)).get(submodule)
    if now != commit:
        return f"baseline changed (submodule {submodule} {commit[:12]} → {now[:12] if now else 'none'})"
    return "" if place.resolve() == files.root / before else f"baseline changed (it was {before})"


def _blob(files: BaseFiles, path: Path) -> str:
    words = ("hash-object", "--no-filters", "--", str(path))
    return git.run(*words, directory=files.top.parent / "objects").decode("ascii").strip()
