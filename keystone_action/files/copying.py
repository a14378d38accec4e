"""Copying a tree that may be hostile: nothing is followed, nothing blocks, holes stay holes.

Both sides are walked by directory descriptors, so neither depth (beyond PATH_MAX) nor a swapped link matters. Where
the filesystem can share blocks (FICLONE on btrfs, XFS, bcachefs) a file's bytes are not copied at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.files.descent import Descent, open_tree
from keystone_action.files.paths import inside_of

_FICLONE = 0x40049409
_NO_REFLINKS = {errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS}
_NO_COPY_RANGE = {*_NO_REFLINKS, errno.EINVAL, errno.EBADF, errno.EPERM}
_NOT_OURS = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENXIO, errno.ELOOP}
_CHUNK = 1 << 20
_PERMISSIONS = 0o777
"""Set-user-id and sticky bits are never copied: the copy may get another owner."""

LeaveOut = Callable[[str, os.stat_result], bool]
Link = Callable[[str, os.stat_result], bool]


@dataclass
class Copied:
    """What a copy came across; POSIX paths relative to the tree.

    links: path and target of each link, as it was. special: sockets, FIFOs and devices, not copied. unreadable:
    files and directories that could not be read, not copied. repositories: entries named `.git`.
    """

    files: int = 0
    links: list[tuple[str, str]] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)


def copy_entries(
    source: Path, destination: Path, *, leave_out: LeaveOut | None = None, link: Link | None = None
) -> Copied:
    """Copy everything below `source` into the directory `destination`, which exists.

    leave_out is asked for every entry by relative path and lstat; a directory left out is not entered. link: asked for
    every file in the same way; the copy then has the very file, if the filesystem is the same. Permissions and times of
    files are kept. Absolute links into `source` are made relative, so that the copy stands alone.
    Raises OSError when the source itself can't be opened, or the destination not written (disk full).
    """
    with open_tree(source) as (_, here), open_tree(destination) as (_, there):
        copy = _Copy(source, here, there, leave_out, link)
        copy.run()
    return copy.copied


class _Copy:
    def __init__(
        self, source: Path, here: Descent, there: Descent, leave_out: LeaveOut | None, link: Link | None
    ) -> None:
        self.source = source
        self.here = here
        self.there = there
        self.leave_out = leave_out
        self.link = link
        self.copied = Copied()
        self.reflinks = True
        self.todo: list[tuple[str, int]] = [("", -1)]
        self.closed_modes: list[tuple[str, int]] = []

    def run(self) -> None:
        while self.todo:
            directory, mode = self.todo.pop()
            try:
                source = self.here.open(directory)
            except OSError as error:
                if error.errno not in _NOT_OURS or not directory:
                    raise
                self.copied.unreadable.append(directory)
                self.closed_modes.append((directory, mode))
                continue
            try:
                self._directory(directory, mode, source)
            finally:
                os.close(source)
        # Directories that their owner may not write are closed when all is in them, the deepest first.
        for directory, mode in reversed(self.closed_modes):
            fd = self.there.open(directory)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def _directory(self, directory: str, mode: int, source: int) -> None:
        destination = self.there.open(directory)
        try:
            if mode >= 0:
                if mode & 0o700 == 0o700:
                    os.fchmod(destination, mode)
                else:
                    self.closed_modes.append((directory, mode))
            with os.scandir(source) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    self._entry(entry, path, source, destination)
        finally:
            os.close(destination)

    def _entry(self, entry: os.DirEntry[str], path: str, source: int, destination: int) -> None:
        status = entry.stat(follow_symlinks=False)
        if self.leave_out is not None and self.leave_out(path, status):
            return
        if entry.name == ".git":
            self.copied.repositories.append(path)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(entry.name, 0o700, dir_fd=destination)
            self.todo.append((path, status.st_mode & _PERMISSIONS))
        elif stat.S_ISREG(status.st_mode):
            if not (self.link and self.link(path, status) and self._copy_link(entry.name, source, destination)):
                self._file(entry.name, path, source, destination)
        elif stat.S_ISLNK(status.st_mode):
            self._link(entry.name, path, source, destination)
        else:
            self.copied.special.append(path)

    def _link(self, name: str, path: str, source: int, destination: int) -> None:
        target = os.readlink(name, dir_fd=source)
        self.copied.links.append((path, target))
        if target.startswith("/"):
            inside = inside_of(self.source, target)
            if inside is not None:
                target = os.path.relpath(inside or ".", os.path.dirname(path) or ".")  # noqa: PTH120 - text only
        os.symlink(target, name, dir_fd=destination)

    def _copy_link(self, name: str, source: int, destination: int) -> bool:
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=destination, follow_symlinks=False)
        except OSError:  # another filesystem, one without links, somebody else's file
            return False
        self.copied.files += 1
        return True

    def _file(self, name: str, path: str, source: int, destination: int) -> None:
        try:
            reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
            self.copied.unreadable.append(path)
            return
        try:
            status = os.fstat(reader)
            writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=destination)
            try:
                if status.st_size:
                    self._bytes(reader, writer, status)
                os.fchmod(writer, status.st_mode & _PERMISSIONS)
                os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(writer)
        finally:
            os.close(reader)
        self.copied.files += 1

    def _bytes(self, reader: int, writer: int, status: os.stat_result) -> None:
        if self.reflinks:
            try:
                _clone(reader, writer)
            except OSError as error:
                self.reflinks = error.errno not in _NO_REFLINKS
            else:
                return
        copy_content(reader, writer, status)


def copy_content(reader: int, writer: int, status: os.stat_result) -> None:
    """Copy what an open file holds into an empty one; holes stay holes. status: of what is read. Raises OSError."""
    if status.st_blocks * 512 >= status.st_size:
        _copy_range(reader, writer, 0, status.st_size)
        return
    # A file of exabytes costs its author nothing where it has holes; so it must cost us nothing either.
    end = 0
    while end < status.st_size:
        try:
            start = os.lseek(reader, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(reader, start, os.SEEK_HOLE)
        _copy_range(reader, writer, start, end)
    os.ftruncate(writer, status.st_size)


def _clone(reader: int, writer: int) -> None:
    import fcntl

    fcntl.ioctl(writer, _FICLONE, reader)


def _copy_range(reader: int, writer: int, start: int, end: int) -> None:
    try:
        while start < end:
            copied = os.copy_file_range(reader, writer, min(end - start, 1 << 30), start, start)
            if not copied:
                return
            start += copied
    except OSError as error:
        if error.errno not in _NO_COPY_RANGE:
            raise
    except AttributeError:  # not on this system
        pass
    while start < end:
        chunk = os.pread(reader, min(_CHUNK, end - start), start)
        if not chunk:
            return
        view = memoryview(chunk)
        while view:
            written = os.pwrite(writer, view, start)
            view = view[written:]
            start += written
