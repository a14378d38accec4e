"""One mock as one cell has it: its own route state, its own record, and nobody else's connections."""

from __future__ import annotations

import os
from dataclasses import dataclass

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import now
from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.requests import RequestJournal
from keystone_action.services.base import CellScope
from keystone_action.services.http_mock.request import MockRequest, RawRequest
from keystone_action.services.http_mock.responses import MockReply, refusal
from keystone_action.services.http_mock.routes import RouteState, RouteTable
from keystone_action.services.http_mock.server import HOST

OPEN_BODIES = 256 << 20
"""Bytes of bodies that the open requests of one mock and cell may hold in memory together."""
FULL_RECORD = 1 << 30
"""Bytes of record above which only the first KIB of a body is kept, as `cut` says."""
LAST_RECORD = 2 << 30
"""Bytes of record above which requests are refused, and the record counts as incomplete."""
KIB = 1 << 10


@dataclass
class StrangerCounts:
    """Connections and bytes that were no requests of this cell. strangers: of another user or network. unknown: gone
    before their user could be found out. not_http: no request line."""

    strangers: int = 0
    unknown: int = 0
    not_http: int = 0


class MockCell:
    """Answers and records; runs in the mock server's loop.

    port is set once it listens. failure: why the record is incomplete, else None. endless: a client that did not stop
    to send was waited for in vain.
    """

    def __init__(self, name: str, table: RouteTable, scope: CellScope, *, record: bool) -> None:
        """Raises OSError when its journal can't be made."""
        self._name = name
        self._state = RouteState(table)
        self._scope = scope
        self.port = 0
        self.counts = StrangerCounts()
        self.failure: str | None = None
        self.endless = False
        self._buffer_size = 0
        self._user = os.geteuid()
        self.journal_path = scope.private / f"{name}.requests.jsonl"
        self.journal_path.unlink(missing_ok=True)
        self._audit = scope.audit_log
        self._journal = RequestJournal(self.journal_path) if record else None
        self._record_size = 0

    def admits(self, owner: int | None) -> bool:
        """By the user of the peer's socket: the cell's, or our own (checks on the host).

        A peer that has closed its socket already has no user any more. It is believed only where no other cell can be
        meant: this is the only one, or users don't tell cells apart at all.
        """
        allowed = self._scope.allowed_users
        if owner is None:
            if allowed is None or self._scope.exclusive:
                return True
            self.counts.unknown += 1
            return False
        if owner == self._user or (allowed is not None and owner in allowed):
            return True
        self.counts.strangers += 1
        return False

    def admits_address(self, address: str) -> bool:
        """By the address of a container: one of the cell's own network, that no other cell uses."""
        network = self._scope.network
        if network is not None and network.admits(address):
            return True
        self.counts.strangers += 1
        return False

    @property
    def host(self) -> str:
        """By what name or address the cell's agent knows this mock."""
        return self._name if self._scope.in_network else HOST

    def reserve(self, size: int) -> bool:
        """Whether that many more bytes may be held; a negative size gives back."""
        self._buffer_size += size
        return self._buffer_size <= OPEN_BODIES

    def not_http(self) -> None:
        """Counted, never recorded: there is no method and no path that could be."""
        self.counts.not_http += 1

    def respond(self, raw: RawRequest) -> MockReply:
        """Record, then answer. A request that can't be recorded is not answered by its route."""
        request = MockRequest(raw)
        reply = self._state.answer(request) if raw.refusal is None else refusal(*raw.refusal)
        if self._record_size > LAST_RECORD:
            self.failure = f"more than {LAST_RECORD >> 30} GiB of requests were sent; the last ones are not recorded"
            return refusal(507, self.failure)
        try:
            self._record(self._record_of(request, reply))
        except OSError as error:
            self.failure = f"a request could not be recorded: {error.strerror}"
            return refusal(507, self.failure)
        return reply

    def _record(self, recorded: RecordedRequest) -> None:
        if self._journal is not None:
            self._record_size += self._journal.append(recorded)
        self._record_size += self._audit.http_call(recorded)

    def _record_of(self, request: MockRequest, reply: MockReply) -> RecordedRequest:
        raw = request.raw
        sent = reply.text if reply.has_body and request.method != "HEAD" else ""
        if self._record_size > FULL_RECORD:
            request.cut_body(KIB)
            sent = sent if len(sent) <= KIB else f"{sent[:KIB]}\n[… {len(sent) - KIB:,} characters cut …]"
        return RecordedRequest(
            service=self._name,
            method=request.method,
            path=request.path,
            url=f"http://{self.host}:{self.port}{raw.target}" if raw.target.startswith("/") else raw.target,
            query=request.query,
            headers=request.headers,
            body=request.body,
            body_bytes=raw.body_bytes,
            cut=raw.cut,
            status=reply.status,
            response_body=sent,
            ts=now(),
        )

    def check_complete(self) -> None:
        """Raises OutputError when something that was sent is not in the record."""
        if self.failure is not None:
            raise OutputError(f"the record of {self._name} is incomplete: {self.failure}")

    def close(self) -> None:
        """Say in the audit log what was turned away, and close the journal."""
        counts = self.counts
        if counts.strangers or counts.unknown or counts.not_http:
            details = {"service": self._name, **vars(counts)}
            try:
                self._audit.write("connections_refused", details, ts=now())
            except OSError as error:
                self.failure = f"the audit log could not be written: {error.strerror}"
        if self._journal is not None:
            self._journal.close()
