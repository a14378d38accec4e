"""A digest of what `copy_tree` copies of a folder: equal exactly when two copies of it would be equal.

Counted are names, kinds, contents, the targets of links, and what a file's owner may do with it. Times, owners and the
rights of others are not: no two checkouts have the same. A `.git` counts by its head and its references; what else is
in it differs between two clones of one commit.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.files.descent import Descent
from keystone_action.spec.walking import walk

HASHED_LIMIT = 4 << 30
SPARSE_LIMIT = 64 << 20
"""Files above HASHED_LIMIT bytes, and files with holes above SPARSE_LIMIT, count by their size."""
_CHUNK = 1 << 20
_GIT_FILE_LIMIT = 64 << 20
_OWNER = 0o700
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_Stamp = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class TreeDigest:
    """What is in a folder, as digests."""

    content: str
    remote_branches: str
    """Of what its repositories know about the branches of others, which two clones of one commit need not have in
    common; empty where there are none."""


class DigestStopped(Exception):  # noqa: N818 - an outcome
    """Nobody waits for the digest any more."""


@dataclass
class TreeDigester:
    """Digests folders; a file that is in several of them is read once. The caller sees to it that the folders do not
    change meanwhile. A file that can't be read counts as just that, and never raises."""

    stopped: bool = False
    """Set by another thread; DigestStopped is raised soon after."""
    _known: dict[_Stamp, str] = field(default_factory=dict)

    def file(self, path: Path) -> str:
        """The digest of one file's bytes; a link is followed."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return "unreadable"
        try:
            status = os.fstat(descriptor)
            return self._bytes(descriptor, status) if stat.S_ISREG(status.st_mode) else "no regular file"
        finally:
            os.close(descriptor)

    def folder(self, source: Path, leave_out: Callable[[str, os.stat_result], bool]) -> TreeDigest:
        """leave_out: asked for every entry by relative path and lstat, as by `copy_entries`."""
        try:
            root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return TreeDigest("unreadable", "")
        try:
            with Descent(root) as descent:
                walk = _Walk(self, source, leave_out)
                walk.run(descent)
        finally:
            os.close(root)
        return TreeDigest(_join_lines(walk.entries), _join_lines(walk.remote_branches) if walk.remote_branches else "")

    def _bytes(self, descriptor: int, status: os.stat_result) -> str:
        holes = status.st_blocks * 512 < status.st_size
        if status.st_size > HASHED_LIMIT or (holes and status.st_size > SPARSE_LIMIT):
            return f"{status.st_size} bytes"
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if stamp not in self._known:
            try:
                self._known[stamp] = self._hash(descriptor)
            except OSError:
                return "unreadable"
        return self._known[stamp]

    def _hash(self, descriptor: int) -> str:
        digest = hashlib.sha256()
        while chunk := os.read(descriptor, _CHUNK):
            if self.stopped:
                raise DigestStopped
            digest.update(chunk)
        return digest.hexdigest()


class _Walk:
    """Goes through one folder. entries, remote_branches: lines, each with the place that it is from."""

    def __init__(self, digester: TreeDigester, source: Path, leave_out: Callable[[str, os.stat_result], bool]) -> None:
        self._digester, self._source, self._leave_out = digester, source, leave_out
        self._todo = [""]
        self.entries: list[str] = []
        self.remote_branches: list[str] = []

    def run(self, descent: Descent) -> None:
        while self._todo:
            if self._digester.stopped:
                raise DigestStopped
            directory = self._todo.pop()
            try:
                with descent.listing(directory) as (folder, entries):
                    for path, entry in entries:
                        self._entry(entry, path, folder)
            except OSError:
                self.entries.append(repr(("unreadable", directory)))

    def _entry(self, entry: os.DirEntry[str], path: str, directory: int) -> None:
        status = entry.stat(follow_symlinks=False)
        if self._leave_out(path, status):
            return
        mode = status.st_mode & _OWNER
        if entry.name == ".git":
            self._git(path, status)
        elif stat.S_ISDIR(status.st_mode):
            self.entries.append(repr(("directory", path, mode)))
            self._todo.append(path)
        elif stat.S_ISREG(status.st_mode):
            self.entries.append(repr(("file", path, mode, self._file(entry.name, directory))))
        elif stat.S_ISLNK(status.st_mode):
            self.entries.append(repr(("link", path, os.readlink(entry.name, dir_fd=directory))))
        else:
            self.entries.append(repr(("special", path)))

    def _file(self, name: str, directory: int) -> str:
        try:
            descriptor = os.open(name, _READ, dir_fd=directory)
        except OSError:
            return "unreadable"
        try:
            return self._digester._bytes(descriptor, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _git(self, path: str, status: os.stat_result) -> None:
        """A `.git` that is a file leads to a place of its machine; what it leads to is never copied."""
        if not stat.S_ISDIR(status.st_mode):
            self.entries.append(repr(("git", path)))
            return
        head, references = read_references(self._source / path)
        own = {name: value for name, value in references.items() if not name.startswith("refs/remotes/")}
        others = {name: value for name, value in references.items() if name.startswith("refs/remotes/")}
        self.entries.append(repr(("git", path, head, sorted(own.items()))))
        if others:
            self.remote_branches.append(repr((path, sorted(others.items()))))


def read_references(repository: Path) -> tuple[str, dict[str, str]]:
    """The head of a `.git` folder, and what each reference stands for, packed or not. Nothing of it is followed."""
    references: dict[str, str] = {}
    for line in _text(repository / "packed-refs").splitlines():
        value, _, name = line.partition(" ")
        if name and value[:1] not in "#^":
            references[name] = value
    top = repository / "refs"
    for folder, _, names in walk(top):
        for name in names:
            path = Path(folder) / name
            references[f"refs/{path.relative_to(top).as_posix()}"] = _text(path).strip()
    tables = repository / "reftable"
    if tables.is_dir():
        references.update({f"reftable/{path.name}": _digest(path) for path in sorted(tables.iterdir())})
    return _text(repository / "HEAD").strip(), references


def _text(path: Path) -> str:
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_GIT_FILE_LIMIT).decode("utf-8", "backslashreplace")


def _digest(path: Path) -> str:
    return hashlib.sha256(_text(path).encode()).hexdigest()


def _join_lines(lines: list[str]) -> str:
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
