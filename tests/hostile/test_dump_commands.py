"""Dumps of fixtures that name programs and files of this machine: the servers' own clients would run and read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.database_worlds import DatabaseWorld

from keystone_action.errors import ServiceError

OWN_READER = "a reader of our own, which knows no command that leads out of the database"
RUNS = "a dump that has the client run a program of this machine"
READS = "a dump that has the client read or write a file of this machine"
FILES = "a script of SQLite that opens another file of this machine"
SERVER = "a dump that has the server run a program, or read a file"
POSTGRES = pytest.mark.parametrize("world", ["postgres"], indirect=True)
MYSQL = pytest.mark.parametrize("world", ["external mariadb"], indirect=True)
SQLITE = pytest.mark.parametrize("world", ["sqlite"], indirect=True)
OUTSIDE = "the-secret-of-the-machine"


def refuse(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    """A fixture with this line, in which `{victim}` would be made and `{secret}` be read, is refused, and has no
    effect; what it says of the file is not in it."""
    victim, secret = tmp_path / "victim", tmp_path / "secret"
    secret.write_text(f"{OUTSIDE}\n")
    world.lay_out("CREATE TABLE t (a text)")
    with pytest.raises(ServiceError) as failure:
        world.run_sql(f"SELECT 1;\n{line.format(victim=victim, secret=secret)}\n;\nSELECT 2;")
    assert "sql:2: " in failure.value.message
    assert OUTSIDE not in failure.value.sentences
    assert not victim.exists()
    assert world.ask("SELECT count(*) FROM t", equals=0).status == "pass"


@hostile("dumps", RUNS, held_by=OWN_READER)
@POSTGRES
@pytest.mark.parametrize(
    "line",
    [
        "\\! touch {victim}", "\\set x `touch {victim}`", "\\echo `touch {victim}`",
        "\\copy t from program 'touch {victim}'", "\\copy t to program 'cat > {victim}'", "\\o |touch {victim}",
        "SELECT 1 \\g |touch {victim}",
        "SELECT '\\\\! touch {victim}' \\gexec", "\\setenv PSQL_EDITOR 'touch {victim}'", "\\e",
    ],
)  # fmt: skip
def test_no_program_is_run_for_a_dump_of_postgres(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", READS, held_by=OWN_READER)
@POSTGRES
@pytest.mark.parametrize(
    "line",
    ["\\i {secret}", "\\ir {secret}", "\\copy t from '{secret}'", "\\copy t to '{victim}'", "\\w {victim}",
     "\\o {victim}", "SELECT 1 \\g {victim}", "\\lo_import {secret}", "\\cd /", "\\i ../secret"],
)  # fmt: skip
def test_no_file_is_read_or_written_for_a_dump_of_postgres(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", SERVER, held_by="the role of fixtures owns its database, and nothing else")
@POSTGRES
@pytest.mark.parametrize(
    "line",
    ["COPY t FROM PROGRAM 'touch {victim}';", "COPY t TO PROGRAM 'cat > {victim}';", "COPY t FROM '{secret}';",
     "COPY t TO '{victim}';", "SELECT pg_read_file('{secret}');", "SELECT lo_import('{secret}');",
     "CREATE FUNCTION f() RETURNS int LANGUAGE c AS '{secret}', 'f';", "SET ROLE postgres;", "LOAD '{secret}';"],
)  # fmt: skip
def test_no_server_of_ours_runs_or_reads_anything_for_a_dump(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", RUNS, held_by=OWN_READER)
@MYSQL
@pytest.mark.parametrize(
    "line",
    ["\\! touch {victim}", "system touch {victim}", "SELECT 1 \\! touch {victim}", "pager touch {victim}",
     "\\P touch {victim}", "edit", "\\e"],
)  # fmt: skip
def test_no_program_is_run_for_a_dump_of_mysql(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", READS, held_by=OWN_READER)
@MYSQL
@pytest.mark.parametrize(
    "line",
    ["source {secret}", "\\. {secret}", "source ../secret", "tee {victim}", "\\T {victim}",
     "LOAD DATA LOCAL INFILE '{secret}' INTO TABLE t;", "/*!50003 LOAD DATA LOCAL INFILE '{secret}' INTO TABLE t */;"],
)  # fmt: skip
def test_no_file_is_read_or_written_for_a_dump_of_mysql(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", SERVER, held_by="the role of fixtures owns its database, and nothing else")
@MYSQL
@pytest.mark.parametrize(
    "line",
    ["LOAD DATA INFILE '{secret}' INTO TABLE t;", "SELECT 1 INTO OUTFILE '{victim}';",
     "SELECT 1 INTO DUMPFILE '{victim}';", "INSTALL PLUGIN x SONAME 'x.so';",
     "CREATE FUNCTION f RETURNS int SONAME 'x.so';"],
)  # fmt: skip
def test_no_server_of_mysql_runs_or_reads_anything_either(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    refuse(world, tmp_path, line)


@hostile("dumps", FILES, held_by="SQLite's authorizer, which lets a script open no further file")
@SQLITE
@pytest.mark.parametrize(
    "line",
    ["ATTACH '{victim}' AS x; CREATE TABLE x.t (a);", "VACUUM INTO '{victim}';", "ATTACH 'file:{victim}' AS x;",
     "PRAGMA temp_store_directory = '{folder}';", "SELECT load_extension('{secret}');"],
)  # fmt: skip
def test_a_script_of_sqlite_opens_no_other_file(world: DatabaseWorld, tmp_path: Path, line: str) -> None:
    world.lay_out("CREATE TABLE t (a text)")
    with pytest.raises(ServiceError, match="service db refused a fixture: sql: "):
        world.run_sql(line.format(victim=tmp_path / "victim", secret=tmp_path / "secret", folder=tmp_path))
    assert not (tmp_path / "victim").exists()


@honest("dumps", FILES)
@SQLITE
def test_a_script_of_sqlite_may_have_a_database_in_memory_and_compact_its_own(world: DatabaseWorld) -> None:
    world.lay_out(
        "ATTACH ':memory:' AS x; CREATE TABLE x.t (a); INSERT INTO x.t VALUES (7); CREATE TABLE t (a);"
        " INSERT INTO t SELECT a FROM x.t; VACUUM; PRAGMA user_version = 3"
    )
    assert world.ask("SELECT a FROM t", equals=7).status == "pass"


@honest("dumps", RUNS, READS, SERVER)
@pytest.mark.parametrize("world", ["postgres", "external mariadb"], indirect=True)
def test_rows_that_say_such_things_are_loaded(world: DatabaseWorld) -> None:
    texts = ["\\! touch x", "`touch x`", "\\i /etc/passwd", "\\o |sh", "source /etc/passwd", "tee x", "system ls"]
    world.lay_out("CREATE TABLE t (id int, a text)")
    for number, text in enumerate(texts):
        doubled = text.replace("\\", "\\\\") if world.dialect == "mysql" else text
        world.run_sql(f"INSERT INTO t VALUES\n({number},\n'\n{doubled}\n');")
    if world.dialect == "postgres":
        world.run_sql("COPY t FROM stdin;\n" + "".join(f"{7 + n}\t\\\\! touch\n" for n in range(2)) + "\\.\n")
    world.seal()
    for number, text in enumerate(texts):
        assert world.ask(f"SELECT a FROM t WHERE id = {number}", equals=f"\n{text}\n").status == "pass"
    assert world.ask("SELECT count(*) FROM t", equals=9 if world.dialect == "postgres" else 7).status == "pass"
