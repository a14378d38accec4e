"""An agent in a container that attacks: by files, by processes, by what it leaves; in both ways that files go in."""

from __future__ import annotations

import pytest
from support.hostile_containers import attack_in_container

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])


@MODES
def test_an_agent_that_removes_itself_has_run_and_is_graded(tmp_path, image, mode):
    """Its program was there; that it isn't any more is no error of ours."""
    image("python:3.12-slim")
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "run.sh").write_text("#!/bin/sh\necho bad > bad\nrm run.sh\nexit 127\n")
    (tmp_path / "start" / "run.sh").chmod(0o755)
    called = attack_in_container(
        tmp_path,
        "",
        {"clean": {"type": "file_absent", "path": "bad"}},
        mode=mode,
        workspace="start",
        agent={"command": ["./run.sh"]},
    )
    assert called.code == 1, called.out + called.err
    assert called.cells[0]["agent"]["exit_code"] == 127


def test_a_workspace_that_can_not_come_back_is_not_graded_as_it_was_before(tmp_path, image):
    """What it was before would pass."""
    image("python:3.12-slim")
    called = attack_in_container(
        tmp_path,
        "import os\nopen('bad', 'w')\nopen('a', 'w').truncate(6 << 40)",
        {"clean": {"type": "file_absent", "path": "bad"}, "runs": {"type": "command_exit", "command": "true"}},
        mode="copy",
    )
    assert called.code == 1, called.out + called.err
    (cell,) = called.cells
    assert cell["verdict"] == "fail"
    assert cell["composite"] == 0
    assert "larger than" in called.out + str(cell)
