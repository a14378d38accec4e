"""How both APIs of OpenAI tell an error."""

from __future__ import annotations

from typing import Any

_KINDS = {401: "authentication_error", 404: "not_found_error"}


def refusal(status: int, sentence: str) -> dict[str, Any]:
    """The body of a refusal with this status."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": sentence, "type": kind, "param": None, "code": None}}
