"""Calls of ours that others on the server get in the way of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pymysql
import pytest
from support.databases import PostgresForTests

from keystone_action.services import database_queries as own_role
from keystone_action.services.database_queries import OwnRole, RefusedError
from keystone_action.services.mysql.own_role import MysqlRole
from keystone_action.services.mysql.reader import MysqlReader
from keystone_action.services.postgres.own_role import PostgresRole
from keystone_action.services.postgres.reader import PostgresReader
from keystone_action.services.redefinitions import NO_CHANGES, CatalogueChanges


class Role(OwnRole):
    """Of no server. fail: raises what a session raises, before or after a call has done its work."""

    def __init__(self, fail: Callable[[str], None] = lambda _when: None) -> None:
        super().__init__({"user": "theirs"})
        self.fail = fail
        self.there: set[str] = set()
        self.passwords: set[str] = set()
        self.dropped: list[str] = []

    def _make(self, name: str, password: str) -> None:
        self.fail("before making")
        assert name not in self.there, "it exists already"
        self.there.add(name)
        self.passwords.add(password)
        self.fail("after making")

    def _prove(self, fields: Mapping[str, Any]) -> None:
        self.fail("proving")

    def _drop(self, name: str) -> None:
        self.dropped.append(name)
        self.fail("dropping")
        self.there.discard(name)

    def _drop_left_over(self) -> None:
        self.fail("dropping what is left over")

    def _may_pass(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_role, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(own_role, "_LONG_PAUSE_SECONDS", 0.0)


class Failing:
    """Sessions that are ended so many times at these places."""

    def __init__(self, **times: int) -> None:
        self.left = {place.replace("_", " "): count for place, count in times.items()}

    def __call__(self, place: str) -> None:
        if self.left.get(place, 0) > 0:
            self.left[place] -= 1
            raise ConnectionResetError("ended")


def attempts(error: Exception, times: int) -> tuple[Any, list[int]]:
    """A call that fails so often before it succeeds; and its calls so far."""
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    return call, calls


def test_it_goes_on_as_long_as_sessions_are_ended():
    call, calls = attempts(ConnectionResetError("ended"), 50)
    assert Role().retry(call) == "done"
    assert len(calls) == 51


def test_what_will_not_pass_is_not_tried_again():
    call, calls = attempts(PermissionError("no"), 1)
    with pytest.raises(PermissionError):
        Role().retry(call)
    assert len(calls) == 1


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_role, "_RETRY_SECONDS", 0.0)
    call, _ = attempts(ConnectionResetError("ended"), 1_000_000)
    with pytest.raises(ConnectionResetError):
        Role().retry(call)


@pytest.mark.parametrize("place", ["before_making", "after_making", "dropping"])
def test_each_try_makes_the_same_role(place: str):
    role = Role(Failing(**{"before_making": 1, place: 20}))
    role.refusal = ""
    with role.lend(10) as fields:
        assert {fields["user"]} == role.there == role._roles
        assert fields["password"] in role.passwords
    assert set(role.dropped) == {fields["user"]}


@pytest.mark.parametrize(
    "place", ["dropping_what_is_left_over", "before_making", "after_making", "proving", "dropping"]
)
def test_a_session_that_is_ended_while_a_role_is_tried_out_refuses_none(place: str):
    role = Role(Failing(**{place: 20}))
    role.try_out()
    assert role.refusal == ""


def test_what_is_left_over_and_cannot_be_dropped_refuses_no_role(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_role, "_RETRY_SECONDS", 0.0)
    role = Role(Failing(dropping_what_is_left_over=1_000_000))
    role.try_out()
    assert role.refusal == ""


def test_after_a_second_it_is_tried_rarely(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.undo()
    monkeypatch.setattr(own_role.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(own_role.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    call, calls = attempts(ConnectionResetError("ended"), 1_000_000)
    with pytest.raises(ConnectionResetError):
        Role().retry(call)
    assert clock[0] >= 10
    assert len(calls) <= 20 + 2 * 10


def test_a_login_that_postgresql_refuses_is_not_tried_again(postgres: PostgresForTests):
    cell = postgres.attach()
    keywords = psycopg.conninfo.conninfo_to_dict(cell.place.for_agent.url)
    try:
        for wrong in ({"password": "no"}, {"user": "nobody"}):
            role = PostgresRole({**keywords, **wrong})
            with pytest.raises(psycopg.OperationalError) as raised:
                role._drop("cell_x")
            assert not role._may_pass(raised.value)
            with pytest.raises(RefusedError, match=r"a new role can't connect: .*authentication failed"):
                PostgresRole(keywords)._prove({**keywords, **wrong})
        with pytest.raises(psycopg.OperationalError):
            PostgresRole(keywords)._prove({**keywords, "port": 1})
    finally:
        cell.close()


@pytest.mark.parametrize("text", ['role "x" is not permitted to log in', 'no pg_hba.conf entry for host "h"'])
def test_what_postgresql_says_of_a_login(text: str):
    said = f'connection failed: connection to server at "h", port 1 failed: FATAL:  {text}'
    assert not PostgresRole({})._may_pass(psycopg.OperationalError(said))


@pytest.mark.parametrize(("number", "expected"), [(1045, RefusedError), (2013, pymysql.err.OperationalError)])
def test_a_new_user_of_mysql_whose_session_is_lost_is_not_refused(
    number: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    role = MysqlRole({})

    @contextmanager
    def session(fields: Any = None) -> Iterator[Any]:
        if fields is not None:
            raise pymysql.err.OperationalError(number, "said so")
        yield MagicMock()

    monkeypatch.setattr(role, "_session", session)
    with pytest.raises(expected, match="said so"):
        role._prove({})


def test_a_role_is_tried_for_as_long_as_the_query_has_left():
    role = Role(Failing(before_making=1_000_000))
    role.refusal = ""
    start = time.monotonic()
    with pytest.raises(ConnectionResetError), role.lend(0.2):
        pass
    assert 0.2 <= time.monotonic() - start < 5
    with pytest.raises(ConnectionResetError), role.lend(-1):
        pass
    assert time.monotonic() - start < 5


def test_a_role_that_cannot_be_dropped_at_once_is_dropped_in_the_end():
    role = Role(Failing(dropping=1))
    role.refusal = ""
    with role.lend(10) as fields:
        pass
    assert role.dropped == [fields["user"]]
    assert role._roles == role.there == {fields["user"]}
    role.drop()
    assert role._roles == role.there == set()


class Asked(Exception):
    """A reader has asked for a role."""


@pytest.mark.parametrize("reader", [PostgresReader({}, tuple), MysqlReader({})])
def test_a_query_waits_for_a_role_within_its_time_limit(reader: Any):
    """What was looked up before counts."""
    given: list[float] = []

    def look() -> CatalogueChanges:
        time.sleep(0.1)
        return NO_CHANGES

    def lend(seconds: float) -> Any:
        given.append(seconds)
        raise Asked

    with pytest.raises(Asked):
        replace(reader, changes=look, lend=lend).query("SELECT 1", timeout=3)
    assert 0 < given[0] <= 2.9


def test_roles_that_are_left_are_dropped_in_the_end():
    role = Role()
    role._roles = {f"role {number}" for number in range(5)}
    role.fail = Failing(dropping=3)
    role.drop()
    assert (role._roles, len(role.dropped)) == (set(), 8)


def test_of_a_server_that_has_gone_only_one_role_is_asked_about(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(own_role, "_RETRY_SECONDS", 0.0)
    role = Role(Failing(dropping=1_000_000))
    role._roles = {f"role {number}" for number in range(5)}
    role.drop()
    assert len(set(role.dropped)) == 1
    assert len(role._roles) == 5
