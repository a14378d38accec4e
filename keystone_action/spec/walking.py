"""Walking a tree of the author's: `os.walk` calls itself for every level, and ends with a traceback below 1,000."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path


def walk(top: Path, on_error: Callable[[OSError], object] | None = None) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`: each directory with the names of its directories, which may be taken out of the list before the
    next step, and of everything else. Links are not followed. on_error: called for a directory that can't be listed,
    also for one below a path that the system finds too long."""
    waiting = [os.fspath(top)]
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    (folders if is_folder(entry) else files).append(entry.name)
        except OSError as error:
            if on_error is not None:
                on_error(error)
            continue
        links = {name for name in folders if os.path.islink(f"{folder}/{name}")}  # noqa: PTH114
        yield folder, folders, files
        waiting += [os.path.join(folder, name) for name in reversed(folders) if name not in links]  # noqa: PTH118


def is_folder(entry: os.DirEntry[str]) -> bool:
    """A link to a directory is one, as for `os.walk`."""
    try:
        return entry.is_dir()
    except OSError:
        return False
