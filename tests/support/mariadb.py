"""A real MariaDB for tests: Debian's `mariadb-server`, a random port, a data directory that is thrown away."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
from support.places import in_memory

SERVER = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin") or "/usr/sbin/mariadbd"
INSTALL = shutil.which("mariadb-install-db") or "/usr/bin/mariadb-install-db"
_READY_SECONDS = 240.0
_ATTEMPTS = 5
_IN_MEMORY = ("--innodb-flush-method=nosync", "--innodb-use-native-aio=0", "--innodb-log-file-size=8M")
"""Nothing has to survive a crash; not every file system in memory can write as those on disks do."""


@dataclass(frozen=True)
class MariaDb:
    """A running server. Its superuser is `tester`, by this password."""

    port: int
    password: str

    def connect(self, **fields: Any) -> Any:
        own = {"host": "127.0.0.1", "port": self.port, "user": "tester", "password": self.password}
        return pymysql.connect(**{**own, "ssl_disabled": True, **fields})

    def make_database(self, *, creates_users: bool = False) -> tuple[str, str, str]:
        """A new database with a user of its own who may do everything in it: (database, user, password).
        creates_users: and who may make users that read it."""
        name, password = f"db_{secrets.token_hex(4)}", secrets.token_hex(8)
        with self.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(f"CREATE USER {name}@'%' IDENTIFIED BY '{password}'")
            cursor.execute(f"GRANT ALL ON {name}.* TO {name}@'%'")
            if creates_users:
                let_create_users(cursor, name, name)
        return name, name, password


def let_create_users(cursor: Any, database: str, user: str) -> None:
    """Let a user make others that may do in this database what it may."""
    pattern = database.replace("_", "\\_")
    cursor.execute(f"GRANT ALL ON `{pattern}`.* TO `{user}`@'%' WITH GRANT OPTION")
    cursor.execute(f"GRANT CREATE USER ON *.* TO `{user}`@'%'")


@contextmanager
def running_mariadb() -> Iterator[MariaDb]:
    """Start it, wait until it answers, end it."""
    if not Path(SERVER).exists() or not Path(INSTALL).exists():
        raise RuntimeError("MariaDB is missing: apt-get install mariadb-server")
    directory = Path(tempfile.mkdtemp(prefix="mariadb-", dir=in_memory()))
    options: list[str] = ["--no-defaults", f"--datadir={directory / 'data'}", *_IN_MEMORY]
    if os.geteuid() == 0:
        user = pwd.getpwnam("mysql")
        os.chown(directory, user.pw_uid, user.pw_gid)
        options.append("--user=mysql")
    try:
        made = subprocess.run(
            [INSTALL, *options, "--auth-root-authentication-method=normal", "--skip-test-db"],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {made.stdout}{made.stderr}")
        password = secrets.token_hex(12)
        start = directory / "start.sql"
        start.write_text(
            f"CREATE USER tester@'%' IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION;\n"
        )
        start.chmod(0o644)
        log = directory / "log"
        for attempt in range(1, _ATTEMPTS + 1):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                port = listener.getsockname()[1]
            with log.open("wb") as output:
                server = subprocess.Popen(
                    [
                        SERVER, *options, f"--port={port}", "--bind-address=127.0.0.1",
                        f"--socket={directory / 'socket'}", f"--pid-file={directory / 'pid'}",
                        f"--init-file={start}", "--innodb-flush-log-at-trx-commit=0",
                        "--innodb-buffer-pool-size=16M", "--skip-name-resolve", "--skip-log-bin",
                    ],
                    stdout=output,
                    stderr=output,
                )  # fmt: skip
            try:
                found = MariaDb(port, password)
                if not _answers(found, server):
                    # Somebody took the port between our look and the server's; anything else is a failure.
                    if attempt < _ATTEMPTS and "in use" in log.read_text(errors="replace"):
                        continue
                    raise RuntimeError(f"MariaDB did not start: {log.read_text(errors='replace')[-2000:]}")
                yield found
                break
            finally:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _answers(found: MariaDb, server: subprocess.Popen[bytes]) -> bool:
    """Waits until it lets us in; False where it has ended, or does not within the limit."""
    deadline = time.monotonic() + _READY_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            found.connect(connect_timeout=10).close()
        except (pymysql.err.MySQLError, OSError):
            time.sleep(0.05)
        else:
            return server.poll() is None
    return False
