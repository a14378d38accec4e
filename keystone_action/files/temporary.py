"""What we make in the temporary directory, and what killed runs left there: `keystone-…`, ours by the user they belong
to."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keystone_action.files.removal import remove_tree
from keystone_action.system.run_lock import PREFIX, RUN_ID, locked_run, new_run_id, run_lock

_BRIEF = "baseline|check|doctor|lines|patch|sandboxes"
"""What is there for minutes at most."""
_DIRECTORY = re.compile(rf"{PREFIX}({RUN_ID}|{_BRIEF})-[a-z0-9_]{{8}}")
"""Of a run, or for one task. People may have made others that begin like ours."""


def process_directory() -> Path:
    """A directory that only we can enter, with no links in its path; it goes when our process ends. Of a process that
    was killed `keystone clean` knows it, by a lock as a run has one. Raises OSError."""
    run_id, lock = new_run_id(), contextlib.ExitStack()
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{run_id}-")).resolve()
    lock.enter_context(run_lock(run_id))
    atexit.register(lock.close)
    atexit.register(remove_tree, path)  # first: what is registered last
    return path


@dataclass(frozen=True, slots=True)
class Temporary:
    """A directory, or the lock of a run."""

    path: Path
    changed: float
    """Seconds since the epoch."""
    is_lock: bool

    def is_of(self, run_id: str) -> bool:
        """Whether its name says that it is that run's."""
        return locked_run(self.path) == run_id if self.is_lock else self.path.name.startswith(f"{PREFIX}{run_id}-")


def find_temporary(place: Path) -> list[Temporary]:
    """What may be ours in one directory, by name; links and other users' never are."""
    return sorted(_find_temporary(place), key=lambda one: one.path.name)


def _find_temporary(place: Path) -> Iterator[Temporary]:
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_lock = stat.S_ISREG(status.st_mode) and locked_run(Path(entry.name)) is not None
                is_directory = stat.S_ISDIR(status.st_mode) and _DIRECTORY.fullmatch(entry.name) is not None
                if status.st_uid == os.geteuid() and (is_lock or is_directory):
                    yield Temporary(Path(entry.path), max(status.st_mtime, status.st_ctime), is_lock)


def remove_temporary(found: Temporary) -> bool:
    """Whether it is gone now, with all that is in it. Never raises, follows no link."""
    if found.is_lock:
        with contextlib.suppress(OSError):
            found.path.unlink()
    else:
        remove_tree(found.path)
    return not os.path.lexists(found.path)
