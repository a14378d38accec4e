"""One server for every mock of every cell of a run: a thread with an event loop of its own, so that replies
never wait for what the run does meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from keystone_action.errors import ServiceError
from keystone_action.network.guarded_listener import Endpoint, PeerLookup, accept, no_port
from keystone_action.network.loop_thread import LoopThread
from keystone_action.services.http_mock.protocol import MockApplication, MockConnection
from keystone_action.services.http_mock.request import RawRequest
from keystone_action.services.http_mock.responses import MockReply, refusal

MOCK_HOST = "127.0.0.1"
MOCK_CONNECTIONS = 256
"""Connections of one port at the same time; further ones wait until one is over."""
_BACKLOG = 1024
_QUIET_ROUNDS = 4
_PROBE_SECONDS = 10.0
MOCK_SETTLE_SECONDS = 30.0
"""How long clients that still send are waited for: what a killed one has left is read in far less."""
_PORT_ATTEMPTS = 10
_HANDSHAKE_SECONDS = 10.0
_MISDIRECTED = 421
ListenerKey = int | tuple[str, int]
"""A port of the loopback (and of one more address), or one of another address alone."""


class GuardedApplication(MockApplication, Protocol):
    """An application that says whose connections are its own."""

    def admits(self, owner: int | None) -> bool:
        """Whether a connection of this user (None: unknown) may speak with it; counts the refused."""

    def admits_address(self, address: str) -> bool:
        """The same for a connection from a container network."""

    def refused_handshake(self, error: ssl.SSLError) -> None:
        """A client of a port that speaks TLS hung up: it does not trust the certificate, or speaks something else."""


class MockListener:
    """One port of the loopback and, for containers, of one more address; its connections."""

    def __init__(
        self,
        application: GuardedApplication,
        address: str | None,
        sockets: list[socket.socket],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.application = application
        self.address = address
        self.context = context
        self.connections: set[MockConnection] = set()
        self.sockets = sockets
        self.port: int = self.sockets[0].getsockname()[1]
        self.slots = asyncio.Semaphore(MOCK_CONNECTIONS)
        self.tasks: list[asyncio.Task[None]] = []
        self.handshakes: set[asyncio.Task[None]] = set()
        self.activity = 0
        """Grows with everything that comes in."""

    def admits(self, peer: Endpoint, accepted_at: str, peers: PeerLookup) -> bool:
        """Users tell local connections apart, addresses those of containers."""
        if accepted_at == self.address:
            return self.application.admits_address(peer[0])
        return self.application.admits(peers.owner(peer, (MOCK_HOST, self.port)))


def _open_sockets(address: str | None) -> list[socket.socket]:
    """Sockets on the same port of both addresses."""
    attempt = 0
    while True:
        attempt += 1
        sockets = [socket.create_server((MOCK_HOST, 0), backlog=_BACKLOG)]
        try:
            if address is not None:
                sockets.append(socket.create_server((address, sockets[0].getsockname()[1]), backlog=_BACKLOG))
        except OSError as error:
            sockets[0].close()
            # The port may be somebody else's on the other address.
            if error.errno != errno.EADDRINUSE or attempt == _PORT_ATTEMPTS:
                raise
        else:
            for one in sockets:
                one.setblocking(False)
            return sockets


class MockServer:
    """Serves any number of ports. `start` and `stop` may be called from any thread, and again."""

    def __init__(self) -> None:
        self.thread = LoopThread("keystone-mock", "the mock server")
        self._listeners: dict[ListenerKey, MockListener] = {}
        self._peers = PeerLookup()

    @property
    def defects(self) -> list[str]:
        """What went wrong in our own code while serving; evidence is incomplete when there is any."""
        return self.thread.defects

    @property
    def is_running(self) -> bool:
        """Whether `start` was called, and `stop` wasn't since."""
        return self.thread.loop is not None

    def start(self) -> None:
        """Returns when the loop runs. Harmless when it does already. Raises ServiceError."""
        self.thread.start()

    def stop(self) -> None:
        """Ends every connection at once; never waits for a client. Harmless when it was never started."""
        if self.thread.stop(self._close_all):
            self._peers.close()

    async def _close_all(self) -> None:
        for port in list(self._listeners):
            await self._close(port)

    async def listen(self, application: GuardedApplication, address: str | None = None) -> int:
        """The port on which this application is served from now on: of the loopback, and of `address`, where
        containers reach us. Raises ServiceError."""
        return await self.thread.call(self._listen(application, address))

    async def _listen(self, application: GuardedApplication, address: str | None) -> int:
        try:
            listener = MockListener(application, address, _open_sockets(address))
        except OSError as error:
            raise no_port(address or MOCK_HOST, error) from error
        self._serve(listener.port, listener)
        return listener.port

    async def listen_at(
        self, application: GuardedApplication, address: str, port: int, context: ssl.SSLContext | None
    ) -> ListenerKey:
        """Serve this application at this very port of an address where containers reach us. context: for TLS. Raises
        ServiceError."""
        return await self.thread.call(self._listen_at(application, address, port, context))

    async def _listen_at(
        self, application: GuardedApplication, address: str, port: int, context: ssl.SSLContext | None
    ) -> ListenerKey:
        try:
            listening = socket.create_server((address, port), backlog=_BACKLOG)
        except OSError as error:
            raise no_port(address, error) from error
        listening.setblocking(False)
        self._serve((address, port), MockListener(application, address, [listening], context))
        return address, port

    def _serve(self, key: ListenerKey, listener: MockListener) -> None:
        self._listeners[key] = listener
        loop = asyncio.get_running_loop()
        listener.tasks = [loop.create_task(self._accept(listener, one)) for one in listener.sockets]

    async def close(self, key: ListenerKey) -> None:
        """Stop serving a port and end its connections. Harmless when it isn't served."""
        if self.is_running:
            await self.thread.call(self._close(key))

    async def _close(self, key: ListenerKey) -> None:
        listener = self._listeners.pop(key, None)
        if listener is None:
            return
        for task in (*listener.tasks, *listener.handshakes):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for one in listener.sockets:
            one.close()
        for connection in list(listener.connections):
            connection.abort()
        await asyncio.sleep(0)  # the transports' connection_lost run now

    async def _accept(self, listener: MockListener, listening: socket.socket) -> None:
        at = str(listening.getsockname()[0])
        async for accepted, peer in accept(listening, listener.slots):
            listener.activity += 1
            await self._admit(listener, accepted, listener.admits(peer, at, self._peers))

    async def _admit(self, listener: MockListener, accepted: socket.socket, admitted: bool) -> None:
        if not admitted:
            accepted.close()
            listener.slots.release()
            return
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _CountedConnection(listener)
        listener.connections.add(connection)
        if listener.context is not None:
            # A client that takes its time must not keep others waiting.
            task = asyncio.get_running_loop().create_task(self._shake_hands(listener, connection, accepted))
            listener.handshakes.add(task)
            task.add_done_callback(listener.handshakes.discard)
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)
        except OSError:
            accepted.close()
            listener.connections.discard(connection)
            listener.slots.release()

    async def _shake_hands(
        self, listener: MockListener, connection: _CountedConnection, accepted: socket.socket
    ) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=listener.context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            )
        except OSError as error:  # a time limit's, too
            if isinstance(error, ssl.SSLError):
                listener.application.refused_handshake(error)
        finally:
            if not connection.was_made:
                accepted.close()
                listener.connections.discard(connection)
                listener.slots.release()

    async def probe(self) -> None:
        """A real request to a port of its own, answered. Raises OSError, or ServiceError when it doesn't run."""
        port = await self.listen(_Probe())
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                reader, writer = await asyncio.open_connection(MOCK_HOST, port)
                writer.write(b"GET / HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
                line = await reader.readline()
            writer.close()
        except TimeoutError:  # it takes no connection while there is no descriptor for one
            raise ServiceError(
                f"the mock server did not answer within {_PROBE_SECONDS:g} s",
                help="is a file descriptor left (`ulimit -n`)?",
            ) from None
        else:
            if b" 204 " not in line:
                raise OSError(f"expected the status 204, found {line!r}")
        finally:
            await self.close(port)

    def settle(self, key: ListenerKey, timeout: float = MOCK_SETTLE_SECONDS) -> bool:
        """Blocks until everything that clients have sent to a port so far was read and recorded; False when they still
        send after `timeout` seconds. Other ports may be as busy as they like. From any thread but the server's own."""
        loop, listener = self.thread.loop, self._listeners.get(key)
        if loop is None or listener is None:
            return True
        future = asyncio.run_coroutine_threadsafe(_quiet(listener), loop)
        try:
            future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            return False
        return True


async def _quiet(listener: MockListener) -> None:
    # Each turn of the loop polls all sockets; some turns without anything in means that nothing is left.
    quiet, seen = 0, listener.activity
    while quiet < _QUIET_ROUNDS:
        await asyncio.sleep(0)
        quiet = quiet + 1 if listener.activity == seen else 0
        seen = listener.activity


class _Probe:
    """Answers anything with nothing."""

    def admits(self, owner: int | None) -> bool:  # noqa: ARG002
        return True

    def admits_address(self, address: str) -> bool:  # noqa: ARG002
        return False

    def refused_handshake(self, error: ssl.SSLError) -> None:  # noqa: ARG002
        return

    def reserve(self, size: int) -> bool:  # noqa: ARG002
        return True

    def not_http(self) -> None:
        return

    def respond(self, request: RawRequest) -> MockReply:  # noqa: ARG002
        return MockReply(204, (), b"", "")


class _CountedConnection(MockConnection):
    """A connection that its listener knows of."""

    def __init__(self, listener: MockListener) -> None:
        super().__init__(listener.application)
        self._listener = listener
        self.was_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.was_made = True
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        self._listener.activity += 1
        super().buffer_updated(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.activity += 1
        self._listener.connections.discard(self)
        self._listener.slots.release()
        super().connection_lost(exc)


class StandIn(GuardedApplication, Protocol):
    """A mock that answers under the names of other hosts, too. listeners: where, for those who wait for it."""

    listeners: list[ListenerKey]

    def respond(self, request: RawRequest, origin: str = "") -> MockReply:
        """Record and answer. origin: scheme and host that it was sent to; empty for the mock's own."""


class NamedMocks:
    """The application of one of the two ports. mocks: by the name of the host that each stands in for."""

    def __init__(self, mocks: Mapping[str, StandIn], scheme: str) -> None:
        self._mocks, self._scheme = mocks, scheme
        self._first = next(iter(mocks.values()))
        self.distrust: list[str] = []
        """What clients said that did not take the certificate, each once."""

    def admits(self, owner: int | None) -> bool:  # noqa: ARG002
        """See GuardedApplication: nothing listens on the loopback for it."""
        return False

    def admits_address(self, address: str) -> bool:
        """See GuardedApplication."""
        return self._first.admits_address(address)

    def reserve(self, size: int) -> bool:
        """See MockApplication."""
        return self._first.reserve(size)

    def not_http(self) -> None:
        """See MockApplication."""
        self._first.not_http()

    def refused_handshake(self, error: ssl.SSLError) -> None:
        """See GuardedApplication."""
        said = (error.reason or str(error)).replace("_", " ").lower()
        if said not in self.distrust and len(self.distrust) < 10:
            self.distrust.append(said)

    def respond(self, request: RawRequest) -> MockReply:
        """See MockApplication."""
        host = next((value for name, value in request.headers if name.lower() == "host"), "")
        name = host.partition(":")[0].lower().removesuffix(".")
        mock = self._mocks.get(name)
        if mock is None:
            known = ", ".join(self._mocks)
            return refusal(_MISDIRECTED, f"no mock stands in for the host {name!r} here, only for {known}")
        return mock.respond(request, f"{self._scheme}://{name}")


@asynccontextmanager
async def serve_names(
    server: MockServer, mocks: Mapping[str, StandIn], address: str, context: ssl.SSLContext
) -> AsyncIterator[NamedMocks]:
    """For the block, these mocks are reached at this address of ours, under the names of the hosts that they stand in
    for (`network.dns_overrides`): by HTTP on port 80, by HTTPS on 443. Which mock a request is for, its `Host` says.
    context: for TLS. Raises ServiceError."""
    plain, secure = NamedMocks(mocks, "http"), NamedMocks(mocks, "https")
    keys: list[ListenerKey] = []
    try:
        for application, port, tls in ((plain, 80, None), (secure, 443, context)):
            keys.append(await _listen(server, application, address, port, tls))
        for cell in mocks.values():
            cell.listeners += keys
        yield secure
    finally:
        for key in keys:
            await server.close(key)


async def _listen(
    server: MockServer, application: NamedMocks, address: str, port: int, context: ssl.SSLContext | None
) -> ListenerKey:
    try:
        return await server.listen_at(application, address, port, context)
    except ServiceError as error:
        raise ServiceError(
            f"network.dns_overrides: port {port} can't be opened for the mocks: {error.message}",
            help="Only root may listen on ports below 1024 (sysctl net.ipv4.ip_unprivileged_port_start says otherwise),"
            " and nothing else may listen there on all addresses of this machine. In the action, both hold.",
        ) from None
