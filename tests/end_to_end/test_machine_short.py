"""A machine that runs out of space or processes is not the agent's failure; an agent that uses them up itself is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attack_runs import area
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, NO_ENGINE, ROOT, Called, run_spec
from support.mounts import small_disk
from support.started_as import cap_on_processes, keystone_in

__all__ = ["area"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making a small file system or a cap on processes needs root")


def spec(script: str, check: str = "true", **agent: Any) -> str:
    return json.dumps(
        {
            "version": 1,
            "id": "short",
            "task": {"prompt": "do it"},
            "agent": {"type": "command", "command": ["python3", "-c", script], "must_exit_zero": True, **agent},
            "invariants": {"any": {"check": {"type": "command_exit", "command": check}}},
        }
    )


@pytest.fixture
def small() -> Iterator[Path]:
    """A directory for temporary files with 16 MiB of space."""
    place = Path(tempfile.mkdtemp(prefix="small-"))
    try:
        with small_disk(place, "16m", mode="1777"):
            yield place
    finally:
        place.rmdir()


@contextlib.contextmanager
def filled_when_ready(place: Path) -> Iterator[None]:
    """Another program of this machine uses up the space as soon as the agent has made its file `ready`."""
    over = threading.Event()

    def fill() -> None:
        while not list(place.rglob("ready")):
            if over.wait(0.02):
                return
        with contextlib.suppress(OSError), (place / "of-others").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * (1 << 16))

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(area: Path, place: Path, document: str) -> Called:
    return run_spec(area, document, environ={**NO_ENGINE, "TMPDIR": str(place)})


WAITS_AND_WRITES = """
import os, time
open("ready", "w").close()
while (free := os.statvfs(".").f_bavail * os.statvfs(".").f_frsize) > 1000:
    time.sleep(0.02)
open("answer.txt", "wb").write(b"x" * (1 << 20))
"""
FILLS_IT_ITSELF = """
with open("big", "wb") as file:
    while True:
        file.write(b"x" * (1 << 20))
"""


def test_space_that_others_use_up_is_an_error(area: Path, small: Path) -> None:
    with filled_when_ready(small):
        called = run(area, small, spec(WAITS_AND_WRITES))
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error"), called.out + called.err
    assert "there is no space left on this machine" in cell["error"]
    assert "No space left on device" in (called.output / "cells" / cell["id"] / "agent.stderr").read_text()


def test_space_that_others_use_up_during_a_check_is_its_error(area: Path, small: Path) -> None:
    document = json.loads(spec("", "python3 wait.py"))
    document["setup"] = {"files": [{"path": "wait.py", "content": WAITS_AND_WRITES}]}
    with filled_when_ready(small):
        called = run(area, small, json.dumps(document))
    assert called.code == 3, called.out + called.err + str(called.checks)
    assert called.checks["any"]["status"] == "error"
    assert "there is no space left on this machine" in called.checks["any"]["message"]


def test_an_agent_that_uses_up_the_space_itself_fails(area: Path, small: Path) -> None:
    document = json.loads(spec(FILLS_IT_ITSELF))
    document["invariants"]["any"]["check"] = {"type": "file_exists", "path": "big"}  # there is no room for a copy
    called = run(area, small, json.dumps(document))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail"), called.out + called.err


def test_an_agent_that_fails_with_space_left_fails(area: Path, small: Path) -> None:
    called = run(area, small, spec("open('some', 'wb').write(b'x' * 1000); raise SystemExit(1)"))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail"), called.out + called.err


CAP = 40
WAITS_FOR_THEM = """
import subprocess, sys
children = []
try:
    for _ in range(100):
        children.append(subprocess.Popen(["sleep", "0.5"]))
finally:
    for child in children:
        child.wait()
"""
BOMB_THAT_FAILS = """
import os, time
try:
    while True:
        if os.fork() == 0:
            time.sleep(100)
except OSError:
    os._exit(1)
"""


def test_processes_that_the_machine_refuses_are_an_error(area: Path) -> None:
    with cap_on_processes(CAP) as group:
        called = keystone_in(group, area, spec(WAITS_FOR_THEM))
    (cell,) = called.cells
    assert (called.code, cell["verdict"]) == (3, "error"), called.out + called.err
    assert f"the machine caps processes (pids.max is {CAP}) and refused " in cell["error"]
    assert "Resource temporarily unavailable" in (called.output / "cells" / cell["id"] / "agent.stderr").read_text()


@hostile("processes", "ends non-zero with the machine's cap full of its own", held_by="its own count decides")
def test_a_bomb_that_ends_by_itself_is_a_failed_agent(area: Path) -> None:
    with cap_on_processes(CAP) as group:
        called = keystone_in(group, area, spec(BOMB_THAT_FAILS))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail"), called.out + called.err


@honest("processes", "ends non-zero with the machine's cap full of its own")
def test_an_agent_that_fails_below_the_cap_fails(area: Path) -> None:
    with cap_on_processes(CAP) as group:
        called = keystone_in(group, area, spec("raise SystemExit(1)"))
    assert (called.code, called.cells[0]["verdict"]) == (1, "fail"), called.out + called.err


MOCK = [{"name": "api", "type": "http_mock", "record": True}]


def starved(area: Path, *argv: object, environ: dict[str, str] | None = None) -> tuple[int, str, list[str]]:
    """A run with a mock, which makes threads with event loops: exit code, what it said, and what it left. argv: the
    program that starts it."""
    document = json.loads(spec("print('ran')")) | {"services": MOCK}
    (area / "keystone.yaml").write_text(json.dumps(document), "utf-8")
    (area / "tmp").mkdir()
    (area / "tmp").chmod(0o711)
    words = [*argv, sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"]
    environ = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "TMPDIR": str(area / "tmp"), **(environ or {})}
    done = subprocess.run(map(str, words), cwd=area, env=environ, capture_output=True, timeout=120, check=False)
    left = [path.name for path in (area / "tmp").iterdir()]
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace"), left


@pytest.mark.parametrize("descriptors", [12, 14, 16, 18, 20, 22])
def test_what_no_descriptor_is_left_for_is_said(area: Path, descriptors: int) -> None:
    code, said, left = starved(area, "sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
    assert (code, left) == (3, []), said
    assert "Traceback" not in said
    assert re.search(r"ulimit -n|Too many open files", said), said


@pytest.mark.parametrize("most", [2, 3, 5, 6, 8])
def test_what_no_thread_can_be_started_for_is_said(area: Path, most: int) -> None:
    with cap_on_processes(most) as group:
        code, said, left = starved(area, "sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    assert (code, left) == (3, []), said
    assert "Traceback" not in said
    assert f"the machine caps processes (pids.max is {most}" in said


def test_a_library_that_breaks_in_a_new_thread_is_said(area: Path) -> None:
    """As a broken `ssl` does where the first event loop is made; on Debian a package of its own."""
    first = "import threading\nif threading.current_thread() is threading.main_thread():\n    raise ImportError\n"
    (area / "broken").mkdir()
    for error, sentence in (
        ("RuntimeError('no ssl')", "no ssl"),
        ("MemoryError", "no memory is left for this process"),
    ):
        (area / "broken" / "ssl.py").write_text(f"{first}raise {error}\n")
        code, said, left = starved(area, environ={"PYTHONPATH": f"{ROOT}:{area / 'broken'}"})
        assert (code, left) == (3, []), said
        assert sentence in said
        (area / "tmp").rmdir()


def test_with_enough_of_all_it_passes(area: Path) -> None:
    with cap_on_processes(100) as group:
        code, said, left = starved(area, "sh", "-c", f'ulimit -n 100; echo $$ > {group}/cgroup.procs; exec "$@"', "sh")
    assert (code, left) == (0, []), said
