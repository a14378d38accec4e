"""Where recordings lie: folders that are reached, and made, without following a link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from keystone_action.files.descent import open_directory
from keystone_action.gateway.recordings.recording import ANEW, RecordingError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(folder: Path, below: Path | None) -> int:
    """A descriptor of the folder. below: no link on the way from there is followed; None, or a folder elsewhere: it is
    not a link itself. The caller closes it. Raises OSError."""
    if below is None or not folder.is_relative_to(below):
        return os.open(folder, _FOLDER)
    root = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_directory(root, _relative(folder, below))
    finally:
        os.close(root)


def make_folder(folder: Path, below: Path | None) -> int:
    """As `open_folder`. What is missing on the way is made, and belongs to the owner of what it is made in."""
    start = folder
    if below is None or not folder.is_relative_to(below):
        while not os.path.lexists(start) and start != start.parent:
            start = start.parent
        here = os.open(start, _FOLDER if start == folder else _FOLDER & ~os.O_NOFOLLOW)
    else:
        start = below
        here = os.open(below, _FOLDER & ~os.O_NOFOLLOW)
    for part in folder.relative_to(start).parts:
        try:
            deeper = _enter(here, part)
        finally:
            os.close(here)
        here = deeper
    return here


def open_regular(path: Path, descriptor: int) -> BinaryIO:
    """What a descriptor is of, to be read. Raises RecordingError, and closes it, where that is no regular file."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise RecordingError(f"{path}: expected a regular file, found another kind", help=f"remove it and {ANEW}")


def place_problem(path: Path, error: OSError, what: str) -> RecordingError:
    """Why a recording can't be reached. what: what failed ("can't be read")."""
    if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EXDEV}:
        return RecordingError(
            f"{path} {what}: expected folders and a file, found a link, or a file where a folder should be",
            help="put the recordings themselves there: no link is followed",
        )
    return RecordingError(f"{path} {what}: {error.strerror or error}")


def _enter(above: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:  # another cell was faster
        return os.open(name, _FOLDER, dir_fd=above)
    made = os.open(name, _FOLDER, dir_fd=above)
    give_to_owner_of(above, made)
    return made


def give_to_owner_of(folder: int, descriptor: int) -> None:
    """Make what we made belong to the owner of the folder that it is in. Only root can. Raises OSError."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _relative(folder: Path, below: Path) -> str:
    relative = folder.relative_to(below).as_posix()
    return "" if relative == "." else relative
