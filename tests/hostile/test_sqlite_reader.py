"""What reads a SQLite file that an agent wrote: were SQLite to run what stands in it, that could do nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, ROOT
from support.database_worlds import DatabaseWorld
from support.hostile import AS_ROOT, area
from support.started_as import python_path

from keystone_action.sandbox.processes import landlock, seccomp

__all__ = ["area"]

PLAIN_USER = 65_533
SYSTEM_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
SQLITE = pytest.mark.parametrize("world", ["sqlite"], indirect=True)
USERS = pytest.mark.parametrize(
    "user",
    [
        None,
        pytest.param(
            PLAIN_USER,
            marks=pytest.mark.skipif(not (AS_ROOT and SYSTEM_PYTHON), reason="needs root, and a Python for all users"),
        ),
    ],
    ids=["this user", "a plain user"],
)
DEFECT = "a file that makes SQLite run what the agent wrote"
CONFINED = "the process that reads it is confined as scripts on the host are"
MARKS = (b"sqlite_program", b"Asks a SQLite file")
FOREVER = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r"

PROBE = """
import json, os
from pathlib import Path

order = json.loads(input())
seen = {"status": Path("/proc/self/status").read_text(), "environ": dict(os.environ), "reached": []}
parent = os.getppid()
places = [order["secret"], *(f"/proc/{name}/environ" for name in os.listdir("/proc") if name.isdigit())]
for place in places:
    try:
        content = Path(place).read_bytes()
    except OSError:
        continue
    if b"OFTHEJOB1234" in content:
        seen["reached"].append(place)
for place in (order["planted"], "/tmp/keystone-planted-by-a-test"):
    try:
        Path(place).write_text("x")
        seen["reached"].append(place)
    except OSError:
        pass
print(json.dumps(seen))
"""
# What stands for a defect of SQLite: the program is another one, its process the product's own.
ASKED = """
import sys
from pathlib import Path

import anyio
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.services.sqlite import reader as sqlite_process

async def main():
    host = await process.start()
    own = sqlite_process.SqliteProcess(host, Path(sys.argv[2]))
    own.make_directory()
    order = {"secret": str(Path("secret").resolve()), "planted": str(Path("planted").resolve())}
    output, _ = await anyio.to_thread.run_sync(own.ask, order, 60.0, Path(sys.argv[1]))
    print(output.decode())
    await own.close()
    assert not own.directory.exists()
    await host.close()

anyio.run(main)
"""


def asked(place: Path, user: int | None) -> dict[str, Any]:
    """What the probe saw in the place of our program. place: a checkout with a secret, our working directory."""
    (place / "secret").write_text("OFTHEJOB1234")
    (place / "probe.py").write_text(PROBE)
    (place / "private").mkdir()
    python, identity = sys.executable, {}
    environment = {**ENVIRONMENT, "GITHUB_TOKEN": "OFTHEJOB1234", "PYTHONPATH": str(ROOT)}
    if user is not None:
        for path in (place, *place.rglob("*")):
            os.lchown(path, user, user)
        python, identity = str(SYSTEM_PYTHON), {"user": user, "group": user, "extra_groups": []}
        environment["PYTHONPATH"] = python_path()
    done = subprocess.run(
        [python, "-c", ASKED, str(place / "probe.py"), str(place / "private")],
        cwd=place,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
        **identity,  # type: ignore[arg-type]
    )
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


def fields(status: str) -> dict[str, list[str]]:
    return {name: rest.split() for name, _, rest in (line.partition(":") for line in status.splitlines())}


@USERS
@hostile("databases", DEFECT, held_by=CONFINED, sandbox="both")
@pytest.mark.skipif(landlock.abi() == 0, reason="no Landlock here")
def test_a_defect_of_sqlite_reaches_nothing_of_ours(area: Path, user: int | None) -> None:
    seen = asked(area, user)
    status = fields(seen["status"])
    assert seen["reached"] == []
    assert not (area / "planted").exists()
    assert "OFTHEJOB1234" not in str(seen["environ"])
    assert [int(status[name][0], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [0, 0, 0, 0]
    assert status["NoNewPrivs"] == ["1"]
    assert status["Seccomp"] == ["2" if seccomp.has_seccomp() else "0"]
    if AS_ROOT and user is None:
        assert not {"0", str(os.geteuid())} & set(status["Uid"])


@SQLITE
@pytest.mark.skipif(not AS_ROOT, reason="only root has users to give away")
@hostile("databases", DEFECT, held_by=CONFINED, sandbox="both")
def test_the_process_that_reads_the_file_has_no_rights(world: DatabaseWorld) -> None:
    world.lay_out()
    asking = threading.Thread(target=lambda: world.ask(FOREVER, equals=0, timeout=10.0))
    asking.start()
    try:
        status = _status_of_reader()
    finally:
        asking.join()
    assert "0" not in status["Uid"]
    assert status["CapEff"] == ["0000000000000000"]
    assert status["NoNewPrivs"] == ["1"]


def _status_of_reader() -> dict[str, list[str]]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if any(mark in (place / "cmdline").read_bytes() for mark in MARKS):
                    return fields((place / "status").read_text())
            except OSError:
                continue
        time.sleep(0.01)
    pytest.fail("nobody reads the file")


@SQLITE
@honest("databases", DEFECT, sandbox="both")
def test_honest_questions_have_the_answers_that_they_had(world: DatabaseWorld) -> None:
    world.lay_out()
    world.agent(["PRAGMA journal_mode = WAL", "UPDATE customers SET email = 'ö' WHERE id = 3"])
    kept = sqlite3.connect(world.workspace / "workspace/data.db")  # its log is not folded in while this is open
    try:
        assert world.ask("SELECT * FROM customers ORDER BY id DESC LIMIT 1", rows=[[3, "ö"]]).status == "pass"
        long = "SELECT hex(zeroblob(3000000))"  # longer than what is kept of a command's output
        assert world.ask(f"SELECT length(({long})) = 6000000", equals=1).status == "pass"
        assert world.ask(long, matches="^0{6000000}$").status == "pass"
    finally:
        kept.close()
