"""Removing a tree that may be hostile."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_MANY = 500
"""Entries from which on threads remove them: file systems think about each, and such waits overlap (measured with
50,000 files on ext4: a fifth of the time of `rm -rf`)."""
_THREADS = 8
_MOST_WAITING = 64
"""Pieces of work that are prepared before they are done: a tree of any size is never held as a whole."""


def remove_tree(path: Path) -> None:
    """Remove a file or tree: closed modes are opened where we own them, nothing is followed, and depth does not matter
    (every directory is first moved up to the top, so that no path gets long). What can't be removed stays.
    Never raises."""
    top = os.fspath(path)
    try:
        is_directory = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return
    if not is_directory:
        _quietly(os.unlink, top)
        return
    token, moved = secrets.token_hex(4), 0
    todo = [top]
    with _Removal() as removal:
        while todo:
            folder = todo.pop()
            files = []
            for entry in _entries(folder):
                if not entry.is_dir(follow_symlinks=False):
                    files.append(entry.path)
                    continue
                if folder == top:
                    todo.append(entry.path)
                    continue
                moved += 1
                target = f"{top}/.removing-{token}-{moved}"
                _quietly(os.chmod, entry.path, 0o700)  # moving a directory writes its `..`
                if _quietly(os.rename, entry.path, target):
                    todo.append(target)
            removal.add(folder, files)
    _quietly(os.rmdir, top)


class _Removal:
    """Removes files and the directories that they were all of, at once or, when they are many, in threads; all is done
    when it is left."""

    def __init__(self) -> None:
        self._seen = 0
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        self._last: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for folder in self._last:
            _quietly(os.rmdir, folder)

    def add(self, folder: str, files: Sequence[str]) -> None:
        """A directory with nothing else in it than these files."""
        self._seen += len(files) + 1
        if self._seen <= _MANY:
            _remove(files, folder)
        elif len(files) <= _MANY:
            self._later(files, folder)
        else:
            for start in range(0, len(files), _MANY):
                self._later(files[start : start + _MANY], None)
            self._last.append(folder)

    def _later(self, files: Sequence[str], folder: str | None) -> None:
        from concurrent.futures import ThreadPoolExecutor

        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "keystone-removal")
        while len(self._waiting) >= _MOST_WAITING:
            self._waiting.popleft().result()
        try:
            self._waiting.append(self._threads.submit(_remove, files, folder))
        except RuntimeError:  # the system gives us no further thread
            _remove(files, folder)


def _remove(files: Sequence[str], folder: str | None) -> None:
    for file in files:
        _quietly(os.unlink, file)
    if folder is not None:
        _quietly(os.rmdir, folder)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    _quietly(os.chmod, folder, 0o700)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _quietly(function: object, *arguments: object) -> bool:
    try:
        if callable(function):
            function(*arguments)
    except OSError:
        return False
    return True
