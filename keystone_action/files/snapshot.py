"""What is in a workspace at one moment (each entry with its kind, mode and content digest), and what two moments differ
in.

`.git` folders are recorded but not entered: a commit by the agent would drown its changes in object files.
`snapshot_git` takes what is in them. A file whose time stamps did not change is not read again where the file system is
known to stamp every change, and is seen to do it here: tmpfs does not stamp what is written through a mapped page.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from keystone_action.errors import raise_unless_agent
from keystone_action.files.descent import Descent
from keystone_action.files.paths import PathProblem, PathUnreadable, read_inside


@dataclass(frozen=True, slots=True)
class FileState:
    """One entry of a workspace."""

    kind: Literal["file", "directory", "link", "other"]
    """`other` is a device, socket or FIFO."""
    mode: int
    size: int = 0
    digest: str = ""
    """SHA-256 of a file's bytes."""
    target: str = ""
    attributes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """Names and digests of its extended attributes, access lists included. Only where the snapshot was asked for them;
    `compare_entries` takes no notice of them."""
    staged: str = field(default="", compare=False)
    """`meaning_of_index` of an index of git. As `attributes`."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between the snapshot and the workspace as left; POSIX path relative to the workspace, `.`
    for itself."""

    path: str
    change: Literal["added", "modified", "removed", "mode"]
    before: FileState | None = None
    after: FileState | None = None


def compare_entries(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[Change, ...]:
    """Every path that differs, sorted.

    `modified` is other content, another link target or another kind; `mode` is the same content with other
    permissions. As in git, a directory is not an entry of its own: one that was made or removed shows in what it holds,
    and only its permissions are reported. A file that became a directory is `removed`, the reverse `added`.
    """
    found = []
    for path in before.keys() | after.keys():
        old, new = before.get(path), after.get(path)
        what = _change(old, new)
        if what is not None:
            found.append(Change(path, what, old, new))
    return tuple(sorted(found, key=lambda change: change.path))


def _change(old: FileState | None, new: FileState | None) -> Literal["added", "modified", "removed", "mode"] | None:
    if old == new:
        return None
    old_entry = old is not None and old.kind != "directory"
    new_entry = new is not None and new.kind != "directory"
    if old is None or new is None or old_entry != new_entry:
        if old_entry:
            return "removed"
        return "added" if new_entry else None
    if (old.kind, old.size, old.digest, old.target) != (new.kind, new.size, new.digest, new.target):
        return "modified"
    # A link's own permissions mean nothing.
    return None if old.kind == "link" else "mode"


def compare_whole(before: Mapping[str, FileState], after: Mapping[str, FileState]) -> tuple[Change, ...]:
    """As `compare_entries`, and what it passes over: directories that were made or removed with nothing in them, which
    no other path shows, and extended attributes, which are a change of `mode`."""
    found = compare_entries(before, after)
    told = {change.path for change in found}
    both = ((path, before[path], after[path]) for path in before.keys() & after.keys() - told)
    marked = [Change(path, "mode", old, new) for path, old, new in both if old.attributes != new.attributes]
    made = [Change(path, "added", None, after[path]) for path in _empty(after) if path not in before]
    gone = [Change(path, "removed", before[path], None) for path in _empty(before) if path not in after]
    return tuple(sorted([*found, *marked, *made, *gone], key=lambda change: change.path))


def _empty(entries: Mapping[str, FileState]) -> list[str]:
    filled = {path.rpartition("/")[0] for path in entries}
    return [path for path, state in entries.items() if state.kind == "directory" and path not in filled]


_KNOWN = {0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x794C7630: "overlay"}
"""By the kernel's magic numbers. ext2 has that of ext4, and an overlay can lie on any other: the trial tells."""
_SECOND = 10**9
_FIRST_OF_1970 = (_SECOND, _SECOND)

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_tried: dict[tuple[int, int], bool] = {}
"""By device and kind: one trial of each is enough."""


def stamps_every_change(directory: int) -> bool:
    """Whether files of this open directory's file system get new times, finer than a second, with every change."""
    kind = _kind(directory)
    if kind not in _KNOWN:
        return False
    key = (os.fstat(directory).st_dev, kind)
    if key not in _tried:
        _tried[key] = _trial(directory)
    return _tried[key]


def _kind(directory: int) -> int | None:
    if _libc is None:
        return None
    buffer = (ctypes.c_long * 32)()  # larger than any struct statfs; its first member is the kind
    if _libc.fstatfs(directory, ctypes.byref(buffer)) != 0:
        return None
    return int(buffer[0]) & 0xFFFFFFFF


def _trial(directory: int) -> bool:
    """Write a mapped page of a file without a name, and look at its times. A failure proves nothing."""
    try:
        file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        return False
    try:
        os.write(file, bytes(mmap.PAGESIZE))
        with mmap.mmap(file, mmap.PAGESIZE) as page, open("/dev/zero", "rb", buffering=0) as zeros:  # noqa: PTH123
            page[0]  # a page that was read before can be written without a fault, where nothing asks for one
            os.utime(file, ns=_FIRST_OF_1970)
            # By a system call: where the disk is full a store of our own would end this process with SIGBUS.
            zeros.readinto(page)
        status = os.fstat(file)
    except OSError:
        return False
    finally:
        os.close(file)
    is_stamped = status.st_mtime_ns > _SECOND
    return is_stamped and all(stamp % _SECOND for stamp in (status.st_mtime_ns, status.st_ctime_ns))


ENTRIES_LIMIT = 2_000_000
PATHS_LIMIT = 256 << 20
"""Characters of all paths together: 5,000 directories in one another, with names of 255 characters, have 3 billion."""
HASHED_LIMIT = 4 << 30
SPARSE_LIMIT = 64 << 20
"""Files above HASHED_LIMIT bytes, and files with holes above SPARSE_LIMIT, are not read: a file of exabytes costs its
author nothing. Their digest is `unread:` and the identity of inode and change time, which differs after any change."""
UNREAD = "unread:"
ATTRIBUTES = ("user.", "system.posix_acl", "security.capability")
"""Beginnings of the names of extended attributes that an owner of a file, or root in a container, can set."""
_INDEX_LIMIT = 256 << 20
"""Bytes of an index of git that is understood; 100,000 files need 10 million."""
_SETTLED_NS = 100_000_000
"""Nanoseconds that a change time must be older than the snapshot to prove that nothing changed since: kernels stamp
changes with the time of the last tick (up to 10 ms), so two changes in one tick have one stamp."""

_OPEN = stat.S_IRUSR | stat.S_IXUSR
_CHUNK = 1 << 20
_Stamp = tuple[int, int, int, int, int]


class Snapshot(dict[str, FileState]):
    """Entries by POSIX path relative to the workspace; names that are not UTF-8 as os.fsdecode gives them.

    unreadable: directories that could not be listed, so what is in them is not here; "", the workspace itself, also
    when only its owner can't list it. stamps: what proves, in a later snapshot, that a file is unchanged.
    taken_ns: when it began, by the clock of the file system's stamps. root: the workspace itself, None where it can't
    be opened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: list[str] = []
        self.stamps: dict[str, _Stamp] = {}
        self.taken_ns = time.time_ns()
        self.root: FileState | None = None


def snapshot(
    workspace: Path,
    known: Mapping[str, FileState] | None = None,
    *,
    enters_git: bool = False,
    attributes: bool = False,
) -> Snapshot:
    """Take a snapshot; a workspace that is gone or can't be opened is an empty one.

    known: an earlier snapshot of this directory, whose digests are taken over for files whose device, inode, size,
    modification and change time are the same and whose change time was settled by then, where the file system stamps
    every change (`stamps`). An agent can forge a modification time, not a change time, unless the caller runs agents
    with the right to set the system's clock. On ext4 it can exchange the blocks of two files without a stamp
    (`EXT4_IOC_MOVE_EXT`), so leave `known` out where something depends on what changed.
    enters_git: whether `.git` directories are entered like others. attributes: whether extended attributes are read.
    Links are not followed, FIFOs not opened. What can't be read has the digest `unread:…`.
    Raises PathUnreadable above ENTRIES_LIMIT entries or PATHS_LIMIT characters, HarnessError when this machine, not
    what the agent left, keeps us from reading.
    """
    taken = Snapshot()
    try:
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise_unless_agent(error, "reading the workspace")
        taken.unreadable.append("")
        return taken
    try:
        reader = _Reader(
            taken, known if isinstance(known, Snapshot) else None, root, enters_git=enters_git, attributes=attributes
        )
        status = os.fstat(root)
        if status.st_mode & _OPEN != _OPEN:
            taken.unreadable.append("")  # what its agent closed is closed, though no mode keeps root out
        taken.root = FileState(
            "directory", stat.S_IMODE(status.st_mode), attributes=_attributes_of(root) if attributes else ()
        )
        with Descent(root) as descent:
            todo = [""]
            while todo:
                todo.extend(reader.directory(descent, todo.pop()))
    finally:
        os.close(root)
    return taken


def snapshot_git(workspace: Path, taken: Snapshot) -> Snapshot:
    """What is in the `.git` directories of a snapshot, by paths relative to the workspace, extended attributes and what
    indexes say included, and as `.` the workspace itself. Raises what `snapshot` raises."""
    found = Snapshot()
    if taken.root is not None:
        found["."] = taken.root
    for path, state in taken.items():
        if state.kind == "directory" and path.rpartition("/")[2] == ".git":
            inside = snapshot(workspace / path, enters_git=True, attributes=True)
            for name, one in inside.items():
                is_index = one.kind == "file" and name.rpartition("/")[2] == "index" and one.size <= _INDEX_LIMIT
                staged = _staged(workspace, f"{path}/{name}") if is_index else ""
                found[f"{path}/{name}"] = replace(one, staged=staged) if staged else one
            found.unreadable += [f"{path}/{name}".rstrip("/") for name in inside.unreadable]
    return found


def _staged(workspace: Path, path: str) -> str:
    from keystone_action.files.git.commands import meaning_of_index

    try:
        return meaning_of_index(read_inside(workspace, path, limit=_INDEX_LIMIT))
    except PathProblem:
        return ""


def _attributes_of(file: int | str) -> tuple[tuple[str, str], ...]:
    """Those that the owner of a file can set. file: a descriptor, or a path whose last part is not followed."""
    follow = isinstance(file, int)
    try:
        names = os.listxattr(file, follow_symlinks=follow)
    except OSError:  # a file system without them
        return ()
    return tuple(sorted((name, _value(file, name, follow)) for name in names if name.startswith(ATTRIBUTES)))


def _value(file: int | str, name: str, follow: bool) -> str:
    try:
        return hashlib.sha256(os.getxattr(file, name, follow_symlinks=follow)).hexdigest()
    except OSError as error:
        return f"{UNREAD}{error.errno}"


class _Reader:
    def __init__(
        self, taken: Snapshot, known: Snapshot | None, root: int, *, enters_git: bool, attributes: bool
    ) -> None:
        self.taken = taken
        self.enters_git = enters_git
        self.attributes = attributes
        self.known = known
        self.root = root
        self.device = os.fstat(root).st_dev
        self.size = 0

    def directory(self, descent: Descent, directory: str) -> list[str]:
        """Record one directory's entries; returns the directories among them that are to be entered."""
        deeper = []
        try:
            with descent.listing(directory) as (folder, entries):
                for path, entry in entries:
                    self._count(path)
                    state = self._state(entry, path, folder)
                    self.taken[path] = state
                    if state.kind == "directory" and (self.enters_git or entry.name != ".git"):
                        deeper.append(path)
        except OSError as error:
            raise_unless_agent(error, "reading the workspace")
            self.taken.unreadable.append(directory)
        return deeper

    def _count(self, path: str) -> None:
        self.size += len(path)
        if len(self.taken) >= ENTRIES_LIMIT:
            raise PathUnreadable(f"the workspace holds more than {ENTRIES_LIMIT:,} entries")
        if self.size > PATHS_LIMIT:
            raise PathUnreadable(f"the paths in the workspace have more than {PATHS_LIMIT:,} characters altogether")

    def _state(self, entry: os.DirEntry[str], path: str, directory: int) -> FileState:
        status = entry.stat(follow_symlinks=False)
        mode = stat.S_IMODE(status.st_mode)
        marks = _attributes_of(f"/proc/self/fd/{directory}/{entry.name}") if self.attributes else ()
        if stat.S_ISREG(status.st_mode):
            digest = self._digest(entry.name, path, status, directory)
            return FileState("file", mode, status.st_size, digest, attributes=marks)
        if stat.S_ISDIR(status.st_mode):
            return FileState("directory", mode, attributes=marks)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(entry.name, dir_fd=directory)
            return FileState("link", mode, target=target, attributes=marks)
        return FileState("other", mode, attributes=marks)

    def _digest(self, name: str, path: str, status: os.stat_result, directory: int) -> str:
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        self.taken.stamps[path] = stamp
        if self.known is not None and self.known.stamps.get(path) == stamp:
            before = self.known.get(path)
            settled = status.st_ctime_ns < self.known.taken_ns - _SETTLED_NS
            if before is not None and settled and status.st_dev == self.device and stamps_every_change(self.root):
                return before.digest
        holes = status.st_blocks * 512 < status.st_size
        if status.st_size > HASHED_LIMIT or (holes and status.st_size > SPARSE_LIMIT):
            return _unread(status)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise_unless_agent(error, "reading the workspace")
            return _unread(status)
        try:
            return _hash(fd, status.st_size)
        except OSError as error:
            raise_unless_agent(error, "reading the workspace")
            return _unread(status)
        finally:
            os.close(fd)


def _hash(fd: int, size: int) -> str:
    chunk = os.read(fd, min(size + 1, _CHUNK))
    digest = hashlib.sha256(chunk)
    while len(chunk) == _CHUNK:
        chunk = os.read(fd, _CHUNK)
        digest.update(chunk)
    return digest.hexdigest()


def _unread(status: os.stat_result) -> str:
    return f"{UNREAD}{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}"
