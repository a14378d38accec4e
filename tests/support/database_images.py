"""Database servers in containers, asked as their clients ask them: by TCP."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from docker import DockerClient
from docker.models.containers import Container

ROOT_PASSWORD = "r00t $'\"\\`"
USER, PASSWORD, DATABASE = "app", 'it\'s "quoted" \\ $HOME', "shop_1"
INIT_FOLDER = "/docker-entrypoint-initdb.d"
_NOT_YET = ("refused", "starting up")
"""What a client reads of a server that is not there yet; PostgreSQL opens its port a moment before it can answer."""
PATIENCE = 120.0
"""Seconds after which something that did not happen never will."""


@dataclass(frozen=True)
class Server:
    """What tests must know about a kind of database server."""

    image: str
    port: int
    data: str
    variables: Mapping[str, str]
    password_variable: str
    ask_inside: tuple[str, ...]
    """A command that reaches the server by its socket, from inside the container."""
    connect: Callable[..., Any]
    refused: type[Exception]
    limit: tuple[tuple[str, ...], str]
    """Arguments that allow 17 connections, and the query that shows it."""
    roots: tuple[str, str] | None = None
    """The superuser beside USER and its password, if there is one."""


def _postgres(host: str, user: str, password: str, database: str) -> Any:
    import psycopg

    return psycopg.connect(host=host, user=user, password=password, dbname=database, connect_timeout=5, autocommit=True)


def _mysql(host: str, user: str, password: str, database: str) -> Any:
    import pymysql

    return pymysql.connect(
        host=host, user=user, password=password, database=database, connect_timeout=5, autocommit=True
    )


def postgres() -> Server:
    import psycopg

    return Server(
        image="postgres:16",
        port=5432,
        data="/var/lib/postgresql/data",
        variables={"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE},
        password_variable="POSTGRES_PASSWORD",
        ask_inside=("psql", "-U", USER, "-d", DATABASE, "-c", "SELECT 1"),
        connect=_postgres,
        refused=psycopg.OperationalError,
        limit=(("-c", "max_connections=17"), "SHOW max_connections"),
    )


def mysql(image: str, prefix: str, client: str) -> Server:
    import pymysql

    return Server(
        image=image,
        port=3306,
        data="/var/lib/mysql",
        variables={
            f"{prefix}_ROOT_PASSWORD": ROOT_PASSWORD,
            f"{prefix}_USER": USER,
            f"{prefix}_PASSWORD": PASSWORD,
            f"{prefix}_DATABASE": DATABASE,
        },
        password_variable=f"{prefix}_ROOT_PASSWORD",
        ask_inside=(client, f"-u{USER}", f"-p{PASSWORD}", DATABASE, "-e", "SELECT 1"),
        connect=_mysql,
        refused=pymysql.err.OperationalError,
        limit=(("--max-connections=17",), "SELECT @@max_connections"),
        roots=("root", ROOT_PASSWORD),
    )


@contextmanager
def created(
    engine: DockerClient,
    image: str,
    *,
    command: tuple[str, ...] | None = None,
    variables: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Container]:
    """A container that was not started, with files in it; it goes with its volumes. files: path → text."""
    container = engine.containers.create(
        image, command=command, environment=dict(variables or {}), labels={"keystone.test": "stand-in"}, **options
    )
    try:
        for path, text in (files or {}).items():
            container.put_archive(str(PurePosixPath(path).parent), _archive(PurePosixPath(path).name, text))
        yield container
    finally:
        container.remove(force=True, v=True)


def _archive(name: str, text: str) -> bytes:
    data = text.encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), 0o644
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def address(container: Container) -> str:
    container.reload()
    return str(container.attrs["NetworkSettings"]["Networks"]["bridge"]["IPAddress"])


def log(container: Container) -> str:
    return container.logs().decode("utf-8", "replace")


def ended(container: Container) -> tuple[int, str]:
    """Its exit code and log, once it has ended."""
    return container.wait(timeout=PATIENCE)["StatusCode"], log(container)


def until(happened: Callable[[], bool], container: Container) -> None:
    """Waits until it happened; fails with the container's log when it never does."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        container.reload()
        assert container.status == "running", log(container)
        assert time.monotonic() < deadline, log(container)
        time.sleep(0.1)


def rows(server: Server, container: Container, query: str, *, user: str = USER, password: str = PASSWORD) -> list[Any]:
    """The answer of a server that may still be starting."""
    answers: list[list[Any]] = []

    def answered() -> bool:
        try:
            connection = server.connect(address(container), user, password, DATABASE)
        except server.refused as error:
            if not any(reason in str(error) for reason in _NOT_YET):
                raise
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            answers.append([list(row) for row in cursor.fetchall()])
        return True

    until(answered, container)
    return answers[0]
