"""What differs in tables, sequences and large objects between two looks, on the embedded server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from support.databases import PostgresCell, PostgresForTests

from keystone_action.services.postgres import row_comparison as comparison
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.postgres.row_comparison import relations

Session = psycopg.Connection[Any]
TABLES = """
    CREATE TABLE kept (id int PRIMARY KEY, text text); INSERT INTO kept SELECT n, 'x' FROM generate_series(1, 10) n;
    CREATE UNLOGGED TABLE loose (id serial, data bytea);
    CREATE TABLE events (day int) PARTITION BY RANGE (day);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10);
    CREATE SEQUENCE lonely;
"""


@pytest.fixture
def watched(postgres: PostgresForTests) -> Iterator[PostgresCell]:
    made = postgres.attach()
    made.fixture(TABLES)
    yield made
    made.close()


@pytest.fixture
def session(watched: PostgresCell) -> Iterator[Session]:
    cell = cast(PostgresPlace, watched.place).cell
    with cell.server.admin(cell.database) as admin:
        yield admin


def looked_at(watched: PostgresCell, session: Session, *statements: str) -> set[tuple[str, str, str, int | None]]:
    tables = comparison.look_at_tables(session, comparison.is_table)
    objects = comparison.look_at_objects(session)
    agent = watched.agent()
    for statement in statements:
        agent.execute(statement.encode())
    found = comparison.tables_written(session, tables, "db") + comparison.objects_written(session, objects, "db")
    assert {(one.service, one.how_known, one.ts) for one in found} <= {("db", "comparison", "")}
    return {(one.table, one.what, one.operation, one.rows) for one in found}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("INSERT INTO kept VALUES (11, 'y'), (12, 'z')", {("public.kept", "table", "insert", 2)}),
        ("UPDATE kept SET text = 'y' WHERE id = 3", {("public.kept", "table", "change", 1)}),
        ("UPDATE kept SET text = text WHERE id = 3", {("public.kept", "table", "change", 1)}),
        ("DELETE FROM kept WHERE id < 4", {("public.kept", "table", "delete", 3)}),
        ("TRUNCATE kept", {("public.kept", "table", "delete", 10)}),
        ("INSERT INTO events VALUES (1)", {("public.events", "table", "insert", 1)}),
        (
            "INSERT INTO loose (data) VALUES ('x')",
            {("public.loose", "table", "insert", 1), ("public.loose", "sequence", "change", None)},
        ),
        ("SELECT setval('lonely', 1, true)", {("public.lonely", "sequence", "change", None)}),
        ("SELECT lo_from_bytea(0, 'x')", {(comparison.LARGE_OBJECTS, "large object", "change", 1)}),
        ("DROP TABLE kept", {("public.kept", "table", "drop", 10)}),
        ("CREATE TABLE mine ()", {("public.mine", "table", "create", None)}),
        ("ALTER TABLE kept RENAME TO other", {("public.kept", "table", "alter", None)}),
        ("BEGIN; DELETE FROM kept; ROLLBACK", set()),
        ("CREATE TEMP TABLE kept AS SELECT 1", set()),
        ("SELECT * FROM kept FOR UPDATE", set()),
        ("INSERT INTO kept VALUES (11, 'y'); DELETE FROM kept WHERE id = 11", set()),
    ],
)
def test_what_differs_is_told_by_table_and_operation(
    watched: PostgresCell, session: Session, statement: str, expected: set[tuple[str, str, str, int | None]]
) -> None:
    assert looked_at(watched, session, statement) == expected


def test_rows_that_only_moved_or_were_frozen_were_not_written(watched: PostgresCell, session: Session) -> None:
    moved = ("VACUUM FREEZE kept", "VACUUM FULL kept", "CLUSTER kept USING kept_pkey", "ANALYZE")
    assert looked_at(watched, session, *moved) == set()


def test_values_that_were_written_come_as_they_are_and_by_no_function_of_the_agents(
    watched: PostgresCell, session: Session
) -> None:
    before = comparison.look_at_tables(session, comparison.is_table)
    agent = watched.agent()
    agent.execute("CREATE TYPE pair AS (a int, b text)")
    agent.execute("CREATE TABLE seen (who text)")
    agent.execute(
        "CREATE FUNCTION spy(pair) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN 'hidden'; END $$"
    )
    agent.execute("CREATE CAST (pair AS text) WITH FUNCTION spy(pair) AS IMPLICIT")
    agent.execute("CREATE TABLE pairs (both_of pair)")
    agent.execute("INSERT INTO pairs VALUES (ROW(1, 'told'))")
    agent.execute("UPDATE kept SET text = E'it''s\\t\\\\ \\n' WHERE id = 3")
    values = list(comparison.values_written(session, before))
    assert ("public.kept", "it's\t\\ \n") in values
    assert ("public.pairs", "(1,told)") in values
    assert agent.execute("SELECT count(*) FROM seen").fetchone() == (0,)


def test_a_value_that_stands_on_two_pages_of_a_large_object_is_found(watched: PostgresCell, session: Session) -> None:
    before = comparison.look_at_objects(session)
    watched.agent().execute("SELECT lo_from_bytea(0, (repeat('x', 2040) || 'the-secret-of-all')::bytea)")
    assert any("the-secret-of-all" in text for _, text in comparison.large_objects_written(session, before))


def test_what_belongs_to_a_table_is_told_as_the_table(watched: PostgresCell, session: Session) -> None:
    told = {one.name: one.told for one in relations(session).values()}
    assert told["public.events_1"] == "public.events"
    assert told["public.loose_id_seq"] == "public.loose"
    assert told["public.kept_pkey"] == "public.kept"
    assert told["public.lonely"] == "public.lonely"
