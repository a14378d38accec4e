"""Accepting connections at a socket of ours for as long as it is open."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from typing import Any

from keystone_action.errors import ServiceError

_PAUSE_SECONDS = 0.01


async def accept(listening: socket.socket, slots: asyncio.Semaphore) -> AsyncIterator[tuple[socket.socket, Any]]:
    """The connections to a port with the addresses of their peers, each when there is a slot for it. The receiver
    releases the slot."""
    loop = asyncio.get_running_loop()
    while True:
        await slots.acquire()
        try:
            accepted = await loop.sock_accept(listening)
        except OSError:
            # No descriptors left, or a client that gave up: neither may end the port.
            slots.release()
            await asyncio.sleep(_PAUSE_SECONDS)
            continue
        except BaseException:
            slots.release()
            raise
        yield accepted


def no_port(address: str, error: OSError) -> ServiceError:
    """Why we can't listen there."""
    if error.errno == errno.EADDRNOTAVAIL:
        return ServiceError(
            f"{address} is no address of this machine, so containers can't reach us there",
            help="The container engine must run on this machine, or this program in one of its containers.",
        )
    return ServiceError(f"no port to listen on at {address}: {error.strerror}")
