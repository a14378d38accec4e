"""What both APIs of OpenAI say alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keystone_action.gateway.exchange import Provider

_KINDS = {401: "authentication_error", 404: "not_found_error"}


class OpenAi(Provider):
    """Errors, counts and models."""

    name = "openai"

    def refusal(self, status: int, sentence: str) -> dict[str, Any]:
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        return {"error": {"message": sentence, "type": kind, "param": None, "code": None}}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def one_model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "openai"}

    def models(self, names: Sequence[str]) -> dict[str, Any]:
        return {"object": "list", "data": [self.one_model(name) for name in names]}
