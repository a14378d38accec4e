"""Files into a container and out of it, as tar archives, for an engine that shares no file system with us.

Trees on both sides may be hostile: no link is followed, depth does not matter, nothing is held in memory as a whole.
What comes back is laid out by descriptors below the workspace, without set-user-id bits and devices, up to a limit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tarfile
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from keystone_action.engine.calls import engine_errors
from keystone_action.errors import SandboxError
from keystone_action.files.descent import Descent
from keystone_action.files.disk_usage import TooDeep
from keystone_action.files.removal import remove_tree

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

END = bytes(2 * tarfile.BLOCKSIZE)
_PIECE = 1 << 18


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
            data = os.read(fd, min(left, _PIECE)) or bytes(min(left, _PIECE))
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
        if size >= _PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


_CHUNK = 1 << 20
_BUFFER = 1 << 16
"""Bytes: each header that is read moves what is left of it."""
_HOLE = 1 << 16


class TooLarge(Exception):  # noqa: N818 - a finding, not an error
    """More bytes than may come back."""


class BoundedReader:
    """An iterator of pieces as a file to read, which ends with TooLarge once `limit` bytes have passed."""

    def __init__(self, pieces: Iterable[bytes], limit: int | None) -> None:
        self._pieces = iter(pieces)
        self._held = b""
        self._left = limit

    def read(self, size: int) -> bytes:
        """Fewer than `size` bytes only at the end."""
        parts = [self._held]
        have = len(self._held)
        while have < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            if self._left is not None:
                self._left -= len(piece)
                if self._left < 0:
                    raise TooLarge
            parts.append(piece)
            have += len(piece)
        joined = b"".join(parts)
        self._held = joined[size:]
        return joined[:size]


def unpack(pieces: Iterable[bytes], workspace: Path, *, limit: int | None) -> int:
    """Replace what is in the workspace by the archive's content; its first entry is the workspace itself.

    Everything belongs to the workspace's owner where we may give it away. Set-user and set-group bits go: what an
    agent made must not run as anybody else here. limit: bytes that the archive may have.
    Returns the bytes of the longest path of a directory below the workspace. Raises OSError, TooLarge, and SandboxError
    for what is not an archive of a directory.
    """
    top = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _empty(workspace)
        owner = os.fstat(top)
        user = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 and (owner.st_uid or owner.st_gid) else None
        with _archive(BoundedReader(pieces, limit)) as archive, Descent(top) as descent:
            return _Unpacking(archive, descent, top, user).all()
    except tarfile.TarError as error:
        raise SandboxError(f"what the Docker engine sent as the workspace can't be read: {error}") from error
    finally:
        os.close(top)


def move_below(pieces: Iterable[bytes], directory: str, *, limit: int | None, leave_out: str = "") -> Iterator[bytes]:
    """The same archive with everything in it below this directory (of the container's root, no `/` in front).
    leave_out: a directory, by its new name, that is left empty.

    An engine refuses a relative link that leads above the directory where it unpacks: what an agent's code leaves in
    its HOME can be unpacked at the root alone. Set-user and set-group bits, and devices, go. Raises TooLarge,
    SandboxError.
    """
    try:
        with _archive(BoundedReader(pieces, limit)) as archive:
            for info in entries_of(archive):
                name = f"{directory}/{info.name.strip('/')}".strip("/")
                target = f"{directory}/{info.linkname.strip('/')}".strip("/") if info.islnk() else info.linkname
                if leave_out and (name.startswith(f"{leave_out}/") or target.startswith(f"{leave_out}/")):
                    continue
                if not (info.isreg() or info.isdir() or info.issym() or info.islnk() or info.isfifo()):
                    continue
                size = info.size if info.isreg() else 0
                kind = tarfile.REGTYPE if info.isreg() else info.type
                yield header(
                    name, kind, info.mode & 0o1777, info.uid, size=size, target=target, modified_ns=_modified_ns(info)
                )
                if info.isreg():
                    content = archive.extractfile(info)
                    assert content is not None
                    while data := content.read(_CHUNK):
                        yield data
                    yield padding(size)
    except tarfile.TarError as error:
        raise SandboxError(f"what the Docker engine sent as HOME can't be read: {error}") from error


def entries_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """One after the other, none of them held: an agent can make millions."""
    while (info := archive.next()) is not None:
        setattr(archive, "members", [])  # noqa: B010 - else it keeps all of them; no part of its typed interface
        yield info


def _empty(workspace: Path) -> None:
    for entry in list(os.scandir(workspace)):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)  # noqa: PTH108


@contextlib.contextmanager
def _archive(source: BoundedReader) -> Iterator[tarfile.TarFile]:
    stream = cast("IO[bytes]", source)
    with tarfile.open(
        fileobj=stream, mode="r|", bufsize=_BUFFER, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        yield archive


class _Unpacking:
    def __init__(self, archive: tarfile.TarFile, descent: Descent, top: int, user: tuple[int, int] | None) -> None:
        self._archive = archive
        self._descent = descent
        self._top = top
        self._user = user
        self._directories: list[tuple[str, int, int]] = []

    def all(self) -> int:
        """Lay out every entry; modes of directories last. Returns the bytes of the longest directory's path there."""
        longest = 0
        for info in entries_of(self._archive):
            relative = _relative(info.name)
            if info.isdir():
                longest = max(longest, len(os.fsencode(relative)))
            if relative:
                self._one(info, relative)
            else:
                self._directories.append(("", info.mode & 0o1777, _modified_ns(info)))
        for relative, mode, modified in reversed(self._directories):
            # From the top each time: the order is not the one in which we came.
            fd = os.dup(self._top) if not relative else self._descent.open(relative)
            try:
                # The workspace itself stays open to us, who have to look into it.
                os.fchmod(fd, mode if relative else mode | 0o700)
                os.utime(fd, ns=(modified, modified))
            finally:
                os.close(fd)
        return longest

    def _one(self, info: tarfile.TarInfo, relative: str) -> None:
        above, _, name = relative.rpartition("/")
        folder = self._descent.open(above)
        try:
            if info.isdir():
                os.mkdir(name, 0o700, dir_fd=folder)
                self._directories.append((relative, info.mode & 0o1777, _modified_ns(info)))
            elif info.issym():
                os.symlink(info.linkname, name, dir_fd=folder)
            elif info.islnk():
                self._link(_relative(info.linkname), name, folder)
                return
            elif info.isfifo():
                os.mkfifo(name, info.mode & 0o1777, dir_fd=folder)
            elif info.isreg():
                self._file(info, name, folder)
            else:
                return  # devices: only root makes them, and root makes none here
            if self._user is not None:
                os.chown(name, *self._user, dir_fd=folder, follow_symlinks=False)
            if not info.isdir():
                self._finish(info, name, folder)
        finally:
            os.close(folder)

    def _finish(self, info: tarfile.TarInfo, name: str, folder: int) -> None:
        if not info.issym():
            os.chmod(name, info.mode & 0o1777, dir_fd=folder)
        modified = _modified_ns(info)
        os.utime(name, ns=(modified, modified), dir_fd=folder, follow_symlinks=False)

    def _link(self, target: str, name: str, folder: int) -> None:
        above, _, first = target.rpartition("/")
        source = os.dup(self._top)
        try:
            with Descent(source) as descent:
                place = descent.open(above)
                try:
                    os.link(first, name, src_dir_fd=place, dst_dir_fd=folder, follow_symlinks=False)
                finally:
                    os.close(place)
        finally:
            os.close(source)

    def _file(self, info: tarfile.TarInfo, name: str, folder: int) -> None:
        content = self._archive.extractfile(info)
        assert content is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            while data := content.read(_CHUNK):
                _write(fd, data)
            os.ftruncate(fd, info.size)
        finally:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    """Zeros stay holes: a file of nothing must not fill our disk."""
    if not data.strip(b"\0") and len(data) >= _HOLE:
        os.lseek(fd, len(data), os.SEEK_CUR)
        return
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _relative(name: str) -> str:
    """The name below the workspace: the first part is the workspace's own. Raises SandboxError."""
    _, _, rest = name.strip("/").partition("/")
    if any(part in ("", ".", "..") for part in rest.split("/") if rest):
        raise SandboxError(f"what the Docker engine sent as the workspace has an impossible name: {name[:200]!r}")
    return rest


def _modified_ns(info: tarfile.TarInfo) -> int:
    """In nanoseconds: the archive's own text is exact, a float is not."""
    text = info.pax_headers.get("mtime")
    if text is None:
        return int(info.mtime) * 10**9
    seconds, _, fraction = str(text).partition(".")
    part = int((fraction + "0" * 9)[:9]) if fraction else 0
    return int(seconds) * 10**9 + (-part if seconds.startswith("-") else part)


_MEASURE_TRIES = 3
_INTO = "can't copy into a container"


def put_archive(client: EngineClient, container: str, pieces: Iterable[bytes], directory: str = "/") -> None:
    """Unpack an archive (all but its end) in a container's directory. Raises SandboxError."""
    with engine_errors(_INTO):
        client.put_archive(container, directory, in_chunks(_read_here(itertools.chain(pieces, [END]))))


def _read_here(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The client would take an OSError of what is sent for one of the connection."""
    with engine_errors(_INTO):
        yield from pieces


def fetch_archive(client: EngineClient, container: str, path: str) -> Generator[bytes, None, None]:
    """What is at this path of a container, as pieces of an archive. To be closed. Raises SandboxError; an OSError of
    the caller's own passes through."""
    with engine_errors("can't copy out of a container"):
        yield from client.archive(container, path)


def layer_size(client: EngineClient, container: str) -> int:
    """Bytes that a container added to its image, in its own layer. Raises TooDeep when the engine can't tell, again and
    again, and SandboxError."""
    for _ in range(_MEASURE_TRIES):
        with engine_errors("can't look at a container's size"):
            size = client.layer_size(container)
        if size >= 0:
            return size
    raise TooDeep
