"""Connections of a server's superuser, which is ours. Those to our own database are used again: to make one costs as
much as what it is for. They keep what `SET` changed, so it is not for them.

One of them stays open for as long as the server lives and is lent to nobody: a server that crashes ends all sessions,
whether it ends itself then, recovers by itself, or is started again by a supervisor in its container.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from keystone_action.services.postgres.reader import session_options

if TYPE_CHECKING:
    import psycopg

_LOOKED_UP = {
    # An agent owns the database that a connection may lead to.
    "search_path": "pg_catalog",
    "statement_timeout": "60000",
    "lock_timeout": "10000",
    # Before version 14 servers took passwords for what our access rules don't take.
    "password_encryption": "scram-sha-256",
}
OPTIONS = session_options(_LOOKED_UP)
"""Of a superuser's connections: names are looked up in pg_catalog only."""
_MOST_IDLE = 4
"""An agent that takes all connections there are must leave us those that the server keeps for superusers."""


@dataclass
class SuperuserConnections:
    """address: libpq keywords for the superuser in the database of that name. Used by several threads."""

    address: Callable[[str], dict[str, Any]]
    _idle: list[psycopg.Connection[tuple[Any, ...]]] = field(default_factory=list)
    _witness: psycopg.Connection[tuple[Any, ...]] | None = None

    def witness(self, database: str) -> None:
        """From now on `crashed` is known. Raises psycopg.OperationalError."""
        self._witness = self._connect(database)
        if self._witness.info.server_version >= 140000:
            self._witness.execute("SET idle_session_timeout = 0")

    @property
    def crashed(self) -> bool:
        """Whether the server has ended since, or has ended all sessions and started anew. Blocking."""
        import psycopg

        if self._witness is None:
            return False
        try:
            self._witness.execute("SELECT 1")
        except psycopg.OperationalError:
            return True
        return False

    @contextmanager
    def to_own(self, database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """To our own database, which all cells share. Raises psycopg.OperationalError."""
        connection = self._take_idle() or self._connect(database)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < _MOST_IDLE and _is_as_new(connection):
            self._idle.append(connection)
        else:
            connection.close()

    @contextmanager
    def to_cell(self, database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """To a database that is not only ours: a new one each time. Raises psycopg.OperationalError."""
        with self._connect(database) as connection:
            yield connection

    def close(self) -> None:
        """Before the server ends."""
        while (connection := self._take_idle()) is not None:
            connection.close()
        if self._witness is not None:
            self._witness.close()

    def _take_idle(self) -> psycopg.Connection[tuple[Any, ...]] | None:
        # Cells do this in threads: another one may take the last between a look and a grasp.
        with suppress(IndexError):
            while not _is_as_new(connection := self._idle.pop()):
                connection.close()
            return connection
        return None

    def _connect(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        return psycopg.connect(**self.address(database), options=OPTIONS, autocommit=True, application_name="keystone")


def _is_as_new(connection: psycopg.Connection[Any]) -> bool:
    """Whether it is open, in no transaction, and the server has not said anything since, as one does that ends."""
    from psycopg.pq import TransactionStatus

    if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
        return False
    said = select.poll()
    said.register(connection.fileno(), select.POLLIN)
    return not said.poll(0)
