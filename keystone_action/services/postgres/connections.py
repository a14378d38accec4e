"""Connections to PostgreSQL servers: how libpq is told where to go, those of our own superuser, and passwords.

Connections of the superuser to our own database are used again: to make one costs as much as what it is for. They keep
what `SET` changed, so `SET` is not for them. One of them stays open for as long as the server lives and is lent to
nobody: a server that crashes ends all sessions, whether it ends itself then, recovers by itself, or is started again by
a supervisor in its container.

Passwords are stored as we compute them: a server that is given the text hashes it 4,096 times, and so does every client
at each login. Nobody but our superuser reads what is stored, and what protects a database of a cell is that its agent's
is the only sandbox that knows the password: slowness would protect nothing. But clients of others (most releases of the
JDBC driver among them) take fewer than 4,096 times for an attack and refuse to log in, so only what no one but us uses
is `private`. Form: PostgreSQL, "pg_authid"; RFC 5803; the 4,096: RFC 7677, 4.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_CONNECT_SECONDS = 10


def keywords(host: str, port: int, user: str, password: str, database: str) -> dict[str, Any]:
    """For libpq: a server of ours, on this machine or on an engine's network, where nobody else listens."""
    return {
        "host": host,
        "port": port,
        "user": user,
        "password": password,
        "dbname": database,
        "connect_timeout": _CONNECT_SECONDS,
        "sslmode": "disable",
        "gssencmode": "disable",
    }


def session_options(settings: Mapping[str, str]) -> str:
    """The `options` of a connection that sets these parameters, quoted as libpq reads them."""
    escaped = (f"-c {name}={value}".replace("\\", "\\\\").replace(" ", "\\ ") for name, value in settings.items())
    return " ".join(option.replace("-c\\ ", "-c ", 1) for option in escaped)


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


_ITERATIONS = 4096
_SALT_BYTES = 16
_METHOD = "sha256"


def scram_verifier(password: str, *, private: bool = False) -> str:
    """What to write after PASSWORD: the verifier `SCRAM-SHA-256$…`, which servers since version 10 keep as it is; for
    a password that a client changes first (RFC 4013), the password itself. private: of a role that is only ours."""
    if not (password.isascii() and password.isprintable() and password):
        return password
    iterations = 1 if private else _ITERATIONS
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(_METHOD, password.encode(), salt, iterations)
    client = hmac.digest(salted, b"Client Key", _METHOD)
    keys = hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", _METHOD)
    text_salt, text_stored, text_server = (base64.b64encode(part).decode() for part in (salt, *keys))
    return f"SCRAM-SHA-256${iterations}:{text_salt}${text_stored}:{text_server}"
