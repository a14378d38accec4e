"""Removing a tree that may be hostile."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_MANY = 500
"""Entries from which on threads remove them: file systems think about each, and such waits overlap (measured with
50,000 files on ext4: a fifth of the time of `rm -rf`)."""
_THREADS = 8
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_WAITING = 64
"""Pieces of work that are prepared before they are done: a tree of any size is never held as a whole."""


def remove_tree(path: Path) -> None:
    """Remove a file or tree, all by open directories: closed modes are opened where we own them, nothing is followed,
    also while others rename things in it, and depth does not matter (every directory is first moved up to the top, so
    that none has to be reached through others). What can't be removed stays. Never raises."""
    _quietly(os.unlink, path)
    top = _open_directory(os.fspath(path), None)
    if top is None:
        return
    try:
        with _Removal(top) as removal:
            _remove_below(top, removal)
    finally:
        os.close(top)
    _quietly(os.rmdir, path)


def _remove_below(top: int, removal: _Removal) -> None:
    token, moved = os.urandom(4).hex(), 0
    files, todo = _list_names(top)
    removal.add(os.dup(top), files, None)
    while todo:
        name = todo.pop()
        folder = _open_directory(name, top)
        if folder is None:
            continue
        files, folders = _list_names(folder)
        for deeper in folders:
            moved += 1
            target = f".removing-{token}-{moved}"
            if _move(deeper, folder, target, top):
                todo.append(target)
        removal.add(folder, files, name)


class _Removal:
    """Removes files and the directories that they were all of, at once or, when they are many, in threads; all is done
    when it is left. top: the open directory that all others are in."""

    def __init__(self, top: int) -> None:
        self._top = top
        self._seen = 0
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._last: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for name in self._last:
            _quietly(os.rmdir, name, dir_fd=self._top)

    def add(self, folder: int, files: Sequence[str], name: str | None) -> None:
        """An open directory with nothing else in it than these files. It is closed here, and removed when it has a
        name."""
        self._seen += len(files) + 1
        if self._seen <= _MANY:
            self._remove(folder, files, name)
        elif len(files) <= _MANY:
            self._later(folder, files, name)
        else:
            for start in range(0, len(files), _MANY):
                self._later(os.dup(folder), files[start : start + _MANY], None)
            os.close(folder)
            if name is not None:
                self._last.append(name)

    def _later(self, folder: int, files: Sequence[str], name: str | None) -> None:
        from concurrent.futures import ThreadPoolExecutor

        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "keystone-removal")
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        try:
            self._waiting.append(self._threads.submit(self._remove, folder, files, name))
        except RuntimeError:  # the system gives us no further thread
            self._remove(folder, files, name)

    def _remove(self, folder: int, files: Sequence[str], name: str | None) -> None:
        for file in files:
            _quietly(os.unlink, file, dir_fd=folder)
        os.close(folder)
        if name is not None:
            _quietly(os.rmdir, name, dir_fd=self._top)


def _open_directory(name: str, above: int | None) -> int | None:
    """A directory, no link followed; one that is closed to its owner, us, is opened before."""
    for _ in range(2):
        try:
            return os.open(name, _DIRECTORY, dir_fd=above)
        except PermissionError:
            _open_up(name, above)
        except OSError:
            return None
    return None


def _open_up(name: str, above: int | None) -> None:
    """Through a descriptor, since a change of mode would follow a link that has taken the directory's place."""
    with contextlib.suppress(OSError):
        place = os.open(name, _DIRECTORY | os.O_PATH, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101
        finally:
            os.close(place)


def _list_names(folder: int) -> tuple[list[str], list[str]]:
    """The names of what is in it: all but directories, and directories."""
    files: list[str] = []
    folders: list[str] = []
    with contextlib.suppress(OSError):
        if os.fstat(folder).st_mode & 0o700 != 0o700:
            os.fchmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
    return files, folders


def _move(name: str, folder: int, target: str, top: int) -> bool:
    for _ in range(2):
        try:
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
        except PermissionError:  # moving a directory writes its `..`
            _open_up(name, folder)
        except OSError:
            return False
        else:
            return True
    return False


def _quietly(function: Callable[..., object], *arguments: object, **options: object) -> None:
    with contextlib.suppress(OSError):
        function(*arguments, **options)
