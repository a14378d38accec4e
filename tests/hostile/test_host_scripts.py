"""Scripts of the author's on the host: what an agent left is what they look at, and some of them run it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, NO_ENGINE, Called
from support.hostile import AS_ROOT, area
from support.repositories import commit, git
from support.started_as import python_path

__all__ = ["area"]

PLAIN_USER = 65_533
SYSTEM_PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
NEEDS_A_PLAIN_USER = pytest.mark.skipif(
    not (AS_ROOT and SYSTEM_PYTHON), reason="needs root, and a Python for all users"
)
USERS = pytest.mark.parametrize(
    "played",
    [pytest.param(None, id="this user"), pytest.param(PLAIN_USER, id="a plain user", marks=NEEDS_A_PLAIN_USER)],
    indirect=True,
    scope="module",
)
KINDS = ("custom", "command_exit")
ON_HOST = pytest.mark.parametrize("check", KINDS)

TOKENS = {"GITHUB_TOKEN": "ghs_OFTHEJOB1234", "ACTIONS_RUNTIME_TOKEN": "OFTHERUNNER5678"}
IN_CONFIG = "AUTHORIZATION: basic INTHECONFIG9012"

THIEF = """
import os, sys
from pathlib import Path

print("THE AGENT'S", "CODE RUNS", file=sys.stderr)  # in two, since reports show this text as well
parent = os.getppid()
places = ["/proc/self/environ", f"/proc/{parent}/environ", "/proc/1/environ"]
places += [f"/proc/{name}/environ" for name in os.listdir("/proc") if name.isdigit()]
places += [f"/proc/{name}/cmdline" for name in os.listdir("/proc") if name.isdigit()]
places += [str(path) for path in Path(CHECKOUT).glob(".git/**/*")] + [f"{CHECKOUT}/.git/config"]
places += [str(path) for path in Path(os.environ.get("COPY", "/nonexistent")).rglob("*")]
print(dict(os.environ), file=sys.stderr)
for place in places:
    try:
        print(place, Path(place).read_bytes(), file=sys.stderr)
    except OSError:
        pass
for place in (f"{CHECKOUT}/planted", "/tmp/keystone-planted-by-a-test"):
    try:
        Path(place).write_text("x")
    except OSError:
        pass
"""


def check_out(directory: Path, files: Mapping[str, str]) -> None:
    """A repository as actions/checkout leaves it when its token is to persist."""
    git(directory, "init", "-q", "-b", "main")
    commit(directory, files, "the first commit")
    git(directory, "config", "http.https://github.com/.extraheader", IN_CONFIG)
    git(directory, "remote", "add", "origin", "https://x-access-token:INTHECONFIG9012@github.com/o/r")
    (directory / ".git" / "hooks").mkdir(exist_ok=True)
    (directory / ".git" / "hooks" / "token").write_text("INTHECONFIG9012")
    for name in ("logs/HEAD", "FETCH_HEAD", "credentials", "remotes/old", "config.worktree"):
        (directory / ".git" / name).parent.mkdir(exist_ok=True)
        (directory / ".git" / name).write_text("INTHECONFIG9012")


def run(
    directory: Path,
    user: int | None,
    *,
    specs: Sequence[str] = ("keystone.yaml",),
    groups: Sequence[int] = (),
    program: Sequence[str] = ("-m", "keystone_action"),
    **environ: str,
) -> Called:
    """The real command, not a fork of one: as ourselves or as a user without any rights but those of these groups, with
    a job's tokens."""
    environment = {**ENVIRONMENT, **NO_ENGINE, **TOKENS, **environ}
    python, identity = sys.executable, {}
    if user is not None:
        for path in (directory, *directory.rglob("*")):
            os.lchown(path, user, user)
        python, identity = str(SYSTEM_PYTHON), {"user": user, "group": user, "extra_groups": list(groups)}
        environment["PYTHONPATH"] = python_path()
    done = subprocess.run(
        [python, *program, "run", *specs, "--output", "out"],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
        **identity,  # type: ignore[arg-type]
    )
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")


def spec(agent: Mapping[str, str], checks: Mapping[str, Any], name: str = "host", **more: Any) -> str:
    """A spec whose agent leaves these files."""
    script = f"import pathlib\nfor n, t in {dict(agent)!r}.items(): pathlib.Path(n).write_text(t)"
    return json.dumps(
        {
            "version": 1,
            "id": name,
            "task": {"prompt": "do it"},
            "agent": {"type": "command", "command": ["python3", "-c", script], "must_exit_zero": True},
            "invariants": {name: {"check": check} for name, check in checks.items()},
            **more,
        }
    )


def told(called: Called) -> str:
    """All that the run said or wrote, and that a report or a log could show."""
    files = [path.read_text("utf-8", "replace") for path in called.output.rglob("*") if path.is_file()]
    return "\n".join([called.out, called.err, *files])


def calling(command: str) -> str:
    """A script that runs this in its working directory, and passes."""
    return (
        "import subprocess, sys, json\n"
        f"done = subprocess.run({command!r}, shell=True, stdout=subprocess.PIPE, text=True)\n"
        "print(json.dumps({'passed': done.returncode == 0, 'reason': done.stdout.strip()}))\n"
    )


def check_of(kind: str, command: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A check that runs this command on the host, and the author's files that it takes."""
    if kind == "custom":
        return {"type": "custom", "script": "checks/probe.py"}, {"checks/probe.py": calling(command)}
    return {"type": "command_exit", "command": command, "runs_in": "host"}, {}


ENGINE_GROUP = 64_123
ASKING = """
import json, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(PLACE)
        asking.sendall(b"GET /_ping HTTP/1.0\\r\\n\\r\\n")
        said = asking.recv(100).decode()
except OSError as error:
    said = type(error).__name__
with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_connection(ours.getsockname()):
    one, other = socket.socketpair()
    one.sendall(b"x")
    works = other.recv(1) == b"x"
print(json.dumps({"passed": works, "reason": said}))
"""


@contextlib.contextmanager
def listening_engine() -> Iterator[Path]:
    """What an engine's socket is to its users: open to a group of its own. Whoever connects is answered."""
    place = Path(tempfile.mkdtemp(prefix="keystone-engine-"))
    place.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "docker.sock"))
        if AS_ROOT:
            os.chown(place / "docker.sock", 0, ENGINE_GROUP)
        (place / "docker.sock").chmod(0o660)
        listening.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    with client:
                        client.recv(100)
                        client.sendall(b"THE ENGINE ANSWERS")

        threading.Thread(target=answer, daemon=True).start()
        yield place / "docker.sock"
    shutil.rmtree(place)


PRINTS_ALL = """
import json, pathlib, sys
root = pathlib.Path(__file__).resolve().parents[2]
for place in (root, pathlib.Path(CHECKOUT)):
    for path in place.rglob("*"):
        try: print(path, path.read_bytes(), file=sys.stderr)
        except OSError: pass
print(json.dumps({"passed": (root / ".git/config").is_file() and (root / "token/vendored/file").is_file()}))
"""
READS_HISTORY = """
import json, pathlib, subprocess
import helper
root = pathlib.Path(__file__).resolve().parents[2]
log = subprocess.run(["git", "log", "--format=%s"], cwd=root, capture_output=True, text=True)
status = subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True)
data = json.loads((root / "reads" / "data" / "private.json").read_text())
reason = [log.stdout, log.stderr, status.stdout, status.stderr, helper.ANSWER, data]
passed = reason == ["the first commit\\n", "", "?? token/vendored/\\n", "", 42, {"a": 1}]
print(json.dumps({"passed": passed, "reason": str(reason)}))
"""
WORKS = """
import json, pathlib, subprocess, sys, urllib.request
context = json.load(sys.stdin)
url = context['services']['shop']['url'] + '/orders'
answer = urllib.request.urlopen(url).read().decode()
there = pathlib.Path('left').read_text()
pathlib.Path('made').write_text(subprocess.run(['cat', 'left'], capture_output=True, text=True).stdout)
pathlib.Path.home().joinpath('x').write_text('x')
logs = [pathlib.Path(context[name]).read_text() for name in ('audit_log_path', 'trace_path')]
same = pathlib.Path(context['workspace_path']).samefile('.')
passed = answer == 'ok' and there == 'x' == pathlib.Path('made').read_text() and same and len(logs) == 2
print(json.dumps({'passed': passed, 'reason': str([answer, there, logs, same])}))
"""
SHOP = {"name": "shop", "type": "http_mock", "record": True, "routes": [{"path": "/orders", "response": "ok"}]}


def specs(area: Path, engine: Path) -> dict[str, str]:
    """The files of a checkout with a spec for each of the tests below, in a folder of its name."""
    script = {"type": "custom", "script": "checks/probe.py"}
    thief = f"CHECKOUT = {str(area)!r}\n{THIEF}"
    found: dict[str, str] = {}

    def add(name: str, left: Mapping[str, str], checks: Mapping[str, Any], files: Mapping[str, str], **more: Any):
        found[f"{name}/keystone.yaml"] = spec(left, checks, name.replace("_", "-"), **more)
        found.update({f"{name}/{path}": text for path, text in files.items()})

    for kind in KINDS:
        check, files = check_of(kind, "python3 -c 'import json, usercustomize' ; python3 -c 'import json'")
        planted = ("json.py", "usercustomize.py", "sitecustomize.py")
        add(f"planted_{kind}", dict.fromkeys(planted, thief), {"any": check}, files)
        # A script that builds or starts what the agent left does just this.
        check, files = check_of(kind, "python3 ./run.py")
        add(f"run_{kind}", {"run.py": thief}, {"any": check}, files)
    add("token", {}, {"any": script}, {"checks/probe.py": PRINTS_ALL.replace("CHECKOUT", repr(str(area)))})
    private = {"checks/helper.py": "ANSWER = 42\n", "data/private.json": '{"a": 1}'}
    add("reads", {}, {"any": script}, {"checks/probe.py": READS_HISTORY, **private})
    add("works", {"left": "x"}, {"any": script}, {"checks/probe.py": WORKS}, services=[SHOP])
    tools = {
        "python": script,
        "named": {**script, "interpreter": "python3 -u"},
        "shell": {"type": "custom", "script": "checks/probe.sh"},
        "tool": {"type": "command_exit", "command": "git --version && sh ./left", "runs_in": "host"},
    }
    modules = {
        "checks/probe.py": "import sys, json, types_of_ours\nprint(json.dumps({'passed': types_of_ours.OURS}))\n",
        "checks/types_of_ours.py": "OURS = True\n",
        "checks/probe.sh": "#!/bin/sh\necho '{\"passed\": true}'\n",
    }
    add("tools", {"left": "true"}, tools, modules)
    add("asks", {}, {"any": script}, {"checks/probe.py": ASKING.replace("PLACE", repr(str(engine)))})
    return found


@dataclass(frozen=True)
class Played:
    """One run of all specs. planted: what it left where it was to leave nothing."""

    called: Called
    planted: Sequence[Path]

    def passed(self, name: str) -> str:
        """What was said of this spec, whose only cell passed."""
        (cell,) = [cell for cell in self.called.cells if cell["id"] == f"{name.replace('_', '-')}.r0"]
        files = [path for path in (self.called.output / "cells" / cell["id"]).rglob("*") if path.is_file()]
        said = "\n".join([json.dumps(cell), *(path.read_text("utf-8", "replace") for path in files)])
        assert cell["verdict"] == "pass", said
        return said


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    """As this user, or as a plain one in a group that sockets may be open to. There is no engine."""
    planted = Path(tempfile.gettempdir(), "keystone-planted-by-a-test")
    planted.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="checkout-") as name, listening_engine() as engine:
        area = Path(name)
        area.chmod(0o755)
        files = specs(area, engine)
        check_out(area, {".gitignore": "out/\n", **files})
        (area / "token" / "vendored").mkdir()
        check_out(area / "token" / "vendored", {"file": "x"})
        (area / "reads" / "data").chmod(0o700)
        (area / "reads" / "data" / "private.json").chmod(0o600)
        listed = [path for path in files if path.endswith("keystone.yaml")]
        called = run(area, request.param, specs=listed, groups=[ENGINE_GROUP])
        assert called.code == 0, told(called)
        yield Played(called, [path for path in (planted, area / "planted") if path.exists()])


@hostile("host scripts", "a module is planted for python3 -c in the workspace", held_by="Python's safe path")
@ON_HOST
@USERS
def test_a_planted_module_is_not_imported(played: Played, check: str) -> None:
    assert "THE AGENT'S CODE RUNS" not in played.passed(f"planted_{check}")


@hostile("host scripts", "the agent's code runs in a script of the author's", held_by="own user, Landlock, clean start")
@ON_HOST
@USERS
def test_what_the_agent_wrote_finds_nothing_of_ours(played: Played, check: str) -> None:
    assert "THE AGENT'S CODE RUNS" in played.passed(f"run_{check}")
    assert not [token for token in (*TOKENS.values(), "INTHECONFIG9012") if token in told(played.called)]
    assert played.planted == []


@hostile(
    "host scripts", "a script prints the configuration of the checkout's git", held_by="a copy without credentials"
)
@USERS
def test_the_token_in_the_checkouts_configuration_is_not_there(played: Played) -> None:
    played.passed("token")
    assert "INTHECONFIG9012" not in told(played.called)


@honest("host scripts", "a script prints the configuration of the checkout's git")
@USERS
def test_a_script_reads_the_checkout_and_its_history(played: Played) -> None:
    played.passed("reads")


@honest("host scripts", "the agent's code runs in a script of the author's")
@USERS
def test_a_script_works_in_its_copy_and_talks_to_services(played: Played) -> None:
    played.passed("works")


@honest("host scripts", "a module is planted for python3 -c in the workspace")
@USERS
def test_modules_and_tools_of_the_author_are_found(played: Played) -> None:
    played.passed("tools")


@NEEDS_A_PLAIN_USER
@hostile("host scripts", "a script connects to the engine's socket", held_by="no Unix sockets where one leads out")
def test_a_user_in_the_engines_group_has_scripts_that_do_not_reach_it(area: Path) -> None:
    with listening_engine() as engine:
        files = {"checks/probe.py": ASKING.replace("PLACE", repr(str(engine)))}
        check_out(area, {"keystone.yaml": spec({}, {"any": {"type": "custom", "script": "checks/probe.py"}}), **files})
        called = run(area, PLAIN_USER, groups=[ENGINE_GROUP], DOCKER_HOST=f"unix://{engine}")
    assert called.code == 0, told(called)
    said = called.cells[0]["invariants"][0]["message"]
    assert "THE ENGINE ANSWERS" not in said
    assert "PermissionError" in said


@pytest.mark.parametrize("played", [pytest.param(PLAIN_USER, marks=NEEDS_A_PLAIN_USER)], indirect=True, scope="module")
@honest("host scripts", "a script connects to the engine's socket")
def test_a_script_connects_to_a_database_by_its_socket(played: Played) -> None:
    """Where no socket of an engine is open to our user, all others are as open as their modes say."""
    assert "THE ENGINE ANSWERS" in played.passed("asks")


WITHOUT_LANDLOCK = """
import functools, sys
from keystone_action.sandbox.processes import sandboxes as process
process.start = functools.partial(process.start, landlock=False)
from keystone_action.__main__ import main
sys.exit(main())
"""


@NEEDS_A_PLAIN_USER
@pytest.mark.docker
@pytest.mark.parametrize(("program", "said"), [(["-c", WITHOUT_LANDLOCK], True), (["-m", "keystone_action"], False)])
def test_beside_containers_nothing_isolates_a_script_and_that_is_said(
    area: Path, engine: Any, image: Any, program: list[str], said: bool
) -> None:
    """As a plain user without Landlock; with it, the twin."""
    socket_of_engine = Path("/var/run/docker.sock")
    checks = {"any": {"type": "custom", "script": "checks/probe.py"}}
    script = ASKING.replace("PLACE", repr(str(socket_of_engine)))
    files = {"keystone.yaml": spec({}, checks, base=image("python:3.12-slim")), "checks/probe.py": script}
    check_out(area, files)
    groups = [socket_of_engine.stat().st_gid]
    called = run(area, PLAIN_USER, groups=groups, program=program, DOCKER_HOST=f"unix://{socket_of_engine}")
    assert called.code == 0, told(called)
    assert ("scripts on the host: isolation none" in (called.output / "summary.md").read_text()) is said
    assert "PermissionError" in called.cells[0]["invariants"][0]["message"]
