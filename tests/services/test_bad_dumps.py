"""Dumps that can't be loaded, or not whole: who is told what, and that no row is shown anywhere."""

from __future__ import annotations

import gzip
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pymysql
import pytest
from anyio.from_thread import BlockingPortal
from support.databases import PostgresForTests
from support.dumps import mariadb_dump, pg_dump, run_mariadb
from support.mariadb import MariaDb
from support.places import attached

from keystone_action.errors import ServiceError
from keystone_action.evidence.audit import AuditLog
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.mysql.client_script import ClientScript, script_session
from keystone_action.services.service import CellScope
from keystone_action.services.sql_script import SqlScript, run_script
from keystone_action.services.sqlite.service import SqliteFile
from keystone_action.spec.models.services import SqliteService

pytestmark = pytest.mark.database
SECRET = "hunter2"
CUTS = 25
SHOP = {
    "postgres": f"""
CREATE TABLE buyers (id int PRIMARY KEY, name text NOT NULL);
INSERT INTO buyers SELECT n, '{SECRET}' || repeat(';', n % 7) FROM generate_series(1, 40) n;
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.name := '{SECRET}'; RETURN NEW; END $$;
CREATE TRIGGER touch BEFORE UPDATE ON buyers FOR EACH ROW EXECUTE FUNCTION touch();
""",
    "mysql": f"""
CREATE TABLE buyers (id int PRIMARY KEY, name varchar(40) NOT NULL);
INSERT INTO buyers VALUES {", ".join(f"({n}, '{SECRET}{';' * (n % 7)}')" for n in range(40))};
DELIMITER //
CREATE TRIGGER touch BEFORE UPDATE ON buyers FOR EACH ROW BEGIN /* x; */ SET NEW.name = '{SECRET}'; END//
CREATE PROCEDURE one() BEGIN INSERT INTO buyers VALUES (99, '{SECRET}'); SELECT ';'; END//
""",
}
Load = Callable[[Path], tuple[str, ...]]


def script(file: Path) -> SqlScript:
    return SqlScript(file.name, path=file, directory=file.parent.resolve())


@pytest.fixture
def load_postgres(postgres: PostgresForTests) -> Load:
    """Loads a file into a database of its own."""

    def load(file: Path) -> tuple[str, ...]:
        cell = postgres.attach()
        try:
            return cell.run(script(file))
        finally:
            cell.close()

    return load


@pytest.fixture
def load_mysql(mariadb: MariaDb) -> Load:
    def load(file: Path) -> tuple[str, ...]:
        name, user, password = mariadb.make_database()
        where = {"host": "127.0.0.1", "port": mariadb.port, "user": user, "password": password, "database": name}
        run = ClientScript(script(file), lambda: script_session(where), name, [name]).run
        return anyio.run(run_script, "db", script(file), run, [pymysql.err.MySQLError])

    return load


@pytest.fixture
def load_sqlite(sandboxes: ProcessSandboxes, portal: BlockingPortal, tmp_path: Path) -> Iterator[Load]:
    (tmp_path / "cell").mkdir()
    service = SqliteFile(SqliteService.model_validate({"type": "sqlite", "name": "db", "path": "d.db"}), sandboxes)
    scope = CellScope("cell", tmp_path / "cell", tmp_path / "cell", AuditLog(tmp_path / "audit"), exclusive=True)
    with ExitStack() as stack:
        portal.call(service.start)
        stack.callback(portal.call, service.stop)
        place = stack.enter_context(attached(service, scope, portal))
        yield lambda file: portal.call(place.run_sql, script(file))


@pytest.fixture
def load(request: pytest.FixtureRequest) -> Load:
    found: Load = request.getfixturevalue(f"load_{request.param}")
    return found


@pytest.fixture
def dump_of(postgres: PostgresForTests, mariadb: MariaDb, tmp_path: Path) -> Iterator[Callable[[str], bytes]]:
    """What the servers' own programs dump."""
    cell = postgres.attach()

    def dump(dialect: str) -> bytes:
        if dialect == "postgres":
            cell.fixture(SHOP["postgres"])
            return pg_dump(cell.place.for_agent.url, "--no-owner")
        name, user, password = mariadb.make_database()
        where = {"host": "127.0.0.1", "port": mariadb.port, "user": user, "password": password, "database": name}
        (tmp_path / "shop.sql").write_text(SHOP["mysql"])
        assert run_mariadb(where, tmp_path / "shop.sql").returncode == 0
        return re.sub(rb"DEFINER=`\w+`@`%`", b"", mariadb_dump(where, "--comments"))

    yield dump
    cell.close()


@pytest.mark.parametrize(("load", "dialect"), [("postgres", "postgres"), ("mysql", "mysql")], indirect=["load"])
def test_a_dump_that_is_cut_anywhere_is_refused_or_told_and_shows_no_row(
    load: Load, dialect: str, dump_of: Callable[[str], bytes], tmp_path: Path
) -> None:
    """In COPY's rows, a text in quotes, a comment with a version, a block of DELIMITER, or between two statements."""
    whole, file = dump_of(dialect), tmp_path / "dump.sql"
    file.write_bytes(whole)
    assert load(file) == ()
    refused: list[ServiceError] = []
    told: list[str] = []
    for at in range(len(whole) // CUTS, len(whole) - 20, len(whole) // CUTS):
        file.write_bytes(whole[:at])
        try:
            told += load(file)
        except ServiceError as failure:
            refused.append(failure)
    assert set(told) <= {
        f"fixture dump.sql: dump.sql begins as a dump of {program} and does not end as one; if it was cut off, rows "
        "are missing"
        for program in ("pg_dump", "mysqldump", "mariadb-dump")
    }
    assert len(refused) + len(told) >= CUTS - 1
    assert len(refused) > CUTS / 4
    for one in refused:
        assert re.search(r"refused a fixture: dump\.sql:\d+: ", one.message), one.sentences
        assert "cut off" in one.sentences
        assert SECRET not in one.sentences


FORMS = {
    "gzip": (gzip.compress(b"SELECT 1;"), "compressed (gzip)", "Unpack it"),
    "zstd": (b"\x28\xb5\x2f\xfd\x00", "compressed (zstd)", "Unpack it"),
    "xz": (b"\xfd7zXZ\0\0", "compressed (xz)", "Unpack it"),
    "bzip2": (b"BZh91AY", "compressed (bzip2)", "Unpack it"),
    "zip": (b"PK\x03\x04\x14", "a ZIP archive", "Unpack it"),
    "sqlite": (b"SQLite format 3\0\x10", "a database of SQLite", "`sqlite3 FILE .dump`"),
    "utf-16": ("\ufeffSELECT 1;".encode("utf-16-le"), "encoded in UTF-16", "Save it as UTF-8"),
    "utf-16-be": ("\ufeffSELECT 1;".encode("utf-16-be"), "encoded in UTF-16", "Save it as UTF-8"),
}


@pytest.mark.parametrize(
    ("load", "form"),
    [*(("postgres", form) for form in FORMS), ("mysql", "gzip"), ("mysql", "utf-16"), ("sqlite", "gzip"),
     ("sqlite", "sqlite")],
    indirect=["load"],
)  # fmt: skip
def test_a_file_of_another_form_is_called_what_it_is(load: Load, form: str, tmp_path: Path) -> None:
    content, what, advice = FORMS[form]
    (tmp_path / "dump.sql").write_bytes(content)
    with pytest.raises(ServiceError) as failure:
        load(tmp_path / "dump.sql")
    assert f"refused a fixture: dump.sql is {what}, not a script" in failure.value.message
    assert advice in failure.value.help


@pytest.mark.parametrize("form", ["custom", "tar"])
def test_a_dump_for_pg_restore_is_called_one(
    postgres: PostgresForTests, load_postgres: Load, tmp_path: Path, form: str
) -> None:
    cell = postgres.attach()
    cell.fixture(SHOP["postgres"])
    (tmp_path / "dump.sql").write_bytes(pg_dump(cell.place.for_agent.url, f"--format={form}"))
    cell.close()
    with pytest.raises(ServiceError) as failure:
        load_postgres(tmp_path / "dump.sql")
    assert f"dump.sql is a dump of pg_dump in its {form} format, not a script" in failure.value.message
    assert "pg_dump --format=plain" in failure.value.help


@pytest.mark.parametrize("load", ["postgres", "mysql", "sqlite"], indirect=True)
def test_an_empty_file_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "dump.sql").write_bytes(b"")
    with pytest.raises(ServiceError, match=r"service db refused a fixture: dump\.sql is empty"):
        load(tmp_path / "dump.sql")
    (tmp_path / "dump.sql").write_bytes(b"\n")
    assert load(tmp_path / "dump.sql") == ()


@pytest.mark.parametrize("load", ["postgres", "mysql", "sqlite"], indirect=True)
def test_a_file_in_another_encoding_is_refused_with_what_to_do(load: Load, tmp_path: Path) -> None:
    (tmp_path / "dump.sql").write_bytes(b"CREATE TABLE t (a varchar(20));\nINSERT INTO t VALUES ('hunter2 Zo\xeb');\n")
    with pytest.raises(ServiceError) as failure:
        load(tmp_path / "dump.sql")
    assert "dump.sql" in failure.value.message
    assert "UTF-8" in failure.value.sentences
    assert SECRET not in failure.value.sentences


def test_what_fails_in_a_fixture_is_not_in_the_servers_log(postgres: PostgresForTests, tmp_path: Path) -> None:
    """What fails for the agent is: its log says what happened there."""
    server = postgres.service._server
    cell = postgres.attach()
    cell.fixture("CREATE TABLE t (id int PRIMARY KEY, name text CHECK (name <> ''))")
    for text in (
        f"INSERT INTO t VALUES (1, '{SECRET}'), (1, 'x')",
        f"COPY t FROM stdin;\n1\tx\n{SECRET}\tx\n\\.\n",
        f"DO $$ BEGIN RAISE WARNING '{SECRET}'; RAISE EXCEPTION '{SECRET}'; END $$",
        f"SELECT '{SECRET}' FROM nowhere",
    ):
        with pytest.raises(ServiceError):
            cell.run(SqlScript("sql", text=text))
    cell.seal()
    mark = secrets.token_hex(4)
    with pytest.raises(Exception, match=mark):
        cell.agent().execute(f"SELECT * FROM t_{mark}".encode())
    assert server._process is not None
    printed = server._process.tail()
    assert mark in printed
    assert SECRET not in printed
    cell.close()


def test_an_owner_that_is_here_and_not_ours_is_passed_over_too(postgres: PostgresForTests) -> None:
    """Such as `postgres`, which owns all in most dumps."""
    cell, other = postgres.attach(), postgres.attach()
    user = other.place.for_agent.user
    text = f"CREATE TABLE t (a int);\nALTER TABLE public.t OWNER TO {user};\nINSERT INTO t VALUES (1);"
    assert cell.run(SqlScript("sql", text=text)) == (f"fixture sql: passed over 1 changes of owner (not here: {user})",)
    assert cell.agent().execute("SELECT a FROM t").fetchall() == [(1,)]
    with pytest.raises(ServiceError, match=r"sql:1: ALTER TABLE pg_catalog\.pg_class"):
        cell.run(SqlScript("sql", text="ALTER TABLE pg_catalog.pg_class OWNER TO CURRENT_USER;"))
    cell.close()
    other.close()


OF_WHOLE_DATABASES = """DROP DATABASE IF EXISTS {0};
CREATE DATABASE {0} WITH TEMPLATE = template0 ENCODING = 'UTF8';
ALTER DATABASE {0} OWNER TO gone;
\\connect {0}
-- x
COMMENT ON DATABASE {0} IS 'the shop';
ALTER DATABASE {0} SET search_path TO 'app', 'public';
REVOKE CONNECT,TEMPORARY ON DATABASE {0} FROM PUBLIC;
CREATE TABLE t (a int);
"""


def test_a_dump_with_create_of_the_services_database_is_loaded_into_the_cells(postgres: PostgresForTests) -> None:
    cell = postgres.attach()
    assert cell.run(SqlScript("sql", text=OF_WHOLE_DATABASES.format("shop"))) == (
        "fixture sql: passed over 2 statements that make or drop the database, 1 changes of owner (not here: gone)",
    )
    session = cell.agent()
    (found,) = session.execute(
        "SELECT shobj_description(oid, 'pg_database'), current_setting('search_path'), "
        "to_regclass('public.t')::text FROM pg_database WHERE datname = current_database()"
    )
    assert found == ("the shop", "app, public", "t")
    cell.close()


@pytest.mark.parametrize("text", [OF_WHOLE_DATABASES.format("other"), "CREATE DATABASE other;", "\\connect other"])
def test_one_of_another_database_says_what_to_do(postgres: PostgresForTests, text: str) -> None:
    cell = postgres.attach()
    with pytest.raises(ServiceError) as failure:
        cell.run(SqlScript("sql", text=text.replace("DROP DATABASE IF EXISTS other;\n", "")))
    assert "Dump one database, without --create, or let the service have its name (`env: {POSTGRES_DB: other}`)" in (
        failure.value.help
    )
    with pytest.raises(ServiceError) as failure:
        cell.run(SqlScript("sql", text="CREATE ROLE someone;"))
    assert "dump one database with pg_dump, without roles" in failure.value.help
    cell.close()


def test_dumps_of_whole_databases_of_mysql_are_too(load_mysql: Load, mariadb: MariaDb, tmp_path: Path) -> None:
    name, user, password = mariadb.make_database()
    where = {"host": "127.0.0.1", "port": mariadb.port, "user": user, "password": password, "database": name}
    file = tmp_path / "dump.sql"
    file.write_text("CREATE TABLE t (a int); INSERT INTO t VALUES (1);")
    assert run_mariadb(where, file).returncode == 0
    file.write_bytes(mariadb_dump(where, "--add-drop-database", "--databases"))
    assert b"CREATE DATABASE" in file.read_bytes()
    assert b"DROP DATABASE" in file.read_bytes()
    with pytest.raises(ServiceError) as failure:
        load_mysql(file)
    assert f"without --databases, or let the service have its name (`env: {{MYSQL_DATABASE: {name}}}`)" in (
        failure.value.help
    )
    whole = file.read_bytes()
    for called in (name, "shop"):  # one cell has the script's name, one of several has another
        file.write_bytes(whole.replace(name.encode(), called.encode()))
        run = ClientScript(script(file), lambda: script_session(where), name, [name, "shop"]).run
        assert anyio.run(run_script, "db", script(file), run, [pymysql.err.MySQLError]) == ()
    file.write_text(
        "ALTER DATABASE `shop` CHARACTER SET latin1;\nSET @@SESSION.SQL_LOG_BIN= 0;\nCREATE TABLE u (a text);"
    )
    run = ClientScript(script(file), lambda: script_session(where), name, [name, "shop"]).run
    (notice,) = anyio.run(run_script, "db", script(file), run, [pymysql.err.MySQLError])
    assert notice == "fixture dump.sql: passed over 1 settings of replication"
    with pymysql.connect(**where) as session, session.cursor() as cursor:
        cursor.execute("SHOW CREATE TABLE u")
        assert "latin1" in cursor.fetchall()[0][1]
