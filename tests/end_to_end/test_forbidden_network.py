"""`http_except`, in containers: what an agent asks for outside, and what counts for nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.audit import audit_lines
from support.forbidden_rules import API, judged, spec_of
from support.images import BASE
from support.model_agents import CLIENT, behind, run, says


@pytest.fixture
def site() -> Iterator[int]:
    """The port of a web server of this machine, which a proxy reaches as `localhost`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


REACH = """
import os, socket, sys, urllib.error, urllib.request

def through(request, wait=True):
    "The status that the proxy answers with, where we don't hang up at once."
    host, _, port = os.environ["HTTP_PROXY"].rpartition("/")[2].partition(":")
    with socket.create_connection((host, int(port)), 30) as proxy:
        proxy.sendall(f"{request} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
        return proxy.recv(99).split()[1].decode() if wait else ""

def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return 0

def service(name):
    return ask(os.environ[f"KEYSTONE_SERVICE_{name}_URL"] + "/x")
"""
OTHER = {"name": "other", "type": "http_mock"}
NOTHING = {"default": "deny", "allow": []}


@pytest.mark.docker
@pytest.mark.parametrize(
    ("script", "rule", "egress", "told"),
    [
        (
            "assert (service('API'), through('GET http://localhost:PORT/')) == (200, '200')",
            ["api", "localhost:PORT"],
            {},
            "",
        ),
        ("assert through('CONNECT localhost:PORT') == '200'", ["local*:PORT"], {"allow": ["localhost:PORT"]}, ""),
        ("assert service('API') == 200", [], {}, "GET http://api:"),
        ("assert service('API') == service('OTHER') == 200", ["api"], {}, "GET http://other:"),
        ("assert ask('http://evil.example/x') == 403", ["api"], {}, "GET to evil.example:80 at "),
        (
            "assert through('CONNECT evil.example:443') == '403'",
            ["*.good.example"],
            {},
            "CONNECT to evil.example:443 at ",
        ),
        ("through('CONNECT evil.example:443', wait=False)", ["api"], NOTHING, "CONNECT to evil.example:443 at "),
        ("assert through('CONNECT localhost:22') == '403'", ["localhost:PORT"], {}, "CONNECT to localhost:22 at "),
        (
            "assert through('GET http://localhost:PORT/') == '200'",
            [],
            {"default": "deny", "allow": ["localhost:PORT"]},
            "GET to localhost:PORT at ",
        ),
        (
            "assert through('GET http://u@localhost:PORT/') == '400'",
            ["localhost:PORT"],
            {},
            "GET to http://u@localhost",
        ),
        ("assert ask('http://1.1.1.1/') == 403", ["api"], {}, "GET to 1.1.1.1:80 at "),
    ],
)
def test_what_is_asked_for_outside_is_a_violation(
    tmp_path: Path, image: Any, site: int, script: str, rule: list[str], egress: dict[str, Any], told: str
) -> None:
    image(BASE)
    script, told = script.replace("PORT", str(site)), told.replace("PORT", str(site))
    fields = json.loads(json.dumps({"http_except": rule, "egress": egress}).replace("PORT", str(site)))
    spec = spec_of(
        REACH + script,
        {"http_except": fields["http_except"]},
        base=BASE,
        services=[API, OTHER],
        network={"egress": fields["egress"]},
        agent={"must_exit_zero": True},
    )
    called = run(tmp_path, spec, {})
    found = judged(called)
    assert found["violated"] is bool(told), found
    assert found["details"].startswith(told)
    assert found["details"].count("\n") == 0
    assert called.cells[0]["agent"]["exit_code"] == 0, called.cells[0]["agent"]
    if " at " in told and "http://" not in told:
        done = "let through by" if egress.get("allow") else "refused by"
        assert found["details"].endswith(f"{done} the egress proxy")
    assert all(set(line) >= {"host", "port", "allowed"} for line in audit_lines(called.output, "connect"))


@pytest.mark.docker
def test_models_are_no_host(tmp_path: Path, image: Any) -> None:
    """The gateway's address counts for nobody, also where a client sends all it has through the proxy."""
    image(BASE)
    script = f"{CLIENT}{REACH.replace('def ask', 'def visit')}\nprint('done', ask([user('hello')])[0])\n"
    script += "print(through('GET ' + os.environ['ANTHROPIC_BASE_URL']))"
    spec = spec_of(script, {"http_except": []}, base=BASE, gateway={}, agent={"must_exit_zero": True})
    with behind(says("hello")) as (_, environ):
        called = run(tmp_path, spec, environ)
    assert not judged(called)["violated"]
    assert called.cells[0]["agent"]["output"] == "done 200\n403\n"


@pytest.mark.docker
def test_what_checks_and_setup_reach_is_not_the_agent_s(tmp_path: Path, image: Any) -> None:
    image(BASE)
    reach = REACH + "print(through('CONNECT evil.example:443'), service('API'))"
    command = ["python3", "-c", reach]
    spec = spec_of(
        "print('nothing')",
        {"http_except": []},
        base=BASE,
        services=[API],
        setup={"files": [{"path": "reach.py", "content": reach}], "commands": ["python3 reach.py || true"]},
        invariants={"reached": {"check": {"type": "command_exit", "command": command}}},
    )
    assert not judged(run(tmp_path, spec, {}))["violated"]
