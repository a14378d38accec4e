"""What belongs to another cell, or to the user who runs us: files that one agent hands to another while both run, and
modes, times and attributes of a plain user's own files."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called
from support.started_as import PLAIN_USER, keystone_in

FAMILY = "files of others"
HANDS_OVER = "hands its open file to another replica, which rewrites it after its end"
CHANGES_MODES = "changes modes, times and attributes of its user's files"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="playing both root and a plain user needs root")
users = pytest.mark.parametrize("user", [pytest.param(0, id="root"), pytest.param(PLAIN_USER, id="plain user")])

FINDS = """
import array, mmap, os, pathlib, socket, sys, time

answer = pathlib.Path("answer.txt")
def listen():
    path = str(pathlib.Path("socket").absolute())
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    for opened in (path, os.getcwd(), os.environ["HOME"]):
        os.chmod(opened, 0o777)
    server.listen()
    return server, path
def give(connection, descriptor):
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
    connection.sendmsg([b"."], [rights])
def take(connection):
    _, rights, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(4))
    return array.array("i", rights[0][2])[0]
"""
TAKES = (
    FINDS
    + """
server, path = listen()
meeting = socket.create_server(("127.0.0.1", int(sys.argv[1])))
connection, _ = meeting.accept()
connection.sendall(path.encode())
connection.shutdown(socket.SHUT_WR)
told = connection.recv(100)  # whether it could come here
if told == b"refused":
    answer.write_text("right")
    sys.exit(0)
giver, _ = server.accept()
page = mmap.mmap(take(giver), 5)
giver.recv(1)  # that it has ended
end = time.monotonic() + 8
while time.monotonic() < end:
    page[:5] = b"right"
    time.sleep(0.001)
answer.write_text("right")
"""
)
GIVES = (
    FINDS
    + """
file = answer.open("w+")
file.write("wrong")
file.flush()
while True:
    try:
        meeting = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.02)
path = meeting.recv(4096).decode()
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(path)
except OSError:
    meeting.sendall(b"refused")
else:
    meeting.sendall(b"there")
    give(connection, file.fileno())
    time.sleep(0.5)
"""
)
KEEPS_TO_ITSELF = (
    FINDS
    + """
server, path = listen()
if os.fork() == 0:
    page = mmap.mmap(take(server.accept()[0]), 5)
    page[:5] = b"right"
    time.sleep(60)  # with the file open, and mapped
file = answer.open("w+")
file.write("wrong")
file.flush()
connection = socket.socket(socket.AF_UNIX)
connection.connect(path)
give(connection, file.fileno())
while answer.read_text() != "right":
    time.sleep(0.01)
"""
)


def spec(agents: dict[str, str], argument: object, **more: Any) -> str:
    started = "import sys\nexec(" + repr(agents) + "[sys.argv.pop(1)])"
    return json.dumps(
        {
            "version": 1,
            "id": "others",
            "task": {"prompt": "do it"},
            "agent": {
                "type": "command",
                "command": ["python3", "-c", started, "{{ params.agent }}", str(argument)],
                "timeout": "60s",
                "must_exit_zero": True,
            },
            "parallelism": {"matrix": {"agent": [*agents]}, "max_concurrency": 2},
            "invariants": {
                "right": {"check": {"type": "file_content", "path": "answer.txt", "equals": "right"}, "gate": True},
                "runs": {"check": {"type": "command_exit", "command": "grep -qx right answer.txt"}},
            },
            **more,
        }
    )


@pytest.fixture
def area() -> Iterator[Path]:
    """A checkout that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def home() -> Iterator[Path]:
    """Files of the plain user where agents may look, but not write: not among the temporary ones."""
    with tempfile.TemporaryDirectory(prefix="keystone-test-", dir="/var/lib") as name:
        Path(name).chmod(0o755)
        for file in ("key", "tool"):
            (Path(name) / file).write_text("mine")
            (Path(name) / file).chmod(0o600)
        for path in (Path(name), *Path(name).iterdir()):
            os.chown(path, PLAIN_USER, PLAIN_USER)
        yield Path(name)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def cell(called: Called, agent: str) -> dict[str, Any]:
    assert called.code in (0, 1), called.out + called.err
    return next(one for one in called.cells if one["params"]["agent"] == agent)


@needs_root
@hostile(FAMILY, HANDS_OVER, held_by="no way to another cell's sockets: modes, or mounts of its own")
@users
def test_no_replica_gets_a_file_of_another(area: Path, user: int) -> None:
    called = keystone_in(None, area, spec({"takes": TAKES, "gives": GIVES}, free_port()), user)
    assert cell(called, "takes")["verdict"] == "pass", called.out + called.err
    gave = cell(called, "gives")
    assert (gave["verdict"], gave["composite"]) == ("fail", 0.0), called.out
    assert gave["invariants"][0]["message"].startswith("answer.txt differs in line 1: expected 'right', found 'wrong'")


@needs_root
@hostile(
    FAMILY, HANDS_OVER + ", without mounts of its own", held_by="the kernel tells which files others can still write"
)
def test_a_file_that_another_replica_holds_is_found(area: Path) -> None:
    called = keystone_in(None, area, spec({"takes": TAKES, "gives": GIVES}, free_port()), PLAIN_USER, namespaces=False)
    gave = cell(called, "gives")
    assert (gave["verdict"], gave["composite"]) == ("fail", 0.0), called.out
    assert gave["reason"].startswith("answer.txt is still open for writing in a process outside of its sandbox")
    assert "hand open files to agents that run at the same time" in called.err


@needs_root
@hostile(
    FAMILY,
    "code under test hands a file of its copy to another replica, without mounts of its own",
    held_by="the kernel tells which files others can still write",
)
def test_a_file_that_code_under_test_hands_over_is_found(area: Path) -> None:
    port = free_port()
    agents = {
        "takes": TAKES,
        "gives": f"open('gives.py', 'w').write({GIVES!r})\nopen('answer.txt', 'w').write('right')",
    }
    right = {"type": "file_content", "path": "answer.txt", "equals": "right"}
    tests = {"type": "tests", "cmd": f"test ! -e gives.py || python3 gives.py {port}"}
    checks = {"right": {"check": right}, "tests": {"check": tests}}
    called = keystone_in(None, area, spec(agents, port, invariants=checks), PLAIN_USER, namespaces=False)
    found = {one["name"]: one for one in cell(called, "gives")["invariants"]}
    assert found["right"]["status"] == "pass"
    assert found["tests"]["status"] == "fail", found["tests"]
    assert found["tests"]["message"].startswith("answer.txt is still open for writing in a process outside")


@needs_root
@honest(
    FAMILY,
    "code under test hands a file of its copy to another replica, without mounts of its own",
)
def test_code_under_test_may_keep_files_open(area: Path) -> None:
    tests = {
        "type": "tests",
        "cmd": "python3 -c \"import subprocess; subprocess.Popen('sleep 60 >> log', shell=True)\"",
    }
    agents = {"one": "open('answer.txt', 'w').write('right')", "two": "open('answer.txt', 'w').write('right')"}
    called = keystone_in(
        None, area, spec(agents, 0, invariants={"tests": {"check": tests}}), PLAIN_USER, namespaces=False
    )
    assert [one["verdict"] for one in called.cells] == ["pass", "pass"], called.out + called.err


@needs_root
@honest(FAMILY, HANDS_OVER, HANDS_OVER + ", without mounts of its own")
@users
@pytest.mark.parametrize("namespaces", [True, False])
def test_an_agent_may_hand_files_to_its_own_processes(area: Path, user: int, namespaces: bool) -> None:
    agents = {"one": KEEPS_TO_ITSELF, "two": KEEPS_TO_ITSELF}
    called = keystone_in(None, area, spec(agents, 0), user, namespaces=namespaces)
    assert [one["verdict"] for one in called.cells] == ["pass", "pass"], called.out + called.err


CHANGES = """
import fcntl, os, pathlib, struct, sys
home = pathlib.Path(sys.argv[1])
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    print(name)
def set_flag():
    with (home / "key").open() as file:
        fcntl.ioctl(file, 0x40086602, struct.pack("L", 0x40))
attempt("mode", lambda: (home / "key").chmod(0o644))
attempt("set-user-id", lambda: (home / "tool").chmod(0o4755))
attempt("folder", lambda: home.chmod(0o700))
attempt("times", lambda: os.utime(home / "key", (1, 1)))
attempt("owner", lambda: os.chown(home / "key", os.getuid(), os.getgid()))
attempt("attribute", lambda: os.setxattr(home / "key", "user.test", b"1"))
attempt("flag", set_flag)
attempt("content", lambda: (home / "key").write_text("yours"))
pathlib.Path("answer.txt").write_text("right")
"""
CHANGES_ITS_OWN = """
import os, pathlib, shutil, subprocess, sys
answer = pathlib.Path("answer.txt")
for folder in (os.environ["HOME"], os.environ["TMPDIR"], "."):
    file = pathlib.Path(folder, "file")
    file.write_text("x")
    file.chmod(0o755)
    os.utime(file, (1, 1))
    assert (file.stat().st_mode & 0o777, file.stat().st_mtime) == (0o755, 1)
pathlib.Path(os.environ["TMPDIR"], "file").unlink()
temporary = pathlib.Path(os.environ["TMPDIR"], "answer")
temporary.write_text("right")
shutil.move(temporary, answer)
for path in (".", os.environ["HOME"]):
    assert os.stat(path).st_uid == os.getuid()
subprocess.run(["git", "init", "-q", "repository"], check=True)
subprocess.run(["git", "-C", "repository", "status", "--short"], check=True)
subprocess.run(["ls", "/usr", "/proc/self"], check=True, stdout=subprocess.DEVNULL)
"""


def _state(home: Path) -> dict[str, Any]:
    found = {}
    for path in (home, *sorted(home.iterdir())):
        status = path.stat()
        stamps = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), status.st_mtime_ns, os.listxattr(path))
        found[path.name] = (*stamps, path.read_text() if path.is_file() else "")
    return found


@needs_root
@hostile(FAMILY, CHANGES_MODES, held_by="mounts of its own, read-only outside of its places")
def test_a_plain_users_files_stay_as_they_are(area: Path, home: Path) -> None:
    before = _state(home)
    called = keystone_in(None, area, spec({"changes": CHANGES}, home), PLAIN_USER)
    found = cell(called, "changes")
    assert found["agent"]["output"] == "", called.out + called.err
    assert _state(home) == before
    assert "Not enforced" not in called.err


@needs_root
@hostile(
    FAMILY,
    CHANGES_MODES + ", without mounts of its own",
    held_by="no set-id bits and attributes (seccomp); the rest is said",
)
def test_without_mounts_what_can_be_refused_is_and_the_rest_is_said(area: Path, home: Path) -> None:
    called = keystone_in(None, area, spec({"changes": CHANGES}, home), PLAIN_USER, namespaces=False)
    found = cell(called, "changes")
    assert found["agent"]["output"].split() == ["mode", "folder", "times", "owner"], called.out + called.err
    assert "Not enforced: the agent can change modes and times of its user's files" in called.err


@needs_root
@honest(FAMILY, CHANGES_MODES, CHANGES_MODES + ", without mounts of its own")
@users
@pytest.mark.parametrize("namespaces", [True, False])
def test_an_agent_changes_what_is_its_own(area: Path, user: int, namespaces: bool) -> None:
    called = keystone_in(None, area, spec({"own": CHANGES_ITS_OWN}, 0), user, namespaces=namespaces)
    assert [one["verdict"] for one in called.cells] == ["pass"], called.out + called.err + str(called.cells)
