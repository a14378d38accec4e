"""What goes over the wire: HTTP/1.0 and 1.1, as clients of all kinds send it."""

import gzip
import http.client
import json
import socket
import struct
import threading
import time
import zlib

import httpx
import pytest
from support.mocks import read_all, read_response, running_mock

from keystone_action.services.http_mock import request as http_body

POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture
def mock(tmp_path):
    routes = [
        {"path": "/delay", "delay": "200ms", "response": "late"},
        {"path": "/none", "status": 204},
        {"path": "/reset", "fault": "reset", "status": 201},
        {"path": "/empty", "fault": "empty"},
        {"path": "/garbage", "fault": "garbage"},
        {"path": "/hang", "delay": "1h"},
        {"path": "/**", "json": {"ok": True}},
    ]
    with running_mock(tmp_path, routes=routes) as running:
        yield running


def wait_for(condition):
    """Poll until it holds; the test's own time limit ends it otherwise."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_http_client_with_keep_alive(mock):
    client = http.client.HTTPConnection("127.0.0.1", mock.port)
    client.request("GET", "/x")
    assert json.loads(client.getresponse().read()) == {"ok": True}
    kept = client.sock
    client.request("PUT", "/y", body="text", headers={"Content-Type": "text/plain"})
    assert client.getresponse().read() == b'{"ok": true}'
    assert client.sock is kept
    client.close()
    assert [(one.method, one.path, one.body) for one in mock.requests()] == [("GET", "/x", ""), ("PUT", "/y", "text")]


def test_everything_about_a_request_is_recorded(mock):
    reply = httpx.post(
        f"{mock.url}/a%20b/c?q=1&q=2&r=%C3%A9&s=", json={"to": "é"}, headers=[("X-A", "1"), ("x-a", "2")]
    )
    assert reply.status_code == 200
    (one,) = mock.requests()
    assert (one.service, one.method, one.path) == ("api", "POST", "/a b/c")
    assert one.url == f"{mock.url}/a%20b/c?q=1&q=2&r=%C3%A9&s="
    assert one.query == {"q": ["1", "2"], "r": "é", "s": ""}
    assert one.headers["X-A"] == ["1", "2"]
    assert one.headers["Content-Type"] == "application/json"
    assert json.loads(one.body) == {"to": "é"}
    assert (one.body_bytes, one.cut, one.status) == (len(one.body.encode()), 0, 200)
    assert one.response_body == '{"ok": true}'
    assert one.ts.startswith("20")
    assert one.ts.endswith("Z")


def test_the_record_is_there_before_the_reply(mock):
    client = httpx.Client()
    for number in range(50):
        client.get(f"{mock.url}/{number}")
        # Not through requests(), which waits: the bytes must be in the file already.
        lines = (mock.scope.private / "api.requests.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["path"] == f"/{number}"
        assert json.loads(mock.scope.audit_log.path.read_text().splitlines()[-1])["details"]["url"].endswith(
            f"/{number}"
        )


def test_a_delayed_request_is_recorded_at_once(mock):
    with mock.connect() as connection:
        connection.sendall(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: len(mock.requests()) == 1)
    assert mock.requests()[0].path == "/hang"


def test_http_1_0_closes_and_keeps_alive_when_asked(mock):
    assert b"Connection: close\r\n" in mock.exchange(b"GET / HTTP/1.0\r\n\r\n")
    with mock.connect() as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert b"Connection: keep-alive\r\n" in read_response(connection)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK\r\n")


def test_connection_close_is_honoured(mock):
    with mock.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_all(connection).endswith(b'{"ok": true}')


def test_pipelined_requests_are_answered_in_order(mock):
    answers = mock.exchange(
        b"GET /delay HTTP/1.1\r\nHost: x\r\n\r\nHEAD /b HTTP/1.1\r\nHost: x\r\n\r\n" + POST % 2 + b"hi"
    )
    assert [part.split(b"\r\n")[0] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200 OK"] * 3
    assert answers.index(b"late") < answers.index(b'{"ok": true}')
    assert [one.path for one in mock.requests()] == ["/delay", "/b", "/a"]


def test_many_pipelined_requests(mock):
    answers = mock.exchange(b"GET /p HTTP/1.1\r\nHost: x\r\n\r\n" * 2_000)
    assert answers.count(b"HTTP/1.1 200 OK") == 2_000
    assert len(mock.requests()) == 2_000


def test_a_client_that_never_reads_does_not_fill_memory_and_does_not_stop_others(mock):
    with mock.connect() as greedy:
        greedy.setblocking(False)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += greedy.send(b"GET /p HTTP/1.1\r\nHost: x\r\n\r\n" * 1_000)
        except BlockingIOError:
            pass
        assert httpx.get(f"{mock.url}/other").status_code == 200
        assert sent < 64 << 20


def test_head_and_no_content_have_no_body(mock):
    head = httpx.head(f"{mock.url}/x")
    assert (head.content, head.headers["content-length"]) == (b"", str(len(b'{"ok": true}')))
    none = httpx.get(f"{mock.url}/none")
    assert (none.status_code, none.content) == (204, b"")
    assert "content-length" not in none.headers
    assert [one.response_body for one in mock.requests()] == ["", ""]


def test_expect_100_continue(mock):
    with mock.connect() as connection:
        connection.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert read_response(connection) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"hi")
        assert read_response(connection).startswith(b"HTTP/1.1 200 OK")
    assert mock.requests()[0].body == "hi"


def test_chunked_with_extensions_and_trailers(mock):
    mock.exchange(
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
    )
    (one,) = mock.requests()
    assert (one.body, one.body_bytes) == ("abcde", 5)


@pytest.mark.parametrize(
    ("coding", "encode"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", lambda body: gzip.compress(body[:3]) + gzip.compress(body[3:])),
        ("deflate", zlib.compress),
        ("deflate", lambda body: zlib.compress(body)[2:-4]),
        ("identity", lambda body: body),
        ("deflate, gzip", lambda body: gzip.compress(zlib.compress(body))),
    ],
)
def test_content_codings_are_removed(mock, coding, encode):
    body = json.dumps({"to": "finance@co", "n": list(range(2000))}).encode()
    coded = encode(body)
    httpx.post(f"{mock.url}/a", content=coded, headers={"Content-Encoding": coding})
    (one,) = mock.requests()
    assert one.body == body.decode()
    assert (one.body_bytes, one.cut) == (len(coded), 0)


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", b"abc", 415),
        ("gzip", b"no gzip", 400),
        ("gzip", gzip.compress(b"abc" * 100, mtime=0)[:-6], 400),
        ("deflate", zlib.compress(b"abc") + b"more", 400),
        (", ".join(["gzip"] * 5), b"abc", 415),
    ],
)
def test_codings_that_can_not_be_removed(mock, coding, body, status):
    reply = httpx.post(f"{mock.url}/a", content=body, headers={"Content-Encoding": coding})
    assert reply.status_code == status
    assert reply.json()["error"].startswith("keystone mock: ")
    assert [(one.method, one.path, one.status) for one in mock.requests()] == [("POST", "/a", status)]


def test_a_zip_bomb_is_refused_while_it_grows(mock):
    bomb = gzip.compress(gzip.compress(b"a" * (80 << 20), 6), 6)
    reply = httpx.post(f"{mock.url}/a", content=bomb, headers={"Content-Encoding": "gzip, gzip"}, timeout=60)
    assert reply.status_code == 413
    (one,) = mock.requests()
    assert len(one.body) == http_body.KEEP
    assert one.cut > 0


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("text/plain; charset=latin-1", "é".encode("latin-1"), "é"),
        ('text/plain; charset="utf-16"', "é".encode("utf-16"), "é"),
        ("text/plain; charset=nonsense", "é".encode(), "é"),
        ("text/plain; charset=punycode", b"a-b", "a-b"),
        ("text/plain; charset=hex", b"6161", "6161"),
        ("application/octet-stream", b"\xff\x00a", "\ufffd\x00a"),
        ("application/x-www-form-urlencoded", b"a=1&a=2", "a=1&a=2"),
        ("application/json", '"\u2028\U0001f600"'.encode(), '"\u2028\U0001f600"'),
    ],
)
def test_bodies_become_text(mock, content_type, body, text):
    httpx.post(f"{mock.url}/a", content=body, headers={"Content-Type": content_type})
    (one,) = mock.requests()
    assert (one.body, one.body_bytes) == (text, len(body))


def test_multipart_is_kept_as_text(mock):
    httpx.post(f"{mock.url}/a", data={"to": "x"}, files={"file": ("a.txt", b"content\xff")})
    (one,) = mock.requests()
    assert 'name="to"\r\n\r\nx\r\n' in one.body
    assert "content\ufffd" in one.body


def test_ten_megabytes(mock):
    body = bytes(range(65, 91)) * (10 * 1024 * 1024 // 26)
    assert httpx.post(f"{mock.url}/a", content=body, timeout=60).status_code == 200
    (one,) = mock.requests()
    assert (one.body.encode() == body, one.body_bytes, one.cut) == (True, len(body), 0)


def test_a_body_above_what_is_kept_is_cut_and_says_so(mock):
    body = b"x" * (http_body.KEEP + 1000)
    assert httpx.post(f"{mock.url}/a", content=body, timeout=60).status_code == 200
    (one,) = mock.requests()
    assert (len(one.body), one.body_bytes, one.cut) == (http_body.KEEP, len(body), 1000)


def test_a_body_above_the_limit_is_refused_and_recorded(mock):
    declared = mock.exchange(POST % (http_body.REFUSE + 1) + b"begin")
    assert declared.startswith(b"HTTP/1.1 413 ")
    with mock.connect() as connection:
        connection.sendall(b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(http_body.REFUSE // (1 << 20) + 1):
            connection.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")
    assert [(one.path, one.status, one.body_bytes > http_body.KEEP) for one in mock.requests()] == [
        ("/a", 413, False),
        ("/b", 413, True),
    ]


def test_many_headers_and_too_many(mock):
    headers = b"".join(b"X-%d: v\r\n" % number for number in range(2_000))
    assert mock.exchange(b"GET /a HTTP/1.1\r\n" + headers + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert mock.exchange(b"GET /b HTTP/1.1\r\nX: " + b"v" * 70_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    assert mock.exchange(b"GET /c HTTP/1.1\r\nX: 1\r\nY: " + b"v" * 400_000).startswith(b"HTTP/1.1 431 ")
    recorded = [(one.path, one.status, len(one.headers)) for one in mock.requests()]
    assert recorded[:2] == [("/a", 200, 2_000), ("/b", 431, 1)]
    assert recorded[2][:2] == ("/c", 431)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
        b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: b\r\nbroken\x00header: 1\r\n\r\n",
    ],
)
def test_a_request_that_goes_wrong_after_its_first_header_is_recorded(mock, sent):
    assert mock.exchange(sent).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert [(one.path, one.status) for one in mock.requests()] == [("/a", 400)]


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01", b"nonsense\r\n\r\n", b"GET /\r\n", b"\x00" * 1000, b"GET"]
)
def test_what_is_no_request_is_answered_and_counted_but_not_recorded(tmp_path, sent):
    with running_mock(tmp_path) as mock:
        assert mock.exchange(sent).startswith(b"HTTP/1.1 400 ")
        assert list(mock.requests()) == []
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(event["type"], event["details"]["not_http"]) for event in events] == [("connections_refused", 1)]


def test_an_upgrade_is_answered_as_plain_http_and_closed(mock):
    with mock.connect() as connection:
        connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nxyz")
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")
    assert mock.exchange(b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 ")
    assert [one.method for one in mock.requests()] == ["GET", "CONNECT"]


def test_faults(mock):
    with mock.connect() as connection:
        connection.sendall(b"GET /reset HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    assert mock.exchange(b"GET /empty HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    garbage = mock.exchange(b"GET /garbage HTTP/1.1\r\nHost: x\r\n\r\n")
    assert garbage
    assert not garbage.startswith(b"HTTP/1.1")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{mock.url}/garbage")
    assert [(one.path, one.status, one.response_body) for one in mock.requests()] == [
        ("/reset", 0, ""),
        ("/empty", 0, ""),
        ("/garbage", 0, ""),
        ("/garbage", 0, ""),
    ]


def test_a_client_that_leaves_before_the_reply_is_recorded(mock):
    for linger in (False, True):
        with mock.connect() as connection:
            connection.sendall(b"GET /delay HTTP/1.1\r\nHost: x\r\n\r\n")
            if linger:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                wait_for(lambda: len(mock.requests()) == 2)
    wait_for(lambda: len(mock.requests()) == 2)
    assert [one.path for one in mock.requests()] == ["/delay", "/delay"]


def test_a_body_that_its_client_never_finished_is_recorded_as_far_as_it_came(mock):
    with mock.connect() as connection:
        connection.sendall(POST % 100 + b"half")
    wait_for(lambda: len(mock.requests()) == 1)
    assert [(one.body, one.body_bytes, one.status) for one in mock.requests()] == [("half", 4, 400)]


def test_a_slow_client_is_waited_for(mock):
    with mock.connect() as connection:
        for byte in POST % 2 + b"hi":
            connection.sendall(bytes([byte]))
            time.sleep(0.002)
        assert read_response(connection).startswith(b"HTTP/1.1 200 OK")
    assert [one.body for one in mock.requests()] == ["hi"]


def test_many_clients_at_once(mock):
    def client(number: int) -> None:
        with httpx.Client() as own:
            for call in range(20):
                assert own.get(f"{mock.url}/{number}/{call}").status_code == 200

    threads = [threading.Thread(target=client, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.path for one in mock.requests()} == {f"/{n}/{c}" for n in range(10) for c in range(20)}
    assert len(mock.audit()) == 200


def test_more_connections_than_a_port_serves_wait_their_turn(mock):
    connections = [mock.connect() for _ in range(300)]
    for connection in connections[:256]:
        connection.sendall(b"GET /first HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for connection in connections[256:]:
        connection.sendall(b"GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for connection in connections:
        assert read_all(connection).startswith(b"HTTP/1.1 200 OK")
        connection.close()
    assert len(mock.requests()) == 300


def ended(connection) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_stop_does_not_wait_for_anybody(tmp_path):
    with running_mock(tmp_path, routes=[{"path": "/hang", "delay": "1h"}]) as mock:
        idle, hanging, half = mock.connect(), mock.connect(), mock.connect()
        hanging.sendall(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
        half.sendall(POST % 100 + b"half")
        wait_for(lambda: len(mock.requests()) == 1)
        threads = {thread.name for thread in threading.enumerate()}
        mock.server.stop()
        assert "keystone-mock" in threads - {thread.name for thread in threading.enumerate()}
        for connection in (idle, hanging, half):
            with connection:
                assert ended(connection)
        mock.server.stop()
    assert [one.path for one in mock.requests()] == ["/hang", "/a"]
