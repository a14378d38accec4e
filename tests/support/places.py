"""Where tests have what they need: a service attached for a test that is not async itself, folders in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from anyio.from_thread import BlockingPortal, start_blocking_portal

from keystone_action.services.service import CellScope, Place, RunningService

_MEMORY = "/dev/shm"
_ROOM = 2 << 30


def in_memory() -> str | None:
    """A directory for temporary ones, `dir` of `tempfile`: in memory where that has room, since thousands of files and
    databases take long to make on a disk; else None."""
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
        return _MEMORY
    return None


@contextmanager
def attached(service: RunningService, scope: CellScope, portal: BlockingPortal | None = None) -> Iterator[Place]:
    """portal: the event loop that the place lives in [one of its own]. The cell's audit log ends with it."""
    with ExitStack() as stack:
        stack.callback(scope.audit_log.close)
        loop = portal if portal is not None else stack.enter_context(start_blocking_portal())
        yield stack.enter_context(loop.wrap_async_context_manager(service.attach(scope)))
