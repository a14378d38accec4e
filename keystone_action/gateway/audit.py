"""What the audit log of a cell says of its requests to models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from keystone_action.evidence.audit import now
from keystone_action.gateway.ledger import Exchange, Ledger

_CALLS_LIMIT = 1_000
"""Names of tools in one line."""


def audit_records(ledger: Ledger) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """For each line its type, its time and its details, as `AuditLog.write` takes them: the requests in their order,
    then those that were not let through."""
    for exchange in ledger.exchanges:
        yield "model_request", exchange.ts, _details(exchange)
    if refused := Counter(ledger.refused):
        yield "model_requests_refused", now(), {"reasons": dict(refused)}


def _details(exchange: Exchange) -> dict[str, Any]:
    tokens, answer = exchange.tokens, exchange.answer
    return {
        "api": exchange.api,
        "path": exchange.path,
        "model": exchange.model[:200],
        "status": exchange.status,
        "tries": exchange.tries,
        "seconds": round(exchange.seconds, 3),
        "tokens": {
            "uncached": tokens.uncached or 0,
            "cache_read": tokens.cache_read or 0,
            "cache_write": tokens.cache_write or 0,
            "output": tokens.output or 0,
        },
        "estimated": exchange.estimated,
        "cost_usd": exchange.cost_usd,
        "failure": exchange.failure,
        "calls": [call.name[:200] for call in answer.calls[:_CALLS_LIMIT]] if answer is not None else [],
    }
