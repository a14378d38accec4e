"""Requests to the proxy, read strictly: one host or none."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.network.proxy import ProxyRequest, UnreadableRequest, parse_request


def request(line: str, *fields: str) -> ProxyRequest:
    return parse_request("\r\n".join([line, *fields, "", ""]).encode("latin-1"))


def test_a_tunnel() -> None:
    assert request("CONNECT Api.Example.com:443 HTTP/1.1", "Host: x") == ProxyRequest(
        "CONNECT", "api.example.com", 443, b""
    )
    found = request("CONNECT [2001:DB8::1]:8443 HTTP/1.0")
    assert (found.host, found.port) == (ipaddress.ip_address("2001:db8::1"), 8443)
    assert found.authority == "[2001:db8::1]:8443"


def test_a_plain_request_is_passed_on_as_its_server_expects_it() -> None:
    found = request(
        "POST HTTP://API.example.com/v1?x=1 HTTP/1.1",
        "Host: evil.example",
        "Content-Length: 3",
        "Proxy-Authorization: Basic c2VjcmV0",
        "Proxy-Connection: keep-alive",
        "Connection: X-Private, content-length",
        "X-Private: 1",
        "Upgrade: h2c",
        "Accept:  */*  ",
    )
    assert (found.host, found.port) == ("api.example.com", 80)
    assert found.head == (
        b"POST /v1?x=1 HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 3\r\nAccept: */*\r\n"
        b"Connection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("target", "line", "host"),
    [
        ("http://a.example", b"GET / HTTP/1.1\r\nHost: a.example\r\n", "a.example"),
        ("http://a.example?q", b"GET /?q HTTP/1.1\r\nHost: a.example\r\n", "a.example"),
        ("http://a.example:8080/x", b"GET /x HTTP/1.1\r\nHost: a.example:8080\r\n", "a.example"),
        ("http://[::1]:81//x", b"GET //x HTTP/1.1\r\nHost: [::1]:81\r\n", ipaddress.ip_address("::1")),
        ("http://a.example/@evil.com", b"GET /@evil.com HTTP/1.1\r\nHost: a.example\r\n", "a.example"),
    ],
)
def test_urls(target: str, line: bytes, host: object) -> None:
    found = request(f"GET {target} HTTP/1.1")
    assert found.host == host
    assert found.head.startswith(line)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "request line"),
        ("GET / HTTP/1.1", "this is a proxy"),
        ("OPTIONS * HTTP/1.1", "this is a proxy"),
        ("GET example.com/x HTTP/1.1", "this is a proxy"),
        ("GET https://example.com/ HTTP/1.1", "use CONNECT"),
        ("GET ftp://example.com/ HTTP/1.1", "expected an http:// URL"),
        ("GET http://example.com/ HTTP/2", "request line"),
        ("GET  http://example.com/ HTTP/1.1", "request line"),
        ("GET\thttp://example.com/ HTTP/1.1", "request line"),
        ("GET http://exämple.com/ HTTP/1.1", "request line"),
        ("G(T http://example.com/ HTTP/1.1", "request line"),
        ("GET http:/// HTTP/1.1", "is not a host name"),
        ("GET http://good.example@evil.example/ HTTP/1.1", "user name"),
        ("GET http://evil.example\\@good.example/ HTTP/1.1", "user name"),
        ("GET http://evil.example\\.good.example/ HTTP/1.1", "is not a host name"),
        ("GET http://good.example%2f.evil.example/ HTTP/1.1", "is not a host name"),
        ("GET http://good.example:/ HTTP/1.1", "is not a port"),
        ("CONNECT good.example: HTTP/1.1", "is not a port"),
        ("GET http://good.example:+80/ HTTP/1.1", "is not a port"),
        ("GET http://good.example/#x HTTP/1.1", "fragment"),
        ("GET http://0x7f.1/ HTTP/1.1", "is not an address"),
        ("CONNECT good.example HTTP/1.1", "expected CONNECT host:port"),
        ("CONNECT http://good.example:80 HTTP/1.1", "expected CONNECT host:port"),
        ("CONNECT user@good.example:443 HTTP/1.1", "user name"),
        ("CONNECT good.example:443:80 HTTP/1.1", "expected CONNECT host:port"),
        ("CONNECT [good.example]:443 HTTP/1.1", "is not an address"),
        ("CONNECT good.example:0 HTTP/1.1", "is not a port"),
        ("CONNECT good.example/x:443 HTTP/1.1", "is not a host name"),
    ],
)
def test_what_is_refused_for_its_form(line: str, problem: str) -> None:
    with pytest.raises(UnreadableRequest, match=problem):
        request(line)


@pytest.mark.parametrize(
    "field",
    ["no colon", "Name : value", " folded: value", "\tfolded", ": nameless", "a\x00: b", "a: b\nc: d", "a: b\rc: d"],
)
def test_heads_that_two_readers_could_read_as_two_are_refused(field: str) -> None:
    with pytest.raises(UnreadableRequest, match="name: value"):
        request("GET http://good.example/ HTTP/1.1", field)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    try:
        found = parse_request(head + b"\r\n\r\n")
    except UnreadableRequest:
        return
    assert found.authority.isascii()


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30))
def test_what_is_passed_on_names_the_host_that_was_judged(text: str) -> None:
    try:
        found = request(f"GET http://{text}/x HTTP/1.1", "Host: other.example")
    except UnreadableRequest:
        return
    host = found.head.split(b"\r\n")[1]
    shown = found.authority.removesuffix(":80") if found.port == 80 else found.authority
    assert host == b"Host: " + shown.encode()
    assert found.head.count(b"\r\n\r\n") == 1
    assert b"other.example" not in found.head or "other.example" in text
