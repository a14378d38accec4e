"""Databases in which the names that a check asks for stand for something else, or keep it busy for ever."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from anyio.from_thread import BlockingPortal
from support.attacks import honest, hostile
from support.database_worlds import (
    BY_OWN_ROLE,
    BY_URLS_USER,
    IN_CONTAINERS,
    KINDS,
    ONE_OF_EACH,
    POSTGRES_KINDS,
    DatabaseWorld,
)
from support.databases import PostgresCell, PostgresForTests

from keystone_action.errors import ServiceError
from keystone_action.evidence.model import QueryFailed
from keystone_action.sandbox.processes.sandboxes import ProcessSandboxes
from keystone_action.services.postgres.service import EmbeddedPostgres
from keystone_action.spec.models.services import PostgresService

DOCKER = [pytest.param(kind, marks=pytest.mark.docker) for kind in IN_CONTAINERS]
EVERY = pytest.mark.parametrize("world", [*KINDS, *DOCKER], indirect=True)
EACH = pytest.mark.parametrize("world", [*ONE_OF_EACH, DOCKER[-1]], indirect=True)
URLS_USER = pytest.mark.parametrize("world", [*BY_URLS_USER, DOCKER[-1]], indirect=True)
OWN_ROLE = pytest.mark.parametrize("world", [*BY_OWN_ROLE, DOCKER[-1]], indirect=True)
POSTGRES = pytest.mark.parametrize("world", POSTGRES_KINDS, indirect=True)
SQLITE = pytest.mark.parametrize("world", ["sqlite"], indirect=True)

ALL = "SELECT count(*) FROM customers"
LIE = "SELECT 1 AS id, 'fine' AS email"
COMPARED = "the catalogue is compared with the one before the agent"
VIEW = "a view in the place of a table that a check reads"
TRAIT = "a rule, policy, collation or generated column on a table that a check reads"
DEFINITION = "another definition of a view or function that a check reads"
INDEX = "an index that says something else than its table"
BUILT_IN = "an operator, function or cast in the place of a built-in one"
PATH = "a table that is found before the one that a check names"
FOREVER = "a view that keeps the check's query busy past its time limit"


def swap(definition: str) -> tuple[str, ...]:
    return "ALTER TABLE customers RENAME TO real_customers", definition


@hostile("databases", VIEW, held_by=COMPARED, sandbox="both")
@EVERY
def test_a_view_does_not_answer_for_a_table(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(swap(f"CREATE VIEW customers AS {LIE}"))
    outcome = world.ask(ALL, equals=1)
    assert outcome.status == "fail"
    assert "the agent replaced the table " in outcome.message
    assert "customers by a view" in outcome.message
    assert world.ask(ALL, equals=1, redefined="allow").status == "pass"
    assert world.ask("SELECT count(*) FROM orders", equals=0).status == "pass"


@hostile("databases", VIEW, held_by=COMPARED, sandbox="both")
@URLS_USER
def test_not_by_way_of_a_view_either(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(
        [*swap(f"CREATE VIEW customers AS {LIE}"), "CREATE VIEW summary AS SELECT count(*) AS n FROM customers"]
    )
    assert world.ask("SELECT n FROM summary", equals=1).status == "fail"


@honest("databases", VIEW, sandbox="both")
@EACH
def test_tables_that_are_made_anew_and_views_of_other_names_are_read(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(
        [
            "ALTER TABLE customers ADD COLUMN country varchar(2)",
            "CREATE INDEX by_country ON customers (country)",
            "UPDATE customers SET country = 'de'",
            "DROP TABLE orders",
            "CREATE TABLE orders (id int PRIMARY KEY, customer int)",
            "INSERT INTO orders VALUES (7, 1)",
            "CREATE VIEW report AS SELECT c.email FROM orders o JOIN customers c ON c.id = o.customer",
        ]
    )
    assert world.ask(f"{ALL} WHERE country = 'de'", equals=3).status == "pass"
    assert world.ask("SELECT id FROM orders", equals=7).status == "pass"
    assert world.ask("SELECT email FROM report", equals="a@example.com").status == "pass"


TRAITS = {
    "the rule quiet": "CREATE RULE quiet AS ON INSERT TO customers_0 DO INSTEAD NOTHING",
    "the policy hide": "CREATE POLICY hide ON customers_1 USING (false)",
    "row level security": "ALTER TABLE customers_2 ENABLE ROW LEVEL SECURITY",
    "the generated column ok": "ALTER TABLE customers_3 ADD ok text GENERATED ALWAYS AS ('yes') STORED",
}
"""What a check says of one of four tables → how it was given that."""


@hostile("databases", TRAIT, held_by=COMPARED, sandbox="both")
@pytest.mark.parametrize("world", [*POSTGRES_KINDS, DOCKER[0]], indirect=True)
def test_what_a_table_was_given_is_seen(world: DatabaseWorld) -> None:
    world.lay_out(*(f"CREATE TABLE customers_{number} AS SELECT * FROM customers" for number in range(len(TRAITS))))
    world.agent([*TRAITS.values()])
    for number, words in enumerate(TRAITS):
        query = f"SELECT count(*) FROM customers_{number}"
        outcome = world.ask(query, gte=0)
        assert (outcome.status, words in outcome.message) == ("fail", True), (words, outcome)
        assert world.ask(query, gte=0, redefined="allow").status == "pass", words
    assert world.ask(ALL, equals=3).status == "pass"


@hostile("databases", TRAIT, held_by=COMPARED, sandbox="both")
@pytest.mark.parametrize("world", ["external mariadb", "sqlite", DOCKER[-1]], indirect=True)
def test_a_generated_column_is_seen(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(
        [
            "DROP TABLE customers",
            "CREATE TABLE customers (id int, email varchar(80) GENERATED ALWAYS AS ('fine') VIRTUAL)",
            "INSERT INTO customers (id) VALUES (1)",
        ]
    )
    outcome = world.ask("SELECT email FROM customers", equals="fine")
    assert outcome.status == "fail"
    assert "the generated column email" in outcome.message


@honest("databases", TRAIT, sandbox="both")
@pytest.mark.parametrize("world", [*POSTGRES_KINDS[2:], DOCKER[0]], indirect=True)
def test_rules_and_policies_of_the_authors_are_no_redefinition(world: DatabaseWorld) -> None:
    world.lay_out(
        "CREATE RULE quiet AS ON INSERT TO orders DO INSTEAD NOTHING",
        "CREATE POLICY all_of_them ON customers USING (true)",
        "ALTER TABLE customers ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE orders ADD ok text GENERATED ALWAYS AS ('yes') STORED",
    )
    world.agent(["DELETE FROM customers WHERE id = 3"])
    assert world.ask(ALL, equals=2).status == "pass"
    assert world.ask("SELECT count(*) FROM orders", equals=0).status == "pass"


@hostile("databases", TRAIT, held_by=COMPARED, sandbox="both")
@SQLITE
def test_a_virtual_table_does_not_answer_for_a_table(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["DROP TABLE customers", "CREATE VIRTUAL TABLE customers USING fts5(id, email)"])
    outcome = world.ask(ALL, equals=0)
    assert outcome.status == "fail"
    assert "by a virtual table" in outcome.message


@hostile("databases", INDEX, held_by="indexes are made anew from their tables", sandbox="both")
@SQLITE
def test_an_index_does_not_answer_for_a_table(world: DatabaseWorld) -> None:
    world.lay_out("CREATE TABLE other (email varchar(80))")
    root = "(SELECT rootpage FROM sqlite_master WHERE name = '{}')"
    world.agent(
        [
            "CREATE INDEX by_email ON customers (email)",
            "CREATE INDEX empty ON other (email)",
            "PRAGMA writable_schema = ON",
            f"UPDATE sqlite_master SET rootpage = {root.format('empty')} WHERE name = 'by_email'",
        ]
    )
    assert world.ask("SELECT count(email) FROM customers WHERE email > ''", equals=0).status == "fail"


@honest("databases", INDEX, sandbox="both")
@SQLITE
def test_an_index_of_the_agents_is_used(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["CREATE UNIQUE INDEX by_email ON customers (email)", "DELETE FROM customers WHERE id = 2"])
    for _ in range(2):
        assert world.ask("SELECT count(email) FROM customers WHERE email > ''", equals=1).status == "pass"


@hostile("databases", DEFINITION, held_by=COMPARED, sandbox="both")
@OWN_ROLE
def test_a_view_of_the_authors_is_his(world: DatabaseWorld) -> None:
    world.lay_out("CREATE VIEW missing AS SELECT id FROM customers WHERE email IS NULL")
    world.agent(["DROP VIEW missing", "CREATE VIEW missing AS SELECT id FROM customers WHERE id < 0"])
    outcome = world.ask("SELECT count(*) FROM missing", equals=0)
    assert outcome.status == "fail"
    assert "the agent redefined the view" in outcome.message


@hostile("databases", DEFINITION, held_by=COMPARED, sandbox="both")
@pytest.mark.parametrize("world", POSTGRES_KINDS[1:3], indirect=True)
def test_a_function_of_the_authors_is_his(world: DatabaseWorld) -> None:
    function = "CREATE OR REPLACE FUNCTION missing({}) RETURNS bigint LANGUAGE sql AS 'SELECT {}'"
    world.lay_out(function.format("smallest bigint", "count(*) FROM customers WHERE email IS NULL AND id > $1"))
    world.agent([function.format("smallest int", "0::bigint")])  # a closer match for the number that the check gives
    outcome = world.ask("SELECT missing(0)", equals=0)
    assert outcome.status == "fail"
    assert "in the place of public.missing(smallest bigint)" in outcome.message


@honest("databases", DEFINITION, sandbox="both")
@URLS_USER
def test_a_view_that_stands_as_it_was_is_read(world: DatabaseWorld) -> None:
    world.lay_out("CREATE VIEW missing AS SELECT id FROM customers WHERE email IS NULL")
    world.agent(["UPDATE customers SET email = 'c@example.com' WHERE id = 3", f"CREATE VIEW other AS {LIE}"])
    assert world.ask("SELECT count(*) FROM missing", equals=0).status == "pass"


@hostile("databases", PATH, held_by="only schemas that stood before are searched, in which no new name hides an older")
@POSTGRES
def test_no_table_hides_another(world: DatabaseWorld) -> None:
    world.lay_out("CREATE SCHEMA app", "ALTER ROLE CURRENT_USER SET search_path = app, public")
    world.agent(
        ["CREATE TABLE app.customers AS SELECT 1 AS id", "CREATE SCHEMA evil", "CREATE TABLE evil.orders (id int)"]
    )
    outcome = world.ask(ALL, equals=0)
    assert outcome.status == "fail"
    assert "in the place of public.customers" in outcome.message
    assert world.ask("SELECT count(*) FROM orders", equals=0).status == "pass"


@honest("databases", PATH)
@pytest.mark.parametrize("world", POSTGRES_KINDS[1:3], indirect=True)
def test_a_new_table_in_a_schema_of_the_path_is_read(world: DatabaseWorld) -> None:
    world.lay_out("CREATE SCHEMA app", "ALTER ROLE CURRENT_USER SET search_path = app, public")
    world.agent(["CREATE TABLE app.invoices AS SELECT 1 AS id"])
    assert world.ask("SELECT id FROM invoices", equals=1).status == "pass"
    assert world.ask(ALL, equals=3).status == "pass"


@hostile("databases", FOREVER, held_by="SQLite is a process that is killed", sandbox="both")
@SQLITE
def test_sqlite_is_killed_in_a_function_that_heeds_nothing(world: DatabaseWorld) -> None:
    world.lay_out()
    haystack, needle = "hex(zeroblob(20000000))", "hex(zeroblob(5000000)) || '1'"
    world.agent([f"CREATE VIEW busy AS SELECT instr({haystack}, {needle}) AS found"])
    outcome = world.ask("SELECT found FROM busy", equals=0, timeout=1.0)
    assert outcome.status == "fail"
    assert "time limit of 1 s" in outcome.message


@hostile("databases", FOREVER, held_by="the session is ended from outside", sandbox="both")
@pytest.mark.parametrize("world", POSTGRES_KINDS[:3], indirect=True)
def test_a_function_that_catches_the_time_limit_is_ended(world: DatabaseWorld) -> None:
    world.lay_out()
    loop = "LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP"
    world.agent([f"CREATE FUNCTION busy() RETURNS int LANGUAGE plpgsql AS $$BEGIN {loop}; END$$"])
    outcome = world.ask("SELECT busy()", equals=0, timeout=1.0)
    assert outcome.status == "fail"
    assert "time limit of 1 s" in outcome.message
    still = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = 'SELECT busy()'"
    for _ in range(100):
        if world.ask(still, equals=0).status == "pass":
            return
    pytest.fail("the session goes on")


@hostile("databases", FOREVER, held_by="the session is ended from outside", sandbox="both")
@pytest.mark.parametrize("world", ["external mariadb", DOCKER[-1]], indirect=True)
def test_a_view_of_mysqls_that_takes_its_time_is_ended(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["CREATE VIEW busy AS SELECT benchmark(1000000000000, sha2('x', 512)) AS n"])
    outcome = world.ask("SELECT n FROM busy", equals=0, timeout=1.0)
    assert outcome.status == "fail"
    assert "time limit of 1 s" in outcome.message


@honest("databases", FOREVER, sandbox="both")
@URLS_USER
def test_a_slow_query_of_the_authors_own_is_an_error_still(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["CREATE VIEW quick AS SELECT count(*) AS n FROM customers"])
    slow = {
        "postgres": "SELECT pg_sleep(600)",
        "mysql": "SELECT benchmark(1000000000000, sha2('x', 512))",
        "sqlite": "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    }
    outcome = world.ask(slow[world.dialect], equals=0, timeout=1.0)
    assert outcome.status == "error"
    assert "time limit of 1 s" in outcome.message
    assert world.ask("SELECT n FROM quick", equals=3).status == "pass"


YES = "CREATE FUNCTION public.yes(varchar, varchar) RETURNS boolean LANGUAGE sql AS 'SELECT true'"
OPERATOR = "CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = public.yes)"
FUNCTION = "CREATE FUNCTION public.lower(varchar) RETURNS text LANGUAGE sql AS $$SELECT 'fine'$$"


@hostile("databases", BUILT_IN, held_by="the catalogue of those is compared with the one before the agent")
@POSTGRES
@pytest.mark.parametrize(
    ("statements", "query", "lie"),
    [
        ([YES, OPERATOR], f"{ALL} WHERE email = 'nobody'", 3),
        ([FUNCTION], "SELECT lower(email) FROM customers WHERE id = 1", "fine"),
    ],
)
def test_nothing_built_in_is_replaced(world: DatabaseWorld, statements: Sequence[str], query: str, lie: object) -> None:
    world.lay_out()
    world.agent(statements)
    outcome = world.ask(query, equals=lie)
    assert outcome.status == "fail"
    assert "which stands in for a built-in" in outcome.message


@honest("databases", BUILT_IN)
@pytest.mark.parametrize("world", POSTGRES_KINDS[::2], indirect=True)
def test_what_the_author_replaced_and_what_has_other_names_is_no_replacement(world: DatabaseWorld) -> None:
    world.lay_out(FUNCTION)
    world.agent(["CREATE FUNCTION shown(varchar) RETURNS text LANGUAGE sql AS $$SELECT upper($1)$$"])
    assert world.ask("SELECT lower(email) FROM customers WHERE id = 1", equals="fine").status == "pass"
    assert world.ask("SELECT shown(email) FROM customers WHERE id = 1", equals="A@EXAMPLE.COM").status == "pass"


PARTITIONS = (
    "DROP TABLE deliveries",
    "CREATE TABLE deliveries (id int, place text) PARTITION BY LIST (id)",
    "CREATE TABLE first PARTITION OF deliveries FOR VALUES IN (1) PARTITION BY LIST (place)",
)
ELSEWHERE = "a partition, at any depth, whose rows come from another server"


def superuser(postgres: PostgresForTests, cell: PostgresCell, statements: Sequence[str]) -> None:
    with postgres.service._server.admin(cell.place.for_agent.database) as session:
        for statement in statements:
            session.execute(statement.encode())


@pytest.fixture
def two_roles(postgres: PostgresForTests, cell: PostgresCell) -> PostgresCell:
    """A table that is laid out, in a database where the agent may have foreign tables."""
    cell.fixture("CREATE TABLE deliveries (id int)")
    wrapper = ("CREATE FOREIGN DATA WRAPPER away", "CREATE SERVER elsewhere FOREIGN DATA WRAPPER away")
    superuser(postgres, cell, (*wrapper, "GRANT USAGE ON FOREIGN SERVER elsewhere TO PUBLIC"))
    postgres.portal.call(cell.place.seal)
    with cell.agent() as session:
        for statement in PARTITIONS:
            session.execute(statement.encode())
    return cell


@hostile("databases", ELSEWHERE, held_by=COMPARED)
@pytest.mark.parametrize("parent", ["deliveries", "first"])
def test_no_partition_has_its_rows_elsewhere(two_roles: PostgresCell, parent: str) -> None:
    value = {"deliveries": "2", "first": "'there'"}[parent]
    with two_roles.agent() as session:
        statement = f"CREATE FOREIGN TABLE away PARTITION OF {parent} FOR VALUES IN ({value}) SERVER elsewhere"
        session.execute(statement.encode())
    with pytest.raises(QueryFailed, match="the foreign child away") as failed:
        two_roles.query("SELECT count(*) FROM deliveries WHERE id = 3")
    assert failed.value.by_agent


@honest("databases", ELSEWHERE)
def test_a_table_in_partitions_is_read(two_roles: PostgresCell) -> None:
    with two_roles.agent() as session:
        session.execute(b"CREATE TABLE here PARTITION OF first FOR VALUES IN ('here')")
        session.execute(b"INSERT INTO deliveries VALUES (1, 'here')")
    assert two_roles.query("SELECT count(*) FROM deliveries").rows == ((1,),)


CRASH = "has the server crash, so that what it wrote is lost"


@pytest.fixture
def own_server(portal: BlockingPortal, sandboxes: ProcessSandboxes, tmp_path: Path) -> Iterator[PostgresForTests]:
    """Which may crash."""
    definition = PostgresService(type="postgres", name="db")
    place = sandboxes.root / f"crash-{secrets.token_hex(4)}"
    service = EmbeddedPostgres(definition, place, sandboxes, watches_writes=True)
    portal.call(service.start)
    yield PostgresForTests(portal, service, tmp_path)
    portal.call(service.stop)


def written_outside(server: PostgresForTests) -> PostgresCell:
    """A cell whose agent wrote what it must not."""
    cell = server.attach(watches_writes=True)
    cell.fixture("CREATE TABLE orders (id int); CREATE TABLE payroll (id int)")
    cell.agent().execute("INSERT INTO payroll VALUES (1)")
    return cell


@hostile("databases", CRASH, held_by="a crashed server stays ended, and is an error")
def test_no_forbidden_write_is_lost_with_a_crash(own_server: PostgresForTests) -> None:
    """Killed from outside: an agent needs a query that takes all memory for it."""
    cell = written_outside(own_server)
    with own_server.service._server.admin() as admin:
        row = admin.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").fetchone()
    assert row is not None
    os.kill(row[0], signal.SIGKILL)
    with pytest.raises(psycopg.OperationalError):
        cell.agent_sessions[0].execute("SELECT pg_sleep(600)")
    with pytest.raises(ServiceError, match="crashed or was killed"):
        cell.place.settle()
    assert cell.place.writes is not None
    with pytest.raises(ServiceError):
        cell.place.writes.writes()


@honest("databases", CRASH)
def test_a_write_of_an_agent_that_ends_its_session_is_told(own_server: PostgresForTests) -> None:
    cell = written_outside(own_server)
    with cell.agent() as other:
        other.execute("SELECT pg_terminate_backend(%s)", (cell.agent_sessions[0].info.backend_pid,))
    cell.place.settle()
    assert cell.place.writes is not None
    assert [(one.table, one.operation) for one in cell.place.writes.writes()] == [("public.payroll", "insert")]
    cell.place.require_unbroken()
