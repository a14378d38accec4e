"""What the network policy permits, by name and by what a name stands for; and its lines in the audit log."""

from __future__ import annotations

import ipaddress
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.evidence import egress as module
from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.egress import Denied, EgressLog, EgressPolicy, EgressRecord
from keystone_action.spec.models.policies import IPAddress, parse_host

OURS = ipaddress.ip_address("203.0.114.9")


def is_own(address: IPAddress) -> bool:
    return address == OURS


def reason(allow: list[str], host: str, address: str, port: int = 443) -> str:
    """Why a name that stands for an address is denied; empty when it isn't."""
    policy = EgressPolicy(allow)
    try:
        entry = policy.permit(parse_host(host), port)
        policy.permit_address(entry, ipaddress.ip_address(address), port, is_own)
    except Denied as denied:
        return str(denied)
    return ""


PUBLIC = "93.184.216.34"


def test_a_listed_name_at_a_public_address_is_permitted() -> None:
    assert reason(["api.example.com"], "api.example.com", PUBLIC) == ""
    assert reason(["*.example.com"], "api.example.com", "2606:2800:220:1::1") == ""


def test_what_is_not_listed_is_denied_by_name() -> None:
    assert reason([], "api.example.com", PUBLIC) == "api.example.com is not in network.egress.allow"
    assert reason(["*"], PUBLIC, PUBLIC) == f"{PUBLIC} is not in network.egress.allow"


def test_a_port_that_is_not_listed_is_denied_and_the_entry_for_it_named() -> None:
    found = reason(["api.example.com"], "api.example.com", PUBLIC, port=22)
    assert found.startswith("port 22 of api.example.com is not in network.egress.allow")
    assert found.endswith("listed as api.example.com:22")
    assert reason(["::1"], "::1", "::1", port=22).endswith("listed as [::1]:22")
    assert reason(["api.example.com", "api.example.com:22"], "api.example.com", PUBLIC, port=22) == ""


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.1.2.3",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.1.1",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        str(OURS),
        f"::ffff:{OURS}",
    ],
)
@pytest.mark.parametrize("allow", ["rebound.example.com", "*.example.com", "*"])
def test_no_name_leads_to_ourselves_or_to_a_cloud_s_metadata(allow: str, address: str) -> None:
    found = reason([allow], "rebound.example.com", address)
    assert found == f"{allow} stands for {ipaddress.ip_address(address)}, which is not outside"


@pytest.mark.parametrize("address", ["10.0.0.5", "192.168.1.1", "172.17.0.1", "100.64.0.1", "fd00::5", "198.18.0.1"])
def test_only_an_exact_name_leads_to_a_private_network(address: str) -> None:
    assert reason(["git.corp.example"], "git.corp.example", address) == ""
    for glob in ("*.corp.example", "*"):
        assert "in a private network" in reason([glob], "git.corp.example", address)
    # An exact entry counts before a glob, in whatever order they stand.
    assert reason(["*.corp.example", "git.corp.example"], "git.corp.example", address) == ""


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.5", "::1", str(OURS)])
def test_an_address_that_is_listed_itself_is_permitted(address: str) -> None:
    assert reason([address], address, address) == ""
    assert reason(["*.example.com", address], "api.example.com", address) == ""
    assert reason([f"{address}:8080" if ":" not in address else f"[{address}]:8080"], address, address, 8080) == ""
    other_port = f"{address}:8080" if ":" not in address else f"[{address}]:8080"
    assert reason(["api.example.com", other_port], "api.example.com", address) != "" or address == "10.0.0.5"


def test_localhost_is_the_loopback_and_only_where_it_is_listed_by_that_name() -> None:
    assert reason(["localhost:3000"], "localhost", "127.0.0.1", 3000) == ""
    assert reason(["localhost"], "localhost", "169.254.169.254") != ""
    assert reason(["*"], "localhost", "127.0.0.1") != ""


@pytest.mark.parametrize("address", ["2002:808:808::1", "2001:0:808:808::f7f7:f7f7"])
def test_no_glob_leads_into_a_tunnel(address: str) -> None:
    """6to4 and Teredo to 8.8.8.8; whether Python calls the first global depends on its patch version."""
    assert "in a private network" in reason(["*.example.com"], "a.example.com", address)
    assert reason(["a.example.com"], "a.example.com", address) == ""


@given(st.ip_addresses())
def test_a_glob_leads_to_global_addresses_only(address: IPAddress) -> None:
    if reason(["*.example.com"], "a.example.com", str(address)) == "":
        assert address.is_global
        assert not address.is_multicast


def test_entries_that_are_no_hosts_are_refused() -> None:
    with pytest.raises(ValueError, match="found a URL"):
        EgressPolicy(["api.example.com", "https://x"])


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_each_decision_is_one_line(tmp_path: Path) -> None:
    log = EgressLog(AuditLog(tmp_path / "audit.jsonl"))
    log.write(EgressRecord("api.example.com", 443, "CONNECT", "allow", "allowed by *.example.com", 10, 2000, 1.23456))
    log.write(EgressRecord("evil.example", 443, "CONNECT", "deny", "no"))
    first, second = lines(tmp_path / "audit.jsonl")
    assert first["type"] == second["type"] == "connect"
    assert str(first["ts"]).endswith("Z")
    assert first["details"] == {
        "host": "api.example.com",
        "port": 443,
        "method": "CONNECT",
        "allowed": True,
        "reason": "allowed by *.example.com",
        "bytes_sent": 10,
        "bytes_received": 2000,
        "duration_s": 1.235,
    }
    assert second["details"]["allowed"] is False
    assert log.failure is None


@given(st.text(), st.text())
def test_whatever_a_client_wrote_is_one_bounded_line_of_ascii(host: str, method: str) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"keystone-egress-{os.getpid()}.jsonl"
    path.unlink(missing_ok=True)
    audit = AuditLog(path)
    log = EgressLog(audit)
    try:
        log.write(EgressRecord(host * 500, None, method, "deny", host))
        raw = path.read_bytes()
    finally:
        audit.close()
        path.unlink()
    assert raw.isascii()
    assert raw.count(b"\n") == 1
    assert len(raw) < 12_000
    assert json.loads(raw)["details"]["allowed"] is False


def test_a_log_that_can_t_be_written_is_a_failure_and_no_exception() -> None:
    log = EgressLog(AuditLog(Path("/dev/full")))
    log.write(EgressRecord("a.example", 443, "CONNECT", "allow", "because"))
    assert log.failure == "a decision about the network could not be recorded: No space left on device"


def test_a_log_that_an_agent_fills_is_full_and_no_failure_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAST_RECORD", 1000)
    log = EgressLog(AuditLog(tmp_path / "audit.jsonl"))
    for _ in range(100):
        log.write(EgressRecord("a.example", 443, "CONNECT", "deny", "because"))
    # A tunnel that stood before has its line when it ends.
    log.write(EgressRecord("b.example", 443, "CONNECT", "allow", "because"))
    assert log.failure is None
    assert log.full is not None
    text = (tmp_path / "audit.jsonl").read_text()
    assert len(text) < 2500
    assert "nothing is let through any more" in text.splitlines()[-2]
    assert "b.example" in text.splitlines()[-1]
