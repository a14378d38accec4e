"""A tree that an agent left, as a compressed archive, and back.

An archive is read as the work of an enemy: all of it is looked through before anything is written.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import IO, Self

from keystone_action.files.descent import open_tree, walk_down
from keystone_action.files.paths import display_path

MOST_BYTES = 512 << 20
"""Of all files of a tree together; also of one file of a folder with evidence."""
MOST_ENTRIES = 2_000_000
MOST_NAMES = 256 << 20
"""Characters of all paths together."""
_LONGEST_NAME = 4 << 20
"""Bytes of a path in an archive: thousands of directories in one another have long ones."""
_LONGEST_LINK = 4096
_MOST_LINKS = 40
"""That the system follows, one after the other."""
_LATEST = (1 << 33) - 1
"""Seconds of a time that an archive can hold in its plain form."""
_CHUNK = 1 << 20
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """A file that is not a link. Raises OSError, ValueError for a FIFO or the like, and for more than MOST_BYTES."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ValueError(f"{display_path(path.name)} is not a regular file of at most {MOST_BYTES:,} bytes")
        yield file


def write_tree(tree: Path, archive: Path) -> list[str]:
    """Pack a tree. Returns sentences on what is not in the archive: links that lead out of the tree, sockets and
    devices, what can't be read, and what was too large. Raises OSError."""
    with tarfile.open(archive, "w:gz", format=tarfile.GNU_FORMAT, compresslevel=6) as tar:
        packing = _Packing(tar)
        for folder, descriptor, entries in walk_down(tree, packing.note_unreadable):
            for entry in sorted(entries, key=lambda one: one.name):
                packing.add(f"{folder}/{entry.name}" if folder else entry.name, entry, descriptor)
        packing.add_links()
    return packing.left_out


class _Packing:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._room = MOST_BYTES
        self._links: dict[str, tarfile.TarInfo] = {}
        self.left_out: list[str] = []

    def note_unreadable(self, error: OSError) -> None:
        self.left_out.append(f"a folder that can't be read: {error.strerror}")

    def add(self, path: str, entry: os.DirEntry[str], folder: int) -> None:
        status = entry.stat(follow_symlinks=False)
        info = tarfile.TarInfo(path)
        info.mode, info.mtime = status.st_mode & 0o777, max(0, min(int(status.st_mtime), _LATEST))
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            self._tar.addfile(info)
        elif stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=folder)
            self._links[path] = info
        elif not stat.S_ISREG(status.st_mode):
            self.left_out.append(f"a socket, FIFO or device: {display_path(path)}")
        elif status.st_size > self._room:
            self.left_out.append(f"too large: {display_path(path)} ({status.st_size:,} bytes)")
        else:
            self._add_file(info, status.st_size, entry.name, folder)

    def _add_file(self, info: tarfile.TarInfo, size: int, name: str, folder: int) -> None:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            self.left_out.append(f"a file that can't be read: {display_path(info.name)} ({error.strerror})")
            return
        with os.fdopen(descriptor, "rb") as file:
            info.size = size
            self._room -= size
            self._tar.addfile(info, file)

    def add_links(self) -> None:
        """They come last, when it is known where each of them leads."""
        targets = {path: info.linkname for path, info in self._links.items()}
        for path, info in self._links.items():
            if _leads_out(path, targets):
                self.left_out.append(f"a link that leads out: {display_path(path)}")
            else:
                self._tar.addfile(info)


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Whether a link leads out of its tree, by way of the other links too. links: all of the tree, with their targets.
    One that leads round in circles leads nowhere."""
    here = path.split("/")
    waiting, followed = [here.pop()], 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not here:
                return True
            here.pop()
            continue
        target = links.get("/".join([*here, part]))
        if target is None:
            here.append(part)
            continue
        followed += 1
        if target.startswith("/"):
            return True
        if followed > _MOST_LINKS:
            return False
        waiting += reversed(target.split("/"))
    return False


def read_tree(archive: Path, tree: Path) -> None:
    """Make a tree of an archive. Raises ValueError for what no archive of ours holds, before anything is written;
    OSError, EOFError, tarfile.TarError."""
    with _entries(archive) as entries:
        _require_harmless(info for info, _ in entries)
    tree.mkdir()
    modes: list[tuple[str, int]] = []
    with _entries(archive) as entries, open_tree(tree) as (_, descent):
        for info, content in entries:
            folder, _, name = info.name.rpartition("/")
            above = descent.open(folder)
            try:
                if info.isdir():
                    os.mkdir(name, 0o700, dir_fd=above)
                    modes.append((info.name, info.mode & 0o777))
                elif info.issym():
                    os.symlink(info.linkname, name, dir_fd=above)
                else:
                    _write_file(name, above, info, content)
            finally:
                os.close(above)
    with open_tree(tree) as (_, descent):
        # Directories that their owner may not write are closed when all is in them, the deepest first.
        for folder, mode in sorted(modes, reverse=True):
            descriptor = descent.open(folder)
            try:
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)


def _write_file(name: str, folder: int, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, _CHUNK)
        file.flush()
        os.fchmod(file.fileno(), info.mode & 0o777)
        os.utime(file.fileno(), (info.mtime, info.mtime))


def _require_harmless(entries: Iterator[tarfile.TarInfo]) -> None:
    """Raises ValueError."""
    kinds: dict[str, bytes] = {}
    links: dict[str, str] = {}
    size = names = 0
    for info in entries:
        size, names = size + info.size, names + len(info.name)
        if size > MOST_BYTES or names > MOST_NAMES or len(kinds) >= MOST_ENTRIES:
            raise ValueError(f"the archive has more than {MOST_BYTES:,} bytes or {MOST_ENTRIES:,} entries")
        _require_own_place(info, kinds)
        kinds[info.name] = info.type
        if info.issym():
            links[info.name] = info.linkname
    for path in links:
        if _leads_out(path, links):
            raise ValueError(f"the archive has a link that leads out: {display_path(path)}")


def _require_own_place(info: tarfile.TarInfo, kinds: Mapping[str, bytes]) -> None:
    """kinds: of the entries before it, by path. Raises ValueError."""
    shown, above = display_path(info.name), info.name.rpartition("/")[0]
    if "\0" in info.name or any(part in ("", ".", "..") for part in info.name.split("/")):
        raise ValueError(f"the archive has an entry whose path leads elsewhere: {shown}")
    if info.name in kinds or (above and kinds.get(above) != tarfile.DIRTYPE):
        raise ValueError(f"the archive has an entry twice, or below what is not a folder: {shown}")
    if info.issym() and not 0 < len(info.linkname) <= _LONGEST_LINK:
        raise ValueError(f"the archive has a link that no system could make: {shown}")


class _OwnInfo(tarfile.TarInfo):
    """The head of an entry that an archive of ours can have."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _NAMES and info.size > _LONGEST_NAME:
            raise ValueError("the archive has a name that is too long")
        if info.type not in (*_NAMES, *_KINDS):
            raise ValueError(
                f"the archive has an entry that is neither file, folder nor link: {display_path(info.name)}"
            )
        if info.size < 0 or not 0 <= info.mtime <= _LATEST:
            raise ValueError(f"the archive has an entry of no size or time: {display_path(info.name)}")
        return info


@contextlib.contextmanager
def _entries(archive: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    with open_regular(archive) as packed, gzip.open(packed) as unpacked:
        bounded = _Bounded(unpacked)
        with tarfile.open(fileobj=bounded, mode="r|", tarinfo=_OwnInfo, errorlevel=2) as tar:  # type: ignore[call-overload]
            yield ((info, tar.extractfile(info) if info.isreg() else None) for info in tar)


class _Bounded:
    """What an archive unpacks to, as far as one of ours can go."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, MOST_BYTES + 2 * MOST_NAMES + 2 * MOST_ENTRIES * tarfile.BLOCKSIZE

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise ValueError(f"the archive unpacks to more than {MOST_BYTES:,} bytes")
        return self._file.read(size)
