"""A service attached for a test that is not async itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from anyio.from_thread import BlockingPortal, start_blocking_portal

from keystone_action.services.base import CellScope, Place, RunningService


@contextmanager
def attached(service: RunningService, scope: CellScope, portal: BlockingPortal | None = None) -> Iterator[Place]:
    """portal: the event loop that the place lives in [one of its own]."""
    with ExitStack() as stack:
        loop = portal if portal is not None else stack.enter_context(start_blocking_portal())
        yield stack.enter_context(loop.wrap_async_context_manager(service.attach(scope)))
