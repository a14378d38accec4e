"""Recorded requests without a mock, and the checks that are graded on them."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from support.context import make_evidence

from keystone_action.evidence.model import RecordedRequest


class Log:
    def __init__(self, *requests: RecordedRequest) -> None:
        self._requests = requests

    def requests(self) -> tuple[RecordedRequest, ...]:
        return self._requests


def request(method: str = "POST", path: str = "/api/messages", body: Any = "", **fields: Any) -> RecordedRequest:
    headers = fields.pop("headers", {})
    if not isinstance(body, str):
        body = json.dumps(body)
    plain = RecordedRequest("smtp", method, path, path, {}, headers, body, len(body), 0, 200, "{}", "")
    return replace(plain, **fields)


class Context:
    timeout = 30.0

    def __init__(self, evidence: Any) -> None:
        self.evidence = evidence


def grade(tmp_path, check, **logs):
    context = Context(make_evidence(tmp_path, tmp_path / "private", request_logs=logs))
    return asyncio.run(check.evaluate(context))
