"""A control group with a cap on processes, as podman, Kubernetes and systemd make one, and the command run in it."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, NO_ENGINE, ROOT, Called

_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_JOIN = """
import os, sys
group, user, *argv = sys.argv[1:]
open(group + "/cgroup.procs", "w").write(str(os.getpid()))
if user != "0":
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
os.execv(argv[0], argv)
"""
PLAIN_USER = pwd.getpwnam("nobody").pw_uid


@contextlib.contextmanager
def cap_on_processes(most: int) -> Iterator[Path]:
    """The directory of a control group in which at most so many processes and threads run."""
    group = _new_group()
    (group / "pids.max").write_text(str(most))
    try:
        yield group
    finally:
        while left := processes_in(group):
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        group.rmdir()


def _new_group() -> Path:
    for root in _ROOTS:
        group = root / f"keystone-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / "pids.max").exists():
            return group
        group.rmdir()
    pytest.skip("no control group with a cap on processes can be made on this machine")


def processes_in(group: Path) -> list[int]:
    """Every process that runs in the group."""
    return [int(line) for line in (group / "cgroup.procs").read_text().split()]


def run_in(group: Path, argv: Sequence[object], directory: Path, user: int = 0) -> subprocess.CompletedProcess[bytes]:
    """Run a program in the group, as root or as this user."""
    words = [str(word) for word in (sys.executable, "-c", _JOIN, group, user, *argv)]
    environ = {**ENVIRONMENT, **NO_ENGINE, "PYTHONPATH": f"{ROOT}:{_packages()}"}
    return subprocess.run(
        words, cwd=directory, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False
    )


def keystone_in(group: Path, directory: Path, document: str, user: int = 0) -> Called:
    """`keystone run` on this spec in the group; the directory is given to the user."""
    (directory / "keystone.yaml").write_text(document, "utf-8")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user, user)
    argv = [interpreter(user), "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"]
    done = run_in(group, argv, directory, user)
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")


def interpreter(user: int) -> str:
    """A Python that this user can run with our packages."""
    if user == 0 or os.path.realpath(sys.executable).startswith("/usr/"):
        return sys.executable
    for name in (f"/usr/bin/python3.{sys.version_info.minor}", f"/usr/local/bin/python3.{sys.version_info.minor}"):
        if Path(name).exists():
            return name
    pytest.skip(f"no Python 3.{sys.version_info.minor} that a plain user of this machine can run")


def _packages() -> str:
    return str(Path(pytest.__file__).parents[1])
