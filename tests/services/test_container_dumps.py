"""Dumps that the programs of an image made, loaded into databases of a server of it: by its client, and by us."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from support.containers import ContainerWorld, ServedCell
from support.images import MARIADB, MYSQL, POSTGRES

from keystone_action.errors import ServiceError
from keystone_action.services.service import RunningService
from keystone_action.services.sql_script import SqlScript

pytestmark = pytest.mark.docker
SECRET = "hunter2"
ENV = {
    POSTGRES: {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "p", "POSTGRES_DB": "shop"},
    MYSQL: {"MYSQL_USER": "app", "MYSQL_PASSWORD": "p", "MYSQL_DATABASE": "shop"},
    MARIADB: {"MARIADB_USER": "app", "MARIADB_PASSWORD": "p", "MARIADB_DATABASE": "shop"},
}
OF_POSTGRES = r"""
CREATE TABLE buyers (id int PRIMARY KEY, name text NOT NULL, photo bytea, tags text[]);
INSERT INTO buyers VALUES (1, E'Zoë\n\\.', '\x00ff5c2e', '{a,"b c",NULL}'), (2, 'O''Neil; DROP', NULL, '{}');
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $a$ BEGIN NEW.name := 'set;'; RETURN NEW; END $a$;
CREATE TRIGGER touch BEFORE INSERT ON buyers FOR EACH ROW EXECUTE FUNCTION touch();
GRANT SELECT ON buyers TO PUBLIC;
"""
OF_MYSQL = """
CREATE TABLE buyers (id int PRIMARY KEY, name varchar(40) NOT NULL, photo blob);
INSERT INTO buyers VALUES (1, 'Zoë\\n\\\\.', x'00ff5c27'), (2, 'O''Neil; DROP', NULL), (3, '/* ; */ -- #', '');
DELIMITER //
CREATE TRIGGER touch BEFORE INSERT ON buyers FOR EACH ROW BEGIN /* it; is */ SET NEW.name = 'set;'; -- it's
END//
CREATE PROCEDURE add_one(IN n int) BEGIN INSERT INTO buyers (id) VALUES (n); SELECT ';'; END//
"""
_OPTIONS = '-h "$HOST" -P "$PORT" -u "$USER" -p"$PASSWORD" --default-character-set=utf8mb4'
_DUMP = f'{_OPTIONS} --routines --hex-blob --no-tablespaces --skip-dump-date "$DATABASE"'
PROGRAMS = {
    POSTGRES: ('pg_dump "$URL"', 'psql -q -v ON_ERROR_STOP=1 "$URL"'),
    MYSQL: (
        f"mysqldump {_DUMP}",
        f'{{ mysql --force {_OPTIONS} "$DATABASE" 2>&1 | grep ERROR | grep -qv 1227; }} && exit 1 || true',
    ),
    MARIADB: (f"mariadb-dump {_DUMP}", f'mariadb {_OPTIONS} "$DATABASE"'),
}
"""What writes a dump, and what loads it. MySQL's dumps set what only a superuser may, for replication."""


@pytest.fixture(scope="module", params=[POSTGRES, MYSQL, MARIADB])
def server(request: pytest.FixtureRequest, shared_containers: ContainerWorld) -> RunningService:
    return shared_containers.start(name="db", image=request.param, env=ENV[request.param], ready_timeout="120s")


@pytest.fixture
def cells(shared_containers: ContainerWorld, server: RunningService) -> Iterator[list[ServedCell]]:
    made = [shared_containers.cell(server) for _ in range(3)]
    yield made
    for one in made:
        one.close()


def call(cell: ServedCell, image: str, command: str) -> str:
    """What a program of the image prints that is told the cell's database."""
    address = cell.place.for_agent
    told = {
        "URL": address.url, "HOST": address.host, "PORT": address.port, "USER": address.user,
        "PASSWORD": address.password, "DATABASE": address.database,
    }  # fmt: skip
    variables = "".join(f"{name}={shlex.quote(str(value))}; " for name, value in told.items())
    code, printed = cell.agent(f"{variables} {command} 2>/tmp/said || {{ cat /tmp/said; exit 1; }}", image)
    assert code == 0, printed
    return printed


def without_names(dump: str) -> str:
    """Of databases and users, which each cell has for its own; and what no two dumps share."""
    text = re.sub(r"'[0-9a-f-]{36}:\d+(-\d+)?'", "", re.sub(r"cell_[0-9a-f]{12}", "cell", dump))
    return re.sub(
        r"\\(un)?restrict \w+|-- (Started|Dump completed|Completed) .*|/\* it; is \*/| -- it's",
        "",
        text,
    )


def test_a_dump_of_the_image_is_loaded_as_its_client_loads_it(
    cells: list[ServedCell], server: RunningService, shared_containers: ContainerWorld
) -> None:
    image = server._image  # type: ignore[attr-defined]
    source, by_client, ours = cells
    source.fixture(OF_POSTGRES if image == POSTGRES else OF_MYSQL)
    dump_program, client = PROGRAMS[image]
    dump = call(source, image, dump_program)
    for part in ("\\restrict", "COPY public.buyers") if image == POSTGRES else ("DELIMITER ;;", "PROCEDURE `add_one`"):
        assert part in dump
    own, others = (str(one.place.for_agent.user) for one in (by_client, source))
    call(by_client, image, f"printf %s {shlex.quote(dump.replace(others, own))} | {client}")
    notices = shared_containers.portal.call(ours.place.run_sql, SqlScript("dump.sql", text="\ufeff" + dump))
    passed_over = {POSTGRES: r"\d+ changes of owner(, \d+ rights)?", MYSQL: r"\d settings of replication, 2 definers"}
    (notice,) = notices
    assert re.fullmatch(
        rf"fixture dump.sql: passed over {passed_over.get(image, '2 definers')} \(not here: .*\)", notice
    )
    by_both = [without_names(call(one, image, dump_program)) for one in (by_client, ours)]
    assert by_both[0] == by_both[1] == without_names(dump)


def test_no_row_of_a_fixture_that_fails_is_in_the_log_that_is_kept(
    server: RunningService, shared_containers: ContainerWorld
) -> None:
    image = server._image  # type: ignore[attr-defined]
    own = shared_containers.start(name="kept", image=image, env=ENV[image], ready_timeout="120s")
    cell = shared_containers.cell(own)
    cell.fixture("CREATE TABLE t (id int PRIMARY KEY, name varchar(20))")
    texts = [f"INSERT INTO t VALUES (1, '{SECRET}'), (1, 'x')", f"SELECT '{SECRET}' FROM nowhere"]
    if image == POSTGRES:
        texts.append(f"COPY t FROM stdin;\n1\tx\n{SECRET}\tx\n\\.\n")
    for text in texts:
        with pytest.raises(ServiceError) as failure:
            shared_containers.portal.call(cell.place.run_sql, SqlScript("sql", text=text))
        assert SECRET not in failure.value.sentences
    cell.close()
    shared_containers.portal.call(own.stop)
    logs = {name: text for name, text in shared_containers.logs().items() if name.startswith("kept")}
    assert logs
    assert "ready" in "".join(logs.values())
    assert SECRET not in "".join(logs.values())
