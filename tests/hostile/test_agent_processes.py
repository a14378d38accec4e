"""An agent that won't end, takes all it can get, or fights those who watch it."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from support.attacks import hostile
from support.hostile import AS_ROOT, area, attack, statuses

__all__ = ["area"]

ABSENT = {"type": "file_absent", "path": "late.txt"}
# Two forks, a session of its own, nothing of ours in its environment, every stream closed or kept as asked.
DAEMON = r"""
import os, sys, time
def daemon(work, keep_streams=False):
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if not keep_streams:
        for stream in range(3):
            os.close(stream)
    os.environ.clear()
    try:
        work()
    finally:
        os._exit(0)
"""


def marked(number: str) -> list[str]:
    """Processes whose command line holds this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if number.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@hostile(
    "processes",
    "daemons rewrite the answer after the agent's end",
    held_by="every descendant is killed before the first check",
)
def test_daemons_are_gone_before_the_first_check(area: Path) -> None:
    token = f"1{time.monotonic_ns()}.25"
    script = f"""{DAEMON}
def rewrite():
    loop = "trap '' TERM HUP INT; while :; do echo late > answer.txt; sleep 0.01; done"
    os.execve("/bin/sh", ["sh", "-c", loop], {{}})
open("answer.txt", "w").write("early")
daemon(rewrite)
daemon(rewrite, keep_streams=True)
daemon(lambda: os.execvpe("sleep", ["sleep", "{token}"], {{"PATH": "/usr/bin:/bin"}}))
time.sleep(0.2)
open("answer.txt", "w").write("early")
print("done", flush=True)
os._exit(0)
"""
    (area / "wait.py").write_text(
        "import json, pathlib, sys, time\n"
        "time.sleep(0.5)\n"
        "where = pathlib.Path(json.load(sys.stdin)['workspace_path'])\n"
        "print(json.dumps({'passed': True, 'reason': where.joinpath('answer.txt').read_text()}))\n"
    )
    checks = {
        "waits": {"type": "custom", "script": "wait.py"},
        "same": {"type": "file_content", "path": "answer.txt", "pattern": "^(early|late\\n)?$"},
        "still": {"type": "command_exit", "command": "cp answer.txt one; sleep 0.3; cmp one answer.txt"},
    }
    called = attack(area, script, checks)
    assert called.code == 0, called.out + called.err
    assert "processes outlived it and were killed" in called.cells[0]["agent"]["note"]
    assert marked(token) == []


@hostile(
    "processes",
    "a process that outlives the agent keeps its output open",
    held_by="the agent's end counts, not its streams'",
)
def test_a_process_that_keeps_the_output_open_holds_nothing_up(area: Path) -> None:
    token = f"2{time.monotonic_ns()}.25"
    script = f"""{DAEMON}
daemon(lambda: os.execvp("sleep", ["sleep", "{token}"]), keep_streams=True)
print("the answer", flush=True)
"""
    called = attack(area, script, {"said": ABSENT}, agent={"timeout": "50s"})
    (cell,) = called.cells
    assert called.code == 0
    assert cell["agent"]["output"] == "the answer\n"
    assert not cell["agent"]["timed_out"]
    assert cell["agent"]["duration_s"] < 45
    assert marked(token) == []


@hostile("processes", "signals every process of the machine", held_by="a user of its own")
def test_killing_everything_kills_the_agent_alone(area: Path) -> None:
    script = """
import os, signal
open("made.txt", "w").write("x")
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    if pid != os.getpid():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            try:
                os.kill(pid, number)
                print("signalled", pid, flush=True)
            except OSError:
                pass
os.kill(-1, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""
    if not AS_ROOT:
        return  # without a user of its own (and before Landlock's ABI 6) it would reach whatever runs as this user
    called = attack(area, script, {"made": {"type": "file_exists", "path": "made.txt"}}, parallelism={"replicas": 2})
    assert called.code == 0, called.out + called.err
    for cell in called.cells:
        assert "signalled" not in cell["agent"]["output"]
        assert (cell["agent"]["exit_code"], cell["agent"]["signal"]) == (None, 9)


@hostile("processes", "ignores signals, closes its streams and sleeps", held_by="SIGKILL at its time limit")
def test_an_agent_that_closes_its_streams_and_sleeps_is_stopped_at_its_timeout(area: Path) -> None:
    script = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
open("made.txt", "w").write("x")
for stream in range(3):
    os.close(stream)
time.sleep(1000)
open("late.txt", "w").write("x")
"""
    checks = {"made": {"type": "file_exists", "path": "made.txt"}, "late": ABSENT}
    called = attack(area, script, checks, agent={"timeout": "1s"})
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["timed_out"] is True
    assert "timed out" in called.cells[0]["agent"]["note"]


MEMORY = """
data = []
while True:
    data.append(b"x" * (8 << 20))
    time.sleep(0.005)
"""
MEMORY_OF_NOBODY = """
made = []
while len(made) < 40:
    made.append(os.memfd_create("m"))
    os.write(made[-1], b"x" * (8 << 20))
    time.sleep(0.01)
time.sleep(60)
"""
SOME_MEMORY = """
data = [b"x" * (8 << 20) for _ in range(40)]
time.sleep(60)
"""
IN_A_SECOND_THREAD = """
import ctypes, threading
def go_on():
    time.sleep(0.2)
    {}
threading.Thread(target=go_on).start()
ctypes.CDLL(None).syscall({{"x86_64": 60}}.get(os.uname().machine, 93), 0)  # exit, of this thread alone
"""
RELAY = """
import _thread, ctypes
def go_on():
    while True:
        try:
            return _thread.start_new_thread(go_on, ())
        except RuntimeError:
            pass
go_on()
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)  # exit, of this thread alone
"""
MEMORY_BELOW_A_RELAY = f"""
if not os.fork():
    {SOME_MEMORY.replace(chr(10), chr(10) + "    ")}
{RELAY}
"""
MEMORY_THAT_IS_HIDDEN = f"""
import ctypes
if os.fork():
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
    {SOME_MEMORY.replace(chr(10), chr(10) + "    ")}
time.sleep(60)
"""
PROCESSES = """
for _ in range(80):
    try:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
    except OSError:
        break
time.sleep(60)
"""
MANY_FILES = """
for number in range(100):
    open(f"big{number}", "wb").write(b"x" * (1 << 20))
    time.sleep(0.02)
time.sleep(60)
"""
ONE_FILE = """
open("big", "wb").write(b"x" * (64 << 20))
time.sleep(60)
"""
DEPTH = """
for _ in range(2500):
    os.mkdir("d")
    os.chdir("d")
time.sleep(60)
"""


def in_second_thread(body: str) -> str:
    """The first one has ended: to a careless look the process has, too."""
    return IN_A_SECOND_THREAD.format(body.replace("\n", "\n    "))


LIMITED = {
    "memory": (MEMORY, {"memory": "128Mi"}),
    "shared-memory": (MEMORY_OF_NOBODY, {"memory": "128Mi"}),
    "memory-of-a-thread": (in_second_thread(SOME_MEMORY), {"memory": "128Mi"}),
    "shared-memory-of-a-thread": (in_second_thread(MEMORY_OF_NOBODY), {"memory": "128Mi"}),
    "memory-of-a-relay": (SOME_MEMORY.replace("time.sleep(60)", RELAY), {"memory": "128Mi"}),
    "shared-memory-of-a-relay": (MEMORY_OF_NOBODY.replace("time.sleep(60)", RELAY), {"memory": "128Mi"}),
    "memory-below-a-relay": (MEMORY_BELOW_A_RELAY, {"memory": "128Mi"}),
    "memory-that-is-hidden": (MEMORY_THAT_IS_HIDDEN, {"memory": "128Mi"}),
    "processes": (PROCESSES, {"pids": 30}),
    "disk": (MANY_FILES, {"disk": "4Mi"}),
    "disk-of-one-file": (ONE_FILE, {"disk": "4Mi"}),
    "depth": (DEPTH, {"disk": "64Mi"}),
}
WORD = {kind: "memory" for kind in LIMITED if "memory" in kind} | {"processes": "processes"}


@pytest.mark.parametrize("kind", LIMITED)
@hostile(
    "limits", "takes memory, processes, disk or depth without end", held_by="the whole tree of processes is watched"
)
def test_each_limit_stops_the_agent_says_so_and_grades(area: Path, kind: str) -> None:
    body, limits = LIMITED[kind]
    script = f"import os, signal, time\nopen('made.txt', 'w').write('x')\n{body}\nopen('late.txt', 'w').write('x')"
    checks = {"made": {"type": "file_exists", "path": "made.txt"}, "late": ABSENT}
    called = attack(area, script, checks, resources={"pids": 100, **limits}, agent={"timeout": "30s"})
    (cell,) = called.cells
    assert called.code == 0, called.out + called.err
    # One file too large is refused by the kernel: a program that does not mind SIGXFSZ lives to see the error.
    refused = kind == "disk-of-one-file" and "exited with 1" in cell["agent"]["note"]
    # Threads that take turns may not be read in time: then that is what stops it.
    word = "(memory|processes)" if "relay" in kind else WORD.get(kind, "disk")
    assert refused or re.search(rf"was stopped at a limit \({word}: ", cell["agent"]["note"])
    assert statuses(called) == {"made": "pass", "late": "pass"}


@hostile(
    "limits",
    "has code that a check runs take processes without end",
    held_by="checks run under the limits of the agent",
)
def test_limits_hold_for_code_that_checks_run(area: Path) -> None:
    script = "open('test.sh', 'w').write('i=0; while [ $i -lt 60 ]; do sleep 50 & i=$((i+1)); done; wait')"
    called = attack(area, script, {"tests": {"type": "command_exit", "command": "sh test.sh"}}, resources={"pids": 30})
    assert called.code == 1, called.out + called.err
    assert "processes: " in called.checks["tests"]["message"]


DUMP = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
os.abort()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("os._exit(256 + 7)", {"exit_code": 7, "signal": None}),
        ("os._exit(255)", {"exit_code": 255, "signal": None}),
        ("os.kill(os.getpid(), signal.SIGTERM)", {"exit_code": None, "signal": 15}),
        (DUMP, {"exit_code": None, "signal": 6}),
        ("os.kill(os.getpid(), 64)", {"exit_code": None, "signal": 64}),
    ],
)
def test_every_way_to_end_is_recorded_and_graded(area: Path, body: str, expected: dict) -> None:
    called = attack(area, f"import os, signal\n{body}", {"any": ABSENT})
    assert called.code == 0, called.out + called.err
    agent = called.cells[0]["agent"]
    assert {name: agent[name] for name in expected} == expected
    strict = attack_strictly(area, body)
    assert strict.code == 1
    assert strict.cells[0]["composite"] == 0


def attack_strictly(area: Path, body: str):
    (area / "strict").mkdir()
    return attack(area / "strict", f"import os, signal\n{body}", {"any": ABSENT}, agent={"must_exit_zero": True})


@hostile(
    "processes", "leaves files, jobs and System V objects on the machine", held_by="they go with the sandbox's user"
)
def test_leaves_nothing_on_the_machine(area: Path) -> None:
    token = f"keystone-test-{os.getpid()}-{time.monotonic_ns()}"
    script = f"""
import os, subprocess
for place in ("/dev/shm", "/tmp", "/var/tmp", "/dev/mqueue", "/run", "/run/lock", "/var/lock", "/var/spool/cron",
              "/var/spool/cron/crontabs", "/var/spool/at", "/etc/cron.d", "/root", "/home", os.environ["HOME"],
              os.environ["TMPDIR"]):
    try:
        open(os.path.join(place, "{token}"), "w").write("x")
        print("wrote", place)
    except OSError:
        pass
for words in ("crontab -", "at now", "batch", "ipcmk -M 4096", "ipcmk -S 1", "ipcmk -Q"):
    try:
        done = subprocess.run(words.split(), input=b"* * * * * touch /dev/shm/{token}\\n", capture_output=True)
        print(words, done.returncode)
        if words.startswith("ipcmk") and done.returncode == 0:
            print("made", words.split()[1], done.stdout.split()[-1].decode())
    except OSError:
        pass
"""
    called = attack(area, script, {"any": ABSENT})
    assert called.code == 0, called.out + called.err
    said = [line.split() for line in called.cells[0]["agent"]["output"].splitlines()]
    written = [words[1] for words in said if words[0] == "wrote"]
    assert not [place for place in written if place.startswith(("/var/spool", "/etc", "/root", "/home", "/run"))]
    for place in ("/dev/shm", "/tmp", "/var/tmp", "/dev/mqueue"):
        assert not (Path(place) / token).exists()
    # By their ids: other sandboxes of this machine have objects of their own.
    made = {f"{KINDS[words[1]]} {words[2]}" for words in said if words[0] == "made"}
    assert len(made) == len(KINDS) or not AS_ROOT
    assert not made & ipcs() or not AS_ROOT


KINDS = {"-M": "shm", "-S": "sem", "-Q": "msg"}


def ipcs() -> set[str]:
    """System V objects of the users that sandboxes have."""
    found = set()
    for kind in ("shm", "sem", "msg"):
        for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if any(field.isdigit() and 1_900_000_000 <= int(field) < 1_901_000_000 for field in fields):
                found.add(f"{kind} {fields[1]}")
    return found


def test_a_prompt_of_200_kib_comes_whole(area: Path) -> None:
    script = """
import os
text = open(os.environ["KEYSTONE_PROMPT_FILE"], "rb").read()
print(len(text), "KEYSTONE_PROMPT" in os.environ, text[-3:])
"""
    prompt = "é" * (100 << 10) + "END"
    called = attack(area, script, {"any": ABSENT}, task={"prompt": prompt})
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["output"] == f"{len(prompt.encode())} False b'END'\n"
    assert len(json.dumps(called.document)) < 100_000
