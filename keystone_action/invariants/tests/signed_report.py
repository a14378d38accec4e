"""Reports that a program of ours wrote inside the sandbox (`run_report.py`): believed only when they are signed."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from keystone_action.files.paths import PathProblem, read_inside
from keystone_action.invariants.tests.junit import BadReport


def read_signed(workspace: Path, path: str, key: bytes, runner: str) -> Any:
    """The JSON document. runner: the name of the test runner, for people. Raises BadReport."""
    try:
        signature, _, content = read_inside(workspace, path).partition(b"\n")
    except PathProblem:
        raise BadReport(f"was never written: {runner} did not come to its end") from None
    expected = hmac.new(key, content, hashlib.sha256).hexdigest().encode()
    if not hmac.compare_digest(signature, expected):
        raise BadReport(f"is not the one that this run of {runner} wrote")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BadReport(f"is not as the driver of {runner} writes it") from None
