"""What loading a dump costs us beside the servers' own clients: CPU of the process that reads and sends it, its time,
and the most memory that it has.

`python -m benchmarks.dumps 1000` measures with dumps of so many MB, once.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Row

if TYPE_CHECKING:
    from keystone_action.evidence.model import Address

MEGABYTES = 50
MEMORY = 100.0
"""MB that a process of ours may have, however large the dump is."""
_TEXT = "a row of some length; it's \\\\N not the shortest, nor the longest that there is in a table of customers"


@dataclass(frozen=True, slots=True)
class _Cost:
    """seconds: on the wall. cpu: seconds. memory: MB."""

    seconds: float
    cpu: float
    memory: float


def _write_postgres(file: Path, size: int) -> None:
    with file.open("w") as out:
        out.write("DROP TABLE IF EXISTS big;\nCREATE TABLE big (id int, text text);\nCOPY big FROM stdin;\n")
        while out.tell() < size:
            out.writelines(f"{number}\t{_TEXT}\n" for number in range(8_000))
        out.write("\\.\n")


def _write_mysql(file: Path, size: int) -> None:
    """Statements of about 1 MB, as `mysqldump` writes them."""
    row = "({}, '" + _TEXT.replace("'", "\\'") + "')"
    with file.open("w") as out:
        out.write("DROP TABLE IF EXISTS big;\nCREATE TABLE big (id int, text text);\n")
        while out.tell() < size:
            rows = ",".join(row.format(number) for number in range(8_000))
            out.write(f"INSERT INTO `big` VALUES {rows};\n")


def _cost(words: list[str], stdin: Path) -> _Cost:
    """Of one process, which has to end well."""
    started, most, ended = time.perf_counter(), 0.0, 0
    with stdin.open("rb") as stream:
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, stream.fileno(), 0)])
    while not ended:
        time.sleep(0.01)
        # `ru_maxrss` would be ours: a child begins with what its parent has.
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        most = max(most, int(found[1]) / 1024) if found else most
        ended, status, used = os.wait4(pid, os.WNOHANG)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{words[0]} ended with {os.waitstatus_to_exitcode(status)}")
    return _Cost(time.perf_counter() - started, used.ru_utime + used.ru_stime, most)


def _load(dialect: str, url: str, file: str) -> None:
    """What a child does: read and send the file, as a fixture's is."""
    from keystone_action.services.sql_script import SqlScript

    script = SqlScript(file, path=Path(file))
    if dialect == "postgres":
        import psycopg

        from keystone_action.services.postgres.psql_script import PsqlScript

        PsqlScript(script, lambda: psycopg.connect(url, autocommit=True, client_encoding="UTF8"), []).run()
    else:
        from urllib.parse import urlsplit

        from keystone_action.services.mysql.client_script import ClientScript, script_session

        parts = urlsplit(url)
        keywords = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
        keywords["database"] = parts.path[1:]
        ClientScript(script, lambda: script_session(keywords), str(keywords["database"])).run()


def _clients(dialect: str, address: Address) -> list[str] | None:
    """The words of the server's own client, where there is one here."""
    if dialect == "postgres":
        from keystone_action.services.postgres.embedded_server import find_binaries

        return [str(find_binaries().root / "bin/psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-f", "-", address.url]
    client = shutil.which("mariadb") or shutil.which("mysql")
    options = [f"--host={address.host}", f"--port={address.port}", f"--user={address.user}"]
    password = f"--password={address.password}"
    return [client, "--no-defaults", *options, password, str(address.database)] if client is not None else None


@asynccontextmanager
async def _cell(dialect: str) -> AsyncIterator[Address]:
    """A database on a server of this machine's own. Raises KeystoneError where there can't be one."""
    from keystone_action.evidence.audit import AuditLog
    from keystone_action.sandbox.processes.sandboxes import start
    from keystone_action.services.mysql.service import LocalMysql
    from keystone_action.services.postgres.service import EmbeddedPostgres
    from keystone_action.services.service import CellScope
    from keystone_action.spec.models.services import MysqlService, PostgresService

    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        root = Path(name)
        root.chmod(0o711)  # noqa: ASYNC240
        provider = await start(root)
        service: Any
        if dialect == "postgres":
            place = root / f"postgres-{secrets.token_hex(4)}"
            service = EmbeddedPostgres(PostgresService(type="postgres", name="db"), place, provider)
        else:
            service = LocalMysql(MysqlService(type="mysql", name="db"), provider)
        try:
            await service.start()
            (root / "cell").mkdir()
            scope = CellScope("cell", root / "cell", root / "cell", AuditLog(root / "audit"), exclusive=False)
            async with service.attach(scope) as there:
                yield there.for_host
        finally:
            await service.stop()
            await provider.close()


_WRITERS: dict[str, Callable[[Path, int], None]] = {"postgres": _write_postgres, "mysql": _write_mysql}


def dumps(rounds: int, megabytes: int = MEGABYTES) -> Iterator[Row | str]:
    """Rows for each dialect that this machine has a server of."""
    from keystone_action.errors import KeystoneError

    for dialect in _WRITERS:
        try:
            with _measured(dialect, rounds, megabytes) as (client, ours, theirs):
                label = f"{megabytes} MB into {dialect}"
                yield Row(f"{label}, CPU", _middle(ours, "cpu"), client, _middle(theirs, "cpu"), None)
                yield Row(f"{label}, time", _middle(ours, "seconds"), client, _middle(theirs, "seconds"), None)
                most, other = max(one.memory for one in ours), max(one.memory for one in theirs)
                kept = "yes" if most <= MEMORY else "NO"
                beside = f"{most / other:8.2f} × {client} ({other:.1f} MB)"
                yield f"{f'{label}, memory':<38} {most:7.1f}MB {MEMORY:7.1f}MB  {kept:<3} {beside}"
        except KeystoneError as error:
            yield f"a dump into {dialect}: not measured ({error})"


@contextmanager
def _measured(dialect: str, rounds: int, megabytes: int) -> Iterator[tuple[str, list[_Cost], list[_Cost]]]:
    """The client's name, our costs, and those of the client."""
    from anyio.from_thread import start_blocking_portal

    from keystone_action.errors import ServiceError

    with (
        tempfile.TemporaryDirectory(prefix="keystone-bench-") as name,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_cell(dialect)) as address,
    ):
        file = Path(name) / "dump.sql"
        _WRITERS[dialect](file, megabytes << 20)
        client = _clients(dialect, address)
        if client is None:
            raise ServiceError("there is no client of it here")
        own = [sys.executable, "-m", "benchmarks.dumps", dialect, address.url, str(file)]
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(_cost(own, file))
            theirs.append(_cost(client, file))
        yield Path(client[0]).name, ours, theirs


def _middle(costs: Sequence[_Cost], what: str) -> float:
    found: float = sorted(getattr(one, what) for one in costs)[len(costs) // 2]
    return found


if __name__ == "__main__":
    if len(sys.argv) == 4:
        _load(*sys.argv[1:])
    else:
        for line in dumps(1, int(sys.argv[1])):
            sys.stdout.write((line if isinstance(line, str) else line.show()) + "\n")
