"""`http`: what the agent built is started and asked; servers that lie, hang, flood or run away earn nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import socket
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.served import APP, RAW

from keystone_action.invariants.check import Outcome
from keystone_action.invariants.http_exchange import ExpectedResponse, Probe, ProbeAnswer
from keystone_action.sandbox.http_client import BadRequest, BadResponse, HttpResponse, HttpTarget, encode, exchange

pytestmark = pytest.mark.sandbox


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "app.py").write_text(APP)
    return made


def check(workspace: Path, expect: Mapping[str, Any] | None = None, url: str = "/", **fields: Any) -> Outcome:
    request = {"url": url, **fields.pop("request", {})}
    document = {"type": "http", "start": "exec python3 app.py", "request": request, **fields.pop("check", {})}
    if expect is not None:
        document["expect"] = dict(expect)
    return grade(document, workspace, **fields)


def raw(workspace: Path, serve: str, **fields: Any) -> Outcome:
    """With a server that answers each request by these statements."""
    (workspace / "app.py").write_text(RAW.format(serve=textwrap.indent(serve, "        ").lstrip()))
    return check(workspace, **fields)


def exchanged(serve: str) -> HttpResponse:
    """What we take of a server that answers by these statements. Raises BadResponse."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve_once, args=(listener, serve), daemon=True).start()
        port = listener.getsockname()[1]
        return asyncio.run(_ask(port))


async def _ask(port: int) -> HttpResponse:
    async with asyncio.timeout(120):
        connection = await asyncio.open_connection("127.0.0.1", port)
        return await exchange(connection, encode("GET", HttpTarget.of(f"http://localhost:{port}/"), {}, None))


def _serve_once(listener: socket.socket, serve: str) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        connection.recv(65536)
        exec(serve, {"connection": connection, "os": os})


@pytest.fixture(scope="module")
def answered() -> HttpResponse:
    """What the program of these tests answers."""
    body = {"path": "/", "method": "GET", "body": "", "items": [1, 2.5, "three"], "token": None, "host": "localhost"}
    head = "HTTP/1.1 200 OK\r\nServer: BaseHTTP Python\r\nContent-Type: application/json\r\n\r\n"
    return exchanged(f"connection.sendall({(head + json.dumps(body)).encode()!r})")


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        (None, ""),
        ({"status": 200}, ""),
        ({"status": [404, 200]}, ""),
        ({"status": {"gte": 200, "lt": 300}}, ""),
        ({"headers": {"content-type": "application/json", "Server": {"contains": "Python"}}}, ""),
        ({"headers": {"X-Powered-By": {"exists": False}}}, ""),
        ({"body": {"contains": '"method": "GET"', "not_contains": "POST"}}, ""),
        ({"json": {"items[2]": "three", "items": {"count": 3}, "$.path": "/", "items[1]": {"gt": 2}}}, ""),
        ({"status": 404}, "status: expected 404, found 200"),
        ({"status": [201, 204]}, "status: expected 201 or 204, found 200"),
        ({"status": {"gte": 400}}, "status: expected at least 400, found 200"),
        ({"headers": {"content-type": "text/html"}}, "header content-type: expected 'text/html' (text)"),
        ({"headers": {"X-Gone": {"contains": "a"}}}, "the response has no header X-Gone"),
        ({"body": {"matches": "^nothing"}}, "body: expected a text that matches '^nothing'"),
        ({"body": "all of it"}, "body: expected 'all of it' (text)"),
        ({"json": {"items[0]": "1"}}, "json: items[0]: expected '1' (text), found 1 (integer)"),
        ({"json": {"gone": 1}}, "json: gone: expected 1 (integer); the document has no 'gone'"),
    ],
)
def test_every_expectation_holds_or_not(answered: HttpResponse, expect: Mapping[str, Any] | None, problem: str) -> None:
    document = {"type": "http", "start": "x", "request": {"url": "/"}, **({} if expect is None else {"expect": expect})}
    problems = make_check(document).expect.problems(answered, time.monotonic() + 60)
    outcome = ProbeAnswer(answered, tuple(problems), 1).outcome("it")
    assert outcome.status == ("fail" if problem else "pass"), outcome.message
    assert outcome.score == (0.0 if problem else 1.0)
    assert problem in outcome.message
    assert outcome.details["status"] == 200


def test_what_is_expected_decides_and_the_log_has_what_was_printed(workspace: Path) -> None:
    for status, expected in ((200, "pass"), (404, "fail")):
        outcome = check(workspace, {"status": status})
        assert outcome.status == expected, outcome.message
        assert outcome.details["status"] == 200
        assert "GET / HTTP/1.1" in outcome.log


def test_the_request_is_as_the_spec_has_it(workspace: Path) -> None:
    request = {"method": "post", "headers": {"X-Token": "at-{{ port }}"}, "body": {"a": [1, "{{ port }}"]}}
    expect = {
        "json": {
            "method": "POST",
            "path": "/caf%C3%A9?q=a%20b",
            "token": {"matches": r"^at-\d+$"},
            "body": {"matches": r'^\{"a": \[1, "\d+"\]\}$'},
            "host": {"matches": r"^localhost:\d+$"},
        }
    }
    outcome = check(workspace, expect, "http://localhost:{{ port }}/café?q=a b", request=request)
    assert outcome.status == "pass", outcome.message


def test_port_is_filled_in_where_it_is_named_and_nowhere_else(workspace: Path) -> None:
    (workspace / "app.py").write_text(APP.replace('os.environ["PORT"]', "sys.argv[1]"))
    start = ["python3", "app.py", "{{ port }}", "\\{{ port }}"]
    outcome = check(workspace, {"json": {"body": "{{ port }}"}}, check={"start": start}, request={
        "method": "POST", "body": "\\{{ port }}"})  # fmt: skip
    assert outcome.status == "pass", outcome.message


def test_a_redirect_is_shown_and_not_followed(workspace: Path) -> None:
    outcome = check(workspace, url="/302")
    assert outcome.status == "fail"
    assert "found 302; it redirects to 'http://elsewhere.example/secret', which is not followed" in outcome.message
    moved = {"status": 302, "headers": {"Location": {"contains": "elsewhere"}}}
    assert check(workspace, moved, "/302").status == "pass"


def test_retries_ask_until_it_is_as_expected(workspace: Path) -> None:
    serve = """
    count = globals().get("count", 0) + 1
    status = b"503 Not Yet" if count < 3 else b"200 OK"
    connection.sendall(b"HTTP/1.1 " + status + b"\\r\\nContent-Length: 0\\r\\n\\r\\n")
    """
    outcome = raw(workspace, textwrap.dedent(serve).strip(), check={"retries": 4})
    assert outcome.status == "pass", outcome.message
    assert outcome.details["tries"] == 3
    outcome = raw(workspace, textwrap.dedent(serve).strip(), check={"retries": 1})
    assert outcome.status == "fail"
    assert "(tried 2 times)" in outcome.message
    assert "found 503" in outcome.message


@pytest.mark.parametrize(
    ("app", "sentence"),
    [
        ("print('I am no server')", "ended with exit code 0 before it listened on its port; it must stay in the"),
        ("raise SystemExit('no configuration')", "no configuration"),
        ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("import time; time.sleep(600)", "did not listen on port"),
        ("import socket, time; s = socket.create_server(('127.0.0.1', 0)); time.sleep(600)", "did not listen on port"),
        # Whatever leaves the foreground is killed with it.
        ("import os; pid = os.fork()\nif not pid: os.setsid(); exec(open('real.py').read())", "in the foreground"),
        ("while True: print('y' * 100000)", "did not listen on port"),
    ],
)
def test_what_never_listens_fails(workspace: Path, app: str, sentence: str) -> None:
    (workspace / "real.py").write_text(APP)
    (workspace / "app.py").write_text(app)
    outcome = check(workspace, check={"ready_timeout": 2 if sentence == "did not listen on port" else 30})
    assert outcome.status == "fail", outcome.message
    assert outcome.score == 0.0
    assert sentence in outcome.message
    assert len(outcome.message) < 10_000


OK = "b'HTTP/1.1 200 OK\\r\\n"
CHUNKS = "while True: connection.sendall(b'1\\r\\na\\r\\n' * 9999)"


@pytest.mark.parametrize(
    ("serve", "sentence"),
    [
        ("connection.sendall(b'SSH-2.0-OpenSSH_9.2\\r\\n')", "sent something that is not an HTTP response"),
        ("connection.sendall(os.urandom(4096))", "sent something that is not an HTTP response"),
        ("pass", "sent nothing and hung up"),
        (f"connection.sendall({OK}')", "closed the connection before its response was complete"),
        (f"connection.sendall({OK}Content-Length: 10\\r\\n\\r\\nhalf')", "before its response was complete"),
        (f"connection.sendall({OK}Transfer-Encoding: chunked\\r\\n\\r\\n5\\r\\nhello')", "before its response was"),
        (f"connection.sendall({OK}')\nwhile True: connection.sendall(b'X-A: b\\r\\n' * 99)", "headers of more than"),
        (f"connection.sendall({OK}X: ')\nwhile True: connection.sendall(b'a' * 999)", "headers of more than 64 KiB"),
        (f"connection.sendall({OK}\\r\\n')\nwhile True: connection.sendall(b'a' * 99999)", "a body of more than 8 MiB"),
        (
            f"connection.sendall({OK}Transfer-Encoding: chunked\\r\\n\\r\\n')\n" + CHUNKS,
            "sent more than 16 MiB in all",
        ),
        ("while True: connection.sendall(b'HTTP/1.1 100 Continue\\r\\n\\r\\n' * 99)", "headers of more than 64 KiB"),
        (f"connection.sendall({OK}Content-Encoding: br\\r\\n\\r\\nx')", "for which it was not asked"),
        (f"connection.sendall({OK}Content-Encoding: gzip\\r\\n\\r\\nxyzxyzxyz')", "can't be unpacked"),
    ],
)
def test_hostile_servers_are_not_believed(serve: str, sentence: str) -> None:
    with pytest.raises(BadResponse, match=re.escape(sentence)):
        exchanged(serve)


@pytest.mark.parametrize(
    ("serve", "sentence"),
    [
        (f"connection.sendall({OK}\\r\\n')\nwhile True: connection.sendall(b'a' * 99999)", "a body of more than 8 MiB"),
        (f"for byte in {OK}': connection.sendall(bytes([byte])); time.sleep(1)", "no whole response came within"),
        ("time.sleep(600)", "no whole response came within"),
        ("os._exit(3)", "sent nothing and hung up"),
    ],
)
def test_hostile_servers_earn_nothing(workspace: Path, serve: str, sentence: str) -> None:
    outcome = raw(workspace, serve, timeout=8.0 if "time.sleep" in serve else 120.0)
    assert outcome.status == "fail", outcome.message
    assert outcome.score == 0.0
    assert sentence in outcome.message


def test_a_packed_body_is_unpacked_up_to_a_limit() -> None:
    def answer(body: bytes) -> str:
        return f"connection.sendall({OK}Content-Encoding: gzip\\r\\n\\r\\n' + {gzip.compress(body)!r})"

    assert exchanged(answer(b'{"n": 1}')).text() == '{"n": 1}'
    with pytest.raises(BadResponse, match="unpacks to more than 8 MiB"):
        exchanged(answer(bytes(20 << 20)))


@pytest.mark.parametrize("body", [b"[" * 5000, b'{"a": 1, "a": 2}', b"\xff\xfe", b"NaN", b""])
def test_a_body_that_is_no_json_or_twisted_fails(body: bytes) -> None:
    expect = ExpectedResponse.model_validate({"json": {"$": {"exists": True}}})
    (problem,) = expect.problems(HttpResponse(200, {}, body), time.monotonic() + 60)
    assert "can't be used as JSON" in problem


def test_a_pattern_that_backtracks_for_ever_is_stopped() -> None:
    """At the deadline of the check, which the probe passes on."""
    expect = ExpectedResponse.model_validate({"body": {"matches": "^(a|aa)+$"}})
    found: list[ProbeAnswer] = []

    async def ask() -> HttpResponse:
        return HttpResponse(200, {}, b"a" * 60 + b"!")

    def probe() -> None:
        found.append(anyio.run(Probe(expect, 0, time.monotonic() + 0.5).run, ask))

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(60)
    assert found, "it goes on"
    (problem,) = found[0].problems
    assert "hit the time limit" in problem


def test_nothing_that_it_started_is_left(workspace: Path) -> None:
    """Also what forks on, has a session of its own and hears no signal."""
    app = """
import os, signal
alive, told = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            os.execv("/bin/sleep", ["left-by-http", "600"])
        finally:
            os.write(told, b"no")
    os._exit(0)
os.close(told)
assert os.read(alive, 2) == b"", "it could not be started"
"""
    (workspace / "app.py").write_text(app + APP)
    outcome = check(workspace)
    assert outcome.status == "pass", outcome.message
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                commands.append((entry / "cmdline").read_bytes())
    assert not [one for one in commands if b"left-by-http" in one]


def test_the_workspace_as_left_stays_as_it_is_and_the_copy_has_no_planted_start_up(workspace: Path) -> None:
    (workspace / "sitecustomize.py").write_text("open('planted', 'w').write('yes')\n")
    (workspace / "app.py").write_text("import os\nopen('written', 'w').write('x')\n" + APP)
    outcome = check(workspace, check={"start": "PYTHONPATH=. exec python3 app.py"})
    assert outcome.status == "pass", outcome.message
    assert sorted(entry.name for entry in workspace.iterdir()) == ["app.py", "sitecustomize.py"]


def test_a_program_that_is_not_in_the_sandbox_is_an_error(workspace: Path) -> None:
    fields = {"check": {"start": "mvnw-not-here run"}, "missing_programs": frozenset({"mvnw-not-here"})}
    outcome = check(workspace, **fields)
    assert outcome.status == "error"
    assert "mvnw-not-here is not in this sandbox; set base" in outcome.message


@pytest.mark.parametrize(
    "url", ["http://elsewhere.example/", "http://localhost:1/", "https://localhost:{{ port }}/", "ftp://localhost/x"]
)
def test_a_url_that_leads_elsewhere_is_an_error(workspace: Path, url: str) -> None:
    outcome = check(workspace, url=url)
    assert outcome.status == "error"
    assert "expected a" in outcome.message


@pytest.mark.parametrize(
    "document",
    [
        {"request": {"url": "http://example.org/"}},
        {"request": {"url": "http://localhost:{{ port }}/"}},
        {"request": {}},
        {"request": {"url": "/"}},
        {"start": "x", "request": {"url": "/"}, "expect": {"status": "ok"}},
        {"start": "x", "request": {"url": "/"}, "expect": {"status": []}},
        {"start": "x", "request": {"url": "/"}, "expect": {"status": True}},
        {"start": "x", "request": {"url": "/"}, "expect": {"body": {"starts": "x"}}},
        {"start": "x", "request": {"url": "/"}, "expect": {"json": {"a..b": 1}}},
        {"start": "x", "request": {"url": "/"}, "retries": -1},
        {"start": "", "request": {"url": "/"}},
    ],
)
def test_what_makes_no_sense_is_refused(document: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "http", **document})


@given(st.text(), st.text(), st.text())
def test_no_text_breaks_out_of_its_place_in_a_request(path: str, name: str, value: str) -> None:
    try:
        data = encode("GET", HttpTarget.of(f"http://localhost:80/{path}"), {name: value}, None)
    except (BadRequest, UnicodeEncodeError):
        return
    head, _, rest = data.partition(b"\r\n\r\n")
    assert rest == b""
    assert len(head.split(b"\r\n")) == len({"get", "host", "user-agent", "accept", "accept-encoding", "connection"} | {
        name.lower()})  # fmt: skip
