"""What an agent wrote into MySQL, rows by its binary log and the rest by comparison, and into servers whose log is not
read, by comparison alone. Each way of writing, and what is told of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import MYSQL
from support.mysql_ways import LOG, MARIA, NO_LOG, SERVERS, STANDING, WAYS, Told

from keystone_action.errors import ServiceError
from keystone_action.evidence.writes import DEFINITION, TableWrite
from keystone_action.services.service import RunningService

pytestmark = pytest.mark.docker


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


def test_statements_that_define_are_texts_too(cell: ServedCell, kind: str) -> None:
    if kind != LOG:
        pytest.skip("only a log has them")
    run(cell, "ALTER TABLE plain COMMENT 'of the grünen secret'; ALTER TABLE plain COMMENT ''")
    told(cell)
    found = dict(cell.place.writes.texts())  # type: ignore[union-attr]
    assert [name for name in found if name.startswith(DEFINITION)] == [f"{DEFINITION}something in shop_1"]
    assert any("of the grünen secret" in text for _, text in cell.place.writes.texts())  # type: ignore[union-attr]


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


def test_what_a_foreign_key_changes_unseen_by_the_log_is_compared(shared_containers: ContainerWorld, kind: str) -> None:
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
    assert [one.how_known for one in found] == ["log", "comparison"]
    assert any("foreign key's cascade" in one for one in cell.place.writes.not_seen)  # type: ignore[union-attr]
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
