"""What an agent wrote into a database on a server of somebody else's: by comparison, with the rights of its URL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from support.databases import PostgresCell
from support.mariadb import MariaDb
from support.places import attached

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.services.external import External
from keystone_action.services.service import CellScope, Place
from keystone_action.spec.models.services import ExternalService

pytestmark = pytest.mark.database
Told = set[tuple[str, str, str, int | None]]


@dataclass
class Outside:
    """A database of somebody else's. run: statements of the agent's."""

    portal: BlockingPortal
    url: str
    run: Callable[[str], None]
    directory: Path
    closing: ExitStack

    def place(self, *, exclusive: bool = True, watches_writes: bool = True) -> Place:
        definition = ExternalService.model_validate({"type": "external", "name": "db", "url": self.url})
        log = AuditLog(self.directory / "audit.jsonl")
        scope = CellScope("cell", self.directory, self.directory, log, exclusive, watches_writes=watches_writes)
        return self.closing.enter_context(attached(External(definition), scope, self.portal))

    def sealed(self) -> Place:
        place = self.place()
        self.portal.call(place.seal)
        return place


def told(place: Place) -> Told:
    place.settle()
    assert place.writes is not None
    found = place.writes.writes()
    assert {one.how_known for one in found} <= {"comparison"}
    return {(one.what, one.table.rpartition(".")[2], one.operation, one.rows) for one in found}


def texts(place: Place) -> str:
    assert place.writes is not None
    return "\n".join(text for _, text in place.writes.texts())


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def maria(mariadb: MariaDb, portal: BlockingPortal, tmp_path: Path, closing: ExitStack) -> Outside:
    database, user, password = mariadb.make_database()

    def run(script: str) -> None:
        fields = {"user": user, "password": password, "database": database, "autocommit": True}
        with mariadb.connect(**fields) as session, session.cursor() as cursor:
            for statement in script.split(";"):
                cursor.execute(statement)

    url = f"mysql://{user}:{password}@127.0.0.1:{mariadb.port}/{database}"
    return Outside(portal, url, run, tmp_path, closing)


@pytest.fixture
def postgresql(cell: PostgresCell, portal: BlockingPortal, tmp_path: Path, closing: ExitStack) -> Outside:
    def run(script: str) -> None:
        with cell.agent() as session:
            session.execute(script.encode())

    return Outside(portal, cell.place.for_host.url, run, tmp_path, closing)


MARIA_STANDING = (
    "CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, body text, small float, twice int AS (length(body)) VIRTUAL);"
    "INSERT INTO t (body, small) VALUES ('a', 1.1), ('b', 2);"
    "CREATE TABLE plain (v varchar(9)) ENGINE=Aria; INSERT INTO plain VALUES ('x'), ('x');"
    "CREATE SEQUENCE counter; CREATE SEQUENCE numbers; CREATE TABLE numbered (id int DEFAULT nextval(numbers), v int);"
    "CREATE TABLE kept (v int) WITH SYSTEM VERSIONING; INSERT INTO kept VALUES (1);"
    "CREATE VIEW shown AS SELECT body FROM t"
)
MARIA_WAYS: dict[str, tuple[str, Told]] = {
    "nothing": ("SELECT * FROM t", set()),
    "undone": ("INSERT INTO plain VALUES ('y'); DELETE FROM plain WHERE v = 'y'", set()),
    "rolled back": ("BEGIN; DELETE FROM t; ROLLBACK", set()),
    "numbered on": ("INSERT INTO t (body) VALUES ('x'); DELETE FROM t WHERE body = 'x'; ANALYZE TABLE t", set()),
    "temporary": ("CREATE TEMPORARY TABLE x (a int); INSERT INTO x VALUES (1)", set()),
    "inserted": ("INSERT INTO plain VALUES ('x')", {("table", "plain", "insert", 1)}),
    "case alone": ("UPDATE plain SET v = 'X' LIMIT 1", {("table", "plain", "change", 1)}),
    "a blank at its end": ("UPDATE plain SET v = 'x ' LIMIT 1", {("table", "plain", "change", 1)}),
    "the last digits": ("UPDATE t SET small = small + 0.0000002 WHERE id = 1", {("table", "t", "change", 1)}),
    "the generated follows": ("UPDATE t SET body = 'cc' WHERE id = 1", {("table", "t", "change", 1)}),
    "a sequence": ("SELECT nextval(counter)", {("sequence", "counter", "change", 1)}),
    "a sequence of a column": ("INSERT INTO numbered (v) VALUES (1)", {("table", "numbered", "insert", 1)}),
    "a sequence is altered": ("ALTER SEQUENCE numbers INCREMENT 5", {("sequence", "numbers", "alter", None)}),
    "a sequence that numbers rows now": (
        "ALTER TABLE plain ADD id int DEFAULT nextval(counter)",
        {("table", "plain", "alter", None), ("sequence", "counter", "change", None)},
    ),
    "a version": ("UPDATE kept SET v = 2; UPDATE kept SET v = 1", {("table", "kept", "insert", 2)}),
    "a trigger": ("CREATE TRIGGER r AFTER INSERT ON t FOR EACH ROW DELETE FROM plain",
                  {("trigger", "t", "create", None)}),
    "a trigger goes with its table": (
        "CREATE TRIGGER r AFTER INSERT ON t FOR EACH ROW DELETE FROM plain; DROP TABLE t",
        {("table", "t", "drop", None)},
    ),
    "a function": ("CREATE FUNCTION f() RETURNS int RETURN 1", {("function", "f", "create", None)}),
    "an event": ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM t", {("event", "e", "create", None)}),
    "a view": ("CREATE OR REPLACE VIEW shown AS SELECT 1", {("view", "shown", "alter", None)}),
    "a column": ("ALTER TABLE plain ADD more int DEFAULT 7", {("table", "plain", "alter", None)}),
    "a comment": ("ALTER TABLE plain COMMENT 'a note'", {("table", "plain", "alter", None)}),
}  # fmt: skip


@pytest.mark.parametrize("way", MARIA_WAYS)
def test_each_way_of_writing_into_mariadb_is_told(maria: Outside, way: str) -> None:
    script, expected = MARIA_WAYS[way]
    maria.run(MARIA_STANDING)
    place = maria.sealed()
    maria.run(script)
    assert told(place) == expected


POSTGRES_STANDING = """
CREATE TABLE plain (v text); INSERT INTO plain VALUES ('x'), ('x');
CREATE TABLE numbered (id serial PRIMARY KEY, v int);
CREATE SEQUENCE counter; CREATE VIEW shown AS SELECT v FROM plain;
CREATE TABLE parts (id int) PARTITION BY LIST (id); CREATE TABLE part_one PARTITION OF parts FOR VALUES IN (1);
CREATE UNLOGGED TABLE quick (v int);
"""
POSTGRES_WAYS: dict[str, tuple[str, Told]] = {
    "nothing": ("SELECT * FROM plain", set()),
    "rolled back": ("BEGIN; DELETE FROM plain; ROLLBACK", set()),
    "undone": ("INSERT INTO plain VALUES ('y'); DELETE FROM plain WHERE v = 'y'", set()),
    "temporary": ("CREATE TEMP TABLE x (a int); INSERT INTO x VALUES (1)", set()),
    "analyzed": ("ANALYZE", set()),
    "inserted": ("INSERT INTO plain VALUES ('x')", {("table", "plain", "insert", 1)}),
    "updated": ("UPDATE plain SET v = 'z'", {("table", "plain", "change", 2)}),
    "deleted": ("DELETE FROM customers", {("table", "customers", "delete", 3)}),
    "a sequence": ("SELECT nextval('counter')", {("sequence", "counter", "change", None)}),
    "a partition": ("INSERT INTO parts VALUES (1)", {("table", "parts", "insert", 1)}),
    "unlogged": ("INSERT INTO quick VALUES (1)", {("table", "quick", "insert", 1)}),
    "made": ("CREATE TABLE made (a int); INSERT INTO made VALUES (1)",
             {("table", "made", "create", None), ("table", "made", "insert", 1)}),
    "made and empty": ("CREATE TABLE made (a int)", {("table", "made", "create", None)}),
    "dropped": ("DROP TABLE customers", {("table", "customers", "drop", None)}),
    "altered": ("ALTER TABLE plain ADD more int", {("table", "plain", "alter", None)}),
    "indexed": ("CREATE INDEX ON plain (v)", {("table", "plain", "alter", None)}),
    "a rule": ("CREATE RULE r AS ON INSERT TO plain DO INSTEAD NOTHING", {("rule", "plain", "create", None)}),
    "a policy": ("ALTER TABLE plain ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON plain USING (false)",
                 {("table", "plain", "alter", None), ("policy", "plain", "create", None)}),
    "a function": ("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", {("function", "f", "create", None)}),
    "a trigger": (
        """CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM customers; RETURN NEW; END';
           CREATE TRIGGER r AFTER INSERT ON plain FOR EACH ROW EXECUTE FUNCTION f(); INSERT INTO plain VALUES ('y');
           DROP TRIGGER r ON plain; DROP FUNCTION f""",
        {("table", "plain", "insert", 1), ("table", "customers", "delete", 3)},
    ),
    "a view": ("CREATE OR REPLACE VIEW shown AS SELECT 'x' AS v", {("view", "shown", "alter", None)}),
    "a schema": ("CREATE SCHEMA s; CREATE TYPE s.e AS ENUM ('a')",
                 {("schema", "s", "create", None), ("type", "e", "create", None)}),
    "rights": ("GRANT SELECT ON plain TO PUBLIC", {("table", "plain", "alter", None)}),
}  # fmt: skip


@pytest.mark.parametrize("way", POSTGRES_WAYS)
def test_each_way_of_writing_into_postgresql_is_told(postgresql: Outside, way: str) -> None:
    script, expected = POSTGRES_WAYS[way]
    postgresql.run(POSTGRES_STANDING)
    place = postgresql.sealed()
    postgresql.run(script)
    assert told(place) == expected


@pytest.mark.parametrize("kind", ["maria", "postgresql"])
def test_texts_are_those_of_rows_that_are_new(kind: str, request: pytest.FixtureRequest) -> None:
    outside: Outside = request.getfixturevalue(kind)
    outside.run("CREATE TABLE notes (body text); INSERT INTO notes VALUES ('stood')")
    place = outside.sealed()
    outside.run("INSERT INTO notes VALUES ('is new'), ('is new'), ('ünï')")
    told(place)
    assert texts(place).split("\n") == ["is new", "is new", "ünï"]
    assert any("undone again is not seen" in one for one in place.writes.not_seen)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["maria", "postgresql"])
def test_cells_that_run_at_once_can_not_be_told_apart_there(kind: str, request: pytest.FixtureRequest) -> None:
    outside: Outside = request.getfixturevalue(kind)
    place = outside.place(exclusive=False)
    with pytest.raises(ServiceError, match="cells that run at once share it"):
        outside.portal.call(place.seal)
    unwatched = outside.place(exclusive=False, watches_writes=False)
    outside.portal.call(unwatched.seal)
    unwatched.settle()
    assert unwatched.writes is None


def test_a_table_that_the_user_may_not_read_is_an_error_at_once(
    maria: Outside, mariadb: MariaDb, cell: PostgresCell, postgresql: Outside
) -> None:
    with mariadb.connect(autocommit=True) as session, session.cursor() as cursor:
        database, user, password = mariadb.make_database()
        cursor.execute(f"CREATE TABLE {database}.hidden (a int)")
        cursor.execute(f"REVOKE ALL ON {database}.* FROM {user}@'%'")
        cursor.execute(f"GRANT INSERT ON {database}.hidden TO {user}@'%'")
    maria.url = f"mysql://{user}:{password}@127.0.0.1:{mariadb.port}/{database}"
    with pytest.raises(ServiceError, match=r"service db: what is written into it can't be told: .*SELECT"):
        maria.sealed()
    with cell.service._server.admin() as admin:
        admin.execute("CREATE ROLE guest LOGIN PASSWORD 'p'")
        admin.execute(f'GRANT CONNECT ON DATABASE "{cell.place.for_host.database}" TO guest')
    address = cell.place.for_host
    postgresql.url = f"postgresql://guest:p@{address.host}:{address.port}/{address.database}"
    postgresql.run(
        "GRANT USAGE ON SCHEMA public TO guest; CREATE TABLE hidden (a int); GRANT INSERT ON hidden TO guest"
    )
    with pytest.raises(ServiceError, match=r"service db: what is written into it can't be told: .*permission denied"):
        postgresql.sealed()


def test_a_table_whose_rows_are_elsewhere_is_an_error_at_once(maria: Outside, mariadb: MariaDb) -> None:
    with mariadb.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SELECT engine FROM information_schema.engines WHERE engine = 'BLACKHOLE' AND support = 'YES'")
        if not cursor.fetchall():
            cursor.execute("INSTALL SONAME 'ha_blackhole'")
    maria.run("CREATE TABLE elsewhere (a int) ENGINE=BLACKHOLE")
    with pytest.raises(ServiceError, match=r"elsewhere can't be told: the rows of its storage engine, BLACKHOLE"):
        maria.sealed()
    maria.run("DROP TABLE elsewhere")
    place = maria.sealed()
    maria.run("CREATE TABLE elsewhere (a int) ENGINE=BLACKHOLE; INSERT INTO elsewhere VALUES (1)")
    assert told(place) == {("table", "elsewhere", "create", None)}


@pytest.mark.parametrize("kind", ["maria", "postgresql"])
def test_a_server_that_has_gone_is_an_error(kind: str, request: pytest.FixtureRequest) -> None:
    outside: Outside = request.getfixturevalue(kind)
    place = outside.sealed()
    compared: Any = place.writes
    if kind == "maria":
        from keystone_action.services.mysql.database_view import view_opener

        compared.open_view = view_opener({"host": "127.0.0.1", "port": 1}, None, "db")
    else:
        compared.keywords = {"host": "127.0.0.1", "port": 1, "dbname": "d"}
    with pytest.raises(ServiceError, match="can't be told"):
        place.settle()
    with pytest.raises(ServiceError, match="not looked at yet"):
        compared.writes()


def test_looking_keeps_nobody_from_writing(maria: Outside) -> None:
    maria.run("CREATE TABLE big (id int PRIMARY KEY AUTO_INCREMENT, v varchar(50)); INSERT INTO big (v) VALUES ('x')")
    for _ in range(15):
        maria.run("INSERT INTO big (v) SELECT uuid() FROM big")
    place = maria.place()
    compared: Any = place.writes
    looked = threading.Thread(target=compared.seal)
    looked.start()
    longest = 0.0
    while looked.is_alive():
        start = time.monotonic()
        maria.run("UPDATE big SET v = 'y' WHERE id = 7")
        longest = max(longest, time.monotonic() - start)
    looked.join()
    maria.run("DELETE FROM big WHERE id = 1")
    assert ("table", "big", "delete", 1) in told(place) or ("table", "big", "change", 2) in told(place)
    assert longest < 30


def test_a_row_that_changes_while_it_is_read_for_its_text_is_an_error(maria: Outside) -> None:
    maria.run("CREATE TABLE notes (body text)")
    place = maria.sealed()
    maria.run("INSERT INTO notes VALUES ('new')")
    told(place)
    maria.run("DELETE FROM notes")
    with pytest.raises(ServiceError, match="changed while"):
        texts(place)
