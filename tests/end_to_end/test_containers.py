"""A spec with `base` on a laptop: agent and checks in containers, services on the engine, nothing left."""

from __future__ import annotations

import uuid

import pytest
from support.command_line import NO_ENGINE, keystone, run_spec, spec
from support.images import MYSQL, POSTGRES, PYTHON

pytestmark = [pytest.mark.docker, pytest.mark.slow]

AGENT = r"""
import json, os, pathlib, urllib.request
pathlib.Path("out.json").write_text('{"status": "success"}')
pathlib.Path("broken").symlink_to("nowhere")
print("the agent's answer", os.getuid(), os.uname().nodename == "sandbox")
body = json.dumps({"to": "finance@co"}).encode()
request = urllib.request.Request(os.environ["KEYSTONE_SERVICE_API_URL"] + "/api/messages", body,
                                 {"Content-Type": "application/json"})
urllib.request.urlopen(request).read()
"""


def in_container(tmp_path, image, *, invariants: str, agent: str = AGENT, **more: str):
    """Run an agent in python:3.12-slim, its code in a directory of its own."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(agent)
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    document = (
        f'version: 1\nid: inside\ntask: {{prompt: "do it"}}\nbase: {image(PYTHON)}\n'
        'agent: {type: command, command: [python3, "{{ agent.dir }}/agent.py"], dir: agent}\n'
        f"{extra}invariants:\n{invariants}"
    )
    return run_spec(tmp_path, document)


def test_observing_and_executing_checks_of_an_agent_in_a_container(tmp_path, image):
    (tmp_path / "look.py").write_text(
        "import json, os, sys, urllib.request\n"
        "context = json.load(sys.stdin)\n"
        "status = urllib.request.urlopen(context['services']['api']['url'] + '/health').status\n"
        "inside = os.uname().nodename == 'sandbox'\n"
        "found = os.path.exists('out.json') and status == 200\n"
        "print(json.dumps({'passed': found, 'details': f'container: {inside}'}))\n"
    )
    called = in_container(
        tmp_path,
        image,
        services=(
            f"[{{name: db, image: '{image(POSTGRES)}', env: {{POSTGRES_PASSWORD: s3cret, POSTGRES_DB: crm}}}},"
            " {name: api, type: http_mock, record: true}]"
        ),
        fixtures='[{type: sql, service: db, sql: "CREATE TABLE t (n integer); INSERT INTO t VALUES (1), (2)"}]',
        invariants=(
            "  exists: {check: {type: file_exists, path: out.json}}\n"
            "  dangling: {check: {type: file_absent, path: broken}}\n"
            "  content: {check: {type: file_content, path: out.json, contains: success}}\n"
            '  rows: {check: {type: sql, service: db, query: "SELECT count(*) FROM t", equals: 2}}\n'
            "  called: {check: {type: http_mock_assertions, service: api, assertions: [\n"
            "    {field: request_count, filters: {path: /api/messages}, equals: 1},\n"
            "    {field: last_request.json.to, filters: {path: /api/messages}, equals: finance@co}]}}\n"
            "  inside: {check: {type: command_exit, command: 'uname -n | grep -qx sandbox && test -f out.json'}}\n"
            "  on_host: {check: {type: custom, script: look.py}}\n"
            "  in_sandbox: {check: {type: custom, script: look.py, runs_in: sandbox}}\n"
        ),
    )
    assert called.code == 0, called.out + called.err
    assert {name: entry["status"] for name, entry in called.checks.items()} == dict.fromkeys(called.checks, "pass")
    answer = called.cells[0]["agent"]["output"].split()
    assert answer[-1] == "True"
    assert answer[-2] != "0"
    assert "container: True" in str(called.checks["in_sandbox"])
    assert "container: False" in str(called.checks["on_host"])
    assert called.document["sandbox"] == {
        "kind": "docker",
        "isolation": ["container"],
        "limits": "enforced",
        "not_enforced": [],
    }
    assert called.document["substituted"] == []
    assert "database system is ready" in (called.output / "services" / "db.log").read_text()


def test_what_setup_leaves_is_there_for_agent_and_checks(tmp_path, image):
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "version.txt").write_text("7")
    called = in_container(
        tmp_path,
        image,
        agent="import pathlib; pathlib.Path('copied').write_text(pathlib.Path('/opt/version').read_text())",
        workspace="start",
        setup='{commands: ["cp version.txt /opt/version; id -u > made", "touch from-setup"], env: {A: b}}',
        invariants=(
            "  system: {check: {type: file_content, path: copied, contains: '7'}}\n"
            "  as_root: {check: {type: file_content, path: made, pattern: '^0$'}}\n"
            "  for_checks: {check: {type: command_exit, command: 'cmp /opt/version version.txt && test \"$A\" = b'}}\n"
            "  mine: {check: {type: command_exit, command: 'echo x > from-setup'}}\n"
        ),
    )
    assert called.code == 0, called.out + called.err


def test_commands_of_setup_run_once_for_equal_workspaces_and_anew_where_services_could_tell(tmp_path, engine, image):
    runs: set[str] = set()
    unique = uuid.uuid4().hex
    setup = f'{{commands: ["echo {unique} > /dev/null; cat version.txt /proc/sys/kernel/random/uuid > /opt/stamp"]}}'
    api = "[{name: api, type: http_mock}]"

    def stamp(name: str, version: str, **more: str) -> str:
        (tmp_path / name / "start").mkdir(parents=True)
        (tmp_path / name / "start" / "version.txt").write_text(version)
        called = in_container(
            tmp_path / name,
            image,
            agent="print(open('/opt/stamp').read())",
            workspace="start",
            setup=setup,
            invariants="  it: {check: {type: file_absent, path: y}}\n",
            **more,
        )
        assert called.code == 0, called.out + called.err
        runs.add(called.document["run_id"])
        return called.cells[0]["agent"]["output"]

    try:
        first = stamp("first", "1")
        assert stamp("again", "1") == first
        assert stamp("changed", "2") != first
        assert stamp("served", "1", services=api) not in (first, stamp("served-again", "1", services=api))
    finally:
        for one in engine.images.list(filters={"label": "keystone.kind=setup"}):
            made_by = (one.attrs.get("ContainerConfig") or {}).get("Labels") or {}
            if made_by.get("keystone.run") in runs:
                engine.images.remove(one.id)


def test_a_setup_command_that_fails_is_the_harness_s_error_with_its_output(tmp_path, image):
    called = in_container(
        tmp_path,
        image,
        setup='{commands: ["true", "echo why >&2; exit 9"]}',
        invariants="  it: {check: {type: file_absent, path: x}}\n",
    )
    assert called.code == 3
    (cell,) = called.cells
    assert "setup.commands[1]" in cell["error"]
    assert "why" in cell["error"]


def test_mysql_and_replicas_each_with_a_database_of_its_own(tmp_path, image):
    called = in_container(
        tmp_path,
        image,
        agent="print('nothing to do')",
        services=f"[{{name: my, image: '{image(MYSQL)}', env: {{MYSQL_ROOT_PASSWORD: s3cret, MYSQL_DATABASE: crm}}}}]",
        fixtures='[{type: sql, service: my, sql: "CREATE TABLE t (n integer); INSERT INTO t VALUES (1)"}]',
        parallelism="{replicas: 3, max_concurrency: 3}",
        invariants='  rows: {check: {type: sql, service: my, query: "SELECT count(*) FROM t", equals: 1}}\n',
    )
    assert called.code == 0, called.out + called.err
    assert called.document["counts"]["passed"] == 3


def test_an_embedded_postgres_is_reached_from_a_container(tmp_path, image):
    called = in_container(
        tmp_path,
        image,
        agent=(
            "import os, socket\n"
            "host, port = os.environ['KEYSTONE_SERVICE_DB_HOST'], int(os.environ['KEYSTONE_SERVICE_DB_PORT'])\n"
            # The first message of the protocol asks for TLS; a server answers S or N.
            "s = socket.create_connection((host, port), 5); s.sendall(bytes.fromhex('0000000804d2162f'))\n"
            "print(s.recv(1))\n"
        ),
        services="[{name: db, type: postgres}]",
        network="{egress: {default: deny}}",
        invariants='  asks: {check: {type: sql, service: db, query: "SELECT 1", equals: 1}}\n',
    )
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["output"].strip() in ("b'S'", "b'N'")


def test_base_of_one_spec_and_none_of_another_run_side_by_side(tmp_path, image):
    (tmp_path / "a.keystone.yaml").write_text(spec(base=image(PYTHON)).replace("id: small", "id: inside"))
    (tmp_path / "keystone.yaml").write_text(spec())
    called = keystone("run", "keystone.yaml", "a.keystone.yaml", "--output", "out", directory=tmp_path)
    assert called.code == 0, called.err
    document = called.document
    assert document["sandbox"]["kind"] == "process"
    assert any("inside (python:3.12-slim)" in notice for notice in document["notices"])


def test_sandbox_docker_without_base_takes_the_usual_image_and_says_so(tmp_path, image):
    image(PYTHON)
    called = run_spec(
        tmp_path, spec(check="{type: command_exit, command: 'uname -n | grep -qx sandbox'}"), "--sandbox", "docker"
    )
    assert called.code == 0, called.err
    assert any("runs in python:3.12-slim" in notice for notice in called.document["notices"])


@pytest.mark.parametrize(
    ("more", "words", "found"),
    [
        ({"base": "python:3.12-slim"}, (), "base: python:3.12-slim needs a Docker engine"),
        ({"services": "[{name: cache, image: 'redis:7'}]"}, (), "service cache (image: redis:7) needs a Docker engine"),
        ({"services": "[{name: my, type: mysql}]"}, (), "service my (type: mysql) needs a Docker engine"),
        ({}, ("--sandbox", "docker"), "--sandbox docker needs a Docker engine"),
        ({"network": "{egress: {default: deny}}"}, (), "network.egress: deny can't be kept by the process sandbox"),
        ({"base": "python:3.12-slim"}, ("--sandbox", "process"), "asks for a container"),
    ],
)
def test_without_an_engine_exit_2_and_the_ways_out(tmp_path, more, words, found):
    called = run_spec(tmp_path, spec(**more), *words, environ=NO_ENGINE)
    assert called.code == 2, called.err
    assert found in called.err
    assert not called.has_traceback
    assert not (tmp_path / "out").exists()
