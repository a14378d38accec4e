"""`type: mysql` without a container engine: this machine's own MariaDB or MySQL."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest
from anyio.from_thread import BlockingPortal
from support.database_scripts import does_not_leave_it_dropped, makes_its_database
from support.dumps import mysql_keywords
from support.places import attached

from keystone_action.errors import ServiceError, UsageError
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import QueryFailed
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.mysql import local_server
from keystone_action.services.mysql.service import LocalMysql, Mysql
from keystone_action.services.service import CellScope, Place
from keystone_action.services.sql_script import SqlScript
from keystone_action.spec.models.services import MysqlService

ENV = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "s3cret/@:", "MYSQL_DATABASE": "shop_1"}
pytestmark = pytest.mark.database


def definition(**more: Any) -> MysqlService:
    return MysqlService.model_validate({"type": "mysql", "name": "db", "env": ENV, **more})


class World:
    """A started server, and cells of it."""

    def __init__(self, portal: BlockingPortal, service: LocalMysql, place: Path) -> None:
        self.portal, self.service, self.place = portal, service, place
        self._numbers = itertools.count()
        self._cells = ExitStack()

    def cell(self, *, exclusive: bool = False) -> Place:
        private = self.place / f"cell-{next(self._numbers)}"
        private.mkdir()
        scope = CellScope("cell", private, private, AuditLog(private / "audit"), exclusive)
        return self._cells.enter_context(attached(self.service, scope, self.portal))

    def leave(self) -> None:
        self._cells.close()

    def fixture(self, cell: Place, script: str) -> None:
        self.portal.call(cell.run_sql, SqlScript("sql", text=script))
        self.portal.call(cell.seal)


@pytest.fixture(scope="module")
def world(
    portal: BlockingPortal, sandboxes: ProcessSandboxes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    service = LocalMysql(definition(), sandboxes)
    portal.call(service.start)
    made = World(portal, service, tmp_path_factory.mktemp("local"))
    yield made
    made.leave()
    portal.call(service.stop)


def session(cell: Place) -> Any:
    return pymysql.connect(
        **mysql_keywords(cell.for_agent.url) | {"password": cell.for_agent.password}, autocommit=True
    )


def server_of(world: World) -> local_server.LocalMysqlServer:
    return world.service._servers._servers[-1]


def process_of(world: World) -> int:
    return int((server_of(world)._directory / "pid").read_text())


def test_alone_a_cell_has_what_env_says_and_nothing_of_the_one_before(world: World) -> None:
    for _ in range(2):
        cell = world.cell(exclusive=True)
        address = cell.for_agent
        assert (address.user, address.password, address.database) == ("app", "s3cret/@:", "shop_1")
        world.fixture(cell, "CREATE TABLE t (id int); INSERT INTO t VALUES (1);")
        with session(cell) as agent, agent.cursor() as cursor:
            cursor.execute("SHOW TABLES")
            assert cursor.fetchall() == (("t",),)
            cursor.execute("INSERT INTO t VALUES (2)")
        cell.settle()
        assert cell.database is not None
        assert cell.database.query("SELECT count(*) FROM t", timeout=20).rows == ((2,),)
        with pytest.raises(QueryFailed):
            cell.database.query("DELETE FROM t", timeout=20)
        world.leave()


def test_several_cells_have_databases_of_their_own_and_no_way_elsewhere(world: World) -> None:
    cells = [world.cell() for _ in range(2)]
    assert len({cell.for_agent.database for cell in cells}) == 2
    world.fixture(cells[0], "USE shop_1; CREATE TABLE t (id int)")
    with session(cells[1]) as agent, agent.cursor() as cursor:
        for statement in (f"USE {cells[0].for_agent.database}", "SELECT * FROM mysql.user", "CREATE USER x"):
            with pytest.raises(pymysql.err.MySQLError):
                cursor.execute(statement)
    world.leave()


@pytest.mark.parametrize("exclusive", [True, False], ids=["one-cell", "several"])
def test_a_fixture_makes_and_drops_its_own_database_whatever_its_name_is(world: World, exclusive: bool) -> None:
    cell = world.cell(exclusive=exclusive)
    assert (cell.for_agent.database == "shop_1") is exclusive

    def load(text: str) -> tuple[str, ...]:
        return world.portal.call(cell.run_sql, SqlScript("sql", text=text))

    makes_its_database("shop_1", load, lambda: session(cell))
    world.portal.call(cell.seal)
    with session(cell) as agent, agent.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES ('b')")
    cell.settle()
    assert cell.database is not None
    assert cell.database.query("SELECT count(*) FROM t", timeout=20).rows == ((3,),)
    does_not_leave_it_dropped("shop_1", load)
    world.leave()


def test_the_server_listens_on_the_loopback_only_and_inherits_nothing(world: World, monkeypatch: Any) -> None:
    pid, port = process_of(world), server_of(world).port
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {one[1] for one in listening if one[3] == "0A" and one[1].endswith(f":{port:04X}")} == {
        f"0100007F:{port:04X}"
    }
    assert not [
        line for line in Path("/proc/net/tcp6").read_text().splitlines() if f":{port:04X} " in line and " 0A " in line
    ]
    found = {name.partition(b"=")[0] for name in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if name}
    assert found <= {b"PATH", b"LANG", b"LC_ALL", b"HOME", b"TMPDIR"}
    if os.geteuid() == 0:
        assert Path(f"/proc/{pid}").stat().st_uid != 0


@pytest.mark.parametrize("user", ["root", "mysql", "nobody"])
def test_nobody_gets_in_without_a_password(world: World, user: str) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="1045"):
        pymysql.connect(host="127.0.0.1", port=server_of(world).port, user=user)


def test_a_server_that_crashed_is_an_error_by_name_and_the_next_cell_has_a_new_one(world: World) -> None:
    cell = world.cell()
    world.fixture(cell, "CREATE TABLE t (name text); INSERT INTO t VALUES ('hunter2')")
    os.kill(process_of(world), signal.SIGSEGV)
    with pytest.raises(pymysql.err.MySQLError), session(cell) as agent:
        agent.ping(reconnect=False)
    with pytest.raises(
        ServiceError, match=r"(?s)service db: the MariaDB of this machine went away .* \(SIGSEGV\)"
    ) as told:
        cell.settle()
    assert "hunter2" not in told.value.message
    with pytest.raises(ServiceError, match=r"went away .* \(sql can't be run there") as told:
        world.portal.call(cell.run_sql, SqlScript("sql", text="INSERT INTO t VALUES ('hunter2')"))
    assert "hunter2" not in told.value.message
    world.leave()
    following = world.cell()
    world.fixture(following, "CREATE TABLE t (id int)")
    following.settle()
    world.leave()


def test_what_a_container_has_and_it_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Mysql.refuse_unsupported(definition(), engine=False)
    for more in ({"command": "mysqld"}, {"isolation": "container"}):
        with pytest.raises(UsageError, match="needs a container engine"):
            Mysql.refuse_unsupported(definition(**more), engine=False)
        Mysql.refuse_unsupported(definition(**more), engine=True)
    monkeypatch.setattr(local_server, "_PLACES", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=r"neither mariadbd nor mysqld was found") as refused:
        Mysql.refuse_unsupported(definition(), engine=False)
    assert "apt-get install mariadb-server" in refused.value.help
    Mysql.refuse_unsupported(definition(), engine=True)
