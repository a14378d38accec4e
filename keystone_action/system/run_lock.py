"""Whether a run of this machine is still going: while it is, its process holds the lock on a file of its own.

The kernel gives the lock back however the process ends, SIGKILL included, so a file that is there without a lock is
that of a run that was killed. A run without a file is of another machine, container or temporary directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

PREFIX = "keystone-"
"""Of everything that a run makes in a temporary directory: `keystone-<run id>-…` and `keystone-<run id>.lock`."""
RUN_ID = r"[0-9]+-[0-9]+-[0-9a-f]{6,16}"
"""What ids of runs look like."""
_SUFFIX = ".lock"
_ON_ENGINE = b"left on the engine\n"
_LOCK = re.compile(rf"{PREFIX}({RUN_ID})\.lock")

_kept: dict[str, bool] = {}
"""Runs whose lock stays when they end, and whether for what is on an engine."""

RunState = Literal["going", "dead", "unknown"]


def new_run_id() -> str:
    """Of a run that begins now."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def run_lock(run_id: str, place: Path | None = None) -> Iterator[None]:
    """Says of a run that it is going, as long as the context lasts. place: None = the system's temporary directory.

    Where no file can be made, nothing is said: the run's age has to do then.
    """
    path = lock_path(run_id, place)
    try:
        descriptor = _make(path)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        if run_id in _kept:
            os.write(descriptor, _ON_ENGINE if _kept[run_id] else b"")
        else:
            # Removed while it is still held, so that nobody ever sees a file of ours without its lock.
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _make(path: Path) -> int:
    # Locked under a name that nobody looks at: here, too, nobody may see a file of ours without its lock.
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.rename(path)
    except OSError:
        os.close(descriptor)
        hidden.unlink(missing_ok=True)
        raise
    return descriptor


def keep_lock(run_id: str, *, on_engine: bool) -> None:
    """Things of this run may be left: its lock stays as that of a run that was killed, so that the next `keystone
    clean` knows them for nobody's. on_engine: on an engine, so that only a look there lets the lock go."""
    _kept[run_id] = on_engine or _kept.get(run_id, False)


def is_on_engine(path: Path) -> bool:
    """Whether the run of this lock said that it left things on an engine."""
    with contextlib.suppress(OSError):
        return path.read_bytes() == _ON_ENGINE
    return False


def lock_path(run_id: str, place: Path | None = None) -> Path:
    """Where the lock of a run is."""
    return (place or Path(tempfile.gettempdir())) / f"{PREFIX}{run_id}{_SUFFIX}"


def locked_run(path: Path) -> str | None:
    """The run that a file is the lock of, by its name."""
    found = _LOCK.fullmatch(path.name)
    return found[1] if found else None


def state_of(run_id: str, place: Path | None = None) -> RunState:
    """What the lock says of a run."""
    try:
        descriptor = os.open(lock_path(run_id, place), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return "going"
    else:
        return "dead"
    finally:
        os.close(descriptor)
