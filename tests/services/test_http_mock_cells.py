"""What keeps cells apart, what makes a record complete, and the audit log that the source's script reads."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace

import httpx
import pytest
from support.mocks import RunningMock, model, read_all, running_mock, scope_in
from support.places import attached
from support.process_world import eventually

from keystone_action.errors import OutputError, ServiceError
from keystone_action.network.guarded_listener import PeerLookup, _ask, _read
from keystone_action.services.http_mock import guarded
from keystone_action.services.http_mock import service as mock_cell
from keystone_action.services.http_mock.guarded import SHARED_USER
from keystone_action.services.http_mock.server import MOCK_HOST, MockServer
from keystone_action.services.http_mock.service import HttpMock, MockCell, RouteTable
from keystone_action.services.sql_script import SqlScript

# `validate_api_responses.py` as `000_66edd30c29bbac31.txt` has it, under "Custom Python invariant".
VALIDATE = """
import json
import sys

ctx = json.load(sys.stdin)
audit_path = ctx["audit_log_path"]

valid = 0
total = 0
for line in open(audit_path):
    event = json.loads(line)
    if event["type"] != "http_call":
        continue
    total += 1
    response = event["details"].get("response_body", "")
    try:
        data = json.loads(response)
        if "id" in data and "status" in data:
            valid += 1
    except json.JSONDecodeError:
        pass

passed = total > 0 and valid == total
print(json.dumps({
    "passed": passed,
    "score": valid / total if total else 0,
    "reason": f"{valid}/{total} responses valid",
}))
"""

STRANGER = 54_321
AS_USER = """
import os, socket, sys
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
connection = socket.socket()
connection.connect(("127.0.0.1", int(sys.argv[1])))
try:
    connection.sendall(b"GET /from-user HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    print(connection.recv(65536).decode("latin-1")[:15])
except OSError:
    print("")
"""


def call_as(user: int, port: int) -> str:
    """The first bytes of the answer that a process of this user gets."""
    command = [sys.executable, "-S", "-c", AS_USER, str(port), str(user)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_another_user_is_turned_away_and_counted(tmp_path):
    scope = scope_in(tmp_path, allowed_users=set(), exclusive=False)
    with running_mock(tmp_path, scope=scope) as mock:
        if os.geteuid() != 0:
            assert httpx.get(mock.url).status_code == 200
            assert len(mock.requests()) == 1
            return
        assert call_as(STRANGER, mock.port) == ""
        assert list(mock.requests()) == []
        scope.allowed_users.add(STRANGER)  # a sandbox of a check got a user of its own
        assert call_as(STRANGER, mock.port) == "HTTP/1.1 200 OK"
        assert call_as(STRANGER + 1, mock.port) == ""
        assert httpx.get(f"{mock.url}/ours").status_code == 200
        assert [one.path for one in mock.requests()] == ["/from-user", "/ours"]
    events = [json.loads(line) for line in scope.audit_log.path.read_text().splitlines()]
    assert [event["type"] for event in events] == ["http_call", "http_call", "connections_refused"]
    assert events[-1]["details"] == {"service": "api", "strangers": 2, "unknown": 0, "not_http": 0}


def test_where_users_do_not_tell_cells_apart_this_is_said(tmp_path):
    with running_mock(tmp_path, scope=scope_in(tmp_path, allowed_users=None)) as mock:
        assert mock.place.notices == (SHARED_USER,)
        assert httpx.get(mock.url).status_code == 200
        if os.geteuid() == 0:
            assert call_as(STRANGER, mock.port) == ""
        assert len(mock.requests()) == 1


@pytest.mark.parametrize(
    ("allowed", "exclusive", "owner", "admitted"),
    [
        (set(), False, None, False),
        (set(), True, None, True),
        (None, False, None, True),
        ({5}, False, 5, True),
        ({5}, True, 6, False),
        (None, True, os.geteuid() + 1, False),
        (set(), False, os.geteuid(), True),
    ],
)
def test_who_is_admitted(tmp_path, allowed, exclusive, owner, admitted):
    scope = scope_in(tmp_path, allowed_users=allowed, exclusive=exclusive)
    cell = MockCell("api", RouteTable(model(), tmp_path), scope, record=True)
    assert cell.admits(owner) is admitted
    assert (cell.counts.unknown, cell.counts.strangers) == (
        int(not admitted and owner is None),
        int(not admitted and owner is not None),
    )
    cell.close()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_both_ways_of_asking_for_a_peer_agree(family):
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
    with socket.create_server((MOCK_HOST, 0)) as listener, netlink:
        local = listener.getsockname()
        client = socket.socket(family)
        client.connect(local if family == socket.AF_INET else (f"::ffff:{MOCK_HOST}", local[1]))
        accepted, peer = listener.accept()
        assert _ask(netlink, peer, local) == _read(peer, local) == os.geteuid()
        client.close()
        # Its owner's until the other side has been told, and then nobody's: what is shown then looks like root's.
        told: list[int | None] = []

        def is_nobodys() -> bool:
            told[:] = [_ask(netlink, peer, local), _read(peer, local)]
            assert set(told) <= {None, os.geteuid() or None}
            return told == [None, None]

        assert eventually(is_nobodys), told
        accepted.close()
    lookup = PeerLookup()
    assert lookup.owner((MOCK_HOST, 1), (MOCK_HOST, 1)) is None
    lookup.close()


def test_cells_of_one_service_share_nothing(tmp_path):
    server = MockServer()
    service = HttpMock(model(routes=[{"path": "/a", "times": 1}]), server, tmp_path)

    def enter(stack: ExitStack, name: str) -> RunningMock:
        scope = scope_in(tmp_path / name)
        return RunningMock(service, server, stack.enter_context(attached(service, scope)), scope)

    asyncio.run(service.start())
    try:
        first, second = ExitStack(), ExitStack()
        one, two = enter(first, "one"), enter(second, "two")
        assert [httpx.get(f"{one.url}/a").status_code for _ in range(2)] == [200, 404]
        assert httpx.get(f"{two.url}/a").status_code == 200
        assert (len(one.requests()), len(two.requests())) == (2, 1)
        first.close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(one.url)
        assert httpx.get(f"{two.url}/a").status_code == 404
        assert len(one.requests()) == 2
        second.close()
        asyncio.run(service.stop())
        with pytest.raises(httpx.ConnectError):
            httpx.get(two.url)
        assert len(two.requests()) == 2
    finally:
        server.stop()


def test_attaching_again_starts_an_empty_journal(tmp_path):
    with running_mock(tmp_path) as mock:
        httpx.get(mock.url)
        assert len(mock.requests()) == 1
        with attached(mock.service, mock.scope) as again:
            assert again.requests is not None
            assert len(again.requests.requests()) == 0


def test_a_mock_that_does_not_record_is_still_audited(tmp_path):
    with running_mock(tmp_path, record=False) as mock:
        httpx.get(f"{mock.url}/x")
        assert mock.place.requests is None
        assert [event["details"]["method"] for event in mock.audit()] == ["GET"]
        assert not (mock.scope.private / "api.requests.jsonl").exists()


def test_the_audit_log_has_exactly_the_keys_of_the_source(tmp_path):
    with running_mock(tmp_path, routes=[{"path": "/api/**", "status": 201, "json": {"id": 1}}]) as mock:
        httpx.post(f"{mock.url}/api/messages?a=b", json={"to": "x"})
        (event,) = mock.audit()
        assert list(event) == ["ts", "type", "details"]
        assert event["details"] == {
            "service": "api",
            "method": "POST",
            "url": f"{mock.url}/api/messages?a=b",
            "request_body": '{"to":"x"}',
            "status": 201,
            "response_body": '{"id": 1}',
        }


@pytest.mark.parametrize(("paths", "passed", "score"), [(["/good"] * 2, True, 1.0), (["/good", "/bad"], False, 0.5)])
def test_the_scripts_of_the_source_run_unchanged(tmp_path, paths, passed, score):
    script = tmp_path / "validate_api_responses.py"
    script.write_text(VALIDATE)
    routes = [{"path": "/good", "json": {"id": 1, "status": "queued"}}, {"path": "/bad", "response": "no JSON"}]
    with running_mock(tmp_path, routes=routes) as mock:
        for path in paths:
            httpx.get(mock.url + path)
        mock.settle()
        context = json.dumps({"audit_log_path": str(mock.scope.audit_log.path)})
        done = subprocess.run([sys.executable, script], input=context, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert (result["passed"], result["score"]) == (passed, score)


def test_several_mocks_write_whole_lines_into_one_audit_log(tmp_path):
    server = MockServer()
    services = [HttpMock(model(name=f"m{number}"), server, tmp_path) for number in range(3)]

    for service in services:
        asyncio.run(service.start())

    def call(url: str) -> None:
        with httpx.Client() as client:
            for number in range(30):
                client.post(url, content="x" * number * 5_000)

    with ExitStack() as stack:
        places = [stack.enter_context(attached(service, scope_in(tmp_path))) for service in services]
        threads = [threading.Thread(target=call, args=(place.for_agent.url,)) for place in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.stop()
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert sorted(event["details"]["service"] for event in events) == [f"m{n}" for n in range(3) for _ in range(30)]


def test_what_was_sent_and_abandoned_is_in_the_record_when_it_is_read(tmp_path):
    # An agent that is killed leaves bytes in the kernel; the record must not depend on how fast we are.
    with running_mock(tmp_path) as mock:
        for _ in range(20):
            with mock.connect() as connection:
                connection.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        assert len(mock.requests()) == 400


def test_a_record_that_can_not_be_written_is_an_error_and_never_silent(tmp_path):
    scope = scope_in(tmp_path)
    with running_mock(tmp_path, scope=scope) as mock:
        cell = mock.place.cell
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, cell.journal._file._descriptor)
        os.close(full)
        reply = httpx.get(mock.url)
        assert (reply.status_code, "No space left on device" in reply.text) == (507, True)
        with pytest.raises(OutputError, match="the record of api is incomplete: a request could not be recorded"):
            mock.requests()


def test_the_record_is_bounded_and_says_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(mock_cell, "FULL_RECORD", 20_000)
    monkeypatch.setattr(mock_cell, "RECORD_LIMIT", 60_000)
    with running_mock(tmp_path, routes=[{"path": "/", "response": "{{ request.body }}"}]) as mock:
        first = httpx.post(mock.url, content="x" * 5_000)
        second = httpx.post(mock.url, content="y" * 5_000)
        assert (first.text, second.text) == ("x" * 5_000, "y" * 5_000)
        one, two = mock.requests()
        assert (len(one.body), one.cut) == (5_000, 0)
        assert (len(two.body), two.cut, two.body_bytes) == (1_024, 5_000 - 1_024, 5_000)
        assert "3,976 characters cut" in two.response_body
        with httpx.Client() as client:
            while client.get(mock.url).status_code == 200:
                pass
        with pytest.raises(OutputError, match="is incomplete"):
            mock.requests()


def test_open_bodies_are_bounded_for_a_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(guarded, "OPEN_BODIES", 10_000)
    with running_mock(tmp_path) as mock, mock.connect() as first:
        first.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n" + b"x" * 8_000)
        mock.settle()
        assert httpx.post(f"{mock.url}/b", content="x" * 5_000).status_code == 503
        first.sendall(b"x" * 1_000)
        assert first.recv(100).startswith(b"HTTP/1.1 200 OK")
        assert httpx.post(f"{mock.url}/c", content="x" * 9_000).status_code == 200
        assert [(one.path, one.status) for one in mock.requests()] == [("/b", 503), ("/a", 200), ("/c", 200)]


def test_it_answers_while_the_main_loop_is_busy(tmp_path):
    with running_mock(tmp_path) as mock:

        async def busy() -> bytes:
            with mock.connect() as connection:
                connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
                return read_all(connection)  # blocks this loop

        assert asyncio.run(busy()).startswith(b"HTTP/1.1 200 OK")


def test_errors_of_the_service(tmp_path):
    server = MockServer()
    service = HttpMock(model(), server, tmp_path)
    with pytest.raises(ServiceError, match="does not run"):
        attached(service, scope_in(tmp_path)).__enter__()
    (tmp_path / "file").write_text("")
    asyncio.run(service.start())
    with pytest.raises(ServiceError, match="service api: its record can't be written"):
        attached(service, replace(scope_in(tmp_path), private=tmp_path / "file")).__enter__()
    with attached(service, scope_in(tmp_path)) as place:
        with pytest.raises(ServiceError, match="service api is an http_mock; sql needs a database"):
            asyncio.run(place.run_sql(SqlScript("sql", text="SELECT 1")))
        server.stop()
    asyncio.run(service.stop())


def test_a_service_without_a_server_has_one_of_its_own_and_ends_it(tmp_path):
    service = HttpMock(model(), None, tmp_path)
    asyncio.run(service.start())
    with attached(service, scope_in(tmp_path)) as place:
        assert httpx.get(place.for_agent.url).status_code == 200
        asyncio.run(service.stop())
        with pytest.raises(httpx.ConnectError):
            httpx.get(place.for_agent.url)


def test_a_defect_while_serving_makes_the_record_incomplete(tmp_path, monkeypatch):
    with running_mock(tmp_path) as mock:
        monkeypatch.setattr(mock_cell, "now", lambda: 1 / 0)
        assert mock.exchange(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        deadline = time.monotonic() + 30
        while not mock.server.defects and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(ServiceError, match="ZeroDivisionError"):
            mock.requests()
        mock.server.defects.clear()
