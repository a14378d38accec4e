"""The files that two versions of a spec name, side by side: which changed, and by how many lines."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.files.git import commands as git
from keystone_action.spec.loading.author_directory import files_below
from keystone_action.spec.loading.loader import LoadedSpec
from keystone_action.spec.walking import walk

MAX_SHOWN = 20
_LONGEST = 100
"""Characters of a path that are shown."""
COUNT_LIMIT = 8 << 20
"""Bytes of a file whose lines are counted."""
_POINTER = re.compile(rb"version https://git-lfs[^\n]*\n(?:ext-[^\n]*\n)*oid sha256:([0-9a-f]{64})\nsize \d+\n")
_NUMBERS = re.compile(rb"(\d+)\t(\d+)\t")


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files that a spec names, by their paths relative to a root; of directories those below them. ranks: lower for
    files on which more depends."""

    root: Path
    files: dict[str, Path]
    ranks: Mapping[str, int] = field(default_factory=dict)


def named_files(loaded: LoadedSpec, root: Path) -> NamedFiles:
    """All but the spec itself and what is the agent's: `workspace`, `agent.dir`. Files outside of the root (clones that
    a spec names by address and commit) are none of these. What is withheld from the agent decides about it (scripts,
    hidden tests), a file that is named more than one of many in a directory."""
    own = {loaded.path.resolve()}
    for text in (loaded.spec.workspace, loaded.spec.agent.dir):
        if text is not None:
            own.add((loaded.directory / text).resolve())
    files: dict[str, Path] = {}
    ranks: dict[str, int] = {}
    recordings = loaded.directory / loaded.recordings
    withheld = {*loaded.withheld, *([recordings] if recordings.is_dir() else [])}
    for path in sorted({*loaded.author_files, *withheld} - own):
        for file in _files(path):
            if file.is_relative_to(root) and file not in own:
                name = file.relative_to(root).as_posix()
                files[name] = file
                rank = 2 * (path not in withheld) + (file != path)
                ranks[name] = min(rank, ranks.get(name, rank))
    return NamedFiles(root, files, ranks)


def shown_files(before: LoadedSpec, roots: tuple[Path, Path]) -> tuple[NamedFiles, NamedFiles]:
    """The files of the base commit in folders that `resources.readable` shows, where agent and checks find programs.
    What else is installed there is in no commit."""
    old: dict[str, Path] = {}
    for text in before.spec.resources.readable:
        folder = (before.directory / text).resolve()
        if folder.is_relative_to(roots[0]) and folder.is_dir():
            old |= {file.relative_to(roots[0]).as_posix(): file for file in _files(folder)}
    new = {name: roots[1] / name for name in old if (roots[1] / name).is_file()}
    return NamedFiles(roots[0], old), NamedFiles(roots[1], new)


def changed_recordings(before: LoadedSpec | None, after: LoadedSpec) -> frozenset[str]:
    """Names of the recordings of a spec that differ, came or went. before: None for a spec that the base commit does
    not have, or that can't be read there: then it had none of these."""
    old, new = ({} if one is None else _by_name(one.directory / one.recordings) for one in (before, after))
    return frozenset(name for name in {*old, *new} if not _is_same(old.get(name), new.get(name)))


def _by_name(folder: Path) -> dict[str, Path]:
    return {file.relative_to(folder).as_posix(): file for file in _files(folder)} if folder.is_dir() else {}


def _is_same(old: Path | None, new: Path | None) -> bool:
    try:
        return old is not None and new is not None and same_content(old, new)
    except OSError:
        return False


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    try:
        yield from (path / name for name in files_below(path))
    except ValueError:
        # More than is read, or a special file in it; a check that needs it has refused it already.
        found = (Path(folder) / name for folder, _, names in walk(path) for name in names)
        yield from sorted(one for one in found if one.is_file() and not one.is_symlink())


def changed_files(before: NamedFiles, after: NamedFiles) -> list[str]:
    """`hidden/test_x.py (+3 −10)`, each file that differs; a last entry counts the rest. What went stands before what
    changed, and that before what came: a crowd of new files hides no other."""
    found = []
    for name in {*before.files, *after.files}:
        old, new = before.files.get(name), after.files.get(name)
        rank = before.ranks.get(name, after.ranks.get(name, 0))
        if old is None:
            found.append((2, rank, name, "newly named" if (before.root / name).is_file() else "added"))
        elif new is None:
            found.append((0, rank, name, "no longer named" if (after.root / name).is_file() else "deleted"))
        elif not same_content(old, new):
            found.append((1, rank, name, line_counts(old, new)))
    found.sort()
    more = len(found) - MAX_SHOWN
    shown = [f"{_shorten(name)} ({what})" for _, _, name, what in found[:MAX_SHOWN]]
    return [*shown, f"and {more:,} more"] if more > 0 else shown


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def same_content(old: Path, new: Path) -> bool:
    """Whether a file of a commit, as a checkout of that commit has it, and one of the checkout are the same. A pointer
    of Git LFS is the file that it points to. Line ends count: of a script that begins with `set -e` and has got CRLF
    nothing fails any more."""
    if old.stat().st_size <= COUNT_LIMIT:
        pointer = _POINTER.fullmatch(old.read_bytes())
        if pointer is not None and pointer[1].decode() == _digest(new):
            return True
    return old.stat().st_size == new.stat().st_size and _digest(old) == _digest(new)


def line_counts(old: Path, new: Path) -> str:
    """`+3 −10`; for files without lines, or too large ones, that they changed."""
    sizes = [path.stat().st_size for path in (old, new)]
    if max(sizes) > COUNT_LIMIT or any(b"\0" in path.read_bytes()[:8_000] for path in (old, new)):
        return f"{sizes[0]:,} → {sizes[1]:,} bytes"
    return count_lines(old.read_bytes(), new.read_bytes())


def count_lines(old: bytes, new: bytes) -> str:
    """`+3 −10` of two contents."""
    with tempfile.TemporaryDirectory(prefix="keystone-lines-") as folder:
        for name, content in (("a", old), ("b", new)):
            (Path(folder) / name).write_bytes(content)
        options = ("--no-index", "--numstat", "--no-ext-diff", "--no-textconv", "--no-renames", "--text")
        try:
            answer = git.run("diff", *options, "a", "b", directory=Path(folder), accept=1)
        except git.GitFailed:
            return "changed"
    numbers = _NUMBERS.match(answer)
    return f"+{int(numbers[1])} −{int(numbers[2])}" if numbers else "changed"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
