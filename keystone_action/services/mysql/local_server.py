"""`type: mysql` where there is no container engine: the MariaDB or MySQL that this machine has installed, started for
the run with a directory and a port of its own. Of what the machine's own server holds, or is set to, nothing is used.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.errors import ServiceError, UsageError
from keystone_action.services.mysql.server import MysqlServer
from keystone_action.services.server_process import ENVIRONMENT, LOOPBACK, OwnServer, named_user, write_private

if TYPE_CHECKING:
    from keystone_action.services.server_process import Spawner

_PROGRAMS = ("mariadbd", "mysqld")
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin", "/usr/libexec")
_INSTALLERS = ("mariadb-install-db", "mysql_install_db")
_SECONDS = 10
_INSTALLED = ("root", "mysql", "")
_HOSTS = ("localhost", "127.0.0.1", "::1", "%")
"""Another name of this machine is nobody's while names are not looked up."""
_OPTIONS = (
    "--skip-name-resolve",
    "--socket=socket",  # below the data directory, where no path is too long for one
    f"--bind-address={LOOPBACK}",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=64M",
    "--character-set-server=utf8mb4",
    "--local-infile=0",
    "--loose-mysqlx=0",
    "--loose-innodb-flush-method=nosync",
    "--loose-innodb-use-native-aio=0",
)


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """A server's program of this machine."""

    path: str
    installer: str | None
    """Makes a data directory; None where the server does it itself, as MySQL's."""

    @property
    def name(self) -> str:
        """As people call it."""
        return "MariaDB" if self.installer is not None else "MySQL"


def find_program() -> LocalProgram | None:
    """The machine's server, by PATH and the usual places; None where there is none that could be started."""
    places = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    for name in _PROGRAMS:
        path = shutil.which(name, path=places)
        if path is None:
            continue
        try:
            said = subprocess.run(
                [path, "--no-defaults", "--version"], env=dict(ENVIRONMENT), capture_output=True, text=True,
                check=False, timeout=_SECONDS,
            ).stdout  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            continue
        if "MariaDB" not in said:
            return LocalProgram(path, None)
        installer = next((found for one in _INSTALLERS if (found := shutil.which(one, path=places))), None)
        if installer is not None:
            return LocalProgram(path, installer)
    return None


def require_program(service: str) -> LocalProgram:
    """Raises UsageError where there is none."""
    found = find_program()
    if found is None:
        raise UsageError(
            f"service {service}: type: mysql needs a container engine, or MariaDB or MySQL on this machine; neither "
            "mariadbd nor mysqld was found",
            help="Start Docker (or set DOCKER_HOST), or install one: apt-get install mariadb-server.",
        )
    return found


class LocalMysqlServer(OwnServer, MysqlServer):
    """See both."""

    def __init__(self, name: str, directory: Path, spawner: Spawner, program: LocalProgram) -> None:
        OwnServer.__init__(self, name, directory, spawner)
        MysqlServer.__init__(self, 0)
        self.what = f"the {program.name} of this machine"
        self._program = program

    @property
    def host(self) -> str:
        """See MysqlServer."""
        return LOOPBACK

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    async def _prepare(self) -> None:
        self._data.mkdir(mode=0o700)
        # Run before anybody is let in: of the users that an installation makes, who have no password, none is left.
        account = f"'{self._superuser}'@'%'"
        write_private(
            self._directory / "start.sql",
            f"CREATE USER {account} IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {account} WITH GRANT OPTION;\n"
            + "".join(f"DROP USER IF EXISTS '{user}'@'{host}';\n" for user in _INSTALLED for host in _HOSTS),
        )
        if self._program.installer is None:
            argv = [self._program.path, "--no-defaults", "--initialize-insecure", f"--datadir={self._data}"]
        else:
            argv = [
                self._program.installer,
                "--no-defaults",
                f"--datadir={self._data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        exit_code = await self._run(argv, user=named_user())
        if exit_code != 0:
            raise self.failure(f"could not be set up ({Path(argv[0]).name} ended with exit code {exit_code})")

    def _command(self) -> list[str]:
        own = [
            f"--datadir={self._data}",
            f"--port={self.port}",
            f"--pid-file={self._directory / 'pid'}",
            f"--init-file={self._directory / 'start.sql'}",
            f"--tmpdir={self._directory}",
        ]
        return [self._program.path, "--no-defaults", *own, *_OPTIONS]

    def _ask(self) -> bool:
        import pymysql

        try:
            with self.admin() as admin:
                self.set_up(admin)
            self.watch()
        except (pymysql.err.MySQLError, OSError, RuntimeError):
            return False
        return True


class LocalMysqlServers:
    """The server that the cells of one service share, and a new one where it has crashed. directory: a new one."""

    def __init__(self, name: str, directory: Path, spawner: Spawner, ready_timeout: float) -> None:
        self._name = name
        self._directory = directory
        self._spawner = spawner
        self._ready_timeout = ready_timeout
        self._servers: list[LocalMysqlServer] = []
        self._one_at_a_time: Any = None

    async def start(self) -> None:
        """Start the first. Raises UsageError and ServiceError."""
        import anyio.to_thread

        program = await anyio.to_thread.run_sync(require_program, self._name)
        number = f"-{len(self._servers)}" if self._servers else ""
        place = self._directory.with_name(f"{self._directory.name}{number}")
        server = LocalMysqlServer(self._name, place, self._spawner, program)
        try:
            await server.start(self._ready_timeout)
        except OSError as error:
            raise ServiceError(f"service {self._name}: {server.what} can't be started: {error}") from error
        self._servers.append(server)

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[LocalMysqlServer]:
        """A server for a cell: the one there is, or a new one where it has ended. The cells that were under way have
        lost theirs. Raises ServiceError."""
        import anyio
        import anyio.to_thread

        self._one_at_a_time = self._one_at_a_time or anyio.Lock()
        async with self._one_at_a_time:
            if await anyio.to_thread.run_sync(lambda: self._servers[-1].crashed):
                await self.start()
            server = self._servers[-1]
        yield server

    async def stop(self) -> None:
        """End them. Never raises."""
        for server in self._servers:
            await server.stop()


def unused_directory(root: Path) -> Path:
    """For a server, below a directory that the users of servers may pass through."""
    return root / f"mysql-{secrets.token_hex(6)}"
