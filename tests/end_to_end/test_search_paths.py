"""PATH as people have it: with a directory that is closed to them, and set by the spec."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.attack_runs import area
from support.command_line import NO_ENGINE, run_spec
from support.images import PYTHON
from support.started_as import PLAIN_USER, keystone_in

__all__ = ["area"]


SCRIPT = {"type": "custom", "script": "yes.py", "runs_in": "sandbox"}


def spec(check: str | dict[str, str], path: str, **more: Any) -> str:
    return json.dumps(
        {
            "version": 1,
            "id": "paths",
            "task": {"prompt": "do it"},
            "agent": {"type": "command", "command": "true"},
            "setup": {
                "env": {"PATH": path},
                "files": [{"path": "tools/tool", "content": "#!/bin/sh\nexit $1\n", "mode": "0755"}],
            },
            "invariants": {
                "tool": {"check": {"type": "command_exit", "command": check} if isinstance(check, str) else check}
            },
            **more,
        }
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="root closes the directory to another user")
@pytest.mark.parametrize(("command", "status"), [("true", "pass"), ("no-such-tool", "error"), (SCRIPT, "pass")])
def test_a_closed_directory_on_path_is_passed_over(area: Path, command: str | dict[str, str], status: str) -> None:
    (area / "yes.py").write_text("print('{\"passed\": true}')")
    closed = area.parent / f"{area.name}-closed"
    closed.mkdir(mode=0o700)
    try:
        called = keystone_in(None, area, spec(command, f"{closed}:/usr/bin:/bin"), PLAIN_USER)
    finally:
        closed.rmdir()
    check = called.checks["tool"]
    assert check["status"] == status, called.out + called.err
    assert check["message"].startswith("no-such-tool is not in this sandbox") == (status == "error")


@pytest.mark.parametrize("base", [None, pytest.param(PYTHON, marks=pytest.mark.docker)])
@pytest.mark.parametrize(("code", "status"), [(0, "pass"), (127, "fail")])
def test_programs_are_looked_up_where_the_spec_says(
    tmp_path: Path, base: str | None, code: int, status: str, request: pytest.FixtureRequest
) -> None:
    if base is not None:
        request.getfixturevalue("image")(base)
    more = {} if base is None else {"base": base}
    document = spec(f"tool {code}", "tools:/usr/bin:/bin", **more)
    called = run_spec(tmp_path, document, environ=None if base else NO_ENGINE)
    assert called.checks["tool"]["status"] == status, called.out + called.err
