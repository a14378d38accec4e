"""What an agent writes into PostgreSQL in a container is seen, as on the embedded server."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import POSTGRES
from support.written import FIXTURE, WAYS, log, work, written

from keystone_action.errors import ServiceError
from keystone_action.services.postgres import logical_decoding
from keystone_action.services.postgres.place import PostgresPlace
from keystone_action.services.service import RunningService

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def server(shared_containers: ContainerWorld) -> RunningService:
    return shared_containers.start(name="db", image=POSTGRES, watches_writes=True)


def start(world: ContainerWorld, service: RunningService, **options: Any) -> ServedCell:
    cell = world.cell(service, watches_writes=True, **options)
    cell.fixture(FIXTURE)
    cell.seal()
    return cell


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_writing_is_told_as_what_it_was(
    shared_containers: ContainerWorld, server: RunningService, way: str
) -> None:
    statements, expected = WAYS[way]
    cell = start(shared_containers, server)
    answers = work(cell, statements)
    assert [answer for answer in answers if answer[5:6] == ":"] == []
    assert written(cell) == expected
    cell.close()


def test_an_agent_in_its_own_server_and_by_the_names_of_env(containers: ContainerWorld) -> None:
    for options in ({"isolation": "container"}, {}):
        env = {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "x", "POSTGRES_DB": "shop"}
        service = containers.start(name="db", image=POSTGRES, env=env, watches_writes=True, **options)
        for _ in range(2):
            cell = start(containers, service, exclusive=True)
            assert cell.place.for_host.database == "shop"
            exit_code, _ = cell.agent(f"psql '{cell.place.for_agent.url}' -c 'DELETE FROM users'", image=POSTGRES)
            assert exit_code == 0
            assert written(cell) == {log("public.users", "delete", 5)}
            cell.close()


def test_values_come_from_the_log(shared_containers: ContainerWorld, server: RunningService) -> None:
    cell = start(shared_containers, server)
    secret = "it's ''a'' \"secret\": of[text]:\\ \n all"
    with psycopg.connect(cell.place.for_host.url, autocommit=True) as agent:
        agent.execute("INSERT INTO notes VALUES (%s)", (secret,))
        agent.execute("DELETE FROM notes")
    written(cell)
    assert cell.place.writes is not None
    assert {table for table, text in cell.place.writes.texts() if secret in text} == {"public.notes"}
    cell.close()


def test_a_table_that_goes_with_an_extension_of_the_agents_is_told(
    shared_containers: ContainerWorld, server: RunningService
) -> None:
    cell = start(shared_containers, server)
    statements = ["CREATE EXTENSION citext", "ALTER EXTENSION citext ADD TABLE notes", "DROP EXTENSION citext"]
    assert work(cell, statements) == ["CREATE EXTENSION -1", "ALTER EXTENSION -1", "DROP EXTENSION -1"]
    assert written(cell) == {
        log("citext", "create", what="extension"),
        log("citext", "alter", what="extension"),
        log("citext", "drop", what="extension"),
        log("public.notes", "drop"),
    }
    cell.close()


@pytest.mark.parametrize(
    "command", ["postgres -c max_connections=40", ["postgres", "-c", "max_connections=40"], "-c max_connections=40"]
)
def test_a_command_of_the_spec_goes_on_and_gets_the_log(containers: ContainerWorld, command: Any) -> None:
    cell = start(
        containers, containers.start(name="db", image=POSTGRES, command=command, watches_writes=True), exclusive=True
    )
    with psycopg.connect(cell.place.for_host.url) as agent:
        assert agent.execute("SHOW max_connections").fetchone() == ("40",)
    work(cell, ["DELETE FROM notes"])
    assert written(cell) == {log("public.notes", "delete", 3)}


def test_a_server_that_was_started_without_the_log_says_what_to_do(containers: ContainerWorld) -> None:
    with pytest.raises(ServiceError, match=r"service db .*wal_level is replica, not logical; let `command`"):
        containers.start(
            name="db", image=POSTGRES, command=["sh", "-c", "docker-entrypoint.sh postgres"], watches_writes=True
        )


def test_a_server_whose_log_was_cut_is_an_error(containers: ContainerWorld) -> None:
    command = "postgres -c max_slot_wal_keep_size=1MB -c max_wal_size=32MB -c min_wal_size=32MB"
    cell = start(containers, containers.start(name="db", image=POSTGRES, command=command, watches_writes=True))
    work(cell, ["INSERT INTO notes SELECT repeat('x', 1000) FROM generate_series(1, 200000)"])
    with cast(PostgresPlace, cell.place).cell.server.admin() as admin:
        admin.execute("CHECKPOINT")
    cell.settle()
    assert cell.place.writes is not None
    with pytest.raises(ServiceError, match=r"service db .*can't say what was written"):
        cell.place.writes.writes()


def test_servers_before_copies_of_slots_make_new_ones(
    shared_containers: ContainerWorld, server: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logical_decoding, "_SINCE_COPIES", 990000)
    cell = start(shared_containers, server)
    work(cell, ["DELETE FROM notes"])
    assert written(cell) == {log("public.notes", "delete", 3)}
    cell.close()
