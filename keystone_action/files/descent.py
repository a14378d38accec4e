"""Walking a tree of any depth at the price of its size: directories are opened from one above that is still open."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from keystone_action.files.openat import open_directory

_STEP = 64
_KEPT_AT_MOST = 200


class Descent:
    """Opens the directories of one tree, found by walking our own listing depth first. `with` it.

    From the root alone, a chain of n directories would cost n²/2 steps: an agent makes 5,000 levels in a second. Every
    64th level of the current branch stays open, so a tree of ordinary depth costs nothing more.
    """

    def __init__(self, root_fd: int) -> None:
        """root_fd stays the caller's."""
        self._kept: list[tuple[str, int]] = [("", root_fd)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while len(self._kept) > 1:
            os.close(self._kept.pop()[1])

    @contextmanager
    def listing(self, relative: str) -> Iterator[tuple[int, Iterator[tuple[str, os.DirEntry[str]]]]]:
        """A directory as a descriptor, and what is in it, each entry with its path. Nothing of it is held: an agent can
        make a directory of millions. Raises OSError, also from the entries."""
        folder = self.open(relative)
        try:
            with os.scandir(folder) as entries:
                prefix = f"{relative}/" if relative else ""
                yield folder, ((prefix + entry.name, entry) for entry in entries)
        finally:
            os.close(folder)

    def open(self, relative: str) -> int:
        """As `open_directory`: the caller closes it. Raises OSError."""
        while not relative.startswith(self._kept[-1][0]):
            os.close(self._kept.pop()[1])
        above, fd = self._kept[-1]
        opened = open_directory(fd, relative[len(above) :])
        if relative.count("/") % _STEP == _STEP - 1 and len(self._kept) < _KEPT_AT_MOST:
            self._kept.append((f"{relative}/", os.dup(opened)))
        return opened


@contextmanager
def open_tree(tree: Path) -> Iterator[tuple[int, Descent]]:
    """The root of a tree as a descriptor, and the descent from it. A root that is a link is refused. Raises OSError."""
    root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with Descent(root) as descent:
            yield root, descent
    finally:
        os.close(root)


def walk_down(
    tree: Path, unreadable: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, int, list[os.DirEntry[str]]]]:
    """Each directory of a tree, from the top: its path relative to that, a descriptor that stays open until the next
    step, and what is in it. Links are not followed.

    unreadable: called for a directory that can't be opened, which is then left out. Raises OSError.
    """
    with open_tree(tree) as (_, descent):
        waiting = [""]
        while waiting:
            directory = waiting.pop()
            try:
                folder = descent.open(directory)
            except OSError as error:
                if unreadable is None:
                    raise
                unreadable(error)
                continue
            try:
                with os.scandir(folder) as scan:
                    entries = list(scan)
                prefix = f"{directory}/" if directory else ""
                waiting += [f"{prefix}{one.name}" for one in entries if one.is_dir(follow_symlinks=False)]
                yield directory, folder, entries
            finally:
                os.close(folder)


def is_empty(directory: Path) -> bool:
    """Raises OSError."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None


def is_small(tree: Path, *, most_entries: int, most_bytes: int = sys.maxsize) -> bool:
    """Whether a tree has no more than so many entries and bytes, found out by looking at no more than that many. False
    where it can't be listed. Nobody else may change the tree meanwhile."""
    waiting, entries, size = [os.fspath(tree)], 0, 0
    try:
        while waiting:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
                    if entries > most_entries or size > most_bytes:
                        return False
    except OSError:
        return False
    return True
