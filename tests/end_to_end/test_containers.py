"""A spec with `base` on a laptop: agent and checks in containers, services on the engine, nothing left."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import NO_ENGINE, Called, keystone, run_spec, spec
from support.images import POSTGRES, PYTHON

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


LOOK = (
    "import json, os, sys, urllib.request\n"
    "context = json.load(sys.stdin)\n"
    "status = urllib.request.urlopen(context['services']['api']['url'] + '/health').status\n"
    "inside = os.uname().nodename == 'sandbox'\n"
    "found = os.path.exists('out.json') and status == 200\n"
    "print(json.dumps({'passed': found, 'details': f'container: {inside}'}))\n"
)
NO_FILE = "  it: {check: {type: file_absent, path: y}}\n"
API = "[{name: api, type: http_mock}]"


def write(directory: Path, name: str, *, base: str, invariants: str, agent: str = AGENT, **more: str) -> None:
    """A spec of an agent in a container, its code in a directory of its own."""
    (directory / name).mkdir(parents=True)
    (directory / name / "agent.py").write_text(agent)
    extra = "".join(f"{key}: {value}\n" for key, value in more.items())
    (directory / f"{name}.keystone.yaml").write_text(
        f'version: 1\nid: {name}\ntask: {{prompt: "do it"}}\nbase: {base}\n'
        f'agent: {{type: command, command: [python3, "{{{{ agent.dir }}}}/agent.py"], dir: {name}}}\n'
        f"{extra}invariants:\n{invariants}"
    )


def run(directory: Path, *specs: str) -> tuple[Called, dict[str, dict[str, Any]]]:
    """The call for these specs of a directory, or for all, and the cell of each by its id."""
    return cells_of(keystone("run", *(specs or (".",)), "--output", "out", directory=directory))


def cells_of(called: Called) -> tuple[Called, dict[str, dict[str, Any]]]:
    assert called.code == 0, called.out + called.err
    return called, {one["id"]: cell for one in called.document["specs"] for cell in one["cells"]}


def checks_of(cell: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The invariants of a cell, by name."""
    return {entry["name"]: entry for entry in cell["invariants"]}


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, image) -> tuple[Called, dict[str, dict[str, Any]]]:
    """The call of two specs of containers, and their cells."""
    return cells_of(called_once(tmp_path_factory, "inside-containers", lambda directory: look_inside(directory, image)))


def look_inside(directory: Path, image) -> Called:
    (directory / "look.py").write_text(LOOK)
    (directory / "start").mkdir()
    (directory / "start" / "version.txt").write_text("7")
    write(
        directory,
        "leaves",
        base=image(PYTHON),
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
    write(
        directory,
        "inside",
        base=image(PYTHON),
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
    return keystone("run", ".", "--output", "out", directory=directory)


def test_what_setup_leaves_is_there_for_agent_and_checks(inside):
    statuses = {name: entry["status"] for name, entry in checks_of(inside[1]["leaves"]).items()}
    assert statuses == dict.fromkeys(("system", "as_root", "for_checks", "mine"), "pass")


def test_observing_and_executing_checks_of_an_agent_in_a_container(inside):
    called, cells = inside
    checks = checks_of(cells["inside"])
    assert {name: entry["status"] for name, entry in checks.items()} == dict.fromkeys(checks, "pass")
    answer = cells["inside"]["agent"]["output"].split()
    assert answer[-1] == "True"
    assert answer[-2] != "0"
    assert "container: True" in str(checks["in_sandbox"])
    assert "container: False" in str(checks["on_host"])
    assert called.document["sandbox"] == {
        "kind": "docker",
        "isolation": ["container"],
        "limits": "enforced",
        "not_enforced": [],
        "egress": None,
    }
    assert called.document["substituted"] == []
    assert "database system is ready" in (called.output / "services" / "db.log").read_text()


PACKAGES_OF_PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig")


def test_where_the_image_has_no_pytest_ours_runs_the_hidden_tests(tmp_path, image):
    (tmp_path / "test_hidden.py").write_text("import solution\ndef test_it(): assert solution.WORD == 'done'\n")
    write(
        tmp_path,
        "bare",
        base=image(PYTHON),
        agent="import pathlib; pathlib.Path('solution.py').write_text('WORD = \"done\"')",
        setup=json.dumps(
            {"commands": [f"find / -xdev -path '*-packages/{one}*' -delete" for one in PACKAGES_OF_PYTEST]}
        ),
        invariants="  hidden: {check: {type: pytest, inject: [test_hidden.py]}}\n",
    )
    cell = run(tmp_path)[1]["bare"]
    assert cell["verdict"] == "pass"
    assert [one for one in cell["notices"] if "this sandbox has no pytest" in one]


def write_setup(directory: Path, name: str, version: str, setup: str, base: str, **more: str) -> None:
    """A spec whose agent shows what a command of setup has left, of a workspace with this version."""
    (directory / f"{name}-start").mkdir(parents=True)
    (directory / f"{name}-start" / "version.txt").write_text(version)
    shown = "print(open('/opt/stamp').read())"
    write(directory, name, base=base, invariants=NO_FILE, agent=shown, workspace=f"{name}-start", setup=setup, **more)


def test_commands_of_setup_run_once_for_equal_workspaces_and_anew_where_services_could_tell(tmp_path, engine, image):
    unique, base = uuid.uuid4().hex, image(PYTHON)
    setup = f'{{commands: ["echo {unique} > /dev/null; cat version.txt /proc/sys/kernel/random/uuid > /opt/stamp"]}}'
    once = tmp_path / "once"
    write_setup(once, "first", "1", setup, base)
    write_setup(once, "changed", "2", setup, base)
    write_setup(once, "served", "1", setup, base, services=API)
    write_setup(once, "served-again", "1", setup, base, services=API)
    write_setup(tmp_path / "twice", "again", "1", setup, base)
    runs: set[str] = set()
    try:
        called, cells = run(once)
        runs.add(called.document["run_id"])
        stamps = {name: cell["agent"]["output"] for name, cell in cells.items()}
        called, cells = run(tmp_path / "twice")
        runs.add(called.document["run_id"])
        assert len({*stamps.values()}) == 4
        assert cells["again"]["agent"]["output"] == stamps["first"]
    finally:
        for one in engine.images.list(filters={"label": "keystone.kind=setup"}):
            made_by = (one.attrs.get("ContainerConfig") or {}).get("Labels") or {}
            if made_by.get("keystone.run") in runs:
                engine.images.remove(one.id)


def test_base_of_one_spec_and_none_of_another_run_side_by_side(tmp_path, image):
    """The first has an embedded PostgreSQL, which is reached from a container."""
    write(
        tmp_path,
        "inside",
        base=image(PYTHON),
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
    (tmp_path / "keystone.yaml").write_text(spec())
    called, cells = run(tmp_path, "keystone.yaml", "inside.keystone.yaml")
    assert cells["inside"]["agent"]["output"].strip() in ("b'S'", "b'N'")
    assert called.document["sandbox"]["kind"] == "process"
    assert any("inside (python:3.12-slim)" in notice for notice in called.document["notices"])


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
        ({"services": "[{name: my, image: 'mysql:9'}]"}, (), "service my (image: mysql:9) needs a Docker engine"),
        ({}, ("--sandbox", "docker"), "--sandbox docker needs a Docker engine"),
        (
            {"network": "{egress: {default: deny, allow: [example.com]}}"},
            (),
            "network.egress.allow can't be kept by the process sandbox",
        ),
        ({"base": "python:3.12-slim"}, ("--sandbox", "process"), "asks for a container"),
    ],
)
def test_without_an_engine_exit_2_and_the_ways_out(tmp_path, more, words, found):
    called = run_spec(tmp_path, spec(**more), *words, environ=NO_ENGINE)
    assert called.code == 2, called.err
    assert found in called.err
    assert not called.has_traceback
    assert not (tmp_path / "out").exists()
