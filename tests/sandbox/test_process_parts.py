"""The parts of the process sandbox that can be looked at alone."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import SandboxError
from keystone_action.files.kept_output import Stream
from keystone_action.sandbox import users
from keystone_action.sandbox.processes import client, confine, landlock, supervisor, wire
from keystone_action.sandbox.processes import process_tree as killing
from keystone_action.sandbox.processes import process_tree as processtree
from keystone_action.sandbox.processes import sandbox as process_sandbox
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.sandbox.processes.policy import user_may_execute


@given(
    chunks=st.lists(st.binary(max_size=300), max_size=30),
    head=st.integers(0, 500),
    tail=st.integers(0, 500),
)
def test_a_stream_keeps_its_two_ends(chunks: list[bytes], head: int, tail: int) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    stream = Stream(reader, head, tail)
    try:
        for chunk in chunks:
            os.write(writer, chunk)
            stream.read()
        os.close(writer)
        stream.drain()
    finally:
        os.close(reader)
    data = b"".join(chunks)
    kept_head, kept_tail = stream.kept.parts()
    rest = data[head:]
    assert (kept_head, stream.kept.total) == (data[:head], len(data))
    assert kept_tail == (rest[-tail:] if tail else b"")


def test_a_command_is_timed_from_before_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit begins when it has started; by then a short one may have ended."""
    times: list[float] = []

    def spawn(*_: object) -> confine.Spawned:
        times.append(time.monotonic())
        if len(times) == 1:
            raise confine.NoRoom(errno.EAGAIN)
        times.append(time.monotonic())
        return confine.Spawned(17, None, None)

    monkeypatch.setattr(confine, "take_on_for_good", lambda _: None)
    monkeypatch.setattr(confine, "spawn", spawn)
    one = SimpleNamespace(
        _request={},
        _seen=None,
        _start_time=time.monotonic(),
        _has_hung_up=lambda: False,
        _open_network=lambda _: None,
    )
    supervisor.Supervisor._spawn(cast("supervisor.Supervisor", one), 0, 1, 2)
    refused, entered, left = times
    assert refused < one._spawn_time <= entered <= left <= one._start_time


@given(
    message=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.dictionaries(st.text(), inner),
        max_leaves=8,
    ).map(lambda value: {"value": value}),
    blob=st.binary(max_size=200),
)
def test_messages_arrive_as_they_were_sent(message: dict[str, object], blob: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.pack(message, blob) + wire.pack(message))
        assert wire.receive(theirs) == wire.receive(theirs) == message
        ours.sendall(wire.pack(message, blob)[:-1])
        ours.close()
        assert wire.receive(theirs) is None


def test_descriptors_are_not_inheritable_where_they_arrive() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, Path("/dev/null").open("rb") as file:
        socket.send_fds(ours, [wire.MARK], [file.fileno(), file.fileno()])
        mark, passed = wire.receive_descriptors(theirs)
        assert (mark, len(passed)) == (wire.MARK, 2)
        for descriptor in passed:
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)
        ours.close()
        assert wire.receive_descriptors(theirs) == (b"", [])


@pytest.mark.parametrize("has_files", [True, False])
def test_descendants_are_found_in_either_way(has_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not processtree.HAS_CHILDREN_FILES and has_files:
        has_files = False
    monkeypatch.setattr(processtree, "HAS_CHILDREN_FILES", has_files)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild:
            os.write(writer, grandchild.to_bytes(4, "big"))
        signal.pause()
    grandchild = int.from_bytes(os.read(reader, 4), "big")
    os.close(reader)
    os.close(writer)
    try:
        assert {child, grandchild} <= set(processtree.descendants(os.getpid()))
        assert grandchild not in list(processtree.descendants(os.getpid(), frozenset({child})))
        assert grandchild not in processtree.children(os.getpid())
        assert processtree.children(child) == [grandchild]
        found = processtree.process(child)
        assert found is not None
        assert (found.parent, found.alive, found.threads, found.rss > 0) == (os.getpid(), True, 1, True)
        assert processtree.owner(child) == os.geteuid()
        memory = processtree.proportional_memory(os.getpid())
        assert memory is not None
        assert memory[0] > 1 << 20
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert processtree.process(child) is None
    assert processtree.children(child) == []


def test_files_without_names_are_found(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 50_000)
        file.flush()
        before = processtree.unlinked_files(os.getpid())
        (tmp_path / "file").unlink()
        status = os.fstat(file.fileno())
        after = processtree.unlinked_files(os.getpid())
        assert after.keys() - before.keys() == {(status.st_dev, status.st_ino)}
        assert after[status.st_dev, status.st_ino] >= 50_000
    assert processtree.unlinked_files(2**22 + 1) is None


RELAY = """
import _thread, ctypes, os, sys, time
os.setuid(int(sys.argv[1]))
data, file = b"x" * (50 << 20), os.memfd_create("m")
os.write(file, b"x" * (1 << 20))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
def go_on():
    _thread.start_new_thread(go_on, ())
go_on()
print(child, flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)  # exit, of this thread alone
"""
"""Each thread begins the next one and ends; the first one has ended long ago."""


@contextlib.contextmanager
def relay(user: int) -> Iterator[tuple[int, int]]:
    """A process whose threads take turns, and its child."""
    with subprocess.Popen([sys.executable, "-c", RELAY, str(user)], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            child = int(started.stdout.readline())
            while (found := processtree.process(started.pid)) and found.first_thread_runs:
                time.sleep(0.01)
            yield started.pid, child
            os.kill(child, signal.SIGKILL)
        finally:
            started.kill()


def test_a_process_whose_threads_take_turns_is_alive_and_has_memory_files_and_children() -> None:
    with relay(os.geteuid()) as (pid, child):
        for _ in range(200):
            found = processtree.process(pid)
            assert found is not None
            assert found.alive
            assert child in processtree.children(pid)
            with contextlib.suppress(processtree.TooFast):
                share = processtree.read_of(found, processtree.proportional_memory)
                resident = processtree.read_of(found, processtree.resident_memory)
                assert min(share or (0,), resident or (0,))[0] > 20 << 20, (share, resident)
                files = processtree.read_of(found, processtree.unlinked_files)
                assert files is not None
                assert sum(files.values()) >= 1 << 20


def test_threads_that_are_never_there_long_enough_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = processtree.Process(1, "Z", 0, 0, 2, 0)
    numbers = itertools.count(2**22 + 1)
    monkeypatch.setattr(processtree, "_threads", lambda _pid: [next(numbers)])
    with pytest.raises(processtree.TooFast):
        processtree.read_of(found, lambda _thread: "half")


def test_a_process_whose_last_threads_are_ending_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = processtree.Process(1, "Z", 0, 0, 2, 0)
    monkeypatch.setattr(processtree, "_threads", lambda _pid: [2**22 + 1])
    assert processtree.read_of(found, lambda _thread: "half") is None


def test_processes_that_can_not_be_killed_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "DEADLINE", 0.05)
    reader, writer = os.pipe2(os.O_NONBLOCK)
    try:
        assert (
            killing.end_descendants(lambda: False, None, reader, spare=frozenset(processtree.children(os.getpid())))
            is False
        )
        assert killing.end_descendants(lambda: True, None, reader) is True
    finally:
        os.close(reader)
        os.close(writer)


def test_rights_by_version() -> None:
    assert landlock._handled_rights(1) == 0x1FFF
    assert landlock._handled_rights(2) == 0x3FFF
    assert landlock._handled_rights(3) == landlock._handled_rights(4) == 0x7FFF
    assert landlock._handled_rights(5) == landlock._handled_rights(9) == 0xFFFF
    assert not landlock.WRITE & (landlock.MAKE_CHAR | landlock.MAKE_BLOCK)


def test_leased_users_are_nobody_s() -> None:
    if os.geteuid() != 0:
        return
    taken = {int(line.split(":")[2]) for line in Path("/etc/passwd").read_text().splitlines() if line}
    some = users.Users()
    leases = [some.lease() for _ in range(20)]
    try:
        numbers = [lease.uid for lease in leases]
        assert len(set(numbers)) == 20
        assert not taken & set(numbers)
        assert not {lease.guard for lease in leases} & set(numbers)
        other = users.Users()
        other._next = numbers[0] - other.first  # another run that wants the very same ones
        wanted = other.lease()
        assert wanted.uid not in numbers
        wanted.release()
    finally:
        for lease in leases:
            lease.release()
            lease.release()


@pytest.mark.parametrize(
    ("mode", "owner", "another"),
    [(0o100, True, False), (0o700, True, False), (0o677, False, True), (0o710, True, False), (0o701, True, True)],
)
def test_who_may_execute_a_program_by_its_mode(mode: int, owner: bool, another: bool) -> None:
    """Only the first class that a user is in counts: an owner without the right is not helped by that of others."""
    # Open to all above it, which neither pytest's own directories are nor any below a home.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        program = Path(name) / "program"
        program.touch()
        program.chmod(mode)
        assert user_may_execute(program, os.geteuid()) is owner
        assert user_may_execute(program, os.geteuid() + 4_000) is another
        Path(name).chmod(0o700)
        assert user_may_execute(program, os.geteuid()) is owner
        assert not user_may_execute(program, os.geteuid() + 4_000)
    assert not user_may_execute(program, os.geteuid())


def test_no_free_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        return
    some = users.Users()
    some.count = 3
    some._next = 0
    some._machine_users = set()
    leases = [some.lease() for _ in range(3)]
    with pytest.raises(SandboxError, match="no free user"):
        some.lease()
    for lease in leases:
        lease.release()
    some.lease().release()


@pytest.fixture
def abandoned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """The user of a sandbox that was killed, on a machine with no others."""
    if os.geteuid() != 0:
        pytest.skip("a user of its own needs root")
    lock, flags = tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    monkeypatch.setattr(users, "_open_lock_file", lambda: os.open(lock, flags))
    lease = users.Users().lease()
    lease.abandon()
    return lease.uid


def test_a_user_is_left_behind_when_all_its_processes_have_ended(abandoned: int) -> None:
    """Though they are still listed: process 1 of a container may never ask for those that it inherits."""
    with subprocess.Popen(["true"], user=abandoned) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        some = users.Users()
        (left,) = some.leases_left_behind()
        assert left.uid == abandoned
        left.release()
        some._next = abandoned - some.first
        other = some.lease()
        assert other.uid != abandoned, "what has ended counts against the user's limit of processes"
        other.release()


def test_a_user_is_not_left_behind_while_a_process_of_it_runs(abandoned: int) -> None:
    with subprocess.Popen(["sleep", "600"], user=abandoned) as running:
        try:
            assert list(users.Users().leases_left_behind()) == []
        finally:
            running.kill()


def test_a_user_is_not_left_behind_while_threads_of_it_take_turns(abandoned: int) -> None:
    with relay(abandoned) as (_, child):
        os.kill(child, signal.SIGKILL)
        for _ in range(20):
            assert list(users.Users().leases_left_behind()) == []


def test_a_report_of_failure_is_an_error_and_never_a_result() -> None:
    with pytest.raises(SandboxError, match="OSError: no"):
        process_sandbox.completed_of({"broken": "OSError: no", "gone": True}, b"")
    report = {"refusal": None, "gone": False}
    with pytest.raises(SandboxError, match="hang in the kernel"):
        process_sandbox.completed_of(report, b"")


def test_a_launcher_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "_BOOT", "import sys; sys.exit('broken')")
    start = time.monotonic()
    with pytest.raises(SandboxError, match="ended at once, with exit code 1: broken"):
        asyncio.run(client.LauncherClient.start(range(0), None))
    assert time.monotonic() - start < client._START_TIMEOUT
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SandboxError, match="ended at once, with exit code 1: broken"):
        asyncio.run(process.start())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(client.sys, "executable", "/no/such/python")
    with pytest.raises(SandboxError, match="could not be started"):
        asyncio.run(client.LauncherClient.start(range(0), None))


def children() -> set[int]:
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_a_launcher_that_is_not_wanted_ends_and_a_broken_one_is_told_when_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = children()
    with process.starting_early():
        (launcher,) = children() - before
    assert not Path(f"/proc/{launcher}").exists()
    monkeypatch.setattr(client.sys, "executable", "/no/such/python")
    with process.starting_early() as early, pytest.raises(SandboxError, match="could not be started"):
        asyncio.run(process.start(tmp_path / "root", early=early))


def test_a_launcher_that_started_early_is_the_one_of_the_sandboxes(tmp_path: Path) -> None:
    async def go() -> None:
        before = children()
        with process.starting_early() as early:
            provider = await process.start(tmp_path / "root", early=early)
        try:
            assert provider.launcher.pid in children() - before
        finally:
            await provider.close()

    asyncio.run(go())
