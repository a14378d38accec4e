"""Every line that we write into an audit log is valid by the published schema, and its page names each field."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.egress import EgressLog, EgressRecord
from keystone_action.evidence.model import RecordedCall, RecordedRequest
from keystone_action.gateway.exchange import Answer, Asked, ModelCall, Tokens
from keystone_action.gateway.ledger import BudgetLimits, Ledger, Refusal
from keystone_action.gateway.trace import audit_records
from keystone_action.services.http_mock.guarded import StrangerCounts

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = json.loads((DOCS / "audit.schema.json").read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl")


def lines_of(audit: AuditLog) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in audit.path.read_text("ascii").splitlines()]
    for line in found:
        VALIDATOR.validate(line)
    return found


def asked(ledger: Ledger, model: str, answer: Answer | None, status: int | None = 200, failure: str = "") -> None:
    exchange = ledger.open("anthropic", "/v1/messages", Asked(model), b"{}")
    ledger.close(exchange, status=status, answer=answer, failure=failure, seconds=0.12345)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("cut", [0, 7])
def test_what_a_mock_was_asked(audit: AuditLog, cut: int) -> None:
    audit.http_call(
        RecordedRequest("api", "GET", "/", "http://api/", {}, {}, "", 0, cut, 200, "{}", "2026-01-01T00:00:00Z")
    )
    assert len(lines_of(audit)) == 1


def test_what_a_tool_was_asked(audit: AuditLog) -> None:
    audit.mcp_call(RecordedCall("shop", "get_order", {"id": [7, None]}, "paid", False, "2026-01-01T00:00:00Z"))
    assert len(lines_of(audit)) == 1


def test_what_was_turned_away(audit: AuditLog) -> None:
    audit.write("connections_refused", {"service": "api", **vars(StrangerCounts(1, 2, 3))}, ts="2026-01-01T00:00:00Z")
    EgressLog(audit).write(EgressRecord("example.com", None, "CONNECT", "deny", "no", 1, 2, 0.5))
    assert len(lines_of(audit)) == 2


def test_what_models_were_asked(audit: AuditLog) -> None:
    ledger = Ledger(BudgetLimits(max_requests=4))
    asked(ledger, "claude-opus-4-5", None, 529, "529")
    calls = (ModelCall("c1", "Bash", {"command": "true"}), ModelCall("c2", "Read", None))
    asked(ledger, "claude-opus-4-5", Answer("claude-opus-4-5", calls=calls, tokens=Tokens(1, 2, 3, 4), finished=True))
    asked(ledger, "our-own", Answer("our-own", "x" * 40))
    asked(ledger, "claude-opus-4-5", None, None)
    with pytest.raises(Refusal):
        asked(ledger, "claude-opus-4-5", None)
    for event, ts, details in audit_records(ledger):
        audit.write(event, details, ts=ts)
    first, unpriced, left, refused = lines_of(audit)
    assert first["details"] == {
        "api": "anthropic",
        "path": "/v1/messages",
        "model": "claude-opus-4-5",
        "status": 200,
        "tries": 2,
        "seconds": 0.123,
        "tokens": {"uncached": 1, "cache_read": 2, "cache_write": 3, "output": 4},
        "estimated": False,
        "cost_usd": pytest.approx((5 + 2 * 0.5 + 3 * 6.25 + 4 * 25) / 1e6),
        "failure": "",
        "calls": ["Bash", "Read"],
    }
    assert (unpriced["details"]["cost_usd"], unpriced["details"]["estimated"]) == (None, True)
    assert (left["details"]["status"], left["details"]["estimated"]) == (None, True)
    assert refused["details"] == {"reasons": {"stopped at 4 of 4 requests": 1}}
    sums = [sum(line["details"]["tokens"].values()) for line in (first, unpriced, left)]
    assert sum(sums) == ledger.spent.all_tokens


def test_the_page_names_every_type_and_field() -> None:
    page = (DOCS / "audit.md").read_text("utf-8")
    named = set(re.findall(r"`(\w+)`", page))
    for kind in SCHEMA["properties"]["type"]["enum"]:
        fields = SCHEMA["$defs"][kind]["properties"]
        assert {kind, *fields} <= named
    assert {*SCHEMA["$defs"]["model_request"]["properties"]["tokens"]["properties"]} <= named
