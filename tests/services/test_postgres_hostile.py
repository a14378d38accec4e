"""What an agent may not do to the embedded PostgreSQL, and what it may do without a check being fooled by it."""

from __future__ import annotations

import psycopg
import pytest
from support.databases import PostgresCell, PostgresForTests

from keystone_action.evidence.model import QueryFailed


def count(cell: PostgresCell, condition: str = "true") -> object:
    return cell.query(f"SELECT count(*) FROM customers WHERE {condition}").rows[0][0]


FORBIDDEN = [
    "SELECT pg_read_file('postgresql.conf')",
    "SELECT pg_ls_dir('.')",
    "COPY customers FROM '/etc/passwd'",
    "COPY customers TO '/tmp/out'",
    "COPY customers FROM PROGRAM 'id'",
    "SELECT lo_import('/etc/passwd')",
    "LOAD '/tmp/evil.so'",
    "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '/tmp/evil.so'",
    "CREATE ROLE friend",
    "CREATE DATABASE mine",
    "ALTER ROLE CURRENT_USER SUPERUSER",
    "ALTER SYSTEM SET fsync = on",
    "CREATE EVENT TRIGGER t ON ddl_command_end EXECUTE FUNCTION now()",
    "SET session_authorization = 'postgres'",
    "SELECT rolpassword FROM pg_authid",
]


def test_the_agents_role_is_no_superuser(cell: PostgresCell) -> None:
    agent, allowed = cell.agent(), {}
    for statement in FORBIDDEN:
        try:
            agent.execute(statement.encode())
            allowed[statement] = "done"
        except psycopg.Error as refused:
            if refused.sqlstate not in {"42501", "58P01", "0LP01", "22023"}:
                allowed[statement] = str(refused)
    assert allowed == {}


def test_the_agent_reaches_no_other_database(cell: PostgresCell) -> None:
    address = cell.place.for_agent
    for database in ("keystone", "template1", "postgres"):
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address.url.rsplit("/", 1)[0] + f"/{database}")


def test_cells_do_not_reach_each_other(postgres: PostgresForTests) -> None:
    first, second = postgres.attach(), postgres.attach()
    try:
        first.agent().execute("CREATE TABLE mine (id int)")
        theirs = second.place.for_agent
        with pytest.raises(psycopg.OperationalError, match="permission denied"):
            psycopg.connect(f"{first.place.for_agent.url.rsplit('/', 1)[0]}/{theirs.database}")
        with pytest.raises(QueryFailed) as missing:
            second.query("SELECT * FROM mine")
        assert missing.value.by_agent
    finally:
        first.close()
        second.close()


def test_a_wrong_password_is_refused(cell: PostgresCell) -> None:
    address = cell.place.for_agent
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host=address.host, port=address.port, user=address.user, password="no", dbname=address.database)


@pytest.mark.parametrize(
    ("statement", "query"),
    [
        (
            "CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = varchar_ne_stub)",
            "SELECT count(*) FROM customers a JOIN customers b USING (email)",
        ),
        (
            "CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS $$SELECT 'a@example.com'$$",
            "SELECT LOWER(email) FROM customers WHERE id = 2",
        ),
        (
            "CREATE AGGREGATE public.count(varchar) (SFUNC = fake_count, STYPE = bigint, INITCOND = '3')",
            "SELECT count(email) FROM customers",
        ),
    ],
)
def test_stand_ins_for_built_in_functions_and_operators_are_found(
    cell: PostgresCell, statement: str, query: str
) -> None:
    agent = cell.agent()
    agent.execute("CREATE FUNCTION varchar_ne_stub(varchar, varchar) RETURNS bool LANGUAGE sql AS 'SELECT true'")
    agent.execute("CREATE FUNCTION fake_count(bigint, varchar) RETURNS bigint LANGUAGE sql AS 'SELECT $1'")
    agent.execute(statement.encode())
    with pytest.raises(QueryFailed, match=r"the agent created the (operator|function) public\.") as found:
        cell.query(query)
    assert found.value.by_agent


def test_a_stand_in_that_a_fixture_made_is_the_authors_until_it_is_replaced(cell: PostgresCell) -> None:
    body = "CREATE OR REPLACE FUNCTION lower(varchar) RETURNS text LANGUAGE sql AS $$SELECT {}$$"
    cell.fixture(body.format("'fixture'"))
    query = "SELECT lower(email) FROM customers WHERE id = 1"
    assert cell.query(query).rows == (("fixture",),)


def test_a_replaced_stand_in_is_found(cell: PostgresCell) -> None:
    body = "CREATE OR REPLACE FUNCTION lower(varchar) RETURNS text LANGUAGE sql AS $$SELECT {}$$"
    cell.fixture(body.format("'fixture'"))
    cell.agent().execute(body.format("'agent'").encode())
    with pytest.raises(QueryFailed, match=r"public\.lower"):
        cell.query("SELECT lower(email) FROM customers WHERE id = 1")


def test_functions_of_other_names_are_welcome(cell: PostgresCell) -> None:
    cell.agent().execute("CREATE FUNCTION total() RETURNS int LANGUAGE sql AS 'SELECT 42'")
    assert cell.query("SELECT total()").rows == ((42,),)


@pytest.mark.parametrize(
    "settings",
    [
        "SET search_path = evil, public",
        "SET local_preload_libraries = 'nowhere'",
        "SET default_transaction_read_only = off",
        "SET statement_timeout = 1",
        "SET role = 'nobody'",
        "CONNECTION LIMIT 0",
    ],
)
def test_settings_of_the_database_do_not_reach_the_checks_session(cell: PostgresCell, settings: str) -> None:
    agent = cell.agent()
    agent.execute("CREATE SCHEMA evil")
    agent.execute("CREATE TABLE evil.customers (id int, email varchar)")
    agent.execute(f'ALTER DATABASE "{cell.place.for_agent.database}" {settings}'.encode())
    assert count(cell) == 3


def test_null_equals_stays_null(cell: PostgresCell) -> None:
    database = cell.place.for_agent.database
    cell.agent().execute(f'ALTER DATABASE "{database}" SET transform_null_equals = on'.encode())
    assert count(cell, "email = NULL") == 0


def test_a_search_path_of_a_fixture_stays(cell: PostgresCell) -> None:
    database = cell.place.for_agent.database
    cell.fixture(
        f'CREATE SCHEMA app; CREATE TABLE app.orders (id int); ALTER DATABASE "{database}" SET search_path = app;'
    )
    agent = cell.agent()
    agent.execute("CREATE TABLE public.orders AS SELECT 1 AS id")
    agent.execute(f'ALTER DATABASE "{database}" SET search_path = public'.encode())
    assert cell.query("SELECT count(*) FROM orders").rows == ((0,),)
    assert cell.agent().execute("SHOW search_path").fetchone() == ("app",)


def test_a_schema_named_like_the_role_is_not_searched(cell: PostgresCell) -> None:
    agent = cell.agent()
    agent.execute(f'CREATE SCHEMA "{cell.place.for_agent.user}"'.encode())
    agent.execute("CREATE TABLE customers (id int, email varchar)")
    assert agent.execute("SELECT count(*) FROM customers").fetchone() == (0,)
    assert count(cell) == 3


def test_row_security_hides_nothing_from_checks(cell: PostgresCell) -> None:
    agent = cell.agent()
    agent.execute("ALTER TABLE customers ENABLE ROW LEVEL SECURITY")
    agent.execute("ALTER TABLE customers FORCE ROW LEVEL SECURITY")
    agent.execute("CREATE POLICY hide ON customers USING (false)")
    assert agent.execute("SELECT count(*) FROM customers").fetchone() == (0,)
    with pytest.raises(QueryFailed, match=r"the agent gave the table public\.customers row level security"):
        count(cell)
    assert cell.query("SELECT count(*) FROM customers", redefined=True).rows == ((3,),)


def test_open_transactions_of_the_agent_hold_no_locks(cell: PostgresCell) -> None:
    agent = cell.agent(autocommit=False)
    agent.execute("LOCK TABLE customers IN ACCESS EXCLUSIVE MODE")
    agent.execute("DELETE FROM customers")
    assert count(cell) == 3
    with pytest.raises(psycopg.OperationalError):
        agent.execute("SELECT 1")


def test_revoked_rights_are_given_back(cell: PostgresCell) -> None:
    agent = cell.agent()
    reader = agent.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'cell_%'").fetchall()
    agent.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    agent.execute("REVOKE ALL ON customers FROM PUBLIC")
    for (name,) in reader:
        database = cell.place.for_agent.database
        agent.execute(f'REVOKE ALL ON DATABASE "{database}" FROM "{name}"'.encode())
    assert len(reader) >= 1
    assert count(cell) == 3


def test_a_changed_password_does_not_lock_scripts_out(cell: PostgresCell) -> None:
    cell.agent().execute("ALTER ROLE CURRENT_USER PASSWORD 'mine now'")
    with pytest.raises(psycopg.OperationalError):
        cell.agent()
    assert count(cell) == 3
    assert cell.agent().execute("SELECT 1").fetchone() == (1,)


CHANGING = [
    "INSERT INTO customers VALUES (4, 'x')",
    "SELECT * FROM customers FOR UPDATE",
    "WITH gone AS (DELETE FROM customers RETURNING id) SELECT count(*) FROM gone",
    "SELECT grow()",
    "SELECT * FROM growing",
    "SELECT 1; COMMIT; DELETE FROM customers",
    "CREATE TABLE t (id int)",
    "SELECT set_config('transaction_read_only', 'off', false), grow()",
    "SELECT nextval('counter')",
]


def test_a_query_changes_nothing_even_when_the_agent_lets_it(cell: PostgresCell) -> None:
    agent = cell.agent()
    agent.execute("GRANT ALL ON customers TO PUBLIC")
    agent.execute("CREATE SEQUENCE counter")
    agent.execute("GRANT ALL ON counter TO PUBLIC")
    agent.execute(
        "CREATE FUNCTION grow() RETURNS int LANGUAGE sql SECURITY DEFINER"
        " AS $$INSERT INTO customers VALUES (9, 'z') RETURNING id$$"
    )
    agent.execute("CREATE VIEW growing AS SELECT grow()")
    for query in CHANGING:
        with pytest.raises(QueryFailed) as refused:
            cell.query(query)
        assert not refused.value.by_agent, query
        assert count(cell) == 3, query


def test_the_readers_rights_are_worth_nothing_to_the_agents_functions(cell: PostgresCell) -> None:
    agent = cell.agent()
    agent.execute(
        "CREATE FUNCTION steal() RETURNS text LANGUAGE plpgsql AS"
        " $$BEGIN RETURN (SELECT string_agg(rolpassword, ',') FROM pg_authid); END$$"
    )
    agent.execute("CREATE VIEW loot AS SELECT steal()")
    with pytest.raises(QueryFailed, match="permission denied"):
        cell.query("SELECT * FROM loot")
    assert cell.query("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").rows == ((False,),)


@pytest.mark.parametrize(
    "view",
    [
        "SELECT pg_sleep(60) IS NULL AS late",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n FROM r) SELECT count(*) FROM r",
        "SELECT spin()",
    ],
)
def test_a_view_that_never_ends_hits_the_time_limit(cell: PostgresCell, view: str) -> None:
    agent = cell.agent()
    agent.execute(
        "CREATE FUNCTION spin() RETURNS int LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM set_config('statement_timeout', '0', false); LOOP NULL; END LOOP; END$$"
    )
    agent.execute(f"CREATE VIEW forever AS {view}".encode())
    with pytest.raises(QueryFailed, match=r"time limit of 0\.5 s") as late:
        cell.query("SELECT * FROM forever", timeout=0.5)
    assert late.value.by_agent


def test_what_python_can_not_hold_comes_as_text(cell: PostgresCell) -> None:
    cell.agent().execute(
        "CREATE TABLE odd AS SELECT 'infinity'::timestamp AS t, '4713-01-01 BC'::date AS d, 'NaN'::numeric AS n,"
        " '24:00'::time AS h"
    )
    (row,) = cell.query("SELECT t, d, h, n::text FROM odd").rows
    assert row == ("infinity", "4713-01-01 BC", "24:00:00", "NaN")


def test_a_huge_result_is_cut_and_says_so(cell: PostgresCell) -> None:
    result = cell.query("SELECT generate_series(1, 1000000)")
    assert len(result.rows) == 10_000
    assert result.more


def test_a_query_that_says_it_was_cancelled_is_no_query_at_its_limit(cell: PostgresCell) -> None:
    with cell.agent() as session:
        session.execute(
            b"CREATE FUNCTION gone() RETURNS int LANGUAGE plpgsql AS"
            b" $$BEGIN RAISE EXCEPTION 'never mind' USING ERRCODE = 'query_canceled'; END$$"
        )
    with pytest.raises(QueryFailed, match="never mind") as failed:
        cell.query("SELECT gone()", timeout=30)
    assert "time limit" not in str(failed.value)
