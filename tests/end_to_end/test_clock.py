"""`determinism.clock`: one time for the agent, for what it starts and for checks that execute; never one that is given
and has no effect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.command_line import keystone
from support.images import BASE, PYTHON

from keystone_action.runner.cell import clock as cell_clock

GIVEN = "2031-05-06T07:08:09Z"
BEGIN = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp()
TELL = """
date +%s
(sleep 0.2; sh -c 'date +%s') &
wait
python3 -c 'import time; print(time.time()); t = time.monotonic(); time.sleep(0.1); print(time.monotonic() > t)'
touch made && python3 -c 'import os; print(os.stat("made").st_mtime)'
"""
CHECKS = {
    "in_time": {
        "description": "a check that executes lives in that time",
        "check": {"type": "command_exit", "command": "test $(date +%Y) = 2031"},
    }
}


def spec_of(command: str, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "id": "clock",
        "task": {"prompt": "x"},
        "agent": {"type": "command", "command": command},
        "determinism": {"clock": GIVEN},
        "invariants": CHECKS,
        **more,
    }


def run(tmp_path: Path, spec: dict[str, Any]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the cell's result, and what stood on the terminal."""
    (tmp_path / "keystone.yaml").write_text(json.dumps(spec))
    called = keystone("run", "--output", "out", directory=tmp_path)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    return called.code, found["specs"][0]["cells"][0], called.out + called.err


def stdout_of(tmp_path: Path) -> list[str]:
    return (tmp_path / "out" / "cells" / "clock.r0" / "agent.stdout").read_text().splitlines()


def assert_in_time(lines: list[str]) -> None:
    first, child, python, forward, made = lines
    times = [float(one) for one in (first, child, python, made)]
    assert all(BEGIN <= one < BEGIN + 300 for one in times), lines
    assert times[:3] == sorted(times[:3])
    assert forward == "True"


def test_agent_and_checks_live_in_the_given_time(tmp_path: Path) -> None:
    code, _, said = run(tmp_path, spec_of(TELL))
    assert code == 0, said
    assert_in_time(stdout_of(tmp_path))


@pytest.mark.docker
@pytest.mark.parametrize("base", [PYTHON, BASE])
def test_agent_and_checks_in_an_image_live_in_the_given_time(
    tmp_path: Path, image: Callable[[str], str], base: str
) -> None:
    tell = TELL if base == PYTHON else TELL.replace("python3", "true").replace("touch made", "true")
    code, _, said = run(tmp_path, spec_of(tell, base=image(base)))
    assert code == 0, said
    if base == PYTHON:
        assert_in_time(stdout_of(tmp_path))


def test_setup_and_our_own_records_keep_the_machines_time(tmp_path: Path) -> None:
    spec = spec_of("sleep 0.1", setup={"commands": ["date +%Y > year"]}, audit={"processes": True})
    spec["invariants"] = {
        "year": {"description": "x", "check": {"type": "file_content", "path": "year", "not_contains": "2031"}}
    }
    code, _, said = run(tmp_path, spec)
    assert code == 0, said
    lines = (tmp_path / "out" / "cells" / "clock.r0" / "audit.jsonl").read_text().splitlines()
    assert lines
    assert all(not json.loads(line)["ts"].startswith("2031") for line in lines)


def test_the_time_of_the_agent_begins_when_setup_is_over(tmp_path: Path) -> None:
    """However long that took; checks live in the agent's time."""
    spec = spec_of('echo "$FAKETIME" | tee offset', setup={"commands": ["sleep 3; date +%s > over"]})
    same = {"type": "command_exit", "command": 'test "$FAKETIME" = "$(cat offset)"'}
    spec["invariants"] = {**CHECKS, "same": {"description": "one time for all", "check": same}}
    spec["agent"]["command"] += "; cat over"
    code, _, said = run(tmp_path, spec)
    assert code == 0, said
    offset, over = map(int, stdout_of(tmp_path))
    assert BEGIN - offset >= over - 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LD_PRELOAD": ""}, "LD_PRELOAD of agent.env or setup.env takes the place of libfaketime"),
        ({"FAKETIME": "+0"}, "`date` still prints the machine's time"),
        ({"LD_PRELOAD": "/nowhere/libfaketime.so.1"}, "libfaketime can't be loaded there"),
    ],
)
def test_a_clock_without_effect_is_an_error(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    spec = spec_of("touch made")
    spec["agent"]["env"] = variables
    code, cell, said = run(tmp_path, spec)
    assert code == 3, said
    assert cell["verdict"] == "error"
    assert "determinism.clock has no effect in the sandbox" in said
    assert words in said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ld.so: object 'x' from LD_PRELOAD cannot be preloaded: version `GLIBC_2.34' not found", "older than"),
        ("Error loading shared library libm.so.6: No such file or directory", "musl"),
        ("Error relocating /x/libfaketime.so.1: __vsnprintf_chk: symbol not found", "musl"),
        ("ERROR: ld.so: object 'x' cannot be preloaded (wrong ELF class: ELFCLASS32): ignored.", "can't be loaded"),
        ("sh: date: not found", "neither `date` nor python3"),
    ],
)
def test_why_it_has_no_effect_is_told(said: str, words: str) -> None:
    assert words in cell_clock._reason("", said, {"LD_PRELOAD": "/x/libfaketime.so.1"})


def test_a_machine_without_the_library_is_told_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "keystone.yaml").write_text(json.dumps(spec_of("true")))
    script = (
        "import sys; from keystone_action.runner.cell import clock; clock._FOLDERS = ('/nowhere',);"
        "from keystone_action.cli.main import main; sys.exit(main(['run']))"
    )
    called = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert called.returncode == 2, called
    assert "determinism.clock needs libfaketime, which is not installed" in called.stderr
    assert "apt-get install libfaketime" in called.stderr
