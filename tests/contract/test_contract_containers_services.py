"""What spec.md says of services, for images on a live engine: by the real command, from containers and processes. One
call for all that a kind of cell does with its services: servers cost most."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, keystone, run_spec, spec
from support.images import EXITS_AT_ONCE, MYSQL, POSTGRES, PYTHON

pytestmark = pytest.mark.docker

GET = 'python3 -c "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=9).read().decode())"'
TELL = f"""
echo "front $({GET} {{{{ services.front.url }}}}/from-store)"
echo "variables" $(env | grep -E '^KEYSTONE_SERVICE_(FRONT|STORE)_' | sort)
"""
ASK_OTHERS = f"""
echo "app $({GET} {{{{ services.app.url }}}}/told)"
echo "out $({GET} {{{{ services.out.url }}}})"
"""
COPY = "import os, urllib.request as u; open('from-store', 'w').write(str(u.urlopen(os.environ['STORE']).status))"
NAMED: list[dict[str, Any]] = [
    {"name": "store", "image": PYTHON, "command": "python3 -m http.server 8000 --directory /srv", "ports": [8000]},
    {
        "name": "front",
        "image": PYTHON,
        "ports": [9000],
        "wait_for": "test -s /tmp/from-store",
        "env": {"STORE": "http://store:8000", "COPY": COPY},
        "command": ["sh", "-c", 'cd /tmp; python3 -c "$COPY"; exec python3 -m http.server 9000'],
    },
]
"""One asks the other by its name."""
ASK = (
    "import os, urllib.request as u;"
    " open('/srv/told', 'w').write(u.urlopen(os.environ['API']).read().decode() + ' ' + os.environ['DB'])"
)
KNOWING: list[dict[str, Any]] = [
    {"name": "api", "type": "http_mock", "record": True, "routes": [{"path": "/", "response": "mocked"}]},
    {
        "name": "app",
        "image": PYTHON,
        "ports": [80],
        "wait_for": "test -s /srv/told",
        "env": {"API": "{{ services.api.url }}", "DB": "{{ services.db.url }}", "ASK": ASK},
        "command": ["sh", "-c", 'python3 -c "$ASK"; exec python3 -m http.server 80 --directory /srv'],
    },
]
"""One is told the addresses of others."""
ASKED_ONCE = {
    "type": "http_mock_assertions",
    "service": "api",
    "assertions": [{"field": "request_count", "equals": 1}],
}
ENV = {"POSTGRES_USER": "app", "POSTGRES_PASSWORD": "s3cret", "POSTGRES_DB": "crm"}
MYSQL_ENV = {"MYSQL_ROOT_PASSWORD": "r", "MYSQL_USER": "app", "MYSQL_PASSWORD": "s3cret", "MYSQL_DATABASE": "crm"}
BY_ENV = ["app", "s3cret", "crm"]


def databases(**isolation: str) -> dict[str, Any]:
    """Services, fixtures and checks: PostgreSQL and MySQL, and another PostgreSQL for each further name."""
    named: list[dict[str, Any]] = [{"name": name, "isolation": how} for name, how in isolation.items() if name != "db"]
    named = [{"name": "db", "isolation": isolation.get("db", "auto")}, *named]
    servers = [{**one, "image": POSTGRES, "env": ENV} for one in named]
    servers.append({"name": "my", "image": MYSQL, "env": MYSQL_ENV})
    names = [one["name"] for one in servers]
    table = "create table t(n int); insert into t values (1)"
    count = {"type": "sql", "query": "select count(*) from t", "equals": 1}
    return {
        "services": servers,
        "fixtures": [{"type": "sql", "service": name, "sql": table} for name in names],
        "invariants": {f"own_{name}": {"check": {**count, "service": name}} for name in names},
    }


def outside(port: int) -> dict[str, Any]:
    return {"name": "out", "type": "external", "url": f"http://127.0.0.1:{port}/"}


def who(*names: str) -> str:
    """What the spec knows of these databases, as lines that the agent prints."""
    fields = ("user", "password", "database", "host")
    return "".join(f"echo {one} {' '.join(f'{{{{ services.{one}.{field} }}}}' for field in fields)}\n" for one in names)


def told_by(called: Called) -> list[dict[str, list[str]]]:
    """The words of each line by its first, for every agent."""
    assert called.code == 0, called.out + called.err
    lines = [cell["agent"]["output"].splitlines() for cell in called.cells]
    return [{words[0]: words[1:] for words in map(str.split, one) if words} for one in lines]


def cells(agent: str, more: dict[str, Any], **fields: Any) -> str:
    """A spec of an agent that is a shell script."""
    start = {"version": 1, "id": "small", "task": {"prompt": "do it"}, "agent": {"type": "command", "command": agent}}
    return json.dumps({**start, **more, **fields})


@pytest.fixture
def inside(image):
    """A function that makes a spec whose agent runs in a container."""
    return lambda *words, **more: spec(*words, **{"base": image(PYTHON), **more})


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


LITE = """
python3 - <<END
import sqlite3
connection = sqlite3.connect('a.db')
connection.execute('insert into t values (2)')
connection.commit()
END
"""
ADDRESSES = [
    f"KEYSTONE_SERVICE_{name.upper()}_{key}={value}"
    for name, port in (("front", 9000), ("store", 8000))
    for key, value in (("HOST", name), ("PORT", port), ("URL", f"http://{name}:{port}"))
]


def test_services_of_containers_one_cell_at_a_time(tmp_path: Path, image, web: int) -> None:
    """1.2: `command`, `ports`, `wait_for`, `external`, `url`, "`path` (sqlite)"; 5.2: "`sqlite.path` … relative to the
    workspace"; 1.1: "`KEYSTONE_SERVICE_<NAME>_{HOST,PORT,URL}`"; 1: "Expressions `{{ a.b }}` work in every string of
    task, agent, services, …: `services.<name>.{host,port,url,user,password,database}`", valid where they are used. 5.2:
    "`isolation: auto` = with one cell at a time exactly the database, user and password of `env`, reset between cells";
    `database` = a fresh one all the same."""
    image(POSTGRES), image(MYSQL)
    more = databases(apart="database")
    more["services"] += [*NAMED, *KNOWING, outside(web), {"name": "lite", "type": "sqlite", "path": "a.db"}]
    lite = "create table t(n integer); insert into t values (1)"
    more["fixtures"].append({"type": "sql", "service": "lite", "sql": lite})
    more["invariants"] |= {
        "asked": {"check": ASKED_ONCE},
        "by_name": {
            "check": {"type": "command_exit", "command": f"{GET} {{{{ services.front.url }}}}/from-store | grep 200"}
        },
        "lite": {"check": {"type": "sql", "service": "lite", "query": "select sum(n) from t", "equals": 3}},
    }
    agent = TELL + who("db", "apart", "my") + LITE + ASK_OTHERS
    parallelism = {"replicas": 2, "max_concurrency": 1}
    network = {"egress": {"default": "allow"}}
    text = cells(agent, more, base=image(PYTHON), parallelism=parallelism, network=network)
    told = told_by(run_spec(tmp_path, text))
    for one in told:
        apart, shared = one.pop("apart"), one
        assert apart[3] == "apart"
        assert not {*BY_ENV} & {*apart}
        assert shared == {
            "front": ["200"],
            "variables": ADDRESSES,
            "db": [*BY_ENV, "db"],
            "my": [*BY_ENV, "my"],
            "app": ["mocked", "postgresql://app:s3cret@db:5432/crm"],
            "out": ["from", "outside"],
        }
    assert len(told) == 2


def test_services_of_containers_several_cells_at_once(tmp_path: Path, image, web: int) -> None:
    """5.2: "with several at once `database` (a fresh database and role per cell from a template)", and `container`: a
    server for each cell, with the names of `env`; 1: addresses that are valid in the service's own container; 1.2:
    declared services stay reachable, `external` ones too, whatever egress says."""
    image(POSTGRES), image(MYSQL)
    more = databases(own="container")
    # `app` is told of one that stands below it.
    more["services"] = [*KNOWING, *more["services"], outside(web)]
    more["invariants"]["asked"] = {"check": ASKED_ONCE}
    agent = who("db", "own", "my") + ASK_OTHERS
    parallelism = {"replicas": 2, "max_concurrency": 2}
    network = {"egress": {"default": "deny"}}
    text = cells(agent, more, base=image(PYTHON), parallelism=parallelism, network=network)
    told = told_by(run_spec(tmp_path, text))
    assert [(one["own"], one["out"], one["app"][0]) for one in told] == [
        ([*BY_ENV, "own"], ["from", "outside"], "mocked")
    ] * 2
    for name in ("db", "my"):
        answers = [one[name] for one in told]
        assert {answer[3] for answer in answers} == {name}
        assert len({part for answer in answers for part in answer[:2]}) == 2 * len(answers)
        assert not {*BY_ENV} & {part for answer in answers for part in answer}
    are_databases_of_their_own([one["app"][1] for one in told])


def are_databases_of_their_own(urls: list[str]) -> None:
    assert len({*urls}) == 2
    assert all(url.partition("@")[2].startswith("db:5432/cell_") for url in urls)


def test_services_of_processes(tmp_path: Path, image) -> None:
    """5.2, process sandbox: "Service names don't resolve"; addresses are valid all the same. In the services' own
    containers they do, so nothing is warned of."""
    image(PYTHON), image(POSTGRES)
    services = [*NAMED, *KNOWING, {"name": "db", "image": POSTGRES, "env": ENV}]
    agent = f"""
echo "front $({GET} {{{{ services.front.url }}}}/from-store)"
echo "app $({GET} {{{{ services.app.url }}}}/told)"
"""
    parallelism = {"replicas": 2, "max_concurrency": 2}
    more = {"services": services, "invariants": {"asked": {"check": ASKED_ONCE}}}
    called = run_spec(tmp_path, cells(agent, more, parallelism=parallelism))
    told = told_by(called)
    assert [(one["front"], one["app"][0]) for one in told] == [(["200"], "mocked")] * 2
    are_databases_of_their_own([one["app"][1] for one in told])
    assert called.document["notices"] == []


SLEEPS = "image: 'python:3.12-slim', command: sleep 99, ready_timeout: 5s"
FAILING = {
    "waits": (f"{SLEEPS}, wait_for: exit 4", "ended with exit code 4"),
    "listens": (f"{SLEEPS}, ports: [81]", "port 81 does not accept"),
    "exits": (f"image: '{EXITS_AT_ONCE}'", "LICENSE_KEY is not set"),
    "pulled": ("image: 'localhost:1/no/such:1'", "can't be pulled"),
}


def test_a_service_that_fails_is_an_error(tmp_path: Path, inside, image) -> None:
    """5.1: "Exit 3 (`error`): a service … that fails"; 1.8: "`retry_errors` [0] (cells whose verdict is `error`
    only)"."""
    image(EXITS_AT_ONCE)
    for name, (service, _) in FAILING.items():
        text = inside(services=f"[{{name: s, {service}}}]").replace("id: small", f"id: {name}")
        (tmp_path / f"{name}.keystone.yaml").write_text(text, "utf-8")
    called = keystone("run", ".", "--output", "out", "--retry-errors", "1", directory=tmp_path)
    assert called.code == 3, called.out + called.err
    found = {one["id"]: cell for one in called.document["specs"] for cell in one["cells"]}
    assert {name: (cell["verdict"], cell["composite"]) for name, cell in found.items()} == dict.fromkeys(
        FAILING, ("error", None)
    )
    assert {name: cell["error"] for name, cell in found.items() if FAILING[name][1] not in cell["error"]} == {}


def test_an_embedded_server_is_out_of_reach_for_containers_of_a_cell_of_processes(tmp_path: Path, image) -> None:
    """1: the same; what can't be reached is told, not left to time out."""
    app = f"{{name: app, image: '{image(PYTHON)}', env: {{A: '{{{{ services.db.url }}}}'}}}}"
    called = run_spec(tmp_path, spec(services=f"[{{name: db, type: postgres}}, {app}]"))
    assert called.code == 3
    assert "service db is embedded" in called.cells[0]["error"]
    assert "set base" in called.cells[0]["error"]


def test_addresses_of_what_is_not_ready_are_refused_when_the_spec_is_read(tmp_path: Path) -> None:
    """1: "Unknown names are errors at validation where they can be known"; 5.1: exit 2."""
    early = {"name": "b", "image": "x", "env": {"A": "{{ services.store.url }}"}}
    called = run_spec(tmp_path, spec(services=json.dumps([early, *NAMED[:1]])))
    assert called.code == 2
    assert "the address of service store is not known when this one is started" in called.err
