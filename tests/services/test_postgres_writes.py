"""What an agent writes into the embedded PostgreSQL is seen, and its work goes on as if nobody looked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from support.databases import PostgresCell, PostgresForTests
from support.written import FIXTURE, WAYS, log, told, work, written

from keystone_action.errors import ServiceError
from keystone_action.services.postgres.embedded_server import EmbeddedServer
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.postgres.service import EmbeddedPostgres


def start(server: PostgresForTests, fixture: str = FIXTURE, **options: Any) -> PostgresCell:
    cell = server.attach(**{"watches_writes": True, **options})
    cell.fixture(fixture)
    cell.seal()
    return cell


@pytest.fixture
def watched(watched_postgres: PostgresForTests) -> Iterator[PostgresCell]:
    cell = start(watched_postgres)
    yield cell
    cell.close()


def server_of(world: PostgresForTests) -> EmbeddedServer:
    return cast(EmbeddedPostgres, world.service)._server


def slots_of(world: PostgresForTests) -> int:
    with server_of(world).admin() as admin:
        row = admin.execute("SELECT count(*) FROM pg_replication_slots").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_is_told_as_what_it_was(watched: PostgresCell, way: str) -> None:
    statements, expected = WAYS[way]
    answers = work(watched, statements)
    assert [answer for answer in answers if answer[5:6] == ":"] == []
    assert written(watched) == expected


def test_an_agent_gets_the_answers_that_it_gets_without_the_rule(
    watched_postgres: PostgresForTests, postgres: PostgresForTests
) -> None:
    answers = []
    for server, watches in ((watched_postgres, True), (postgres, False)):
        one = []
        for statements, _ in WAYS.values():
            cell = start(server, watches_writes=watches)
            one.append(work(cell, statements))
            cell.close()
        answers.append(one)
    assert answers[0] == answers[1]


def test_checks_see_the_database_as_it_would_be_without_the_rule(
    watched_postgres: PostgresForTests, postgres: PostgresForTests
) -> None:
    seen = []
    catalogs = (
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp'",
        "SELECT relname, relkind::text, relreplident::text FROM pg_class WHERE oid >= 16384 AND relname !~ '^pg_toast'",
        "SELECT evtname FROM pg_event_trigger",
        "SELECT pubname FROM pg_publication",
        "SELECT proname FROM pg_proc WHERE oid >= 16384",
    )
    for server, watches in ((watched_postgres, True), (postgres, False)):
        cell = start(server, FIXTURE + "ALTER TABLE audit REPLICA IDENTITY NOTHING;", watches_writes=watches)
        work(cell, ["CREATE TABLE mine (id int PRIMARY KEY)", "UPDATE audit SET what = 'x'", "DELETE FROM notes"])
        cell.place.settle()
        seen.append([sorted(cell.query(query).rows) for query in catalogs])
        cell.close()
    assert seen[0] == seen[1]


HIDING = (
    "DROP EVENT TRIGGER {schema}",
    "ALTER EVENT TRIGGER {schema} DISABLE",
    "DROP PUBLICATION {schema}",
    "ALTER PUBLICATION {schema} SET (publish = '')",
    "DROP SCHEMA {schema} CASCADE",
    "DELETE FROM {schema}.log",
    "INSERT INTO {schema}.marks VALUES ('end {slot}')",
    "SELECT * FROM {schema}.log",
    "ALTER FUNCTION {schema}.note() RENAME TO nothing",
    "CREATE OR REPLACE FUNCTION {schema}.note() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'",
    "SELECT pg_drop_replication_slot('{slot}')",
    "SELECT pg_replication_slot_advance('{slot}', pg_current_wal_insert_lsn())",
    "SELECT pg_logical_slot_get_binary_changes('{slot}', NULL, NULL)",
    "SET event_triggers = off",
    "ALTER DATABASE {database} SET event_triggers = off",
    "ALTER ROLE CURRENT_USER SET session_replication_role = replica",
    "SET session_replication_role = replica",
    "SET wal_level = minimal",
    "ALTER SYSTEM SET wal_level = minimal",
    "CREATE EVENT TRIGGER mine ON ddl_command_start EXECUTE FUNCTION also()",
    "DO $$ BEGIN LOCK TABLE {schema}.log; END $$",
    "DO $$ BEGIN LOCK TABLE pg_catalog.pg_event_trigger; END $$",
    "UPDATE pg_catalog.pg_event_trigger SET evtenabled = 'D'",
    "CREATE TABLE {schema}.mine ()",
    "REASSIGN OWNED BY {superuser} TO CURRENT_USER",
)


@pytest.mark.parametrize("exclusive", [True, False])
def test_an_agent_can_not_switch_it_off(watched_postgres: PostgresForTests, exclusive: bool) -> None:
    watched = start(watched_postgres, exclusive=exclusive)
    with watched.agent() as agent:
        [(schema,)] = agent.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^keystone_'").fetchall()
        slots = agent.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        ).fetchall()
        names = {
            "schema": schema,
            "slot": slots[0][0],
            "superuser": agent.execute("SELECT rolname FROM pg_roles WHERE rolsuper").fetchall()[0][0],
            "database": f'"{agent.info.dbname}"',
        }
        done: dict[str, object] = {}
        for statement in HIDING:
            try:
                agent.execute(statement.format(**names).encode())
                done[statement] = None
            except psycopg.Error as refused:
                done[statement] = type(refused)
        agent.execute("DROP OWNED BY CURRENT_USER")
    others = {"SET wal_level = minimal": psycopg.errors.CantChangeRuntimeParam}
    assert done == dict.fromkeys(HIDING, psycopg.errors.InsufficientPrivilege) | others
    found = written(watched)
    assert log("public.users", "drop") in found
    assert log("other.users", "drop") in found
    watched.close()


def test_messages_into_the_log_and_a_publication_of_its_own_hide_nothing(watched: PostgresCell) -> None:
    work(
        watched,
        [
            "SELECT pg_logical_emit_message(true, 'x', 'y')",
            "SELECT pg_logical_emit_message(false, E'table public.users: DELETE: \\n', 'table public.x: INSERT: ')",
            "CREATE PUBLICATION mine FOR TABLE notes WITH (publish = 'insert')",
            "DELETE FROM users WHERE id = 1",
        ],
    )
    assert written(watched) == {log("mine", "create", what="publication"), log("public.users", "delete", 1)}


def test_an_agent_that_closes_its_database_is_seen_all_the_same(watched: PostgresCell) -> None:
    agent = watched.agent()
    database = agent.info.dbname
    work(
        watched,
        [
            "DELETE FROM users WHERE id = 1",
            f"ALTER DATABASE {database} SET default_transaction_read_only = on",
            f"ALTER DATABASE {database} SET statement_timeout = 1",
            "ALTER ROLE CURRENT_USER SET search_path = nowhere",
            f"ALTER DATABASE {database} CONNECTION LIMIT 0",
        ],
    )
    assert written(watched) == {
        log("public.users", "delete", 1),
        (database, "settings", "change", None, "comparison"),
    }


def test_what_a_session_holds_open_when_the_agent_ends_was_not_written(watched: PostgresCell) -> None:
    agent = watched.agent(autocommit=False)
    agent.execute("INSERT INTO users VALUES (9)")
    agent.execute("CREATE TABLE mine ()")
    agent.execute("LOCK TABLE notes")
    assert written(watched) == set()
    with pytest.raises(psycopg.OperationalError):
        agent.commit()


DEFINITIONS = {
    "default": ("ALTER TABLE notes ADD a text DEFAULT '{}'", "table column public.notes.a"),
    "comment on a table": ("COMMENT ON TABLE notes IS '{}'", "table public.notes"),
    "comment on a column": ("COMMENT ON COLUMN notes.text IS '{}'", "table column public.notes.text"),
    "comment on a schema": ("CREATE SCHEMA mine; COMMENT ON SCHEMA mine IS '{}'", "schema mine"),
    "body": ("CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$ SELECT '{}' $$", "function public.f()"),
    "body that was parsed": ("CREATE FUNCTION f() RETURNS text RETURN '{}'", "function public.f()"),
    "default of an argument": (
        "CREATE FUNCTION f(a text = '{}') RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "function public.f(pg_catalog.text)",
    ),
    "setting of a function": (
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql SET application_name = '{}' AS 'SELECT 1'",
        "function public.f()",
    ),
    "view": ("CREATE VIEW v AS SELECT '{}'::text AS it", 'rule "_RETURN" on public.v'),
    "constraint": ("ALTER TABLE notes ADD CONSTRAINT c CHECK (text <> '{}')", "table constraint c on public.notes"),
    "index": ("CREATE INDEX i ON notes (text) WHERE text = '{}'", "index public.i"),
    "trigger": (
        "CREATE TRIGGER t BEFORE INSERT ON notes EXECUTE FUNCTION suppress_redundant_updates_trigger('{}')",
        "trigger t on public.notes",
    ),
    "policy": ("CREATE POLICY p ON notes USING (text <> '{}')", "policy p on public.notes"),
    "enum": ("CREATE TYPE kind AS ENUM ('{}')", "type public.kind"),
    "domain": ("CREATE DOMAIN d AS text DEFAULT '{}'", "type public.d"),
    "name of a column": ('ALTER TABLE notes ADD "{}" int', 'table column public.notes."{}"'),
}


@pytest.mark.parametrize("where", DEFINITIONS)
@pytest.mark.parametrize("secret", ["hunter22-secret", "it's a \\ secret"])
def test_what_definitions_say_is_written_too(watched: PostgresCell, where: str, secret: str) -> None:
    statement, name = DEFINITIONS[where]
    quoted = secret if "$$" in statement or "name" in where else secret.replace("'", "''")
    with watched.agent() as agent:
        agent.execute(statement.format(quoted.replace("'", "''") if "$$" in statement else quoted).encode())
    written(watched)
    assert watched.place.writes is not None
    texts = list(watched.place.writes.texts())
    assert {table for table, text in texts if secret in text} == {f"the definition of {name.format(secret)}"}


def test_what_definitions_said_before_is_not_the_agents(watched_postgres: PostgresForTests) -> None:
    fixture = (
        "CREATE FUNCTION f() RETURNS text LANGUAGE sql AS $$\nSELECT 'hunter22-secret'\n$$;"
        "CREATE TABLE a (b text DEFAULT 'hunter22-secret'); COMMENT ON TABLE a IS 'hunter22-secret'"
    )
    cell = start(watched_postgres, fixture)
    with cell.agent() as agent:
        agent.execute("ALTER TABLE a RENAME TO c; ALTER TABLE c ALTER b TYPE varchar(90)")
        agent.execute(
            "CREATE OR REPLACE FUNCTION f() RETURNS text LANGUAGE sql AS $$\n-- more\nSELECT 'hunter22-secret'\n$$"
        )
    written(cell)
    assert cell.place.writes is not None
    texts = [text for _, text in cell.place.writes.texts()]
    assert any("-- more" in text for text in texts)
    assert not any("hunter22" in text for text in texts)
    cell.close()


def test_values_are_those_that_were_written_wherever_they_stand(watched: PostgresCell) -> None:
    secrets = [f'secret-{number}\'s "value"\\' for number in range(7)]
    with watched.agent() as agent:
        agent.execute("INSERT INTO notes VALUES (%s)", (secrets[0],))
        agent.execute("UPDATE notes SET text = %s WHERE text = 'a'", (secrets[1],))
        agent.execute("INSERT INTO events VALUES (1, %s)", (secrets[2],))
        agent.execute("CREATE UNLOGGED TABLE mine (text text, PRIMARY KEY (text))")
        agent.execute("INSERT INTO mine VALUES (%s)", (secrets[3],))
        agent.execute("ALTER TABLE audit SET UNLOGGED")
        agent.execute("INSERT INTO audit VALUES (%s)", (secrets[4],))
        agent.execute("ALTER TABLE audit SET LOGGED")
        agent.execute("SELECT lo_from_bytea(0, convert_to(%s, 'UTF8'))", (secrets[5],))
        agent.execute("INSERT INTO notes VALUES (%s || repeat('x', 5000000))", (secrets[6],))
        agent.execute("DELETE FROM notes")
        agent.execute("DELETE FROM users WHERE name = 'user 1'")
    written(watched)
    assert watched.place.writes is not None
    texts = list(watched.place.writes.texts())
    found = [{table for table, text in texts if secret in text} for secret in secrets]
    assert found == [
        {"public.notes"},
        {"public.notes"},
        {"public.events"},
        {"public.mine"},
        {"public.audit"},
        {"pg_catalog.pg_largeobject"},
        {"public.notes"},
    ]
    assert not any("user 1" in text for _, text in texts)


def test_writes_come_in_their_order_with_the_time_of_their_transaction(watched: PostgresCell) -> None:
    work(watched, ["DELETE FROM notes", "CREATE TABLE mine ()", "DELETE FROM users", "SELECT nextval('lonely')"])
    watched.place.settle()
    assert watched.place.writes is not None
    writes = watched.place.writes.writes()
    assert [one.table for one in writes] == ["public.notes", "public.mine", "public.users", "public.lonely"]
    assert [one.ts for one in writes[:3]] == sorted(one.ts for one in writes[:3])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{6}Z", one.ts) for one in writes[:3])
    assert writes == watched.place.writes.writes()
    assert watched.place.writes.not_seen


def test_a_cell_starts_while_the_agent_of_another_holds_a_transaction_open(watched_postgres: PostgresForTests) -> None:
    first = start(watched_postgres)
    holding = first.agent(autocommit=False)
    holding.execute("DELETE FROM users WHERE id = 1")
    second = start(watched_postgres)
    work(second, ["DELETE FROM notes"])
    assert written(second) == {log("public.notes", "delete", 3)}
    holding.commit()
    assert written(first) == {log("public.users", "delete", 1)}
    first.close()
    second.close()


def test_cells_side_by_side_see_their_own_and_leave_no_slot(watched_postgres: PostgresForTests) -> None:
    before = slots_of(watched_postgres)
    cells = [start(watched_postgres) for _ in range(14)]
    for number, cell in enumerate(cells):
        work(cell, [f"INSERT INTO notes SELECT 'x' FROM generate_series(1, {number + 1})"])
    for number, cell in enumerate(cells):
        assert written(cell) == {log("public.notes", "insert", number + 1)}
    assert slots_of(watched_postgres) == before + len(cells)
    for cell in cells:
        cell.close()
    assert slots_of(watched_postgres) == before


def test_a_cell_that_never_came_to_its_agent_or_its_end_leaves_no_slot(watched_postgres: PostgresForTests) -> None:
    before = slots_of(watched_postgres)
    for steps in range(3):
        cell = watched_postgres.attach(watches_writes=True, exclusive=steps == 2)
        for _ in range(steps):
            cell.seal()
        assert cell.place.writes is not None
        with pytest.raises(ServiceError, match="was not watched to the end"):
            cell.place.writes.writes()
        cell.close()
    assert slots_of(watched_postgres) == before


def test_a_cell_that_is_sealed_again_is_watched_from_then_on(watched: PostgresCell) -> None:
    work(watched, ["DELETE FROM users"])
    watched.seal()
    work(watched, ["DELETE FROM notes"])
    assert written(watched) == {log("public.notes", "delete", 3)}


def test_a_log_that_is_not_whole_is_an_error_and_never_silence(
    watched_postgres: PostgresForTests, watched: PostgresCell
) -> None:
    cell = cast(PostgresPlace, watched.place).cell
    work(watched, ["DELETE FROM users"])
    watched.place.settle()
    writes = cast(Any, watched.place.writes)
    with server_of(watched_postgres).admin(cell.database) as admin:
        admin.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (writes._slot,))
    for ask in (writes.writes, lambda: list(writes.texts())):
        with pytest.raises(ServiceError, match=r"service db.*no whole record"):
            ask()
    writes.close()
    for ask in (writes.writes, lambda: list(writes.texts())):
        with pytest.raises(ServiceError, match=r"service db.*can't say what was written"):
            ask()


def test_a_service_that_was_not_started_for_it_says_so(postgres: PostgresForTests) -> None:
    cell = postgres.attach(watches_writes=True)
    with pytest.raises(ServiceError, match="was not started to have its writes watched"):
        cell.seal()
    cell.close()


VIRTUAL = "CREATE TABLE computed (a int {key}, b int GENERATED ALWAYS AS (a * 2) VIRTUAL, c text);"


def test_a_virtual_column_beside_a_key_changes_nothing(watched_postgres: PostgresForTests) -> None:
    cell = start(watched_postgres, VIRTUAL.format(key="PRIMARY KEY") + "INSERT INTO computed VALUES (1), (2)")
    statements = ["UPDATE computed SET c = 'x' WHERE a = 1", "UPDATE computed SET a = 5", "DELETE FROM computed"]
    assert work(cell, [statements[0], statements[2]]) == ["UPDATE 1 1", "DELETE 2 2"]
    assert written(cell) == {log("public.computed", "update", 1), log("public.computed", "delete", 2)}
    cell.close()


def test_a_table_that_can_not_be_watched_is_an_error_of_ours(watched_postgres: PostgresForTests) -> None:
    with pytest.raises(ServiceError, match=r"can't watch the table public.computed: .*no primary key"):
        start(watched_postgres, VIRTUAL.format(key=""))
    cell = start(watched_postgres)
    work(cell, ["DELETE FROM notes", VIRTUAL.format(key=""), "INSERT INTO computed VALUES (1, DEFAULT, 'secret')"])
    with pytest.raises(ServiceError, match=r"can't watch the table public.computed: .*no primary key"):
        cell.place.settle()
    assert cell.place.writes is not None
    assert told(cell.place.writes.writes()) == {
        log("public.notes", "delete", 3),
        log("public.computed", "create"),
        log("public.computed", "insert", 1),
    }
    assert ("public.computed", "secret") in list(cell.place.writes.texts())
    cell.close()


IDENTITIES = (
    ("ALTER TABLE users REPLICA IDENTITY FULL", "f"),
    ("ALTER TABLE users REPLICA IDENTITY FULL; ALTER TABLE users REPLICA IDENTITY DEFAULT", "d"),
    ("ALTER TABLE users REPLICA IDENTITY NOTHING", "n"),
    ("ALTER TABLE users ADD more int; ALTER TABLE notes REPLICA IDENTITY FULL", "d"),
    ("ALTER TABLE users REPLICA IDENTITY USING INDEX users_pkey", "i"),
    ('ALTER TABLE IF EXISTS public."users" ADD more int, replica  identity full', "f"),
    ("DO $$ BEGIN EXECUTE 'ALTER TABLE ' || 'users REPLICA IDENTITY ' || 'FULL'; END $$", "f"),
    ("ALTER TABLE users REPLICA IDENTITY FULL; ALTER TABLE users ADD more int", "f"),
    ("BEGIN; ALTER TABLE users REPLICA IDENTITY FULL; ROLLBACK", "d"),
    ("DROP TABLE users CASCADE; CREATE TABLE users (id int); ALTER TABLE users REPLICA IDENTITY FULL", "f"),
    (VIRTUAL.format(key="PRIMARY KEY") + "DROP TABLE users CASCADE; ALTER TABLE computed RENAME TO users", "d"),
    ("ALTER TABLE users ADD b int GENERATED ALWAYS AS (id) VIRTUAL, REPLICA IDENTITY NOTHING", "n"),
)


@pytest.mark.parametrize(("statements", "expected"), IDENTITIES)
def test_the_replica_identity_that_an_agent_sets_stays(watched: PostgresCell, statements: str, expected: str) -> None:
    with watched.agent() as agent:
        agent.execute(statements.encode())
    assert work(watched, ["UPDATE notes SET text = 'x'"]) == ["UPDATE 3 3"]
    watched.place.settle()
    asked = "SELECT relreplident::text FROM pg_class WHERE oid = 'public.users'::regclass"
    assert [tuple(row) for row in watched.query(asked, redefined=True).rows] == [(expected,)]


def test_stored_generated_columns_go_on(watched_postgres: PostgresForTests) -> None:
    cell = start(watched_postgres, VIRTUAL.format(key="").replace("VIRTUAL", "STORED"))
    answers = work(cell, ["INSERT INTO computed VALUES (1)", "UPDATE computed SET a = 5", "DELETE FROM computed"])
    assert answers == ["INSERT 0 1 1", "UPDATE 1 1", "DELETE 1 1"]
    assert {operation for _, _, operation, _, _ in written(cell)} == {"insert", "update", "delete"}
    cell.close()


def test_ways_into_other_servers_are_refused_or_told(watched_postgres: PostgresForTests) -> None:
    """Not even a superuser's wrapper, lent by the author, leads out unseen."""
    cell = watched_postgres.attach(watches_writes=True)
    cell.fixture(FIXTURE)
    address = cell.place.for_host
    with server_of(watched_postgres).admin(address.database) as admin:
        admin.execute("CREATE FOREIGN DATA WRAPPER given")
        admin.execute(f'GRANT USAGE ON FOREIGN DATA WRAPPER given TO "{address.user}"'.encode())
    cell.seal()
    refused = ["CREATE FOREIGN DATA WRAPPER mine", "CREATE EXTENSION postgres_fdw", "CREATE EXTENSION dblink"]
    assert [answer[:5] for answer in work(cell, refused)] == ["42501", "0A000", "0A000"]
    made = [
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER given",
        "CREATE USER MAPPING FOR CURRENT_USER SERVER elsewhere",
        "CREATE FOREIGN TABLE far (id int) SERVER elsewhere",
    ]
    assert [answer for answer in work(cell, made) if answer[5:6] == ":"] == []
    prepared = work(cell, ["BEGIN", "INSERT INTO notes VALUES ('x')", "PREPARE TRANSACTION 'x'"])
    assert prepared[-1].startswith("55000: prepared transactions are disabled")
    assert written(cell) == {
        log("elsewhere", "create", what="server"),
        log(f"{address.user} on server elsewhere", "create", what="user mapping"),
        log("public.far", "create", what="foreign table"),
    }
    cell.close()
