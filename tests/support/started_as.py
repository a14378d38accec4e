"""The command, started from where people start it: as root or a plain user, in a control group with a cap on processes
(as podman, Kubernetes and systemd make one), with a key in the session's and the user's keyring, on a machine that lets
nobody make namespaces of users or networks (as Ubuntu does, and Docker in its containers)."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, ROOT, Called

_ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
_START = """
import ctypes, os, sys
group, key, namespaces, user, *argv = sys.argv[1:]
if not namespaces:
    libc = ctypes.CDLL(None, use_errno=True)
    (entered, enter), (mapped, map_users) = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.read(entered, 1)
        for name in ("uid_map", "gid_map"):
            open(f"/proc/{os.getppid()}/{name}", "w").write("0 0 4294967295")
        os.write(map_users, b".")
        os._exit(0)
    if libc.unshare(0x10000000) != 0:
        sys.exit(78)
    os.write(enter, b".")
    os.read(mapped, 1)
    os.wait()
    for kind in ("user", "net"):
        open(f"/proc/sys/user/max_{kind}_namespaces", "w").write("0")
if group:
    open(group + "/cgroup.procs", "w").write(str(os.getpid()))
if user != "0":
    os.setgroups([])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
if key:
    libc = ctypes.CDLL(None, use_errno=True)
    add_key, keyctl = {"x86_64": (248, 250)}.get(os.uname().machine, (217, 219))
    if libc.syscall(keyctl, 1, None) < 0:
        sys.exit(77)
    for keyring in (-3, -4):
        assert libc.syscall(add_key, b"user", b"author", key.encode(), len(key), keyring) > 0
os.execv(argv[0], argv)
"""
_NO_KEYRINGS, _NO_NAMESPACES = 77, 78
PLAIN_USER = pwd.getpwnam("nobody").pw_uid


def as_plain_user(function: Callable[[], None]) -> str:
    """Call it in a process of its own that has no rights of root; what it raised, empty when it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(PLAIN_USER, PLAIN_USER, PLAIN_USER)
                os.setresuid(PLAIN_USER, PLAIN_USER, PLAIN_USER)
            function()
        except BaseException:  # noqa: BLE001 - told to the caller
            os.write(writer, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


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


def processes_in(group: Path, mark: str = "") -> list[int]:
    """Every process that runs in the group, or those that have this text in their command line."""
    found = []
    for pid in map(int, (group / "cgroup.procs").read_text().split()):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def run_in(
    group: Path | None,
    argv: Sequence[object],
    directory: Path,
    user: int = 0,
    key: str = "",
    *,
    namespaces: bool = True,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in the group, as root or as this user, with this key in its keyrings. namespaces: whether it can
    make namespaces of users and networks."""
    how = (group or "", key, "yes" if namespaces else "", user)
    words = [str(word) for word in (sys.executable, "-c", _START, *how, *argv)]
    environ = {**ENVIRONMENT, "PYTHONPATH": python_path()}
    done = subprocess.run(
        words, cwd=directory, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False
    )
    if done.returncode == _NO_KEYRINGS:
        pytest.skip("this machine lets nobody at the kernel's keyrings")
    if done.returncode == _NO_NAMESPACES:
        pytest.skip("this machine has no user namespace for us in which there are no others")
    return done


def keystone_in(
    group: Path | None, directory: Path, document: str, user: int = 0, key: str = "", *, namespaces: bool = True
) -> Called:
    """`keystone run` on this spec in the group, if any; the directory is given to the user."""
    (directory / "keystone.yaml").write_text(document, "utf-8")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user, user)
    argv = [interpreter(user), "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"]
    done = run_in(group, argv, directory, user, key, namespaces=namespaces)
    return Called(done.returncode, done.stdout.decode(), done.stderr.decode("utf-8", "replace"), directory / "out")


def interpreter(user: int) -> str:
    """A Python that this user can run with our packages: not by the link in our environment, which may lie below a
    closed folder."""
    if user == 0:
        return sys.executable
    if (real := os.path.realpath(sys.executable)).startswith("/usr/"):
        return real
    for name in (f"/usr/bin/python3.{sys.version_info.minor}", f"/usr/local/bin/python3.{sys.version_info.minor}"):
        if Path(name).exists():
            return name
    pytest.skip(f"no Python 3.{sys.version_info.minor} that a plain user of this machine can run")


@functools.cache
def python_path() -> str:
    """Our package and those that it needs, for PYTHONPATH, where every user of this machine can read them: a checkout
    below a closed folder is copied, by hard links where that is possible."""
    packages = Path(pytest.__file__).parents[1]
    if all(folder.stat().st_mode & 0o005 == 0o005 for path in (ROOT, packages) for folder in (path, *path.parents)):
        return f"{ROOT}:{packages}"
    copy = Path(tempfile.mkdtemp(prefix="keystone-for-all-"))
    atexit.register(shutil.rmtree, copy)
    copy.chmod(0o755)
    shutil.copytree(ROOT / "keystone_action", copy / "keystone_action", copy_function=_link)
    shutil.copytree(packages, copy / "packages", copy_function=_link)
    return f"{copy}:{copy / 'packages'}"


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # of another file system
        shutil.copy2(source, target)
