"""What agents write into a PostgreSQL, and what must be seen of it: for the embedded server and for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import psycopg

from keystone_action.evidence.writes import TableWrite
from keystone_action.services.service import Place

Told = tuple[str, str, str, int | None, str]
"""Table, what it is, operation, rows, how it is known."""

FIXTURE = """
    CREATE TABLE users (id int PRIMARY KEY, name text);
    INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 5) n;
    CREATE TABLE notes (text text); INSERT INTO notes VALUES ('a'), ('b'), ('c');
    CREATE TABLE orders (id serial PRIMARY KEY, user_id int REFERENCES users ON DELETE CASCADE);
    CREATE TABLE audit (what text);
    CREATE TABLE events (day int, what text) PARTITION BY RANGE (day);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (day);
    CREATE TABLE events_1_1 PARTITION OF events_1 FOR VALUES FROM (0) TO (5);
    CREATE UNLOGGED TABLE loose (id int); INSERT INTO loose VALUES (1), (2);
    CREATE TABLE "Odd ""Name"".x, y: INSERT: " ("a]:'b" text);
    CREATE SCHEMA other; CREATE TABLE other.users (LIKE users);
    CREATE SEQUENCE lonely;
    CREATE VIEW names AS SELECT name FROM users;
    CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO audit VALUES (new.text); RETURN new; END $$;
"""
ODD = 'public.Odd "Name".x, y: INSERT: '
SCRATCH = "public.mine"


def log(table: str, operation: str, rows: int | None = None, what: str = "table") -> Told:
    return (table, what, operation, rows, "log")


def compared(table: str, operation: str = "change", rows: int | None = None, what: str = "table") -> Told:
    return (table, what, operation, rows, "comparison")


WAYS: dict[str, tuple[Sequence[str], set[Told]]] = {
    "insert": (["INSERT INTO notes VALUES ('d'), ('e')"], {log("public.notes", "insert", 2)}),
    "update, no key": (["UPDATE notes SET text = text || '!'"], {log("public.notes", "update", 3)}),
    "delete, no key": (["DELETE FROM notes WHERE text < 'c'"], {log("public.notes", "delete", 2)}),
    "the value it had": (["UPDATE users SET name = name WHERE id = 1"], {log("public.users", "update", 1)}),
    "written and undone by hand": (
        ["INSERT INTO notes VALUES ('x')", "DELETE FROM notes WHERE text = 'x'"],
        {log("public.notes", "insert", 1), log("public.notes", "delete", 1)},
    ),
    "copy": (["COPY notes FROM STDIN"], {log("public.notes", "insert", 1)}),
    "truncate with cascade": (
        ["TRUNCATE users CASCADE"],
        {log("public.users", "truncate"), log("public.orders", "truncate")},
    ),
    "a foreign key's cascade": (
        ["INSERT INTO orders VALUES (100, 1)", "DELETE FROM users WHERE id = 1"],
        {log("public.orders", "insert", 1), log("public.orders", "delete", 1), log("public.users", "delete", 1)},
    ),
    "a trigger": (
        [
            "CREATE TRIGGER also BEFORE INSERT ON notes FOR EACH ROW EXECUTE FUNCTION also()",
            "INSERT INTO notes VALUES ('d')",
        ],
        {
            log("public.notes", "create", what="trigger"),
            log("public.notes", "insert", 1),
            log("public.audit", "insert", 1),
        },
    ),
    "a function": (
        ["DO $$ BEGIN EXECUTE 'INSERT INTO ' || 'au' || 'dit VALUES (1)'; END $$"],
        {log("public.audit", "insert", 1)},
    ),
    "a view": (["UPDATE names SET name = 'x' WHERE name = 'user 1'"], {log("public.users", "update", 1)}),
    "a rule": (
        [
            "CREATE RULE also AS ON INSERT TO notes DO ALSO INSERT INTO audit VALUES (new.text)",
            "INSERT INTO notes VALUES ('d')",
        ],
        {
            log("public.notes", "create", what="rule"),
            log("public.notes", "insert", 1),
            log("public.audit", "insert", 1),
        },
    ),
    "a partition by its parent": (["INSERT INTO events VALUES (1, 'x')"], {log("public.events", "insert", 1)}),
    "a partition by its name": (["INSERT INTO events_1_1 VALUES (1, 'x')"], {log("public.events", "insert", 1)}),
    "a new partition": (
        ["CREATE TABLE later PARTITION OF events FOR VALUES FROM (10) TO (20)", "INSERT INTO events VALUES (11, 'x')"],
        {log("public.events", "create", what="partition"), log("public.events", "insert", 1)},
    ),
    "a partition that comes and goes": (
        [
            "CREATE TABLE later PARTITION OF events FOR VALUES FROM (10) TO (20)",
            "INSERT INTO events VALUES (11, 'x')",
            "DROP TABLE later",
        ],
        {
            log("public.events", "create", what="partition"),
            log("public.events", "insert", 1),
            log("public.events", "drop", what="partition"),
        },
    ),
    "a table that becomes a partition": (
        [
            "CREATE TABLE mine (day int, what text) PARTITION BY RANGE (day)",
            "ALTER TABLE other.users DROP COLUMN id, DROP COLUMN name, ADD day int, ADD what text",
            "ALTER TABLE mine ATTACH PARTITION other.users FOR VALUES FROM (0) TO (5)",
            "INSERT INTO mine VALUES (1, 'x')",
        ],
        {
            log(SCRATCH, "create"),
            log(SCRATCH, "alter"),
            log("other.users", "alter"),
            log("other.users", "insert", 1),
        },
    ),
    "a name that needs quotes": (
        ['INSERT INTO "Odd ""Name"".x, y: INSERT: " VALUES (\'x\')', 'TRUNCATE "Odd ""Name"".x, y: INSERT: ", notes'],
        {log(ODD, "insert", 1), log(ODD, "truncate"), log("public.notes", "truncate")},
    ),
    "a temporary table in its place": (
        ["CREATE TEMP TABLE users (id int)", "INSERT INTO users VALUES (9)", "UPDATE public.users SET name = 'x'"],
        {log("public.users", "update", 5)},
    ),
    "only temporary tables": (
        ["CREATE TEMP TABLE mine (id serial PRIMARY KEY)", "INSERT INTO mine DEFAULT VALUES", "DROP TABLE mine"],
        set(),
    ),
    "rolled back": (
        ["BEGIN", "INSERT INTO users VALUES (9)", "CREATE TABLE mine ()", "DROP TABLE notes", "ROLLBACK"],
        set(),
    ),
    "a savepoint rolled back": (
        ["BEGIN", "SAVEPOINT s", "DELETE FROM users", "ROLLBACK TO s", "INSERT INTO notes VALUES ('d')", "COMMIT"],
        {log("public.notes", "insert", 1)},
    ),
    "only read": (["SELECT count(*) FROM users", "SELECT * FROM notes FOR UPDATE", "ANALYZE", "SELECT 1"], set()),
    "made and dropped": (
        ["CREATE TABLE mine AS SELECT 1 one", "DROP TABLE mine"],
        {log(SCRATCH, "create"), log(SCRATCH, "insert", 1), log(SCRATCH, "drop")},
    ),
    "made, without a key": (
        [
            "CREATE TABLE mine (j json)",
            "INSERT INTO mine VALUES ('{}')",
            "UPDATE mine SET j = '[]'",
            "DELETE FROM mine",
        ],
        {log(SCRATCH, "create"), log(SCRATCH, "insert", 1), log(SCRATCH, "update", 1), log(SCRATCH, "delete", 1)},
    ),
    "made by select into": (["SELECT 1 one INTO mine"], {log(SCRATCH, "create"), log(SCRATCH, "insert", 1)}),
    "made and renamed": (
        ["CREATE TABLE notes_2 (LIKE notes)", "ALTER TABLE notes RENAME TO old", "ALTER TABLE notes_2 RENAME TO notes"],
        {
            log("public.notes_2", "create"),
            log("public.notes", "alter"),
            log("public.old", "alter"),
        },
    ),
    "another table's name for a while": (
        [
            "ALTER TABLE notes RENAME TO was_notes",
            "ALTER TABLE audit RENAME TO notes",
            "INSERT INTO notes VALUES ('x')",
            "ALTER TABLE notes RENAME TO audit",
            "ALTER TABLE was_notes RENAME TO notes",
        ],
        {
            log("public.notes", "alter"),
            log("public.was_notes", "alter"),
            log("public.audit", "alter"),
            log("public.notes", "insert", 1),
        },
    ),
    "another schema's name": (
        ["ALTER SCHEMA other RENAME TO mine", "INSERT INTO mine.users VALUES (1)"],
        {
            log("other", "alter", what="schema"),
            log("mine", "alter", what="schema"),
            log("mine.users", "insert", 1),
        },
    ),
    "index, key, statistics": (
        ["CREATE INDEX by_text ON notes (text)", "ALTER TABLE notes ADD PRIMARY KEY (text)", "DROP INDEX by_text"],
        {
            log("public.notes", "create", what="index"),
            log("public.notes", "alter"),
            log("public.notes", "drop", what="index"),
        },
    ),
    "index, concurrently": (
        ["CREATE INDEX CONCURRENTLY by_text ON notes (text)", "DROP INDEX CONCURRENTLY by_text"],
        {log("public.notes", "create", what="index"), log("public.notes", "drop", what="index")},
    ),
    "a schema with all that is in it": (
        ["DROP SCHEMA other CASCADE"],
        {log("other", "drop", what="schema"), log("other.users", "drop")},
    ),
    "a table with its partitions": (
        ["DROP TABLE events"],
        {log("public.events", "drop")},
    ),
    "a view, a type, a function": (
        ["CREATE VIEW mine AS SELECT 1 one", "CREATE TYPE mood AS ENUM ('good')", "DROP FUNCTION also()"],
        {
            log(SCRATCH, "create", what="view"),
            log("public.mood", "create", what="type"),
            log("public.also", "drop", what="function"),
        },
    ),
    "a materialized view": (
        ["CREATE MATERIALIZED VIEW mine AS SELECT 1 one", "REFRESH MATERIALIZED VIEW mine"],
        {log(SCRATCH, "create", what="materialized view"), log(SCRATCH, "change", what="materialized view")},
    ),
    "a comment": (["COMMENT ON TABLE users IS 'x'"], {log("public.users", "alter")}),
    "rights": (["GRANT SELECT ON users TO PUBLIC"], {compared("public.users", "alter", what="rights")}),
    "rights on a column": (
        ["GRANT SELECT (id) ON users TO PUBLIC"],
        {compared("public.users", "alter", what="rights")},
    ),
    "rights by default": (
        ["ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC"],
        {log("default privileges", "alter", what="rights")},
    ),
    "row security": (["CREATE POLICY mine ON users USING (true)"], {log("public.users", "create", what="policy")}),
    "nextval": (["SELECT nextval('lonely')"], {compared("public.lonely", what="sequence")}),
    "setval": (["SELECT setval('orders_id_seq', 2147483647)"], {compared("public.orders", what="sequence")}),
    "a serial column": (
        ["INSERT INTO orders (user_id) VALUES (1)"],
        {log("public.orders", "insert", 1), compared("public.orders", what="sequence")},
    ),
    "a large object": (
        ["SELECT lo_from_bytea(0, 'x')"],
        {compared("pg_catalog.pg_largeobject", "change", 1, "large object")},
    ),
    "unlogged, added": (["INSERT INTO loose VALUES (3)"], {compared("public.loose", "insert", 1)}),
    "unlogged, removed": (["DELETE FROM loose"], {compared("public.loose", "delete", 2)}),
    "unlogged, changed": (["UPDATE loose SET id = 9 WHERE id = 1"], {compared("public.loose", "change", 1)}),
    "unlogged, made": (
        ["CREATE UNLOGGED TABLE mine (id int)", "INSERT INTO mine VALUES (1)"],
        {log(SCRATCH, "create"), compared(SCRATCH, "insert", 1)},
    ),
    "unlogged while it is written": (
        ["ALTER TABLE notes SET UNLOGGED", "INSERT INTO notes VALUES ('x')", "ALTER TABLE notes SET LOGGED"],
        {log("public.notes", "alter")},
    ),
    "replica identity": (
        ["ALTER TABLE notes REPLICA IDENTITY NOTHING", "UPDATE notes SET text = 'x' WHERE text = 'a'"],
        {log("public.notes", "alter"), log("public.notes", "update", 1)},
    ),
}
"""Statements of an agent, and all that is told of them."""


class WatchedCell(Protocol):
    """A cell of either kind of server."""

    place: Place

    def fixture(self, script: str) -> None: ...

    def seal(self) -> None: ...


def told(writes: Sequence[TableWrite]) -> set[Told]:
    assert len(writes) == len({(one.table, one.what, one.operation, one.how_known) for one in writes})
    assert all(bool(one.ts) == (one.how_known == "log") for one in writes)
    return {(one.table, one.what, one.operation, one.rows, one.how_known) for one in writes}


def written(cell: WatchedCell) -> set[Told]:
    """What was seen of an agent that has ended."""
    cell.place.settle()
    assert cell.place.writes is not None
    return told(cell.place.writes.writes())


def work(cell: WatchedCell, statements: Sequence[str]) -> list[str]:
    """Run them as the agent; what the server answered."""
    answers = []
    with psycopg.connect(cell.place.for_host.url, autocommit=True) as session:
        for statement in statements:
            try:
                answers.append(_answer(session, statement))
            except psycopg.Error as error:
                answers.append(f"{error.sqlstate}: {error}")
    return answers


def _answer(session: psycopg.Connection[Any], statement: str) -> str:
    if "FROM STDIN" in statement:
        with session.cursor().copy(statement.encode()) as copy:
            copy.write_row(["copied"])
        return "COPY"
    done = session.execute(statement.encode())
    return f"{done.statusmessage} {done.rowcount}"
