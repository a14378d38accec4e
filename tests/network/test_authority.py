"""The certificates of a cell's own authority, and the mocks that answer under the names of other hosts with them."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from keystone_action.network.authority import Authority, lay_out_trust, make_authority
from keystone_action.services.http_mock.request import RawRequest
from keystone_action.services.http_mock.responses import MockReply, json_reply
from keystone_action.services.http_mock.server import ListenerKey, MockServer, NamedMocks

NAMES = ("api.example.com", "shop.example.com")
ADDRESS = "127.0.0.2"
PAST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FUTURE = datetime.datetime(2199, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


def certificate_of(authority: Authority, name: str = NAMES[0]) -> x509.Certificate:
    """What a client that trusts the authority is shown; raises ssl.SSLError for one that it does not take."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cadata=authority.certificate.decode())
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    client = trusting.wrap_bio(theirs, ours, server_hostname=name)
    server = authority.context.wrap_bio(ours, theirs, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = client.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def test_a_certificate_is_for_its_names_and_for_no_other() -> None:
    authority = make_authority(NAMES)
    for name in NAMES:
        certificate_of(authority, name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'other\.example\.com'"):
        certificate_of(authority, "other.example.com")
    with pytest.raises(ssl.SSLError):
        certificate_of(Authority(make_authority(NAMES).certificate, authority.context))


@pytest.mark.parametrize("given", [PAST, FUTURE])
def test_it_is_valid_now_and_at_the_given_time(given: datetime.datetime) -> None:
    found = certificate_of(make_authority(NAMES, [given]))
    for moment in (datetime.datetime.now(datetime.UTC), given, given + datetime.timedelta(days=300)):
        assert found.not_valid_before_utc < moment < found.not_valid_after_utc


def test_openssl_takes_it_at_the_given_time(tmp_path: Path) -> None:
    authority = make_authority(NAMES, [FUTURE])
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    from cryptography.hazmat.primitives.serialization import Encoding

    (tmp_path / "own.pem").write_bytes(certificate_of(authority).public_bytes(Encoding.PEM))
    for moment in (FUTURE, datetime.datetime.now(datetime.UTC)):
        words = ["openssl", "verify", "-attime", str(int(moment.timestamp())), "-x509_strict", "-purpose", "sslserver"]
        words += ["-verify_hostname", NAMES[1], "-CAfile", "ca.pem", "own.pem"]
        checked = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_what_programs_trust_is_added_to_what_an_image_trusts_and_holds_no_key(tmp_path: Path) -> None:
    other, own = make_authority(["x.example"]).certificate, make_authority(NAMES).certificate
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    variables = lay_out_trust(own, other + broken, tmp_path / "trust", "-Xmx1g")
    assert Path(variables["SSL_CERT_FILE"]).read_bytes() == other + broken + own
    assert Path(variables["NODE_EXTRA_CA_CERTS"]).read_bytes() == own
    assert variables["JAVA_TOOL_OPTIONS"].startswith("-Xmx1g -Djavax.net.ssl.trustStore=")
    store = pkcs12.load_pkcs12((tmp_path / "trust" / "truststore.p12").read_bytes(), b"changeit")
    assert {one.certificate for one in store.additional_certs} == set(x509.load_pem_x509_certificates(other + own))
    assert store.key is None
    assert not any(b"PRIVATE" in path.read_bytes() for path in (tmp_path / "trust").iterdir())


def test_an_image_without_authorities_gets_ours(tmp_path: Path) -> None:
    variables = lay_out_trust(make_authority(NAMES).certificate, b"", tmp_path / "trust", "")
    assert Path(variables["CURL_CA_BUNDLE"]).read_bytes().count(b"-----BEGIN CERTIFICATE-----") > 50


class Mock:
    """A `StandIn`. asked: for what, by which origin."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listeners: list[ListenerKey] = []
        self.asked: list[str] = []

    def admits(self, owner: int | None) -> bool:
        return False

    def admits_address(self, address: str) -> bool:
        return address.startswith("127.")

    def refused_handshake(self, error: ssl.SSLError) -> None:
        raise AssertionError(error)

    def reserve(self, size: int) -> bool:
        return True

    def not_http(self) -> None:
        self.asked.append("not HTTP")

    def respond(self, request: RawRequest, origin: str = "") -> MockReply:
        self.asked.append(f"{origin}{request.target}")
        return json_reply(200, {"by": self.name})


class World:
    """Two mocks behind one port that speaks TLS."""

    def __init__(self) -> None:
        self.authority = make_authority(NAMES)
        self.server = MockServer()
        self.server.start()
        self.mocks = {NAMES[0]: Mock("api"), NAMES[1]: Mock("shop")}
        self.application = NamedMocks(self.mocks, "https")
        with socket.create_server((ADDRESS, 0)) as free:
            self.port = free.getsockname()[1]
        listening = self.server.listen_at(self.application, ADDRESS, self.port, self.authority.context)
        self.key = asyncio.run(listening)

    def ask(self, host: str, *, trusted: bytes | None = None, sent_host: str | None = None) -> tuple[int, bytes]:
        trusting = ssl.create_default_context(cadata=(trusted or self.authority.certificate).decode())
        with (
            socket.create_connection((ADDRESS, self.port), timeout=30) as plain,
            trusting.wrap_socket(plain, server_hostname=host) as secure,
        ):
            connection = http.client.HTTPConnection(sent_host or host)
            connection.sock = secure
            connection.request("GET", "/path?a=1")
            reply = connection.getresponse()
            return reply.status, reply.read()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.server.stop()
    assert made.server.defects == []


def test_the_host_says_which_mock_is_meant(world: World) -> None:
    assert world.ask(NAMES[0]) == (200, b'{"by": "api"}')
    assert world.ask(NAMES[1]) == (200, b'{"by": "shop"}')
    assert world.ask(NAMES[1], sent_host="SHOP.example.com.:443") == (200, b'{"by": "shop"}')
    assert world.server.settle(world.key)
    assert world.mocks[NAMES[0]].asked == ["https://api.example.com/path?a=1"]
    assert world.mocks[NAMES[1]].asked == ["https://shop.example.com/path?a=1"] * 2


def test_a_host_that_nobody_stands_in_for_is_misdirected(world: World) -> None:
    status, body = world.ask(NAMES[0], sent_host="other.example.com")
    assert status == 421
    assert b"other.example.com" in body
    assert not world.mocks[NAMES[0]].asked


def test_a_client_that_does_not_trust_it_is_told_of(world: World) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        world.ask(NAMES[0], trusted=make_authority(NAMES).certificate)
    with socket.create_connection((ADDRESS, world.port), timeout=30) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
        while plain.recv(4096):
            pass
    expected = {"tlsv1 alert unknown ca", "http request"}
    for _ in range(300):  # the server hears of it a moment after the client has hung up
        if expected <= set(world.application.distrust):
            break
        time.sleep(0.1)
    assert expected <= set(world.application.distrust)


def test_a_client_that_does_not_go_on_keeps_nobody_waiting(world: World) -> None:
    silent = [socket.create_connection((ADDRESS, world.port), timeout=30) for _ in range(20)]
    assert world.ask(NAMES[0])[0] == 200
    for one in silent:
        one.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may listen everywhere")
def test_a_port_that_is_not_ours_to_open_is_told(world: World) -> None:
    from keystone_action.errors import ServiceError
    from keystone_action.services.http_mock.server import serve_names

    async def serve() -> None:
        async with serve_names(world.server, world.mocks, ADDRESS, world.authority.context):
            pass

    with pytest.raises(ServiceError, match=r"network\.dns_overrides: port 80 can't be opened"):
        asyncio.run(serve())
