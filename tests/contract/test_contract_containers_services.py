"""What spec.md says of services, for images on a live engine: by the real command, from containers and processes."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run_spec, spec
from support.images import EXITS_AT_ONCE, MYSQL, POSTGRES, PYTHON

pytestmark = pytest.mark.docker

GET = 'python3 -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=9).read().decode())"'
STORE = "{name: store, image: 'python:3.12-slim', command: python3 -m http.server 8000 --directory /srv, ports: [8000]}"
COPY = "import os, urllib.request as u; open('from-store', 'w').write(str(u.urlopen(os.environ['STORE']).status))"
FRONT = (
    "{name: front, image: 'python:3.12-slim', ports: [9000], wait_for: test -s /tmp/from-store,"
    " env: {STORE: 'http://store:8000', COPY: \"" + COPY + '"},'
    " command: [sh, -c, 'cd /tmp; python3 -c \"$COPY\"; exec python3 -m http.server 9000']}"
)


@pytest.fixture
def inside(image):
    """A function that makes a spec whose agent runs in a container."""
    return lambda *words, **more: spec(*words, **{"base": image(PYTHON), **more})


def answer_of(called) -> str:
    assert called.code == 0, called.out + called.err
    return called.cells[0]["agent"]["output"]


def test_containers_that_know_each_other_by_name(tmp_path: Path, inside) -> None:
    """1.2: `command`, `ports`, `wait_for`; 1.1: "`KEYSTONE_SERVICE_<NAME>_{HOST,PORT,URL}`"; 1:
    `services.<name>.{host,port,url}`, valid where they are used."""
    show = f"{GET} {{{{ services.front.url }}}}/from-store; env | grep ^KEYSTONE_SERVICE | sort"
    agent = f"{{type: command, command: '{show}'}}"
    check = f"{{type: command_exit, command: '{GET} {{{{ services.front.url }}}}/from-store | grep 200'}}"
    answer = answer_of(run_spec(tmp_path, inside(agent, check, services=f"[{STORE}, {FRONT}]")))
    addresses = [
        f"KEYSTONE_SERVICE_{name.upper()}_{key}={value}"
        for name, port in (("front", 9000), ("store", 8000))
        for key, value in (("HOST", name), ("PORT", port), ("URL", f"http://{name}:{port}"))
    ]
    assert answer.split() == ["200", *addresses]


def test_containers_of_a_cell_of_processes(tmp_path: Path, image) -> None:
    """5.2, process sandbox: "Service names don't resolve"; addresses are valid all the same. In the services' own
    containers they do, so nothing is warned of."""
    image(PYTHON)
    agent = f"{{type: command, command: '{GET} {{{{ services.front.url }}}}/from-store'}}"
    called = run_spec(tmp_path, spec(agent, services=f"[{STORE}, {FRONT}]"))
    assert answer_of(called).strip() == "200"
    assert called.document["notices"] == []


@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("image: 'python:3.12-slim', command: sleep 99, wait_for: exit 4, ready_timeout: 5s", "ended with exit code 4"),
        ("image: 'python:3.12-slim', command: sleep 99, ports: [81], ready_timeout: 5s", "port 81 does not accept"),
        (f"image: '{EXITS_AT_ONCE}'", "LICENSE_KEY is not set"),
        ("image: 'localhost:1/no/such:1'", "can't be pulled"),
    ],
)
def test_a_service_that_fails_is_an_error(tmp_path: Path, inside, image, service: str, said: str) -> None:
    """5.1: "Exit 3 (`error`): a service … that fails"; 1.8: "`retry_errors` [0] (cells whose verdict is `error`
    only)"."""
    image(EXITS_AT_ONCE)
    called = run_spec(tmp_path, inside(services=f"[{{name: s, {service}}}]"), "--retry-errors", "1")
    assert (called.code, called.cells[0]["verdict"], called.cells[0]["composite"]) == (3, "error", None)
    assert said in called.cells[0]["error"]


ENV = "env: {POSTGRES_USER: app, POSTGRES_PASSWORD: s3cret, POSTGRES_DB: crm}"
MYSQL_ENV = "env: {MYSQL_ROOT_PASSWORD: r, MYSQL_USER: app, MYSQL_PASSWORD: s3cret, MYSQL_DATABASE: crm}"
WHO = "echo {{ services.db.user }} {{ services.db.password }} {{ services.db.database }} {{ services.db.host }}"


@pytest.mark.parametrize(
    ("name", "more", "parallelism", "by_env"),
    [
        (POSTGRES, ENV, "{replicas: 2, max_concurrency: 1}", True),
        (POSTGRES, f"{ENV}, isolation: container", "{replicas: 2, max_concurrency: 2}", True),
        (POSTGRES, f"{ENV}, isolation: database", "{replicas: 1}", False),
        (POSTGRES, ENV, "{replicas: 2, max_concurrency: 2}", False),
        (MYSQL, MYSQL_ENV, "{replicas: 2, max_concurrency: 1}", True),
        (MYSQL, MYSQL_ENV, "{replicas: 2, max_concurrency: 2}", False),
    ],
)
def test_isolation(tmp_path: Path, inside, image, name: str, more: str, parallelism: str, by_env: bool) -> None:
    """5.2: "`isolation: auto` = with one cell at a time exactly the database, user and password of `env`, reset between
    cells; with several at once `database` (a fresh database and role per cell from a template)"."""
    text = inside(
        f"{{type: command, command: '{WHO}'}}",
        "{type: sql, service: db, query: select count(*) from t, equals: 1}",
        services=f"[{{name: db, image: '{image(name)}', {more}}}]",
        fixtures="[{type: sql, service: db, sql: 'create table t(n int); insert into t values (1)'}]",
        parallelism=parallelism,
    )
    called = run_spec(tmp_path, text)
    assert called.code == 0, called.out + called.err
    answers = [cell["agent"]["output"].split() for cell in called.cells]
    if by_env:
        assert answers == [["app", "s3cret", "crm", "db"]] * len(answers)
    else:
        assert {answer[3] for answer in answers} == {"db"}
        assert len({part for answer in answers for part in (answer[0], answer[1])}) == 2 * len(answers)
        assert not {"app", "s3cret", "crm"} & {part for answer in answers for part in answer}


def test_a_database_file_of_the_workspace(tmp_path: Path, inside) -> None:
    """1.2: "`path` (sqlite)"; 5.2: "`sqlite.path` … relative to the workspace"."""
    code = "import os, sqlite3; c = sqlite3.connect('a.db'); c.execute('insert into t values (2)'); c.commit()"
    called = run_spec(
        tmp_path,
        inside(
            f'{{type: command, command: [python3, -c, "{code}"]}}',
            "{type: sql, service: lite, query: select sum(n) from t, equals: 3}",
            services="[{name: lite, type: sqlite, path: a.db}]",
            fixtures="[{type: sql, service: lite, sql: 'create table t(n integer); insert into t values (1)'}]",
        ),
    )
    assert called.code == 0, called.out + called.err


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a web server on this machine's loopback."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from outside")

        def log_message(self, *_words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("egress", ["{default: allow}", "{default: deny}"])
def test_an_external_service_is_reached_from_a_container(tmp_path: Path, inside, web: int, egress: str) -> None:
    """1.2: `external`, `url`; declared services stay reachable, whatever egress says."""
    answer = answer_of(
        run_spec(
            tmp_path,
            inside(
                f"{{type: command, command: '{GET} {{{{ services.out.url }}}}'}}",
                services=f"[{{name: out, type: external, url: 'http://127.0.0.1:{web}/'}}]",
                network=f"{{egress: {egress}}}",
            ),
        )
    )
    assert answer.strip() == "from outside"


ASKS = (
    "import os, urllib.request as u;"
    " open('/srv/told', 'w').write(u.urlopen(os.environ['API']).read().decode() + ' ' + os.environ['DB'])"
)
KNOWING = (
    "[{name: api, type: http_mock, record: true, routes: [{path: /, response: mocked}]},"
    f" {{name: app, image: '{PYTHON}', ports: [80], wait_for: test -s /srv/told,"
    " env: {API: '{{ services.api.url }}', DB: '{{ services.db.url }}', ASK: \"" + ASKS + '"},'
    " command: [sh, -c, 'python3 -c \"$ASK\"; exec python3 -m http.server 80 --directory /srv']},"
    f" {{name: db, image: '{POSTGRES}', {ENV}}}]"
)


@pytest.mark.parametrize(
    ("sandbox", "egress"), [("docker", "{default: allow}"), ("docker", "{default: deny}"), ("process", "{}")]
)
def test_containers_that_use_other_services(tmp_path: Path, image, sandbox: str, egress: str) -> None:
    """1: "Expressions `{{ a.b }}` work in every string of task, agent, services, …: `services.<name>.{host,port,url,
    user,password,database}`", with addresses that are valid in the service's own container."""
    image(POSTGRES)
    text = spec(
        f"{{type: command, command: '{GET} {{{{ services.app.url }}}}/told'}}",
        "{type: http_mock_assertions, service: api, assertions: [{field: request_count, equals: 1}]}",
        services=KNOWING,
        parallelism="{replicas: 2, max_concurrency: 2}",
        network=f"{{egress: {egress}}}",
        **({"base": image(PYTHON)} if sandbox == "docker" else {}),
    )
    called = run_spec(tmp_path, text)
    assert called.code == 0, called.out + called.err
    told = [cell["agent"]["output"].split() for cell in called.cells]
    assert [words[0] for words in told] == ["mocked", "mocked"]
    urls = {words[1] for words in told}
    assert len(urls) == 2
    assert all(url.partition("@")[2].startswith("db:5432/cell_") for url in urls)


def test_an_embedded_server_is_out_of_reach_for_containers_of_a_cell_of_processes(tmp_path: Path, image) -> None:
    """1: the same; what can't be reached is told, not left to time out."""
    app = f"{{name: app, image: '{image(PYTHON)}', env: {{A: '{{{{ services.db.url }}}}'}}}}"
    called = run_spec(tmp_path, spec(services=f"[{{name: db, type: postgres}}, {app}]"))
    assert called.code == 3
    assert "service db is embedded" in called.cells[0]["error"]
    assert "set base" in called.cells[0]["error"]


def test_addresses_of_what_is_not_ready_are_refused_when_the_spec_is_read(tmp_path: Path) -> None:
    """1: "Unknown names are errors at validation where they can be known"; 5.1: exit 2."""
    services = f"[{{name: b, image: x, env: {{A: '{{{{ services.store.url }}}}'}}}}, {STORE}]"
    called = run_spec(tmp_path, spec(services=services))
    assert called.code == 2
    assert "the address of service store is not known when this one is started" in called.err
