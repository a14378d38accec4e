"""Scripts for PostgreSQL: dumps of its own `pg_dump`, what people write for `psql`, and what a failure says."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.databases import PostgresCell, PostgresForTests
from support.dumps import pg_dump, run_psql

from keystone_action.errors import ServiceError
from keystone_action.services.postgres.psql_script import role_passed_over
from keystone_action.services.postgres.psql_splitter import PsqlCommand, StatementSplitter
from keystone_action.services.sql_script import SqlScript, Statement

NewCell = Callable[[], PostgresCell]
SHOP = r"""
CREATE SCHEMA app;
CREATE TYPE app.mood AS ENUM ('fine', 'it''s; bad');
CREATE TABLE app.buyers (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, memo text, mood app.mood, photo bytea,
    tags text[] DEFAULT '{}', paid numeric(12, 2) CHECK (paid > 0), "odd ""name" jsonb
);
INSERT INTO app.buyers (name, memo, mood, photo, tags, paid, "odd ""name") VALUES
    ('Zoë', E'one\ntwo\\.\ttab\r', 'fine', '\x00ff5c2e', '{a,"b c",NULL}', 1.50, '{"a": [1, "\\."]}'),
    ('O''Neil; DROP', NULL, 'it''s; bad', NULL, NULL, NULL, 'null'),
    ('\.', '\N', NULL, ''::bytea, '{}', 0.01, '"$$ -- /* ''"');
CREATE VIEW app.names AS SELECT name || ';' AS name FROM app.buyers WHERE memo IS DISTINCT FROM '--';
CREATE FUNCTION app.add(a int, b int) RETURNS int LANGUAGE sql IMMUTABLE BEGIN ATOMIC
    SELECT CASE WHEN a > 0 THEN a + b ELSE b END; END;
CREATE FUNCTION app.touch() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN
    NEW.memo := coalesce(NEW.memo, $a$it's; \. "$a$); RETURN NEW; END $body$;
CREATE TRIGGER touch BEFORE UPDATE ON app.buyers FOR EACH ROW EXECUTE FUNCTION app.touch();
CREATE TABLE public.big AS SELECT n AS id, repeat('x', n % 50) || chr(92) AS text FROM generate_series(1, 5000) n;
CREATE INDEX ON public.big (id DESC) INCLUDE (text);
COMMENT ON TABLE app.buyers IS 'who buys; and -- who "pays"';
"""


@pytest.fixture
def new_cell(postgres: PostgresForTests) -> Iterator[NewCell]:
    made: list[PostgresCell] = []

    def make() -> PostgresCell:
        made.append(postgres.attach())
        return made[-1]

    yield make
    for one in made:
        one.close()


def script(path: Path, *, includes: frozenset[Path] | None = None) -> SqlScript:
    return SqlScript(path.name, path=path, directory=path.parent.resolve(), includes=includes)


def refused(cell: PostgresCell, one: SqlScript | str) -> ServiceError:
    with pytest.raises(ServiceError) as failure:
        cell.run(SqlScript("sql", text=one) if isinstance(one, str) else one)
    return failure.value


def rows(cell: PostgresCell, query: str) -> list[tuple[Any, ...]]:
    return cell.agent().execute(query.encode()).fetchall()


def test_a_dump_is_loaded_as_psql_loads_it(new_cell: NewCell, tmp_path: Path) -> None:
    source, by_psql, ours = new_cell(), new_cell(), new_cell()
    source.fixture(SHOP)
    file = tmp_path / "dump.sql"
    options = ("--no-owner", "--no-privileges")
    for kind in ((), ("--inserts",), ("--column-inserts", "--rows-per-insert=7", "--disable-dollar-quoting")):
        file.write_bytes(pg_dump(source.place.for_agent.url, *options, *kind))
        assert b"\\restrict" in file.read_bytes()
        for cell in (by_psql, ours):
            cell.agent().execute("DROP SCHEMA IF EXISTS app CASCADE; DROP TABLE IF EXISTS public.big")
        done = run_psql(by_psql.place.for_agent.url, file)
        assert (done.returncode, done.stderr) == (0, b"")
        assert ours.run(script(file)) == ()
        whole = pg_dump(ours.place.for_agent.url, *options)
        assert whole == pg_dump(by_psql.place.for_agent.url, *options) == pg_dump(source.place.for_agent.url, *options)
    assert rows(ours, "SELECT app.add(1, 2), (SELECT count(*) FROM big)") == [(3, 5000)]


def test_a_byte_order_mark_and_line_ends_of_windows_do_no_harm(new_cell: NewCell, tmp_path: Path) -> None:
    cell, file = new_cell(), tmp_path / "dump.sql"
    text = "CREATE TABLE t (a text, b text);\nCOPY t FROM stdin;\n1\tZoë\n2\t\\N\n\\.\nINSERT INTO t VALUES ('3', 'x')"
    file.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    cell.run(script(file))
    assert rows(cell, "SELECT * FROM t ORDER BY a") == [("1", "Zoë"), ("2", None), ("3", "x")]


def test_a_dump_in_another_encoding_is_read_by_its_own_word(new_cell: NewCell, tmp_path: Path) -> None:
    source, cell, file = new_cell(), new_cell(), tmp_path / "dump.sql"
    source.fixture("CREATE TABLE t (a text); INSERT INTO t VALUES ('Zoë')")
    file.write_bytes(pg_dump(source.place.for_agent.url, "--no-owner", "--encoding=LATIN1"))
    assert b"Zo\xeb" in file.read_bytes()
    cell.run(script(file))
    assert rows(cell, "SELECT a FROM t") == [("Zoë",)]
    file.write_bytes(b"INSERT INTO t VALUES ('Zo\xeb')")
    failure = refused(cell, script(file))
    assert "dump.sql:1: INSERT INTO t: invalid byte sequence for encoding" in failure.message
    assert "eb" not in failure.message.rpartition("encoding")[2]
    assert "UTF-8" in failure.help
    file.write_bytes(b"SET client_encoding = 'SJIS';\nSELECT 1;")
    assert "dump.sql:1: this client_encoding is not read here" in refused(cell, script(file)).message


OWNERS = """
CREATE TABLE t (id int);
ALTER TABLE public.t OWNER TO shop_admin;
CREATE FUNCTION f(a int, b text) RETURNS int LANGUAGE sql AS 'SELECT 1';
ALTER FUNCTION public.f(a integer, b text) OWNER TO "Shop; Admin";
GRANT SELECT,INSERT ON TABLE public.t TO reporting;
REVOKE ALL ON SCHEMA public FROM reporting;
ALTER DEFAULT PRIVILEGES FOR ROLE shop_admin IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC;
GRANT SELECT ON TABLE public.t TO PUBLIC;
CREATE EXTENSION IF NOT EXISTS plpgsql WITH SCHEMA pg_catalog;
COMMENT ON EXTENSION plpgsql IS 'PL/pgSQL procedural language';
INSERT INTO t VALUES (1);
"""


@pytest.mark.parametrize("around", ["{}", "BEGIN;{}COMMIT;"], ids=["alone", "in a transaction"])
def test_owners_and_rights_of_roles_that_are_not_here_are_passed_over_and_counted(
    new_cell: NewCell, around: str
) -> None:
    cell = new_cell()
    (notice,) = cell.run(SqlScript("dump.sql", text=around.format(OWNERS)))
    assert notice == (
        "fixture dump.sql: passed over 2 changes of owner, 3 rights, 1 comments on extensions "
        "(not here: shop_admin, Shop; Admin, reporting)"
    )
    assert rows(cell, "SELECT id FROM t") == [(1,)]
    assert rows(cell, "SELECT has_table_privilege('public', 't', 'SELECT')") == [(True,)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN c int, OWNER TO missing",
        "ALTER TABLE t OWNER TO missing, ADD COLUMN c int",
        "GRANT SELECT ON t TO CURRENT_USER, missing",
        "CREATE SCHEMA more AUTHORIZATION missing",
        "CREATE POLICY p ON t TO missing",
        "DROP ROLE missing",
        "SET ROLE missing",
        "ALTER TABLE nowhere OWNER TO missing",
        "GRANT SELECT ON nowhere TO missing",
    ],
)
def test_whatever_does_more_is_not_passed_over(new_cell: NewCell, statement: str) -> None:
    cell = new_cell()
    cell.fixture("CREATE TABLE t (id int)")
    assert "sql:1: " in refused(cell, statement).message


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ('ALTER TABLE ONLY public."a, b" OWNER TO "Me";', ("changes of owner", ("Me",))),
        ("alter operator public.=== (int, int) owner to me", ("changes of owner", ("me",))),
        ("GRANT SELECT(a,b),UPDATE(c) ON t TO me WITH GRANT OPTION", ("rights", ("me",))),
        ("/* x */ REVOKE ALL ON t -- y\n FROM me CASCADE", ("rights", ("me",))),
        ("ALTER DEFAULT PRIVILEGES FOR ROLE a IN SCHEMA s REVOKE ALL ON TABLES FROM b", ("rights", ("a", "b"))),
        ("GRANT SELECT ON t TO PUBLIC", ("rights", ())),
        ("GRANT SELECT ON t TO a, b", None),
        ("ALTER TABLE t ALTER c SET DEFAULT ', OWNER TO me'", None),
        ("ALTER TABLE t RENAME TO me", None),
    ],
)
def test_which_statements_are_about_a_role_alone(statement: str, expected: Any) -> None:
    (found,) = split(statement.removesuffix(";") + ";")
    assert role_passed_over(Statement(found[0].encode(), 1, found[1])) == expected


def test_an_extension_that_the_embedded_server_lacks_is_one_sentence(new_cell: NewCell) -> None:
    failure = refused(new_cell(), "\nCREATE EXTENSION IF NOT EXISTS pgcrypto WITH SCHEMA public;")
    assert failure.message.endswith(
        'sql:2: CREATE EXTENSION IF NOT EXISTS pgcrypto: extension "pgcrypto" is not available'
    )
    assert failure.help == (
        "The embedded PostgreSQL does not have it: give the service `image: postgres:17`, which needs a Docker engine."
    )


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (
            f"COPY t FROM stdin;\n1\ta\n2\tb\n{SECRET}\tc\n\\.\n",
            "5: COPY t",
            "invalid input syntax for type integer: …",
        ),
        (f"COPY t FROM stdin;\n1\t{SECRET}\t{SECRET}\n\\.\n", "3: COPY t", "extra data after last expected column"),
        (f"INSERT INTO t VALUES ({SECRET});", "2: INSERT INTO t", "column …"),
        (f"INSERT INTO t VALUES (1,\n '{SECRET}' {SECRET});", "3: INSERT INTO t", "syntax error at or near …"),
        (f"INSERT INTO public.t VALUES ('{SECRET}');", "2: INSERT INTO public.t", "invalid input syntax"),
        (f"INSERT INTO t SELECT 1, '{SECRET}{SECRET}';", "2: INSERT INTO t", "too long"),
        (f"INSERT INTO t VALUES (7, '{SECRET}'), (7, 'x');", "2: INSERT INTO t", "duplicate key value violates unique"),
        (f"DO $$ BEGIN RAISE EXCEPTION 'no {SECRET}'; END $$;", "2: DO", "RaiseException (P0001)"),
        (f"SELECT '{SECRET}'::json;", "2: SELECT", "invalid input syntax for type json"),
        (f"UPDATE t SET name = '{SECRET}' WHERE nothing = 1;", "2: UPDATE t", "column …"),
        (f"SELECT 'a\"{SECRET}\"b'::int;", "2: SELECT", "invalid input syntax for type integer: …"),
        ("INSERT INTO nowhere VALUES (1);", "2: INSERT INTO nowhere", 'relation "nowhere" does not exist'),
        ("CREATE TABLE u (a citext);", "2: CREATE TABLE u", 'type "citext" does not exist'),
    ],
)
def test_a_failure_names_file_line_and_statement_and_no_row(
    new_cell: NewCell, tmp_path: Path, text: str, place: str, says: str
) -> None:
    cell, file = new_cell(), tmp_path / "dump.sql"
    cell.fixture("CREATE TABLE t (id int PRIMARY KEY, name varchar(10))")
    file.write_text(f"-- {SECRET}\n{text}")
    failure = refused(cell, script(file))
    assert f"service db refused a fixture: dump.sql:{place}: {says}" in failure.message or (
        f"dump.sql:{place}: " in failure.message and says in failure.message
    )
    assert SECRET not in failure.sentences


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("CREATE TABLE t (a int);\nCOPY t FROM stdin;\n1\n2", "4: the file ends within the rows of COPY"),
        ("CREATE TABLE t (a int);\nCOPY t FROM stdin;\n", "2: the file ends within the rows of COPY"),
        ("SELECT 1;\nSELECT 'a", "2: the file ends within a text in quotes that begins in line 2"),
        ("SELECT $x$ a\n$y$;", "2: the file ends within a text in quotes that begins in line 1"),
        ("/* a /* b */\nSELECT 1;", "2: the file ends within a comment that begins in line 1"),
        ("SELECT (1;\n", "1: the file ends within a bracket of the statement that begins in line 1"),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC\nSELECT 1;\n", "2: the file ends within a body"),
        ("BEGIN;\nCREATE TABLE t (a int);\n", "it ends within a transaction that it began"),
    ],
)
def test_a_script_that_was_cut_off_is_refused(new_cell: NewCell, text: str, says: str) -> None:
    failure = refused(new_cell(), text)
    assert says in failure.message
    assert "cut off" in failure.help


def test_each_statement_is_its_own_transaction_and_the_first_failure_ends_it(new_cell: NewCell) -> None:
    cell = new_cell()
    refused(cell, "CREATE TABLE a (); CREATE TABLE a (); CREATE TABLE b ();")
    assert rows(cell, "SELECT relname FROM pg_class WHERE relname IN ('a', 'b')") == [("a",)]


class TestCommands:
    def test_files_below_the_spec_are_included(self, new_cell: NewCell, tmp_path: Path) -> None:
        cell = new_cell()
        (tmp_path / "parts/deep").mkdir(parents=True)
        (tmp_path / "dump.sql").write_text(
            "CREATE TABLE t (a int, b text);\n\\i parts/one.sql\n"
            "\\copy t (a, b) from 'parts/it''s.csv' with (format csv)\n"
            "\\copy t from parts/plain.txt\n"
        )
        (tmp_path / "parts/one.sql").write_text("INSERT INTO t VALUES (1, 'one');\n\\ir deep/two.sql\n")
        (tmp_path / "parts/deep/two.sql").write_text("INSERT INTO t VALUES (2, 'two')")
        (tmp_path / "parts/it's.csv").write_text('3,"a, b"\n')
        (tmp_path / "parts/plain.txt").write_text("4\tplain\n\\.\n5\tafter\n")
        cell.run(script(tmp_path / "dump.sql"))
        expected = [(1, "one"), (2, "two"), (3, "a, b"), (4, "plain")]
        assert rows(cell, "SELECT * FROM t ORDER BY a") == expected
        by_psql = new_cell()
        run_psql(by_psql.place.for_agent.url, tmp_path / "dump.sql", directory=tmp_path)
        assert rows(by_psql, "SELECT * FROM t ORDER BY a") == expected

    @pytest.mark.parametrize("name", ["../outside.sql", "/etc/passwd", "link.sql", "folder", "none.sql", "fifo"])
    def test_nothing_else_is(self, new_cell: NewCell, tmp_path: Path, name: str) -> None:
        folder = tmp_path / "spec"
        folder.mkdir()
        (folder / "folder").mkdir()
        (tmp_path / "outside.sql").write_text("SELECT 1")
        (folder / "link.sql").symlink_to("../outside.sql")
        os.mkfifo(folder / "fifo")
        (folder / "dump.sql").write_text(f"SELECT 1;\n\\i {name}\n")
        message = refused(new_cell(), script(folder / "dump.sql")).message
        assert f"dump.sql:2: there is no file {name!r} below the spec's folder" in message
        (folder / "dump.sql").write_text(f"CREATE TABLE t (a text);\n\\copy t from {name}\n")
        message = refused(new_cell(), script(folder / "dump.sql")).message
        assert f"dump.sql:2: there is no file {name!r} below the spec's folder" in message

    def test_a_file_that_was_not_known_when_the_run_started_is_not(self, new_cell: NewCell, tmp_path: Path) -> None:
        (tmp_path / "late.sql").write_text("SELECT 1")
        (tmp_path / "dump.sql").write_text("\\i late.sql\n")
        known = frozenset({(tmp_path / "late.sql").resolve()})
        new_cell().run(script(tmp_path / "dump.sql", includes=known))
        assert "there is no file" in refused(new_cell(), script(tmp_path / "dump.sql", includes=frozenset())).message

    def test_files_that_include_each_other_end(self, new_cell: NewCell, tmp_path: Path) -> None:
        (tmp_path / "a.sql").write_text("\\i b.sql\n")
        (tmp_path / "b.sql").write_text("SELECT 1;\n\\i a.sql\n")
        assert "b.sql:2: 'a.sql' includes itself" in refused(new_cell(), script(tmp_path / "a.sql")).message

    @pytest.mark.parametrize(
        "line",
        [
            "\\! touch {}", "SELECT 1 \\g | touch {}", "\\o | touch {}", "\\copy t from program 'touch {}'",
            "\\copy t to '{}'", "\\copy t to program 'touch {}'", "\\set x `touch {}`", "\\i `touch {}`", "\\w {}",
            "SELECT 'touch {}' \\gexec", "\\setenv PAGER 'touch {}'", "\\lo_export 1 {}", "\\cd /", "\\include_dir x",
            "\\copy t from pstdin", "\\if true", "\\c other", "\\connect - postgres", "\\connect host=/tmp", "\\",
            "\\set AUTOCOMMIT off", "\\;", "\\unrestrict key", "\\restrict", "\\e {}", "\\gset", "\\crosstabview",
        ],
    )  # fmt: skip
    def test_no_other_command_is_run(self, new_cell: NewCell, tmp_path: Path, line: str) -> None:
        victim = tmp_path / "victim"
        cell = new_cell()
        cell.fixture("CREATE TABLE t (a text); INSERT INTO t VALUES ('x')")
        assert "sql:2: " in refused(cell, f"SELECT 1;\n{line.format(victim)}\n;").message
        assert not victim.exists()

    def test_restricted_commands_are_refused_until_the_key(self, new_cell: NewCell, tmp_path: Path) -> None:
        (tmp_path / "one.sql").write_text("SELECT 1;")
        (tmp_path / "dump.sql").write_text("\\restrict k3y\nSELECT 1;\n\\i one.sql\n")
        message = refused(new_cell(), script(tmp_path / "dump.sql")).message
        assert "dump.sql:3: \\i is not allowed between \\restrict and \\unrestrict" in message
        (tmp_path / "dump.sql").write_text("\\restrict k3y\nSELECT 1;\n\\unrestrict other\n")
        assert "dump.sql:3: \\unrestrict needs the key" in refused(new_cell(), script(tmp_path / "dump.sql")).message
        (tmp_path / "dump.sql").write_text("\\restrict k3y\nSELECT 1;\n\\unrestrict k3y\n\\i one.sql\n")
        new_cell().run(script(tmp_path / "dump.sql"))

    def test_connect_to_this_database_begins_a_new_session(self, new_cell: NewCell) -> None:
        cell = new_cell()
        cell.run(
            SqlScript(
                "sql",
                text="CREATE TABLE public.t (a int); CREATE SCHEMA s; SET search_path = s;\n\\connect shop\n"
                "INSERT INTO t VALUES (1);\n\\c -reuse-previous=on \"dbname='shop'\"\n\\c -\nINSERT INTO t VALUES (2);",
            )
        )
        assert rows(cell, "SELECT count(*) FROM t") == [(2,)]

    def test_variables_stand_for_their_values(self, new_cell: NewCell, tmp_path: Path) -> None:
        file = tmp_path / "dump.sql"
        file.write_text(
            "\\set n 41\n\\set text 'it''s; a\\\\b'\n\\set name 'odd \"name'\n\\set both :n ' and ' :text\n"
            'CREATE TABLE :"name" (a int, b text, c text, d boolean, e int[]);\n'
            "INSERT INTO :\"name\" VALUES (:n + 1, :'text', :'both', :{?n}, (ARRAY[1, 2, 3])[1:2]), "
            "(0, ':n', ':''text', :{?nothing}, NULL);\n\\unset n\nSELECT 1 AS \":n\";\n"
        )
        by_psql, ours = new_cell(), new_cell()
        done = run_psql(by_psql.place.for_agent.url, file)
        assert (done.returncode, done.stderr) == (0, b"")
        ours.run(script(file))
        table = 'SELECT * FROM "odd ""name" ORDER BY a'
        expected = [(0, ":n", ":'text", False, None), (42, "it's; a\\b", "41 and it's; a\\b", True, [1, 2])]
        assert rows(ours, table) == rows(by_psql, table) == expected

    def test_a_variable_that_stands_for_itself_ends(self, new_cell: NewCell) -> None:
        assert "stands for itself" in refused(new_cell(), "\\set a :a\nSELECT :a;").message


def split(text: str, *, standard: bool = True) -> list[tuple[str, tuple[str, ...]]]:
    splitter = StatementSplitter(standard_strings=standard)
    found: list[Statement | PsqlCommand | None] = []
    for number, line in enumerate(text.encode().splitlines(keepends=True), 1):
        found += splitter.feed(line, number)
    found.append(splitter.finish())
    if any(isinstance(one, PsqlCommand) for one in found):
        raise ValueError("a command")
    return [(one.text.decode().strip(), one.words) for one in found if isinstance(one, Statement)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a; b", ["a", "b"]),
        (";;; a;;", ["a"]),
        ("-- a;\n/* b; */;", []),
        ("a 'x;' b; c", ["a 'x;' b", "c"]),
        (r"a E'x\';' b; c '\'; d", [r"a E'x\';' b", r"c '\'", "d"]),
        (r"a nameE'x\'; b", [r"a nameE'x\'", "b"]),
        ('a "x;""" b; c', ['a "x;""" b', "c"]),
        ("a $$;$$ $b$ $$; $c$ $b$; d$e$; f", ["a $$;$$ $b$ $$; $c$ $b$", "d$e$", "f"]),
        ("a /* ; /* ; */ ; */ b; c", ["a /* ; /* ; */ ; */ b", "c"]),
        ("CREATE RULE r AS ON INSERT TO t DO (a; b); c", ["CREATE RULE r AS ON INSERT TO t DO (a; b)", "c"]),
        ("create or replace function f() begin atomic; a; case b end; end; c",
         ["create or replace function f() begin atomic; a; case b end; end", "c"]),
        ("create table begin (a); b", ["create table begin (a)", "b"]),
        ("a 1::int, b[1:2], :x, $1; c", ["a 1::int, b[1:2], :x, $1", "c"]),
    ],
)  # fmt: skip
def test_statements_end_where_they_end(text: str, expected: list[str]) -> None:
    assert [one for one, _ in split(text)] == expected


def test_a_backslash_escapes_where_strings_are_not_standard() -> None:
    assert [one for one, _ in split(r"a 'x\';' b; c", standard=False)] == [r"a 'x\';' b", "c"]


@pytest.mark.parametrize("unit", ["(", "/*", "$a$", "'", '"', "E'\\", ":x", "a$", "--\n", ":", "case begin ", ";:x"])
def test_a_hostile_script_is_split_in_time_that_grows_with_its_length(unit: str) -> None:
    """Were it the square of it, this would take an hour."""
    splitter = StatementSplitter({b"x": b"y"})
    with contextlib.suppress(ValueError):
        for _ in splitter.feed((unit * 400_000).encode(), 1):
            pass
        splitter.finish()


PIECES = st.sampled_from(
    ["SELECT 1", "SELECT ", "'a;'", "E'\\'", "E'a\\\\'", "$$", "$a$", "a$b$", '"c"', "/*", "*/", "--", "\n", ";", ";\n",
     "(", ")", "U&'x'", "b'0'", "e", "n'x'", ",", "1", "::text", ":x", ":'y'", "BEGIN", "z END", "CASE", " ",
     "CREATE FUNCTION", "'", '"']
)  # fmt: skip


_REFUSED = re.compile(r"^psql:.*ERROR:  (?:(?:(?!\npsql:)[\s\S])*? at character \d+|.*)\n", re.MULTILINE)
"""What psql says of a statement, which may quote a text of several lines."""


@pytest.mark.property
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=20, max_size=20))
@example(texts=["'\n';SELECT 1"])
def test_scripts_are_split_as_psql_splits_them(texts: list[str], postgres: PostgresForTests, tmp_path: Path) -> None:
    """Within a transaction that has failed each statement is an error on a line of its own, after which it stands."""
    folder = tmp_path / secrets.token_hex(4)
    folder.mkdir()
    for number, text in enumerate(texts):
        (folder / f"{number}.sql").write_text(text)
    include = "".join(f"\\i {number}.sql\n\\echo =={number}==\n" for number in range(len(texts)))
    (folder / "all").write_text(f"\\set VERBOSITY terse\nBEGIN; SELECT 1/0;\n\\echo ==all==\n{include}")
    cell = postgres.attach()
    try:
        done = run_psql(cell.place.for_agent.url, folder / "all", "-e", directory=folder, stops=False)
    finally:
        cell.close()
    parts = re.split(r"==\w+==\n", done.stdout.decode())[1:]
    for text, part in zip(texts, parts, strict=False):
        sent = [_bare(one) for one in _REFUSED.split(part)[:-1]]
        try:
            assert [_bare(one) for one, _ in split(text)] == sent, text
        except ValueError:
            continue  # we would refuse it: it was cut off, or has another command


def _bare(text: str) -> str:
    """Without blanks, and comments that stand before it."""
    return re.sub(r"\s+", "", re.sub(r"\A(?:[\s;]|--[^\n]*(?:\n|\Z)|/\*[\s\S]*?\*/)*", "", text)).rstrip(";")
