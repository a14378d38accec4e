"""Paths that an agent left behind: opened beneath a root, never through a link that leads out of it.

Every name, link and file below the root may be hostile. Nothing here blocks (a FIFO is opened with O_NONBLOCK),
nothing follows a link out of the root, and what is read is bounded. Spec 5.2: an escape at run time is refused
and fails the check.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from keystone_action.errors import raise_unless_agent
from keystone_action.files.descent import open_directory

READ_LIMIT = 64 << 20
"""Bytes that `read_inside` takes of one file unless told otherwise."""

_LINKS_FOLLOWED = 40
_SAFE_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)


class PathProblem(Exception):  # noqa: N818 - an outcome for a check, not a defect of ours
    """A path of the workspace can't be used; the message is a sentence for the check's own message."""


class PathEscape(PathProblem):
    """The path, or a link on its way, leads out of the root."""


class PathMissing(PathProblem, FileNotFoundError):  # noqa: N818
    """There is nothing at this path (a dangling link counts as nothing)."""


class PathLoop(PathMissing):
    """Links that lead round in circles; nothing is there either."""


class PathUnreadable(PathProblem):
    """Something is there, but it is not a regular file, too large, or may not be read."""


def display_path(path: str) -> str:
    """A path as text that can always be encoded: bytes that are not UTF-8 as `\\xff`, control characters escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def name_paths(paths: Sequence[str], *, limit: int = 5) -> str:
    """`a.txt, b.txt and 7 more`."""
    first = ", ".join(display_path(path) for path in paths[:limit])
    return first if len(paths) <= limit else f"{first} and {len(paths) - limit} more"


def display_paths(paths: Sequence[str], *, limit: int = 100) -> list[str]:
    """The first paths, for an outcome's details: names that are not UTF-8 made so."""
    return [display_path(path) for path in paths[:limit]]


def resolve_inside(root: Path, relative: str) -> Path:
    """Where `relative` really is, below `root`, all links followed. The last parts need not exist.

    An absolute link that points into the root counts as inside. Raises PathEscape, PathMissing when the root itself
    is gone or the links go round in a loop, PathUnreadable for names that the system refuses.
    """
    walk = _Walk(root, relative)
    try:
        return root.joinpath(*walk.resolve())
    finally:
        walk.close()


def open_inside(root: Path, relative: str, flags: int = os.O_RDONLY) -> int:
    """A file descriptor for `relative` below `root`, without a race: the caller closes it.

    O_CLOEXEC, O_NONBLOCK and O_NOCTTY are always added. Raises PathEscape, PathMissing, PathUnreadable.
    """
    from keystone_action.files.descent import BENEATH, NO_MAGIC_LINKS, openat2

    # openat2 insists that flags make sense together.
    flags |= os.O_CLOEXEC if _is_path_only(flags) else _SAFE_FLAGS
    _refuse_literal(relative)
    root_fd = _open_root(root)
    try:
        fd = openat2(root_fd, os.fsencode(relative or "."), flags, BENEATH | NO_MAGIC_LINKS)
    except OSError as error:
        # EXDEV also stands for an absolute link that points back into the root: the walk tells them apart.
        if error.errno not in {errno.EXDEV, errno.ENOSYS, errno.ENAMETOOLONG, errno.EPERM, errno.EAGAIN, errno.EINVAL}:
            raise _problem(error, relative) from None
    else:
        return fd
    finally:
        os.close(root_fd)
    walk = _Walk(root, relative)
    try:
        return walk.open(flags)
    finally:
        walk.close()


def read_inside(root: Path, relative: str, *, limit: int = READ_LIMIT) -> bytes:
    """The bytes of a regular file below `root`.

    Raises PathEscape, PathMissing, PathUnreadable (not a regular file, above `limit` bytes, permission denied).
    """
    head, size = read_head_inside(root, relative, limit=limit)
    if size > limit:
        raise PathUnreadable(f"{display_path(relative)} has {size:,} bytes; at most {limit:,} are read")
    return head


def read_head_inside(root: Path, relative: str, *, limit: int = READ_LIMIT) -> tuple[bytes, int]:
    """The first `limit` bytes of a regular file below `root`, and how many bytes it has. Raises as `read_inside`."""
    fd = open_inside(root, relative)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise PathUnreadable(f"{display_path(relative)} is {_kind(status.st_mode)}, not a regular file")
        with open(fd, "rb", closefd=False) as file:
            head = file.read(limit + 1)
        return head[:limit], max(status.st_size, len(head))
    except OSError as error:
        raise _problem(error, relative) from None
    finally:
        os.close(fd)


def stat_inside(root: Path, relative: str) -> os.stat_result:
    """What is at `relative`, links followed inside the root. Raises PathEscape, PathMissing, PathUnreadable."""
    fd = open_inside(root, relative, _O_PATH)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


def exists_inside(root: Path, relative: str) -> bool:
    """Whether something is at `relative`; a dangling link is nothing. Raises PathEscape, PathUnreadable."""
    try:
        stat_inside(root, relative)
    except PathMissing:
        return False
    return True


def write_inside(root: Path, relative: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file of ours below `root`, with the directories on its way, owned by the owner of the root.

    What was there is replaced, also when it was a link. Raises PathEscape, PathMissing, PathUnreadable.
    """
    _refuse_literal(relative)
    parent, name = os.path.split(relative.rstrip("/"))
    if name in {"", ".", ".."}:
        raise PathUnreadable(f"{display_path(relative)!r} names no file")
    make_directories_inside(root, parent)
    directory = open_inside(root, parent or ".", os.O_RDONLY | os.O_DIRECTORY)
    temporary = f".keystone-{os.urandom(8).hex()}"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            _give_to_owner(root, fd)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise _problem(error, relative) from None
    finally:
        os.close(directory)


def make_directories_inside(root: Path, relative: str) -> None:
    """Make `relative` and what is missing on its way, owned by the root's owner. Raises as `open_inside`."""
    _refuse_literal(relative)
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    for end in range(1, len(parts) + 1):
        here = "/".join(parts[:end])
        if exists_inside(root, here):
            continue
        above = open_inside(root, "/".join(parts[: end - 1]) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.mkdir(parts[end - 1], 0o755, dir_fd=above)
            fd = os.open(parts[end - 1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            try:
                _give_to_owner(root, fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _problem(error, here) from None
        finally:
            os.close(above)


class _Walk:
    """Component by component with O_NOFOLLOW, links read and followed by hand: what openat2 does, and absolute
    links into the root besides. Two descriptors at a time, however deep it goes: an agent makes more directories in one
    another than anybody may have open."""

    def __init__(self, root: Path, relative: str) -> None:
        _refuse_literal(relative)
        self.root = root
        self.relative = relative
        self.todo = relative.split("/")[::-1]
        self.links = 0
        self.names: list[str] = []
        self.missing = False
        self.top = _open_root(root)
        self.here = os.dup(self.top)

    def close(self) -> None:
        os.close(self.here)
        os.close(self.top)

    def resolve(self) -> list[str]:
        """Names from the root to the real place; what does not exist is appended as it is written."""
        while self.todo:
            part = self.todo.pop()
            try:
                self._enter(part)
            except PathLoop:
                raise
            except PathMissing:
                rest = [name for name in self.todo[::-1] if name not in {"", "."}]
                if ".." in rest:
                    raise PathMissing(f"{display_path(self.relative)} does not exist") from None
                self.missing = True
                return [*self.names, part, *rest]
        return self.names

    def open(self, flags: int) -> int:
        """The real place opened with `flags`."""
        names = self.resolve()
        if self.missing:
            raise PathMissing(f"{display_path(self.relative)} does not exist")
        try:
            if not names:
                return os.open(".", flags, dir_fd=self.top)
            above = open_directory(self.top, "/".join(names[:-1]), _O_PATH)
            try:
                return os.open(names[-1], flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
        except OSError as error:
            raise _problem(error, self.relative) from None

    def _enter(self, part: str) -> None:
        if part in {"", "."}:
            return
        if part == "..":
            if not self.names:
                raise PathEscape(f"{display_path(self.relative)} leads out of the workspace")
            self._back(self.names[:-1])
            return
        try:
            fd = os.open(part, _O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.here)
        except OSError as error:
            raise _problem(error, self.relative) from None
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            try:
                self._follow(os.readlink("", dir_fd=fd))
            finally:
                os.close(fd)
            return
        os.close(self.here)
        self.here = fd
        self.names.append(part)

    def _back(self, names: list[str]) -> None:
        """Go to a directory that was passed on the way."""
        try:
            fd = open_directory(self.top, "/".join(names), _O_PATH)
        except OSError as error:
            raise _problem(error, self.relative) from None
        os.close(self.here)
        self.here = fd
        self.names = list(names)

    def _follow(self, target: str) -> None:
        self.links += 1
        if self.links > _LINKS_FOLLOWED:
            raise PathLoop(f"{display_path(self.relative)} leads through a loop of links")
        if target.startswith("/"):
            inside = inside_of(self.root, target)
            if inside is None:
                raise PathEscape(
                    f"{display_path(self.relative)} leads through a link out of the workspace, "
                    f"to {display_path(target)}"
                )
            self._back([])
            target = inside
        self.todo.extend(target.split("/")[::-1])


def inside_of(root: Path, absolute: str) -> str | None:
    """The part of an absolute path below `root`, by its text; None when it is elsewhere."""
    for base in {os.path.abspath(root), os.path.realpath(root)}:  # noqa: PTH100 - by its text, links unfollowed
        if absolute == base or absolute.startswith(base + "/"):
            return absolute[len(base) + 1 :]
    return None


def _is_path_only(flags: int) -> bool:
    return bool(_O_PATH) and flags & _O_PATH == _O_PATH


def _refuse_literal(relative: str) -> None:
    if "\0" in relative:
        raise PathUnreadable(f"{display_path(relative)} holds a NUL character")
    if relative.startswith("/"):
        raise PathEscape(f"{display_path(relative)} is absolute; a path relative to the workspace was expected")


def _open_root(root: Path) -> int:
    try:
        return os.open(root, _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PathMissing("the workspace itself is gone") from None
    except OSError as error:
        raise_unless_agent(error, "opening the workspace")
        raise PathUnreadable(f"the workspace can't be opened: {error.strerror}") from None


def _give_to_owner(root: Path, fd: int) -> None:
    if os.geteuid() == 0:
        owner = root.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)


def real_path(path: Path) -> Path:
    """The path without links. By `os.path`, which does not fail where `Path.resolve` does: in a loop of links."""
    return Path(os.path.realpath(path))


def is_within(path: Path, folder: Path) -> bool:
    """Whether a path is this folder or lies in it, by their names."""
    return path == folder or folder in path.parents


def _problem(error: OSError, relative: str) -> PathProblem:
    shown = display_path(relative)
    raise_unless_agent(error, f"using {shown}")
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return PathMissing(f"{shown} does not exist")
    if error.errno == errno.ELOOP:
        return PathLoop(f"{shown} leads through a loop of links")
    if error.errno == errno.EXDEV:
        return PathEscape(f"{shown} leads out of the workspace")
    return PathUnreadable(f"{shown} can't be used: {error.strerror or error}")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFLNK: "a link",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
