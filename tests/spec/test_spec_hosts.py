"""Hosts of `network.egress.allow`: what an entry means, and that no spelling of another host passes for it."""

from __future__ import annotations

import ipaddress
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keystone_action.spec.models.policies import AllowedHost, parse_host, parse_port, split_port

LETTERS = string.ascii_lowercase + string.digits
labels = st.text(LETTERS, min_size=1, max_size=12).filter(lambda label: not label.isdigit() and label[:2] != "0x")
names = st.lists(labels, min_size=1, max_size=4).map(".".join)


def allows(entry: str, host: str, port: int = 443) -> bool:
    return AllowedHost.parse(entry).allows(parse_host(host), port)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("api.anthropic.com", "api.anthropic.com"),
        ("api.anthropic.com", "API.Anthropic.COM"),
        ("API.anthropic.com", "api.anthropic.com."),
        ("api.anthropic.com.", "api.anthropic.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "XN--BCHER-KVA.example"),
        ("straße.example", "xn--strae-oqa.example"),
        ("*.example.com", "a.example.com"),
        ("*.example.com", "a.b.EXAMPLE.com."),
        ("*.bücher.example", "a.xn--bcher-kva.example"),
        ("api-*.example.com", "api-7.example.com"),
        ("*", "anything.example"),
        ("_service.example", "_service.example"),
        ("localhost", "localhost"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::7", "[2001:DB8:0::7]"),
        ("[2001:db8::7]", "2001:db8::7"),
        ("192.0.2.7", "[::ffff:192.0.2.7]"),
    ],
)
def test_what_an_entry_allows(entry: str, host: str) -> None:
    assert allows(entry, host, 443)
    assert allows(entry, host, 80)
    assert not allows(entry, host, 22)


@pytest.mark.parametrize(
    ("entry", "host"),
    [
        ("api.anthropic.com", "api.anthropic.com.evil.com"),
        ("api.anthropic.com", "evil-api.anthropic.com"),
        ("api.anthropic.com", "evil.api.anthropic.com"),
        ("api.anthropic.com", "apixanthropic.com"),
        ("api.anthropic.com", "anthropic.com"),
        ("*.example.com", "example.com"),
        ("*.example.com", "evilexample.com"),
        ("*.example.com", "example.com.evil.org"),
        ("api-*.example.com", "api-7.evil.example.com"),
        ("straße.example", "strasse.example"),
        ("*", "192.0.2.7"),
        ("*.0.2.7", "192.0.2.7"),
        ("*", "::1"),
        ("example.com", "192.0.2.7"),
    ],
)
def test_what_it_does_not(entry: str, host: str) -> None:
    assert not allows(entry, host)


def test_an_entry_with_a_port_allows_that_one_alone() -> None:
    assert allows("api.example.com:8443", "api.example.com", 8443)
    assert not allows("api.example.com:8443", "api.example.com", 443)
    assert allows("*.example.com:22", "git.example.com", 22)
    assert allows("[2001:db8::7]:8080", "2001:db8::7", 8080)
    assert allows("192.0.2.7:5432", "192.0.2.7", 5432)
    assert AllowedHost.parse("api.example.com:8443").names("api.example.com")


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a..b",
        ".example.com",
        "example.com..",
        "user@example.com",
        "api.example.com%2eevil.com",
        "example.com%00",
        "exa mple.com",
        "example.com\n",
        "example.com\x00",
        "example.com/",
        "example.com\\@evil.com",
        "[example.com]",
        "[::1",
        "[::1]x",
        "[fe80::1%eth0]",
        "-a.example",
        "a-.example",
        "a" * 64 + ".example",
        "a." * 127 + "example",
        # what resolvers take for addresses
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "１２７.0.0.1x.1",
        "0x",
        "evil.0x7f",
    ],
)
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match=r"is no|of one link"):
        parse_host(host)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("https://api.example.com", "found a URL"),
        ("api.example.com/v1", "neither paths nor ranges"),
        ("10.0.0.0/8", "neither paths nor ranges"),
        ("me@example.com", "expected a host"),
        ("", "expected a host"),
        (" example.com", "expected a host"),
        ("example.com:", "is not a port"),
        ("example.com:0", "is not a port"),
        ("example.com:65536", "is not a port"),
        ("example.com:https", "is not a port"),
        ("example.com:*", "is not a port"),
        ("[::1]443", "is not an address"),
        ("exa?ple.com", "is not a host name"),
        ("*.exa?ple.com", "is not a pattern"),
        ("*.[ab].com", "is not a pattern"),
        ("*.", "is not a pattern"),
        ("*..com", "is not a pattern"),
    ],
)
def test_entries_that_mean_nothing_are_refused(entry: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AllowedHost.parse(entry)


@pytest.mark.parametrize("text", ["", "+80", " 80", "8_0", "٨٠", "0", "-1", "65536", "123456", "0x50"])
def test_what_is_no_port(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port"):
        parse_port(text)


@given(names, names)
def test_a_name_allows_exactly_itself_in_every_spelling(entry: str, host: str) -> None:
    assert allows(entry, host) == (entry == host)
    assert allows(entry.upper() + ".", entry.title().lower())


@given(names, names)
def test_a_glob_allows_what_is_below_its_name_and_nothing_else(base: str, host: str) -> None:
    assert allows(f"*.{base}", host) == host.endswith(f".{base}")
    assert allows(f"*.{base}", f"{host}.{base}")
    assert not allows(f"*.{base}", base)
    assert not allows(f"*.{base}", f"{host}{base}") or "." in host


@given(names, st.text(max_size=20), st.text(max_size=20))
def test_no_text_around_a_name_passes_for_it(name: str, before: str, after: str) -> None:
    """Whatever a client wraps an allowed name in, it is understood as that name, in its one spelling, or refused."""
    wrapped = f"{before}{name}{after}"
    try:
        host = parse_host(wrapped)
    except ValueError:
        return
    assume(AllowedHost.parse(name).names(host))
    assert wrapped.lower().removesuffix(".") == name or not wrapped.isascii()


@given(st.text(max_size=40))
def test_any_text_is_a_host_in_its_one_spelling_or_refused(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError:
        return
    assert parse_host(str(host)) == host
    if isinstance(host, str):
        assert host.isascii()
        assert host == host.lower()
        assert not host.rpartition(".")[2].isdigit()


@given(st.text(st.sampled_from("ab.*-:[]19/@ "), max_size=20))
def test_any_entry_is_understood_or_refused(text: str) -> None:
    try:
        entry = AllowedHost.parse(text)
    except ValueError:
        return
    assert entry.text == text
    assert entry.kind == ("glob" if "*" in text else "name" if isinstance(entry.host, str) else "address")


@given(st.ip_addresses(), st.none() | st.integers(1, 65535))
def test_addresses_with_and_without_ports_are_taken_apart(address: ipaddress.IPv4Address, port: int | None) -> None:
    shown = f"[{address}]" if address.version == 6 else str(address)
    host, found = split_port(shown if port is None else f"{shown}:{port}")
    assert (parse_host(host), found) == (
        getattr(address, "ipv4_mapped", None) or address,
        None if port is None else str(port),
    )
