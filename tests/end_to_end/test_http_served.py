"""`http` through the real command: what the agent built is started and asked, here and in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_spec
from support.images import BASE, PYTHON
from support.served import APP, RAW

SPEC = """version: 1
id: served
task: {prompt: build it}
agent: {type: command, command: [python3, "{{ agent.dir }}/agent.py"], dir: agent}
"""
BUILDS = """
import pathlib
pathlib.Path("app.py").write_text(APP)
pathlib.Path("run.sh").write_text("exec python3 app.py")
pathlib.Path("flood.py").write_text(FLOOD)
"""
CHECKS = """
invariants:
  works: {check: {type: http, start: sh run.sh, request: {url: /ready}, expect: {json: {path: /ready}}}}
  differs: {check: {type: http, start: [sh, run.sh], request: {url: /500}, expect: {status: 200}}}
  silent: {check: {type: http, start: sleep 600, request: {url: /}, ready_timeout: 1}}
  hangs_up: {check: {type: http, start: [python3, -c, "import os"], request: {url: /}}}
  floods: {check: {type: http, start: python3 flood.py, request: {url: /}}}
"""
VERDICTS = {"works": "pass", "differs": "fail", "silent": "fail", "hangs_up": "fail", "floods": "fail"}
FLOOD = RAW.format(serve="connection.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n' + bytes(99_000_000))")


def run(tmp_path: Path, document: str) -> Any:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(f"APP = {APP!r}\nFLOOD = {FLOOD!r}\n{BUILDS}")
    called = run_spec(tmp_path, SPEC + document)
    assert not called.has_traceback
    assert called.code != 2, called.err
    return called


def statuses(called: Any) -> dict[str, str]:
    return {name: entry["status"] for name, entry in called.checks.items()}


def test_through_the_real_command(tmp_path: Path) -> None:
    called = run(tmp_path, CHECKS)
    assert statuses(called) == VERDICTS, called.checks
    assert "sent a body of more than 8 MiB" in called.checks["floods"]["message"]
    assert called.code == 1


SERVICE = """
services:
  - {name: api, type: http_mock, routes: [{path: /v1/items, json: {items: [1, 2]}}, {path: /old, status: 301,
     headers: {Location: "http://elsewhere.example/"}}]}
invariants:
  there: {check: {type: http, request: {url: "{{ services.api.url }}/v1/items?n=2"}, expect: {json: {items: [1, 2]}}}}
  by_parts: {check: {type: http, request: {url: "http://{{ services.api.host }}:{{ services.api.port }}/v1/items"}}}
  moved: {check: {type: http, request: {url: "{{ services.api.url }}/old"}}}
  gone: {check: {type: http, request: {url: "{{ services.api.url }}/v2"}, expect: {status: 200}}}
"""
ANSWERS = {"there": "pass", "by_parts": "pass", "moved": "fail", "gone": "fail"}


def test_without_start_a_service_is_asked(tmp_path: Path) -> None:
    called = run(tmp_path, SERVICE)
    assert statuses(called) == ANSWERS, called.checks
    assert "which is not followed" in called.checks["moved"]["message"]


def test_without_start_nothing_else_is_asked(tmp_path: Path) -> None:
    elsewhere = 'invariants: {it: {check: {type: http, request: {url: "http://{{ cell.id }}.example/"}}}}\n'
    called = run(tmp_path, elsewhere)
    assert called.code == 3
    assert "is not a service of this spec" in called.checks["it"]["message"]


@pytest.mark.docker
@pytest.mark.parametrize("egress", ["allow", "deny"])
@pytest.mark.parametrize("name", [PYTHON, BASE])
def test_in_a_container_where_it_listens_for_itself_alone(tmp_path: Path, image: Any, name: str, egress: str) -> None:
    called = run(tmp_path, f"base: {image(name)}\nnetwork: {{egress: {{default: {egress}}}}}\n{CHECKS}")
    assert statuses(called) == VERDICTS, called.checks
    assert "did not listen on port" in called.checks["silent"]["message"]
    assert "it must stay in the foreground" in called.checks["hangs_up"]["message"]
    assert "sent a body of more than 8 MiB" in called.checks["floods"]["message"]


@pytest.mark.docker
def test_a_service_of_a_cell_in_containers_is_asked(tmp_path: Path, image: Any) -> None:
    called = run(tmp_path, f"base: {image(PYTHON)}\n{SERVICE}")
    assert statuses(called) == ANSWERS, called.checks
