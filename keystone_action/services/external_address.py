"""The address of a service that runs already: its URL taken apart, and what is asked of the server behind it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.model import Address
from keystone_action.services.mysql import reader as mysql_reader
from keystone_action.services.mysql.client_script import ClientScript, script_session
from keystone_action.services.postgres import reader as postgres_reader
from keystone_action.services.postgres.psql_script import PsqlScript
from keystone_action.services.redefinitions import CatalogueLook, CatalogueWatch
from keystone_action.services.service import one_line
from keystone_action.services.sql_script import ScriptError, SqlScript
from keystone_action.spec.models.policies import parse_host

if TYPE_CHECKING:
    import psycopg

    from keystone_action.services.database_queries import OwnRole

_PORTS = {"postgresql": 5432, "mysql": 3306, "http": 80, "https": 443, "redis": 6379, "rediss": 6379, "amqp": 5672}
_SAME = {"postgres": "postgresql", "mariadb": "mysql"}
_LEADING = ("host", "hostaddr", "port")
"""Parameters by which libpq goes elsewhere than to a URL's host."""
_TRY_SECONDS = 5.0


@dataclass(frozen=True)
class ExternalAddress:
    """The URL of a service, taken apart."""

    kind: str
    """Its scheme, without driver and synonyms (`postgresql`, `mysql`, `http` …)."""
    address: Address
    public_url: str
    """Without credentials."""
    keywords: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the database's client connects with."""

    @classmethod
    def from_url(cls, service: str, url: str) -> ExternalAddress:
        """Raises UsageError that never repeats the credentials."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"service {service}: its url can't be read: {error}") from None
        scheme, _, _driver = parts.scheme.partition("+")
        kind = _SAME.get(scheme, scheme)
        shown = f"{scheme}://{parts.hostname or ''}{f':{port}' if port else ''}{parts.path}"
        if kind == "sqlite":
            raise UsageError(f"service {service}: {shown} is a file", help="Use type: sqlite with a path.")
        if not scheme or not parts.hostname:
            raise UsageError(
                f"service {service}: its url names no {'scheme' if not scheme else 'host'}",
                help="Expected something like postgresql://user:password@127.0.0.1:5432/database.",
            )
        port = port or _PORTS.get(kind)
        if port is None:
            raise UsageError(f"service {service}: {shown} has no port, and {scheme} none by default")
        is_database = kind in ("postgresql", "mysql")
        address = Address(
            host=parts.hostname,
            port=port,
            url=url,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=unquote(parts.path.lstrip("/")) if is_database else "",
        )
        return cls(kind, address, shown, _keywords(service, kind, address, parts))

    def refuse_relay(self) -> None:
        """Raises ServiceError for a URL whose parameters lead past its host."""
        if self.kind != "postgresql":
            return
        leading = [name for name, _ in parse_qsl(urlsplit(self.address.url).query) if name in _LEADING]
        if leading:
            raise ServiceError(
                f"a container reaches {self.public_url} by a relay, which its parameter {leading[0]} would pass by",
                help="Name host and port before the path of the url.",
            )

    def by_relay(self, alias: str, port: int) -> Address:
        """The address through a relay at this port. Containers resolve the alias and the host's own name to the relay.
        A host that is a name stays in the address, since certificates and virtual hosts are chosen by it."""
        parts = urlsplit(self.address.url)
        host = self.address.host if _is_a_name_elsewhere(self.address.host) else alias
        user, at, _ = parts.netloc.rpartition("@")
        netloc = f"{user}{at}{host}" if port == self.address.port and parts.port is None else f"{user}{at}{host}:{port}"
        return replace(self.address, host=host, port=port, url=parts._replace(netloc=netloc).geturl())

    @property
    def probe(self) -> Callable[[], None]:
        """One try whether it answers. Raises the client's errors."""
        return {"postgresql": self._ask_postgres, "mysql": self._ask_mysql}.get(
            self.kind, self._ask_http if self.kind in ("http", "https") else self.connect
        )

    def run_script(self, script: SqlScript) -> tuple[str, ...]:
        """Run a script; returns notices. Raises ScriptError, and the client's errors where it can't connect."""
        if self.kind == "postgresql":
            return PsqlScript(script, self._postgres_session, [self._database()]).run()
        if self.kind == "mysql":
            own = self.address.database
            return ClientScript(script, lambda: script_session(self.keywords), own, [own]).run()
        raise ScriptError("it is not a database")

    def _postgres_session(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(**{**self.keywords, "client_encoding": "UTF8"}, autocommit=True)

    def _database(self) -> str:
        return str(self.keywords.get("dbname") or self.keywords.get("user") or "")

    def watch_and_role(self) -> tuple[CatalogueWatch, OwnRole | None]:
        """How checks of one cell ask, a role where it is a database: nothing was looked at and none made yet."""
        role: OwnRole
        if self.kind == "postgresql":
            from keystone_action.services.postgres.own_role import PostgresRole

            role = PostgresRole(self.keywords)
        elif self.kind == "mysql":
            from keystone_action.services.mysql.own_role import MysqlRole

            role = MysqlRole(self.keywords)
        else:
            return CatalogueWatch(self.look), None
        return CatalogueWatch(lambda path: role.retry(lambda: self.look(path))), role

    def look(self, path: tuple[str, ...] | None = None) -> CatalogueLook:
        """What stands in a database; of anything else nothing. path: the schemas that its user's names are looked up
        in, None = as it is now. Raises the client's errors."""
        if self.kind == "postgresql":
            import psycopg

            with psycopg.connect(**{"connect_timeout": 10, **self.keywords}, autocommit=True) as connection:
                if path is None:
                    rows = connection.execute("SELECT unnest(pg_catalog.current_schemas(false))::text").fetchall()
                    path = tuple(str(row[0]) for row in rows)
                connection.execute("SET search_path = pg_catalog")
                connection.execute("SET lock_timeout = 10000")
                catalogue = postgres_reader.read_postgres_catalogue(connection)
                return catalogue, path, postgres_reader.read_shadows(connection, path)
        if self.kind == "mysql":
            import pymysql

            fields = {**self.keywords, "connect_timeout": 10, "autocommit": True}
            with pymysql.connect(**fields) as mysql, mysql.cursor() as cursor:
                return mysql_reader.read_mysql_catalogue(cursor), (self.address.database,), frozenset()
        return {}, (), frozenset()

    def _ask_postgres(self) -> None:
        import psycopg

        with psycopg.connect(**{**self.keywords, "connect_timeout": int(_TRY_SECONDS)}) as connection:
            connection.execute("SELECT 1")

    def _ask_mysql(self) -> None:
        import pymysql

        with pymysql.connect(**self.keywords, connect_timeout=int(_TRY_SECONDS)) as mysql, mysql.cursor() as cursor:
            cursor.execute("SELECT 1")

    def _ask_http(self) -> None:
        import httpx

        # Any answer will do, and none of the runner's proxies: the service is asked, not the way to it.
        httpx.get(self.address.url, timeout=_TRY_SECONDS, trust_env=False, follow_redirects=False)

    def seconds_up(self) -> float:
        """For how long a database has been up. Raises the client's errors; TypeError for anything else."""
        if self.kind == "postgresql":
            import psycopg

            query = "SELECT extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_postmaster_start_time())"
            with psycopg.connect(**{**self.keywords, "connect_timeout": int(_TRY_SECONDS)}) as connection:
                [(seconds,)] = connection.execute(query).fetchall()
                return float(seconds)
        if self.kind == "mysql":
            import pymysql

            with pymysql.connect(**self.keywords, connect_timeout=int(_TRY_SECONDS)) as mysql, mysql.cursor() as cursor:
                cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
                return float(cursor.fetchone()[1])
        raise TypeError("it is not a database")

    def connect(self) -> None:
        """Whether anybody listens there. Raises OSError."""
        socket.create_connection((self.address.host, self.address.port or 0), timeout=_TRY_SECONDS).close()


def _keywords(service: str, kind: str, address: Address, parts: SplitResult) -> dict[str, Any]:
    if kind == "postgresql":
        import psycopg

        url = parts._replace(scheme="postgresql").geturl()
        try:
            # libpq reads its own URLs, with all their parameters.
            return psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise UsageError(f"service {service}: its url can't be read: {one_line(error)}") from None
    if kind == "mysql":
        if parts.query:
            raise UsageError(f"service {service}: parameters in a {parts.scheme} url are not supported")
        found = {
            "host": address.host,
            "port": address.port,
            "user": address.user,
            "password": address.password,
            "database": address.database or None,
        }
        return {name: value for name, value in found.items() if value is not None}
    return {}


def _is_a_name_elsewhere(host: str) -> bool:
    try:
        name = parse_host(host)
    except ValueError:
        return False
    # Containers know localhost as themselves.
    return isinstance(name, str) and name.rpartition(".")[2] not in ("localhost", "localdomain")
