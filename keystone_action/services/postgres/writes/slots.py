"""Slots of logical decoding on one server: each keeps the server's log from where it was made.

To make a slot, PostgreSQL waits until every transaction of the whole server has ended that was under way: an agent that
holds one open would keep other cells from starting. So one slot is made when the server starts, and a cell's is a copy
of it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from keystone_action.services.postgres.writes.pgoutput import PgOutput
from keystone_action.services.postgres.writes.test_decoding import TestDecoding

if TYPE_CHECKING:
    import psycopg

    from keystone_action.errors import ServiceError
    from keystone_action.services.postgres.writes.changes import PluginReader

SERVER_SETTINGS: Mapping[str, str] = {
    "wal_level": "logical",
    # A cell has one slot, for as long as its database is there.
    "max_replication_slots": "256",
    "max_wal_senders": "16",
}
"""What a server must be started with. It keeps its log for a slot however long that gets (`max_slot_wal_keep_size` is
without a limit): by what all its cells write while the one goes on."""
_SINCE_COPIES = 120000


def missing_setting(session: psycopg.Connection[Any]) -> str:
    """A sentence when the server was started without what decoding needs; else empty. Raises psycopg.Error."""
    row = session.execute("SHOW wal_level").fetchone()
    level = row[0] if row is not None else "unknown"
    return "" if level == "logical" else f"its wal_level is {level}, not logical"


class Slots:
    """The slots of a server that has just started. admin: a connection of its superuser. failure: makes the service's
    error of a problem. Raises psycopg.Error; ServiceError where the server can't decode."""

    def __init__(
        self,
        admin: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
        failure: Callable[[str], ServiceError],
    ) -> None:
        self._admin = admin
        self._first = _new_name()
        self._lock = threading.Lock()
        with admin() as session:
            if missing := missing_setting(session):
                raise failure(
                    f"can't be watched for what is written into it: {missing}; let `command` of the service start it"
                    " with `-c wal_level=logical`, or leave `command` out"
                )
            self.reader: type[PluginReader] = self._make_first(session)

    def _make_first(self, admin: psycopg.Connection[Any]) -> type[PluginReader]:
        import psycopg

        try:
            _make(admin, self._first, TestDecoding.plugin)
        except psycopg.errors.UndefinedFile:
            _make(admin, self._first, PgOutput.plugin)
            return PgOutput
        return TestDecoding

    def make(self, session: psycopg.Connection[Any]) -> str:
        """A slot for the database of this session, from now on; its name. What was committed by sessions that did not
        wait for the disk may still come. Raises psycopg.Error."""
        name = _new_name()
        with self._lock:
            if session.info.server_version < _SINCE_COPIES:
                _make(session, name, self.reader.plugin)
                return name
            with self._admin() as admin:
                admin.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (self._first,))
            session.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (self._first, name))
        return name


def drop(session: psycopg.Connection[Any], slot: str) -> None:
    """The server need not keep its log for it any more. Raises psycopg.Error."""
    session.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )


def _make(session: psycopg.Connection[Any], name: str, plugin: str) -> None:
    session.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (name, plugin))


def _new_name() -> str:
    return f"keystone_{secrets.token_hex(8)}"
