"""The network as we see it: names looked up, connections made. Tests put their own in its place."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
import threading
from pathlib import Path

from keystone_action.network.guarded_listener import CHUNK, Connection
from keystone_action.spec.models.hosts import IPAddress

_LOOK_UPS = 32
_ROUTES = Path("/proc/net/route")


class Outside:
    """Looks up names and connects. One object belongs to one event loop."""

    def __init__(self) -> None:
        self._look_ups = asyncio.Semaphore(_LOOK_UPS)

    async def resolve(self, host: str) -> list[IPAddress]:
        """The addresses of a name, the preferred ones first; of an address, itself. Raises OSError."""
        with contextlib.suppress(ValueError):
            return [ipaddress.ip_address(host)]
        async with self._look_ups:
            return await asyncio.shield(_in_a_thread_of_its_own(host))

    async def connect(self, address: IPAddress, port: int) -> Connection:
        """To exactly this address: nothing is looked up again. Raises OSError."""
        return await asyncio.open_connection(str(address), port, limit=CHUNK)

    def is_own(self, address: IPAddress) -> bool:
        """Whether this machine has this address, or reaches others through it: then what is behind it is our own
        neighbourhood."""
        return _is_local(address) or address in _gateways()


def _in_a_thread_of_its_own(host: str) -> asyncio.Future[list[IPAddress]]:
    # Threads of an executor are waited for when the program ends, and a name server may take half a minute to fail.
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[IPAddress]] = loop.create_future()

    def settle(addresses: list[IPAddress], error: BaseException | None) -> None:
        if found.done():
            return
        if error is None:
            found.set_result(addresses)
        else:
            found.set_exception(error)
            found.exception()  # nobody may be waiting any more

    def resolve_host() -> None:
        addresses: list[IPAddress] = []
        failed: BaseException | None = None
        try:
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            texts = dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows)
            addresses = [ipaddress.ip_address(text) for text in texts]
        except UnicodeError as error:
            failed = OSError(str(error))
        except BaseException as error:  # noqa: BLE001 - told to the caller that waits
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, addresses, failed)

    threading.Thread(target=resolve_host, name="keystone-look-up", daemon=True).start()
    return found


def _is_local(address: IPAddress) -> bool:
    # Only what is ours can be bound to.
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _gateways() -> set[IPAddress]:
    """Where our own routes lead: in a container, the machine that it runs on."""
    found: set[IPAddress] = set()
    with contextlib.suppress(OSError):
        for row in _ROUTES.read_text(encoding="ascii").splitlines()[1:]:
            # interface, destination, gateway (hexadecimal, in this machine's order of bytes)
            found.add(ipaddress.IPv4Address(struct.pack("=I", int(row.split()[2], 16))))
    return found
