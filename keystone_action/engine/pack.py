"""A directory tree as the bytes of a tar archive, piece by piece, for an engine that shares no file system with us.

The tree may be hostile: nothing is followed, depth does not matter, and nothing is ever held as a whole.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from keystone_action.files.descent import Descent

END = bytes(2 * tarfile.BLOCKSIZE)
_CHUNK = 1 << 18


def header(
    name: str,
    kind: bytes,
    mode: int,
    user: int,
    *,
    size: int = 0,
    target: str = "",
    modified_ns: int = 0,
) -> bytes:
    """The header of one entry. name: relative, as text with surrogates for odd bytes."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = kind, mode, user, user
    info.size, info.linkname = size, target
    info.mtime = modified_ns // 10**9
    if modified_ns % 10**9:
        info.pax_headers = {"mtime": f"{modified_ns // 10**9}.{modified_ns % 10**9:09d}"}
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def directory(name: str, mode: int, user: int) -> bytes:
    """An empty directory."""
    return header(name, tarfile.DIRTYPE, mode, user)


def directories(paths: Iterable[str]) -> Iterator[bytes]:
    """Root's directories that all may pass."""
    for path in paths:
        yield directory(path, 0o755, 0)


def link(name: str, target: str) -> bytes:
    """A symbolic link of root's."""
    return header(name, tarfile.SYMTYPE, 0o777, 0, target=target)


def small_file(name: str, data: bytes, mode: int) -> Iterator[bytes]:
    """A file of root's, from memory."""
    yield header(name, tarfile.REGTYPE, mode, 0, size=len(data))
    yield data
    yield padding(len(data))


def tree(root: Path, name: str, user: int) -> Iterator[bytes]:
    """Everything below `root`, as `name/…` and owned by `user`. Sockets are left out. Raises OSError."""
    first: dict[tuple[int, int], str] = {}
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(top)
        yield header(name, tarfile.DIRTYPE, stat.S_IMODE(status.st_mode), user, modified_ns=status.st_mtime_ns)
        with Descent(top) as descent:
            reopened: list[tuple[str, int]] = []
            waiting = [""]
            try:
                while waiting:
                    directory = waiting.pop()
                    _open_up(descent, directory, reopened)
                    with descent.listing(directory) as (folder, entries):
                        for relative, entry in entries:
                            if entry.is_dir(follow_symlinks=False):
                                waiting.append(relative)
                            yield from _entry(folder, entry, f"{name}/{relative}", user, first)
            finally:
                _close_again(descent, reopened)
    finally:
        os.close(top)


def _open_up(descent: Descent, relative: str, reopened: list[tuple[str, int]]) -> None:
    """Open a directory whose modes close it to its owner, us, and note it in `reopened`."""
    above, _, name = relative.rpartition("/")
    folder = descent.open(above)
    try:
        if not os.access(name or ".", os.R_OK | os.X_OK, dir_fd=folder, effective_ids=True):
            mode = stat.S_IMODE(os.stat(name or ".", dir_fd=folder, follow_symlinks=False).st_mode)
            os.chmod(name or ".", 0o700, dir_fd=folder)
            reopened.append((relative, mode))
    finally:
        os.close(folder)


def _close_again(descent: Descent, reopened: list[tuple[str, int]]) -> None:
    for relative, mode in reversed(reopened):
        fd = descent.open(relative)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _entry(
    folder: int, entry: os.DirEntry[str], name: str, user: int, first: dict[tuple[int, int], str]
) -> Iterator[bytes]:
    status = entry.stat(follow_symlinks=False)
    mode, modified = stat.S_IMODE(status.st_mode), status.st_mtime_ns
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        yield header(name, tarfile.DIRTYPE, mode, user, modified_ns=modified)
        return
    if kind == stat.S_IFLNK:
        target = os.readlink(entry.name, dir_fd=folder)
        yield header(name, tarfile.SYMTYPE, 0o777, user, target=target, modified_ns=modified)
        return
    if kind == stat.S_IFIFO:
        yield header(name, tarfile.FIFOTYPE, mode, user, modified_ns=modified)
        return
    if kind != stat.S_IFREG:
        return
    if status.st_nlink > 1:
        other = first.setdefault((status.st_dev, status.st_ino), name)
        if other != name:
            yield header(name, tarfile.LNKTYPE, mode, user, target=other)
            return
    yield header(name, tarfile.REGTYPE, mode, user, size=status.st_size, modified_ns=modified)
    yield from _content(folder, entry.name, status.st_size, mode)


def _content(folder: int, name: str, size: int, mode: int) -> Iterator[bytes]:
    """Exactly `size` bytes and their padding, even if the file changes meanwhile."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except PermissionError:
        # Ours, but closed to ourselves, as its author wanted it: opened for the moment of a look.
        os.chmod(name, 0o600, dir_fd=folder)
        try:
            fd = os.open(name, flags, dir_fd=folder)
        finally:
            os.chmod(name, mode, dir_fd=folder)
    try:
        left = size
        while left:
            data = os.read(fd, min(left, _CHUNK)) or bytes(min(left, _CHUNK))
            left -= len(data)
            yield data
    finally:
        os.close(fd)
    yield padding(size)


def padding(size: int) -> bytes:
    """What follows a file's content of this size."""
    return bytes(-size % tarfile.BLOCKSIZE)


def in_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces that are worth a system call each."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
