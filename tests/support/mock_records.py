"""Recorded requests without a mock, and the checks that are graded on them."""

import json
from dataclasses import replace
from typing import Any

from support.context import evaluate

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


def grade(tmp_path, check, *, timeout=30.0, **logs):
    return evaluate(check, tmp_path, evidence={"request_logs": logs}, timeout=timeout)
