"""Reports that a program of ours wrote inside the sandbox (`run_report.py`): believed only when they are signed."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keystone_action.files.paths import PathProblem, name_paths, read_inside
from keystone_action.invariants.tests.junit import BadReport


class OtherCode(BadReport):
    """What was collected for an injected file is not its code. paths: of these files, in the workspace."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(f"says that other code was collected than that of the injected {name_paths(self.paths)}")

    @classmethod
    def refuse(cls, document: Mapping[str, Any]) -> None:
        """Raises OtherCode where a run's report names such files."""
        if paths := document.get("other_code"):
            raise cls([str(path) for path in paths])


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
