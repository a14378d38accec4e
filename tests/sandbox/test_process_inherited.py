"""What a command gets from us, its parent, and what of it stays, besides files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.process_world import another, run, world

from keystone_action.system.command import Command

FAMILY = "inherited"

STATE = """
import json, os, signal
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
signals = int(status["SigBlk"], 16) | int(status["SigIgn"], 16) & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
try:
    terminal = os.open("/dev/tty", os.O_RDWR) >= 0
except OSError:
    terminal = False
print(json.dumps({
    "descriptors": [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)],
    "umask": status["Umask"], "groups": status["Groups"].split(), "signals": signals, "terminal": terminal,
    "leads": os.getsid(0) == os.getpgid(0) == os.getpid(), "nice": os.nice(0), "tracer": status["TracerPid"],
    "victim": int(open("/proc/self/oom_score_adj").read()) > 0,
}))
"""
ODD_PARENT = """
import asyncio, os, pty, signal, socket, sys
sys.path[:0] = {paths!r}
from support.process_world import run, world
from keystone_action.system.command import Command
os.umask(0o077)
os.setsid() if os.getpid() != os.getsid(0) else None
master, slave = pty.openpty()
os.close(os.open(os.ttyname(slave), os.O_RDWR))  # the terminal that controls us
descriptor = os.open("/etc/passwd", os.O_RDONLY)
os.set_inheritable(descriptor, True)
os.nice(3)
if os.geteuid() == 0:
    os.setgroups([4, 27])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
async def main():
    async with world() as (_, sandbox):
        print((await sandbox.run(Command(("python3", "-c", {state!r})))).stdout.text())
run(main)
"""


def test_nothing_of_ours_but_the_niceness_is_inherited(tmp_path: Path) -> None:
    script = ODD_PARENT.format(paths=[str(Path(__file__).parent), str(Path(__file__).parents[1])], state=STATE)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, start_new_session=True
    )
    assert json.loads(done.stdout) == {
        "descriptors": ["0", "1", "2"],
        "umask": "0022",
        "groups": [] if os.geteuid() == 0 else [str(group) for group in os.getgroups()],  # only root can leave them
        "signals": 0,
        "terminal": False,
        "leads": True,
        "nice": min(os.nice(0) + 3, 19),
        "tracer": "0",
        "victim": True,
    }


OWNER_OF_A_KEY = """
import ctypes, os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from support.process_world import run, shell, world
libc = ctypes.CDLL(None, use_errno=True)
add_key, keyctl = {{"x86_64": (248, 250)}}.get(os.uname().machine, (217, 219))
JOIN, POSSESSOR_ONLY, SET_PERMISSIONS = 1, 0x3f000000, 5
joined = libc.syscall(keyctl, JOIN, None) >= 0
key = libc.syscall(add_key, b"user", b"key-of-the-author", b"x", 1, -3) if joined else -1
libc.syscall(keyctl, SET_PERMISSIONS, key, POSSESSOR_ONLY)
async def main():
    async with world(**{options!r}) as (_, sandbox):
        return (await sandbox.run(shell("cat /proc/keys"))).stdout.text()
ours = Path("/proc/keys").read_text() if key > 0 and Path("/proc/keys").exists() else ""
print("key-of-the-author" in ours, "key-of-the-author" in run(main))
"""


@pytest.mark.parametrize("options", [{}, {"landlock": False}, {"uid_isolation": False}], ids=str)
def test_a_command_does_not_possess_our_session_keyring(options: dict[str, bool]) -> None:
    """No system call is needed to see what is in it: whoever possesses a key finds it in /proc/keys."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    script = OWNER_OF_A_KEY.format(paths=paths, options=options)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    if done.stdout.startswith("False"):
        pytest.skip("this machine lets nobody at the kernel's keyrings")
    assert done.stdout == "True False\n"


QUEUE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.mq_open(b"/answer", os.O_RDONLY) >= 0)
old = os.umask(0)
libc.mq_open(b"/answer", os.O_CREAT | os.O_RDWR, 0o666, None)
"""


@hostile(
    FAMILY,
    "leaves a POSIX message queue for the next cell",
    held_by="Landlock; else removed, or none may be made (RLIMIT_MSGQUEUE)",
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"landlock": False}, marks=pytest.mark.skipif(os.geteuid() != 0, reason="then nothing isolates")),
        {"uid_isolation": False},
    ],
    ids=str,
)
def test_no_message_queue_reaches_the_next_cell(options: dict[str, bool]) -> None:
    async def main() -> None:
        async with world(**options) as (sandboxes, sandbox):
            for each in (sandbox, await another(sandboxes)):
                result = await each.run(Command(("python3", "-c", QUEUE)))
                assert result.stdout.text() == "False\n", result.stderr.text()
                await each.close()

    run(main)


@honest(FAMILY, "leaves a POSIX message queue for the next cell")
@pytest.mark.parametrize("options", [{}, {"landlock": False}, {"uid_isolation": False}], ids=str)
def test_threads_and_pipes_do_without_message_queues(options: dict[str, bool]) -> None:
    script = (
        "import threading, queue; q = queue.Queue(); threading.Thread(target=q.put, args=(1,)).start(); print(q.get())"
    )

    async def main() -> None:
        async with world(**options) as (_, sandbox):
            result = await sandbox.run(Command(("python3", "-c", script)))
            assert result.stdout.text() == "1\n", result.stderr.text()

    run(main)
