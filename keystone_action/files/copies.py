"""Copies of trees that may be hostile, exact copies of folders in another place, and who owns what we lay out.

No link is followed, nothing blocks, holes stay holes. Both sides are walked by folder descriptors, so neither depth
(beyond PATH_MAX) nor a swapped link matters. Where the file system can share blocks (FICLONE on btrfs, XFS, bcachefs)
the bytes of a file are not copied at all.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from keystone_action.files.descent import Descent, open_tree, walk_down
from keystone_action.files.paths import inside_of
from keystone_action.files.removal import remove_tree

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
    """What a copy came across, as POSIX paths relative to the tree."""

    files: int = 0
    links: list[tuple[str, str]] = field(default_factory=list)
    """Path and target of each link, as it was."""
    special: list[str] = field(default_factory=list)
    """Sockets, FIFOs and devices: not copied."""
    unreadable: list[str] = field(default_factory=list)
    """Files and folders that could not be read: not copied."""
    repositories: list[str] = field(default_factory=list)
    """Entries named `.git`."""


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
        try:
            status = entry.stat(follow_symlinks=False)
        except PermissionError:  # a folder that may be listed and not searched
            self.copied.unreadable.append(path)
            return
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


def give_to_owner(workspace: Path, target: Path) -> None:
    """Make what we laid out below `workspace` belong to the workspace's owner; nothing is followed. Raises OSError."""
    owner = workspace.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        _give(target, owner)


def missing_folders(path: Path, workspace: Path) -> list[Path]:
    """The folders between the workspace and the path, the path included, that don't exist yet."""
    return [
        folder
        for folder in (path, *path.parents)
        if folder != workspace and folder.is_relative_to(workspace) and not folder.exists()
    ]


def hand_over(paths: Iterable[Path], workspace: Path) -> None:
    """Give files and folders with all that is in them to the owner of the workspace; links are not followed.

    What a container action leaves in the workspace belongs to root, and the next checkout on the same machine could not
    remove it. Only root can give; for others, and where a file system refuses, nothing changes.
    """
    if os.geteuid() != 0:
        return
    owner = workspace.stat()
    for path in paths:
        # A path that was never made, or went away meanwhile, leaves the others to be done.
        with suppress(OSError):
            _give(path, owner, OSError)


def _give(top: Path, owner: os.stat_result, *ignored: type[OSError]) -> None:
    """ignored: errors that leave one entry, or what is in one folder, as it is."""
    os.lchown(top, owner.st_uid, owner.st_gid)
    if not top.is_dir() or top.is_symlink():
        return
    for _, folder, entries in walk_down(top, (lambda _: None) if ignored else None):
        for entry in entries:
            with suppress(*ignored):
                os.chown(entry.name, owner.st_uid, owner.st_gid, dir_fd=folder, follow_symlinks=False)


_SPECIAL_BITS = 0o7000
_MAY_NAME_PLACES = (".pyc", ".log")
"""Python corrects the path in compiled code when it is loaded; no program goes by its logs."""
_ATTRIBUTES = ("user.", "system.posix_acl")
_GIT = ".git"

GitState = frozenset[tuple[str, int, int, int]]


def git_state(folders: Collection[Path]) -> GitState:
    """Differs when anything in a `.git` of these folders was changed since. Raises OSError."""
    found = set()
    for top in folders:
        for directory, _, entries in walk_down(top):
            inside = _GIT in directory.split("/")
            for entry in entries:
                if inside or entry.name == _GIT:
                    status = entry.stat(follow_symlinks=False)
                    path = f"{top}/{directory}/{entry.name}"
                    found.add((path, status.st_ino, status.st_size, status.st_ctime_ns))
    return frozenset(found)


def copy_exactly(folders: Sequence[Path], to: Path, *, names: Collection[bytes]) -> tuple[int, ...] | None:
    """Copy what is in these folders to `to`/0, `to`/1 and so on; nothing runs in them meanwhile.

    names: of the place and the owner that a copy must not name. Returns the modes of the folders; None where what
    is in them would be something else in another place. Raises OSError.
    """
    needle = re.compile(b"|".join(map(re.escape, names)))
    if not all(_is_movable(folder, needle) for folder in folders):
        return None
    for number, folder in enumerate(folders):
        copy = to / str(number)
        copy.mkdir(mode=0o700)
        copy_all(folder, copy)
    return tuple(stat.S_IMODE(folder.lstat().st_mode) for folder in folders)


def put_copies(source: Path, modes: Sequence[int], folders: Sequence[Path]) -> None:
    """Put what `copy_exactly` copied into other folders, in the place of what is in them, for the owner of the first.
    Raises OSError."""
    for number, (folder, mode) in enumerate(zip(folders, modes, strict=True)):
        with os.scandir(folder) as entries:
            found = [Path(entry.path) for entry in entries]
        for path in found:
            remove_tree(path)
        copy_all(source / str(number), folder)
        folder.chmod(mode)
        give_to_owner(folders[0], folder)


def copy_all(source: Path, target: Path) -> None:
    """Copy what is in a folder to another one. Raises OSError, also for what can't be copied."""
    copied = copy_entries(source, target)
    if left_out := (*copied.special, *copied.unreadable):
        raise OSError(errno.EACCES, "a file that can't be copied", str(source / left_out[0]))


def _is_movable(top: Path, needle: re.Pattern[bytes]) -> bool:
    return all(_is_movable_entry(entry, folder, needle) for _, folder, entries in walk_down(top) for entry in entries)


def _is_movable_entry(entry: os.DirEntry[str], folder: int, needle: re.Pattern[bytes]) -> bool:
    status = entry.stat(follow_symlinks=False)
    mode = status.st_mode
    if needle.search(os.fsencode(entry.name)):
        return False
    if stat.S_ISLNK(mode):
        return needle.search(os.fsencode(os.readlink(entry.name, dir_fd=folder))) is None
    if mode & _SPECIAL_BITS or _has_attributes(entry.name, folder):
        return False
    if stat.S_ISREG(mode):
        if status.st_nlink > 1:
            return False
        return entry.name.endswith(_MAY_NAME_PLACES) or not file_holds(entry.name, needle, folder)
    return stat.S_ISDIR(mode)


def _has_attributes(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):  # a file system without them
        found = os.listxattr(f"/proc/self/fd/{folder}/{name}", follow_symlinks=False)
        return any(attribute.startswith(_ATTRIBUTES) for attribute in found)
    return False


def file_holds(name: str, needle: re.Pattern[bytes], folder: int | None = None) -> bool:
    """Whether this is in the bytes of a regular file. Raises OSError."""
    with _bytes_of(name, folder) as content:
        return content is not None and needle.search(content) is not None


@contextlib.contextmanager
def _bytes_of(name: str, folder: int | None) -> Iterator[mmap.mmap | None]:
    """None for an empty file."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not os.fstat(descriptor).st_size:
            yield None
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content
    finally:
        os.close(descriptor)
