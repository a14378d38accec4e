"""Real clients and dumps of databases: what `psql` and `mariadb` make of a script, what `pg_dump` and `mariadb-dump`
write."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from keystone_action.services.postgres.embedded_server import find_binaries


def _environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def run_psql(
    url: str, file: Path, *options: str, directory: Path | None = None, stops: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """`psql` reads a file, as people start it. Without `stops` its errors stand in what it printed, in their order."""
    stop = ["-v", "ON_ERROR_STOP=1"] if stops else []
    lines = [] if stops else ["stdbuf", "-oL"]
    return subprocess.run(
        [*lines, find_binaries().root / "bin/psql", "-X", "-q", *stop, *options, "-f", file, url],
        cwd=directory, env=_environment(), stdout=subprocess.PIPE, check=False, timeout=120,
        stderr=subprocess.PIPE if stops else subprocess.STDOUT,
    )  # fmt: skip


def pg_dump(url: str, *options: str) -> bytes:
    """A dump of the embedded server's own `pg_dump`, without what differs each time."""
    key = [] if any(one.startswith("--format=") for one in options) else ["--restrict-key=keystone"]
    done = subprocess.run(
        [find_binaries().root / "bin/pg_dump", *key, *options, url],
        env=_environment(), capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout


def _mysql_options(keywords: Mapping[str, Any]) -> list[str]:
    return [
        "--no-defaults",
        f"--host={keywords['host']}",
        f"--port={keywords['port']}",
        f"--user={keywords['user']}",
        f"--password={keywords['password']}",
        "--protocol=tcp",
        "--default-character-set=utf8mb4",
    ]


def mysql_keywords(url: str) -> dict[str, Any]:
    """Of a `mysql://` URL, for `pymysql.connect`."""
    parts = urlsplit(url)
    found: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "user": parts.username}
    return {**found, "password": parts.password, "database": parts.path[1:]}


def run_mariadb(keywords: Mapping[str, Any], file: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """The client reads a file from its standard input."""
    client = shutil.which("mariadb") or "mysql"
    with file.open("rb") as script:
        return subprocess.run(
            [client, *_mysql_options(keywords), *options, keywords["database"]],
            stdin=script, env=_environment(), capture_output=True, check=False, timeout=120,
        )  # fmt: skip


def mariadb_dump(keywords: Mapping[str, Any], *options: str) -> bytes:
    """A dump with triggers and routines, without its date."""
    dump = shutil.which("mariadb-dump") or "mysqldump"
    done = subprocess.run(
        [dump, *_mysql_options(keywords), "--routines", "--skip-comments", *options, keywords["database"]],
        env=_environment(), capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout
