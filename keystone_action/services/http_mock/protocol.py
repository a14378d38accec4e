"""One connection of a mock: bytes to requests, replies to bytes. HTTP/1.0 and 1.1, by httptools.

What is a request. Once its request line and a first header were read, it is one: it is handed on (and so recorded)
even when the rest turns out to be malformed, too large, or cut off by a client that went away; it is then answered
with 400, 413, 415 or 431. Bytes that never get so far are answered with 400 and only counted.

A complete request is handed on the moment its last byte is there, before any delay, so the record never waits for a
reply. Replies leave in the order of their requests (pipelining).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import NamedTuple, Protocol

import httptools

from keystone_action.services.http_mock.request import REFUSE, BodyError, BodyReader, RawRequest
from keystone_action.services.http_mock.responses import MockReply, refusal

MOCK_HEAD_LIMIT = 64 << 10
"""Bytes of the request's target and headers together; more is 431."""
LINGER = 2.0
"""Seconds for a refused client to read why, while what it still sends is thrown away."""
_READ = 32 << 10
"""Bytes read in one turn of the loop: a client that pipelines thousands of requests must not keep others waiting."""
_PIPELINE = 32
"""Replies that may wait on one connection before no more is read from it."""
_GARBAGE = b"\x16\x03\xff\x00\xfekeystone\x00\xf0\x9f\r\x80 HTTP/-1\r\n\xc3\x28\r\n\r\n"


class MockApplication(Protocol):
    """Who answers the requests of a listening port. All of it runs in the server's loop and must not block for long."""

    def respond(self, request: RawRequest) -> MockReply | asyncio.Future[MockReply]:
        """Record and answer. A future is given where that takes longer; it never fails. No more is read from the
        connection until it is done, and it goes on where the client has gone."""

    def reserve(self, size: int) -> bool:
        """Whether `size` more bytes of bodies may be held in memory. A negative size gives back."""

    def not_http(self) -> None:
        """A client sent bytes that are not a request."""


class _OutgoingReply(NamedTuple):
    """keep_alive: what `Connection:` says, None for nothing."""

    reply: MockReply | asyncio.Future[MockReply]
    keep_alive: bool | None
    head_only: bool
    close: bool
    linger: bool


class MockConnection(asyncio.BufferedProtocol):
    """Serves one accepted connection."""

    def __init__(self, application: MockApplication) -> None:
        self._application = application
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_READ))
        self._parser = httptools.HttpRequestParser(self)
        self._requests: list[tuple[RawRequest, bool, bool]] = []
        self._replies: deque[_OutgoingReply] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._writable = True
        self._deaf = False  # what still comes is thrown away
        self._eof = False
        self._reserved_bytes = 0
        self._awaited: asyncio.Future[MockReply] | None = None
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._body: BodyReader | None = None
        self._open = False  # between the first byte and the last of a request
        self._in_head = True
        self._head_bytes = 0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._deaf:
            return
        if self._in_head:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            # We speak nothing but HTTP/1: the request was read as such, what follows would be another protocol.
            self._deaf = True
        except httptools.HttpParserError:
            self._refuse(400, "this is not a valid HTTP/1.1 request")
        if self._in_head and self._open and self._head_bytes > MOCK_HEAD_LIMIT:
            self._refuse(431, f"target and headers are larger than {MOCK_HEAD_LIMIT >> 10} KiB")
        self._respond()
        self._flush()

    def eof_received(self) -> bool:
        """Half-closed: the client may still read, so the connection stays until every reply has left."""
        self._eof = True
        self._end_of_input()
        self._flush()
        if not self._replies and self._transport is not None:
            self._transport.close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._end_of_input()
        self._forget_replies()

    def _forget_replies(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._replies.clear()

    def _end_of_input(self) -> None:
        if self._open:
            self._refuse(400, "the connection ended within the request")
        self._deaf = True
        self._respond()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    def abort(self) -> None:
        """End at once, also in the middle of a request."""
        if self._transport is not None:
            self._transport.abort()

    # The parser's side: only takes down, because httptools would hide what is raised here.

    def on_message_begin(self) -> None:
        self._begin()
        self._open = not self._deaf

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if self._deaf:
            return
        self._in_head = False
        coding = ""
        size = len(self._target)
        for name, value in self._headers:
            size += len(name) + len(value)
            lowered = name.lower()
            if lowered == "content-encoding":
                coding = f"{coding},{value}"
            elif lowered == "content-length" and len(value.lstrip("0")) < 19 and int(value) > REFUSE:
                self._refuse(413, f"the body is larger than {REFUSE >> 20} MiB")
            elif lowered == "expect" and value.lower() == "100-continue":
                self._continue()
        if size > MOCK_HEAD_LIMIT:
            self._refuse(431, f"target and headers are larger than {MOCK_HEAD_LIMIT >> 10} KiB")
        try:
            self._body = BodyReader(coding)
        except BodyError as error:
            self._refuse(error.status, error.sentence)

    def _continue(self) -> None:
        # Behind other replies it is left out, as it may be: clients then send without it.
        if not (self._deaf or self._replies or self._requests) and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if self._deaf or self._body is None:
            return
        before = len(self._body.content)
        try:
            self._body.feed(data)
        except BodyError as error:
            self._refuse(error.status, error.sentence)
            return
        grown = len(self._body.content) - before
        self._reserved_bytes += grown
        if not self._application.reserve(grown):
            self._refuse(503, "the requests that are open at the same time hold too much memory")

    def on_message_complete(self) -> None:
        if self._deaf:
            return
        try:
            if self._body is not None:
                self._body.finish()
        except BodyError as error:
            self._refuse(error.status, error.sentence)
            return
        self._open = False
        keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._deaf = not keep_alive
        self._requests.append((self._request(None), keep_alive, False))

    def _refuse(self, status: int, sentence: str) -> None:
        if self._deaf:
            return
        self._open = False
        self._deaf = True
        self._requests.append((self._request((status, sentence)), False, True))

    def _request(self, refusal: tuple[int, str] | None) -> RawRequest:
        body = self._body
        method = self._parser.get_method().decode("ascii", "replace") if self._headers or refusal is None else ""
        request = RawRequest(method, self._target.decode("latin-1"), self._headers, refusal=refusal)
        if body is not None and body.received_bytes:
            request.body, request.body_bytes, request.cut = body.content, body.received_bytes, body.cut
        return request

    # Answering.

    def _respond(self) -> None:
        arrived, self._requests = self._requests, []
        for request, keep_alive, linger in arrived:
            if request.method:
                reply = self._application.respond(request)
            else:
                self._application.not_http()
                reply = refusal(*(request.refusal or (400, "")))
            said = False if not keep_alive else None if self._parser.get_http_version() == "1.1" else True
            self._replies.append(_OutgoingReply(reply, said, request.method == "HEAD", not keep_alive, linger))
        if self._reserved_bytes and not self._open:
            self._application.reserve(-self._reserved_bytes)
            self._reserved_bytes = 0

    def _flush(self) -> None:
        transport = self._transport
        if transport is not None and transport.is_closing():
            # A client that went away: asyncio would say so in a line of its log for each write.
            self._forget_replies()
        while self._replies and self._writable and self._timer is None and transport is not None:
            reply = self._next_reply()
            if reply is None:
                transport.pause_reading()
                return
            if reply.delay:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(reply.delay, self._after_delay)
            elif self._send(transport, self._replies.popleft()) or transport.is_closing():
                return
        if transport is None or self._deaf:
            return
        if len(self._replies) > _PIPELINE:
            transport.pause_reading()
        elif not transport.is_reading():
            transport.resume_reading()

    def _next_reply(self) -> MockReply | None:
        """None while it is awaited; what is to be sent is looked at again then."""
        first = self._replies[0]
        if isinstance(first.reply, MockReply):
            return first.reply
        if not first.reply.done():
            if self._awaited is not first.reply:
                self._awaited = first.reply
                first.reply.add_done_callback(lambda _: self._flush())
            return None
        reply = first.reply.result()
        self._replies[0] = first._replace(reply=reply)
        return reply

    def _after_delay(self) -> None:
        self._timer = None
        first = self._replies.popleft()
        if self._transport is not None and not self._send(self._transport, first):
            self._flush()

    def _send(self, transport: asyncio.Transport, outgoing: _OutgoingReply) -> bool:
        """True when this was the last thing on the connection."""
        reply = outgoing.reply
        assert isinstance(reply, MockReply)
        if reply.fault is not None:
            self._fail(transport, reply.fault)
            return True
        transport.write(reply.encode(keep_alive=outgoing.keep_alive, head_only=outgoing.head_only))
        last = outgoing.close or (self._eof and not self._replies)
        if last and outgoing.linger and not self._eof:
            # Closing with unread bytes would reset the connection, and the client never see why.
            transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER, self.abort)
        elif last:
            transport.close()
        return last

    def _fail(self, transport: asyncio.Transport, fault: str) -> None:
        self._deaf = True
        self._replies.clear()
        if fault == "reset":
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
            return
        if fault == "garbage":
            transport.write(_GARBAGE)
        transport.close()
