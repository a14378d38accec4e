"""Errors that say that our account with a provider can't pay, or that our key is none: no agent can do better."""

from __future__ import annotations

from typing import Any

from keystone_action.evidence.trace_readers.values import mapping, objects, text

_REASONS = {
    "account_deactivated",
    "billing_error",
    "billing_hard_limit_reached",
    "billing_not_active",
    "insufficient_quota",
    "API_KEY_INVALID",
    "BILLING_DISABLED",
    "CONSUMER_SUSPENDED",
}
"""Words of the providers. Only words out of their lists count: a message may repeat what the agent asked."""
_NO_CREDIT = "Your credit balance is too low"
"""How Anthropic's message begins. Its type is that of every bad request."""


def reason_of_account(body: Any) -> str:
    """That word; empty where an error has none. body: of the error, None where it could not be read."""
    first = body[0] if isinstance(body, list) and body else body
    error = mapping(first, "error") if isinstance(first, dict) else {}
    told = [text(error, "type"), text(error, "code"), *(text(one, "reason") for one in objects(error, "details"))]
    if text(error, "message").startswith(_NO_CREDIT):
        told.append("billing_error")
    return next((word for word in told if word in _REASONS), "")
