"""Databases that somebody else runs, whose URL the agent has too: checks ask as a role of ours where one can be had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql
import pytest
from support.attacks import honest, hostile
from support.database_worlds import OWN_ROLES, OWN_ROLES_ON_IMAGES, POSTGRES_OWN_ROLES, DatabaseWorld

DOCKER = [pytest.param(kind, marks=pytest.mark.docker) for kind in OWN_ROLES_ON_IMAGES]
EVERY = pytest.mark.parametrize("world", [*OWN_ROLES, *DOCKER], indirect=True)
# The images of PostgreSQL and MariaDB are the servers that are there without one.
EACH = pytest.mark.parametrize("world", [*OWN_ROLES, DOCKER[-1]], indirect=True)
MYSQL = pytest.mark.parametrize("world", [OWN_ROLES[-1], DOCKER[-1]], indirect=True)
CREATES_ROLES = pytest.mark.parametrize("world", POSTGRES_OWN_ROLES[:1], indirect=True)
SUPERUSER = pytest.mark.parametrize("world", POSTGRES_OWN_ROLES[1:], indirect=True)
POSTGRES = pytest.mark.parametrize("world", POSTGRES_OWN_ROLES, indirect=True)
WITHOUT = pytest.mark.parametrize("world", ["external postgres", "external mariadb"], indirect=True)

ALL = "SELECT count(*) FROM customers"
OWN_ROLE = "checks ask as a role of our own, made when the agent has ended"
SETTINGS = "a setting of the URL's role that makes the check's session another role's"
RIGHTS = "rights of the URL's user that the agent takes away, so that the check ends in an error"
SESSIONS = "a session that goes on and ends every other one of the URL's user"


def user_of(world: DatabaseWorld) -> str:
    assert world.own is not None
    return str(urlsplit(world.own.for_host.url).username)


def roles(world: DatabaseWorld) -> set[str]:
    """Of the whole server, as the URL's user sees them; where it may see no other's, none."""
    assert world.own is not None
    if world.dialect == "postgres":
        with psycopg.connect(world.own.for_host.url) as session:
            return {str(row[0]) for row in session.execute("SELECT rolname FROM pg_roles").fetchall()}
    with _mysql(world) as session, session.cursor() as cursor:
        cursor.execute("SELECT DISTINCT grantee FROM information_schema.user_privileges")
        return {str(row[0]) for row in cursor.fetchall()}


def _mysql(world: DatabaseWorld) -> Any:
    assert world.own is not None
    address = world.own.for_host
    # A server may never answer `KILL` of a connection that ends at this moment.
    return pymysql.connect(
        host=address.host,
        port=address.port or 0,
        user=address.user,
        password=address.password,
        autocommit=True,
        read_timeout=20,
    )


@honest("databases", SETTINGS, RIGHTS, SESSIONS, sandbox="both")
@EVERY
def test_a_role_of_ours_asks_and_is_gone_after_that(world: DatabaseWorld) -> None:
    world.lay_out()
    before = roles(world)
    world.agent(["DELETE FROM customers WHERE id = 3", "CREATE TABLE notes (id int)", "INSERT INTO notes VALUES (7)"])
    assert world.own is not None
    assert world.own.notices_once_sealed() == ()
    assert world.ask(ALL, equals=2).status == "pass"
    assert world.ask("SELECT id FROM notes", equals=7).status == "pass"
    asked = world.ask("SELECT CURRENT_USER", matches="^cell_[0-9a-f]{16}")
    assert asked.status == "pass", asked.message
    assert user_of(world) not in asked.message
    assert roles(world) == before
    world.leave()
    assert roles(world) == before


@POSTGRES
def test_the_role_may_read_and_nothing_else(world: DatabaseWorld) -> None:
    world.lay_out()
    rights = "rolsuper OR rolcreaterole OR rolcreatedb OR rolreplication"
    assert world.ask(f"SELECT {rights} FROM pg_roles WHERE rolname = CURRENT_USER", equals=False).status == "pass"
    writes = "has_table_privilege('customers', 'INSERT, UPDATE, DELETE, TRUNCATE')"
    assert world.ask(f"SELECT {writes}", equals=False).status == "pass"


@WITHOUT
def test_where_no_role_can_be_had_the_urls_user_asks_and_that_is_said(world: DatabaseWorld) -> None:
    world.lay_out()
    assert world.own is not None
    (said,) = world.own.notices_once_sealed()
    assert said.startswith(f"checks ask service db as {user_of(world)}, as whom the agent can act too: no role of our")
    assert world.ask(ALL, equals=3).status == "pass"
    assert world.ask("SELECT CURRENT_USER", matches=f"^{user_of(world)}").status == "pass"


@CREATES_ROLES
def test_a_role_that_would_not_see_all_rows_does_not_ask(world: DatabaseWorld) -> None:
    world.lay_out("ALTER TABLE customers ENABLE ROW LEVEL SECURITY")
    assert world.own is not None
    (said,) = world.own.notices_once_sealed()
    assert "would not see all rows of public.customers (row level security)" in said
    assert world.ask(ALL, equals=3).status == "pass"


@hostile("databases", SETTINGS, held_by=OWN_ROLE, sandbox="both")
@SUPERUSER
def test_settings_of_the_urls_role_are_not_ours(world: DatabaseWorld) -> None:
    clerk = f"clerk_{user_of(world)}"
    world.lay_out("CREATE POLICY by_hand ON customers USING (false)", "ALTER TABLE customers ENABLE ROW LEVEL SECURITY")
    world.agent(
        [
            f'CREATE ROLE "{clerk}"',
            f'GRANT SELECT ON customers TO "{clerk}"',
            f'ALTER ROLE CURRENT_USER SET role = "{clerk}"',
        ]
    )
    try:
        assert world.ask(ALL, equals=0).status == "fail"
        assert world.ask(ALL, equals=3).status == "pass"
    finally:
        assert world.own is not None
        with psycopg.connect(world.own.for_host.url, autocommit=True, options="-c role=none") as session:
            session.execute(f'DROP OWNED BY "{clerk}"; DROP ROLE "{clerk}"'.encode())


@hostile("databases", RIGHTS, held_by=OWN_ROLE, sandbox="both")
@CREATES_ROLES
def test_a_right_that_the_urls_user_lost_is_not_missed(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["REVOKE ALL ON customers FROM CURRENT_USER", "ALTER SCHEMA public OWNER TO CURRENT_USER"])
    assert world.ask(ALL, equals=0).status == "fail"
    assert world.ask(ALL, equals=3).status == "pass"


@hostile("databases", RIGHTS, held_by=OWN_ROLE, sandbox="both")
@SUPERUSER
def test_who_takes_away_the_right_to_make_roles_fails(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["ALTER ROLE CURRENT_USER NOCREATEROLE NOSUPERUSER"])
    outcome = world.ask(ALL, equals=0)
    assert outcome.status == "fail"
    assert "before the agent started, a role could be made to ask with; now it can't" in outcome.message


@hostile("databases", RIGHTS, held_by=OWN_ROLE, sandbox="both")
@MYSQL
def test_who_takes_away_the_right_to_grant_fails(world: DatabaseWorld) -> None:
    world.lay_out()
    pattern = _database(world).replace("_", "\\_")
    world.agent([f"REVOKE GRANT OPTION ON `{pattern}`.* FROM `{user_of(world)}`@'%'"])
    outcome = world.ask(ALL, equals=0)
    assert outcome.status == "fail"
    assert "before the agent started, a role could be made to ask with; now it can't" in outcome.message


def _database(world: DatabaseWorld) -> str:
    assert world.own is not None
    return str(world.own.for_host.database)


@contextmanager
def going_on(work: Callable[[], None]) -> Iterator[None]:
    """Again and again, until this is left."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(0.2):
            with suppress(psycopg.Error, pymysql.err.MySQLError):
                work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@hostile("databases", SESSIONS, held_by=OWN_ROLE, sandbox="both")
@EACH
def test_sessions_of_the_urls_user_are_not_ours(world: DatabaseWorld) -> None:
    world.lay_out()
    assert world.own is not None
    if world.dialect == "postgres":
        mine: Any = psycopg.connect(world.own.for_host.url, autocommit=True)
        others = "WHERE usename = CURRENT_USER AND pid <> pg_backend_pid()"
        statement, slowly = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity {others}", "pg_sleep(1)"

        def end_others() -> None:
            mine.execute(statement.encode())
    else:
        mine = _mysql(world)
        slowly = "sleep(0.4)"

        def end_others() -> None:
            with mine.cursor() as cursor:
                cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
                for (thread,) in cursor.fetchall():
                    with suppress(pymysql.err.MySQLError):
                        cursor.execute("KILL CONNECTION %s", (thread,))

    with mine, going_on(end_others):
        outcome = world.ask(
            f"SELECT count(*) FROM (SELECT id, {slowly} AS s FROM customers) c WHERE s IS NOT NULL", equals=3
        )
    assert outcome.status == "pass", outcome.message


@honest("databases", RIGHTS)
@POSTGRES
def test_what_the_agent_keeps_to_itself_is_read(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(
        [
            "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
            "CREATE SCHEMA own",
            "CREATE TABLE own.notes AS SELECT 7 AS id",
            "CREATE FUNCTION own.total() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM own.notes'",
            "REVOKE EXECUTE ON FUNCTION own.total() FROM PUBLIC",
        ]
    )
    assert world.ask("SELECT own.total() FROM own.notes", equals=1).status == "pass"
