"""What an agent wrote into MySQL, by its binary log, and into servers without one that is read, by comparison: each way
of writing, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import MARIADB, MYSQL

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import TableWrite
from keystone_action.services.base import RunningService

pytestmark = pytest.mark.docker

Told = set[tuple[str, str, int | None]]
LOG, NO_LOG, MARIA = "MySQL's log", "MySQL without a log", "MariaDB"
SERVERS: dict[str, dict[str, Any]] = {
    LOG: {"image": MYSQL},
    NO_LOG: {"image": MYSQL, "command": ["mysqld", "--skip-log-bin"]},
    MARIA: {"image": MARIADB},
}
STANDING = """
CREATE TABLE customers (id int PRIMARY KEY AUTO_INCREMENT, email varchar(50), paid decimal(12, 3), KEY (email));
INSERT INTO customers (email, paid) VALUES ('a@b', 1.5), ('c@d', NULL);
CREATE TABLE plain (value int);
INSERT INTO plain VALUES (1), (1), (2);
CREATE TABLE parents (id int PRIMARY KEY);
INSERT INTO parents VALUES (1), (2);
CREATE TABLE old (value int) ENGINE=MyISAM;
CREATE TABLE parts (id int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),
    PARTITION p1 VALUES LESS THAN MAXVALUE);
INSERT INTO parts VALUES (1), (20);
CREATE VIEW emails AS SELECT email FROM customers;
CREATE PROCEDURE fill() INSERT INTO plain VALUES (7);
"""


@dataclass(frozen=True)
class Way:
    """told: where all is seen. net: by comparison, where that is something else."""

    script: str
    told: Told
    net: Told | None = None
    only: tuple[str, ...] = field(default=(LOG, NO_LOG, MARIA))


WAYS = {
    "reading": Way("SELECT * FROM customers; SHOW TABLES", set()),
    "rolled back": Way("BEGIN; DELETE FROM customers; ROLLBACK", set()),
    "rolled back in part": Way(
        "BEGIN; INSERT INTO plain VALUES (5); SAVEPOINT s; DELETE FROM customers; ROLLBACK TO s; COMMIT",
        {("plain", "insert", 1)},
    ),
    "a temporary table": Way(
        "CREATE TEMPORARY TABLE t (a int); INSERT INTO t VALUES (1); DROP TEMPORARY TABLE t", set()
    ),
    "analyzed": Way("ANALYZE TABLE customers; OPTIMIZE TABLE old", set()),
    "made unless it is there": Way("CREATE TABLE IF NOT EXISTS plain (value int); DROP TABLE IF EXISTS nothing", set()),
    "numbered on": Way(
        "INSERT INTO customers (email) VALUES ('x'); DELETE FROM customers WHERE email = 'x'",
        {("customers", "insert", 1), ("customers", "delete", 1)},
        set(),
    ),
    "inserted": Way("INSERT INTO plain VALUES (8), (9)", {("plain", "insert", 2)}),
    "an equal row": Way("INSERT INTO plain VALUES (1)", {("plain", "insert", 1)}),
    "updated": Way(
        "UPDATE customers SET paid = 2.125 WHERE id = 1", {("customers", "update", 1)}, {("customers", "change", 1)}
    ),
    "updated to what it was": Way("UPDATE customers SET email = 'a@b' WHERE id = 1", set()),
    "deleted": Way("DELETE FROM plain WHERE value = 1", {("plain", "delete", 2)}),
    "undone": Way(
        "INSERT INTO plain VALUES (5); DELETE FROM plain WHERE value = 5",
        {("plain", "insert", 1), ("plain", "delete", 1)},
        set(),
    ),
    "made and dropped": Way(
        "CREATE TABLE gone (a int); INSERT INTO gone VALUES (1), (2); DROP TABLE gone",
        {("gone", "create", None), ("gone", "insert", 2), ("gone", "drop", None)},
        set(),
    ),
    "made": Way(
        "CREATE TABLE made (a int); INSERT INTO made VALUES (1)", {("made", "create", None), ("made", "insert", 1)}
    ),
    "made of a query": Way(
        "CREATE TABLE made AS SELECT * FROM plain", {("made", "create", None), ("made", "insert", 3)}
    ),
    "dropped": Way("DROP TABLE plain, old", {("plain", "drop", None), ("old", "drop", None)}),
    "altered": Way("ALTER TABLE plain ADD COLUMN more text", {("plain", "alter", None)}),
    "indexed": Way("CREATE INDEX one ON plain (value)", {("plain", "alter", None)}),
    "truncated": Way("TRUNCATE plain", {("plain", "truncate", None)}, {("plain", "delete", 3)}),
    "renamed": Way(
        "RENAME TABLE plain TO plainer",
        {("plain", "drop", None), ("plainer", "create", None)},
        {("plain", "drop", None), ("plainer", "create", None), ("plainer", "insert", 3)},
    ),
    "renamed by alter": Way(
        "/*!50000 ALTER TABLE `plain` */ RENAME AS plainer",
        {("plain", "alter", None), ("plainer", "create", None)},
        {("plain", "drop", None), ("plainer", "create", None), ("plainer", "insert", 3)},
    ),
    "replaced": Way(
        "REPLACE INTO customers VALUES (1, 'n', 3), (9, 'm', 4)",
        {("customers", "update", 1), ("customers", "insert", 1)},
        {("customers", "change", 2)},
    ),
    "on a duplicate key": Way(
        "INSERT INTO customers VALUES (1, 'n', 3) ON DUPLICATE KEY UPDATE email = 'dup'",
        {("customers", "update", 1)},
        {("customers", "change", 1)},
    ),
    "two tables at once": Way(
        "UPDATE customers, plain SET email = 'z', value = 5 WHERE id = 1 AND value = 2",
        {("customers", "update", 1), ("plain", "update", 1)},
        {("customers", "change", 1), ("plain", "change", 1)},
    ),
    "through a view": Way("INSERT INTO emails VALUES ('v')", {("customers", "insert", 1)}),
    "by a procedure": Way("CALL fill()", {("plain", "insert", 1)}),
    "by a prepared statement": Way(
        "SET @q = 'DELETE FROM plain'; PREPARE p FROM @q; EXECUTE p; DEALLOCATE PREPARE p", {("plain", "delete", 3)}
    ),
    "a trigger": Way(
        "CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW DELETE FROM parents; INSERT INTO plain VALUES (3)",
        {("plain", "create", None), ("plain", "insert", 1), ("parents", "delete", 2)},
        only=(NO_LOG, MARIA),  # MySQL with its log lets no plain user make one
    ),
    "a trigger that is gone": Way(
        "CREATE TRIGGER t AFTER INSERT ON plain FOR EACH ROW DELETE FROM parents; INSERT INTO plain VALUES (3);"
        "DROP TRIGGER t; DELETE FROM plain WHERE value = 3",
        {("parents", "delete", 2)},
        only=(NO_LOG, MARIA),
    ),
    "a procedure": Way("CREATE PROCEDURE more() SELECT 1", {("more", "create", None)}),
    "another procedure": Way(
        "DROP PROCEDURE fill; CREATE PROCEDURE fill() SELECT 1",
        {("fill", "drop", None), ("fill", "create", None)},
        {("fill", "alter", None)},
    ),
    "an event": Way("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM plain", {("e", "create", None)}),
    "a view": Way(
        "CREATE OR REPLACE VIEW emails AS SELECT 1 AS email", {("emails", "create", None)}, {("emails", "alter", None)}
    ),
    "without transactions": Way("INSERT INTO old VALUES (1)", {("old", "insert", 1)}),
    "a merge table": Way(
        "CREATE TABLE m (value int) ENGINE=MERGE UNION=(old) INSERT_METHOD=LAST; INSERT INTO m VALUES (1);DROP TABLE m",
        {("m", "create", None), ("old", "change", None), ("m", "insert", 1), ("m", "drop", None)},
        {("old", "insert", 1)},
    ),
    "a partition": Way("ALTER TABLE parts TRUNCATE PARTITION p0", {("parts", "alter", None)}, {("parts", "delete", 1)}),
    "partitions": Way("UPDATE parts SET id = id + 10", {("parts", "update", 2)}, {("parts", "change", 2)}),
    "exchanged": Way(
        "CREATE TABLE mine (id int); INSERT INTO mine VALUES (2), (3);"
         "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE mine",
        {("mine", "create", None), ("mine", "insert", 2), ("parts", "alter", None), ("mine", "change", None)},
        {("mine", "create", None), ("mine", "insert", 1), ("parts", "change", 2)},
    ),
    "a foreign key": Way(
        "CREATE TABLE children (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE);"
        "INSERT INTO children VALUES (1, 1), (2, 2); DELETE FROM parents WHERE id = 1",
        {("children", "create", None), ("children", "insert", 2), ("parents", "delete", 1), ("children", "delete", 1)},
        {("children", "create", None), ("children", "insert", 1), ("parents", "delete", 1)},
    ),
    "prepared and committed": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'", {("plain", "delete", 3)}
    ),
    "prepared and rolled back": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'; XA ROLLBACK 'x'", set()
    ),
    "prepared and left": Way("XA START 'x'; DELETE FROM plain; XA END 'x'; XA PREPARE 'x'", set()),
    "committed in one phase": Way(
        "XA START 'x'; DELETE FROM plain; XA END 'x'; XA COMMIT 'x' ONE PHASE", {("plain", "delete", 3)}
    ),
    "at another time": Way("SET timestamp = 1000000000; DELETE FROM plain", {("plain", "delete", 3)}),
    "with other quotes": Way(
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES';"
        "ALTER /* TABLE customers */ TABLE \"plain\" COMMENT 'it''s \\'",
        {("plain", "alter", None)},
    ),
    "the database": Way("ALTER DATABASE CHARACTER SET ucs2", {("", "alter", None)}),
    "a sequence": Way(
        "CREATE SEQUENCE s; SELECT nextval(s)", {("s", "create", None), ("s", "insert", 1)}, only=(MARIA,)
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, shared_containers: ContainerWorld) -> RunningService:
    env = {f"{'MARIADB' if kind == MARIA else 'MYSQL'}_DATABASE": "shop_1"}
    return shared_containers.start(name="db", env=env, ready_timeout="120s", **SERVERS[kind])


@pytest.fixture(scope="module")
def one_cell(shared_containers: ContainerWorld, server: RunningService) -> Iterator[ServedCell]:
    made = shared_containers.cell(server, watches_writes=True)
    yield made
    made.close()


@pytest.fixture
def cell(one_cell: ServedCell) -> ServedCell:
    """One for all tests, as if its agent had just started."""
    database = one_cell.place.for_agent.database
    one_cell.fixture(f"DROP DATABASE {database}; CREATE DATABASE {database}; USE {database}; {STANDING}")
    one_cell.seal()
    return one_cell


def session(cell: ServedCell, **fields: Any) -> Any:
    address = cell.place.for_host
    keywords = {
        "host": address.host, "port": address.port, "user": address.user, "password": address.password,
        "database": address.database, "autocommit": True,
    }  # fmt: skip
    return pymysql.connect(**{**keywords, **fields})


def run(cell: ServedCell, script: str) -> None:
    with session(cell) as agent, agent.cursor() as cursor:
        for statement in script.split(";"):
            if statement.strip():
                cursor.execute(statement)


def told(cell: ServedCell) -> list[TableWrite]:
    cell.settle()
    assert cell.place.writes is not None
    return list(cell.place.writes.writes())


def short(writes: list[TableWrite]) -> Told:
    return {(one.table.removeprefix("shop_1").removeprefix("."), one.operation, one.rows) for one in writes}


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_is_told(cell: ServedCell, kind: str, way: str) -> None:
    one = WAYS[way]
    if kind not in one.only:
        pytest.skip(f"not a way of {kind}")
    run(cell, one.script)
    expected = one.told if kind == LOG or one.net is None else one.net
    assert short(told(cell)) == expected
    if way == "prepared and left":
        run(cell, "XA ROLLBACK 'x'")


def test_how_it_is_told(cell: ServedCell, kind: str) -> None:
    run(cell, "INSERT INTO plain VALUES (5)")
    (found,) = told(cell)
    assert (found.service, found.table, found.what) == ("db", "shop_1.plain", "table")
    assert found.how_known == ("log" if kind == LOG else "comparison")
    assert found.ts.startswith("20") == (kind == LOG)
    sentences = " ".join(cell.place.writes.not_seen)  # type: ignore[union-attr]
    assert ("undone again is not seen" in sentences) == (kind != LOG)
    assert ("binary log is off" in sentences) == (kind == NO_LOG)


def test_the_time_of_a_write_is_the_servers_own(cell: ServedCell, kind: str) -> None:
    run(cell, "SET timestamp = 1000000000; DELETE FROM plain")
    (found,) = told(cell)
    assert not found.ts.startswith("2001")


TYPES = {
    "int": ("-12345678", "-12345678"), "int unsigned": ("4294967295", "4294967295"), "bigint": ("87654321", "87654321"),
    "mediumint": ("-70000", "-70000"), "decimal(30,10)": ("'-12345678901.0123456789'", "-12345678901.0123456789"),
    "decimal(9,9)": ("0.123456789", ".123456789"), "double": ("1234567.125", "1234567.125"), "float": ("1.5", "1.5"),
    "char(60)": ("'in a char'", "in a char"), "char(255) character set utf8mb4": ("'ünï'", "ünï"),
    "varchar(300)": ("'in a varchar'", "in a varchar"), "varchar(30) character set utf16": ("'sechzehn'", "sechzehn"),
    "varchar(30) character set latin1": ("'grün'", "grün"), "text character set ucs2": ("'zwei'", "zwei"),
    "longtext": ("repeat('long ', 20000)", "long long"), "blob": ("'in a blob'", "in a blob"),
    "varbinary(20)": ("'in bytes'", "in bytes"), "binary(8)": ("'in eight'", "in eight"),
    "json": ("'{\"a key\": [\"in json\"]}'", "in json"), "tinytext": ("'tiny'", "tiny"),
}  # fmt: skip
"""Column → the value as SQL, and what must stand in the text of its row."""
OTHERS = {
    "date": "'2020-01-02'", "datetime(6)": "'2020-01-02 03:04:05.678901'", "time(3)": "'-12:13:14.5'", "year": "2020",
    "timestamp(2)": "'2020-01-02 03:04:05.6'", "bit(13)": "b'1010101'", "enum('a', 'b')": "'b'",
    "set('a', 'b')": "'a,b'",
    "geometry": "ST_GeomFromText('POINT(1 2)')", "tinyint": "1", "smallint": "2",
}  # fmt: skip


def test_texts_have_the_values_of_all_types(cell: ServedCell, kind: str) -> None:
    types = [*TYPES, *OTHERS, *(["vector(2)"] if kind != MARIA else [])]
    values = [*(value for value, _ in TYPES.values()), *OTHERS.values(), *(["to_vector('[1, 2]')"] * (kind != MARIA))]
    columns = ", ".join(f"c{number} {one}" for number, one in enumerate(types))
    run(cell, f"CREATE TABLE every ({columns})")
    run(cell, f"INSERT INTO every VALUES ({', '.join(values)}), ({', '.join(['NULL'] * len(types))})")
    run(cell, "INSERT INTO every (c0) VALUES (5)")
    assert ("every", "insert", 3) in short(told(cell))
    texts = [text for table, text in cell.place.writes.texts() if table == "shop_1.every"]  # type: ignore[union-attr]
    for _, shown in TYPES.values():
        assert any(shown in text for text in texts), shown


def test_texts_are_what_was_written_and_not_what_was_rolled_back(cell: ServedCell, kind: str) -> None:
    run(cell, "CREATE TABLE notes (body text); BEGIN; INSERT INTO notes VALUES ('kept one'); SAVEPOINT s;"
              "INSERT INTO notes VALUES ('undone'); ROLLBACK TO s; INSERT INTO notes VALUES ('kept two'); COMMIT;"
              "BEGIN; INSERT INTO notes VALUES ('never'); ROLLBACK;"
              "XA START 'y'; INSERT INTO notes VALUES ('left'); XA END 'y'; XA PREPARE 'y'")  # fmt: skip
    told(cell)
    whole = "\n".join(text for _, text in cell.place.writes.texts())  # type: ignore[union-attr]
    assert "kept one" in whole
    assert "kept two" in whole
    assert not {"undone", "never", "left"} & set(whole.split())
    run(cell, "XA ROLLBACK 'y'")


FORBIDDEN = (
    "SET sql_log_bin = 0",
    "SET SESSION binlog_format = 'STATEMENT'",
    "SET GLOBAL binlog_format = 'STATEMENT'",
    "SET SESSION binlog_row_image = 'MINIMAL'",
    "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
    "SET SESSION binlog_transaction_compression = ON",
    "SET SESSION gtid_next = 'AUTOMATIC:mine'",
    "PURGE BINARY LOGS BEFORE NOW()",
    "RESET BINARY LOGS AND GTIDS",
    "RESET MASTER",
    "FLUSH BINARY LOGS",
    "FLUSH LOGS",
    "BINLOG 'AAAA'",
    "SET GLOBAL event_scheduler = ON",
    "CREATE TABLE elsewhere (a int) ENGINE=FEDERATED CONNECTION='mysql://u:p@h/d/t'",
    "CREATE TABLE elsewhere (a int) ENGINE=CONNECT",
    "CREATE DATABASE other",
    "CREATE TABLE mysql.other (a int)",
    "DELETE FROM mysql.user",
    "LOAD DATA INFILE '/etc/hostname' INTO TABLE plain",
    "INSTALL PLUGIN x SONAME 'x.so'",
    "SHUTDOWN",
)


def test_the_log_is_out_of_an_agents_reach(shared_containers: ContainerWorld, server: RunningService) -> None:
    """Alone, too, where it has the very user of `env`, which here is root."""
    cell = shared_containers.cell(server, exclusive=True, watches_writes=True)
    cell.seal()
    assert cell.place.for_agent.user == "root"
    allowed = []
    with session(cell) as agent, agent.cursor() as cursor:
        cursor.execute("CREATE TABLE plain (a text)")
        for statement in FORBIDDEN:
            try:
                cursor.execute(statement)
                allowed.append(statement)
            except pymysql.err.MySQLError:
                continue
    assert allowed == []
    assert short(told(cell)) == {("plain", "create", None)}
    cell.close()


def test_rows_that_are_loaded_from_the_client_are_told(cell: ServedCell, tmp_path: Any, kind: str) -> None:
    (tmp_path / "rows").write_text("11\n12\n13\n")
    with session(cell, local_infile=True) as agent, agent.cursor() as cursor:
        try:
            cursor.execute(f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows'}' INTO TABLE plain")
        except pymysql.err.OperationalError:
            pytest.skip(f"{kind} refuses it")
    assert short(told(cell)) == {("plain", "insert", 3)}


def test_what_a_session_has_not_committed_when_the_agent_ends_was_not_written(cell: ServedCell) -> None:
    agent = session(cell, autocommit=False)
    with agent.cursor() as cursor:
        cursor.execute("DELETE FROM plain")
    assert short(told(cell)) == set()
    agent._force_close()


def test_cells_that_share_a_server_are_told_apart(
    shared_containers: ContainerWorld, server: RunningService, cell: ServedCell
) -> None:
    other = shared_containers.cell(server, watches_writes=True)
    other.fixture(STANDING)
    other.seal()
    done = threading.Barrier(2)

    def work(one: ServedCell, script: str) -> None:
        done.wait()
        for _ in range(5):
            run(one, script)

    threads = [
        threading.Thread(target=work, args=(cell, "INSERT INTO plain VALUES (5)")),
        threading.Thread(target=work, args=(other, "INSERT INTO old VALUES (6), (7); TRUNCATE parents")),
    ]  # fmt: skip
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert short(told(cell)) == {("plain", "insert", 5)}
    assert ("old", "insert", 10) in short(told(other))
    assert "plain" not in {table for table, _, _ in short(told(other))}
    other.close()


def test_a_second_agent_in_the_same_place_starts_from_nothing(cell: ServedCell) -> None:
    run(cell, "INSERT INTO plain VALUES (5)")
    cell.seal()
    run(cell, "INSERT INTO old VALUES (5)")
    assert short(told(cell)) == {("old", "insert", 1)}


def test_a_dropped_database_is_told(cell: ServedCell, kind: str) -> None:
    database = cell.place.for_agent.database
    with session(cell) as agent, agent.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {database}")
    found = short(told(cell))
    assert ("", "drop", None) in found
    assert kind == LOG or ("plain", "drop", None) in found
    with cell.place._server.admin() as admin:  # type: ignore[attr-defined]
        admin.execute(f"CREATE DATABASE {database}")


def test_what_stood_before_and_goes_elsewhere_is_refused(shared_containers: ContainerWorld, kind: str) -> None:
    """With native foreign keys, and with merge tables, the log does not have all that changes."""
    if kind != LOG:
        pytest.skip("only a log can be left out")
    command = ["mysqld", "--innodb_native_foreign_keys=ON"]
    env = {"MYSQL_DATABASE": "shop_1"}
    own = shared_containers.start(name="db", image=MYSQL, env=env, ready_timeout="120s", command=command)
    cell = shared_containers.cell(own, watches_writes=True)
    cell.fixture(STANDING + "CREATE TABLE children (p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE);"
                            "INSERT INTO children VALUES (1)")  # fmt: skip
    cell.seal()
    run(cell, "DELETE FROM parents WHERE id = 1")
    found = told(cell)
    assert short(found) == {("parents", "delete", 1), ("children", "delete", 1)}
    assert {one.how_known for one in found} == {"comparison"}
    assert any("foreign key of children" in one for one in cell.place.writes.not_seen)  # type: ignore[union-attr]
    cell.close()


def test_a_log_that_is_gone_is_an_error(shared_containers: ContainerWorld, kind: str, cell: ServedCell) -> None:
    if kind != LOG:
        pytest.skip("only a log can be gone")
    run(cell, "INSERT INTO plain VALUES (5)")
    server = cell.place._server  # type: ignore[attr-defined]
    with server.admin() as admin:
        admin.execute("FLUSH BINARY LOGS")
        admin.execute("SHOW BINARY LOGS")
        newest = admin.fetchall()[-1][0]
        admin.execute(f"PURGE BINARY LOGS TO '{newest}'")
    cell.settle()
    with pytest.raises(ServiceError, match=r"service db: what was written into it can't be told"):
        cell.place.writes.writes()  # type: ignore[union-attr]


def test_the_log_goes_on_in_another_file(kind: str, cell: ServedCell) -> None:
    if kind != LOG:
        pytest.skip("only a log has files")
    run(cell, "INSERT INTO plain VALUES (5)")
    with cell.place._server.admin() as admin:  # type: ignore[attr-defined]
        admin.execute("FLUSH BINARY LOGS")
    run(cell, "INSERT INTO plain VALUES (6), (7)")
    assert short(told(cell)) == {("plain", "insert", 3)}
