"""What processes get from their parent, or leave behind, besides files: keyrings, System V objects, message queues."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import Called
from support.images import PYTHON
from support.started_as import PLAIN_USER, keystone_in

from keystone_action.sandbox.processes import system_v

FAMILY = "inherited"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="playing both root and a plain user needs root")
_ROOT, _PLAIN = pytest.param((0, None), id="root"), pytest.param((PLAIN_USER, None), id="plain user")
_DOCKER = pytest.param((0, PYTHON), id="docker", marks=pytest.mark.docker)
ROOT, USERS, WORLDS = (
    pytest.mark.parametrize("lived", worlds, indirect=True, scope="module")
    for worlds in ([_ROOT], [_ROOT, _PLAIN], [_ROOT, _PLAIN, _DOCKER])
)


KEYS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
add_key, request_key, keyctl = {"x86_64": (248, 249, 250)}.get(os.uname().machine, (217, 218, 219))
SESSION, USER, USER_SESSION, SEARCH, READ, LINK, PERSISTENT = -3, -4, -5, 10, 11, 8, 22
def find(name):
    for keyring in (SESSION, USER, USER_SESSION, libc.syscall(keyctl, PERSISTENT, -1, SESSION)):
        libc.syscall(keyctl, LINK, keyring, SESSION)
        number = libc.syscall(keyctl, SEARCH, keyring, b"user", name, 0)
        data = ctypes.create_string_buffer(100)
        size = libc.syscall(keyctl, READ, number, data, 100)
        if number > 0 and size > 0:
            return data.raw[:size].decode()
    return "nothing"
"""
READS_KEYS = KEYS + 'print(find(b"author"))'
LEAVES_KEYS = (
    KEYS
    + """
print(find(b"answer"))
for keyring in (SESSION, USER, USER_SESSION):
    libc.syscall(add_key, b"user", b"answer", b"forty-two", 9, keyring)
"""
)
LIVES_WITHOUT_KEYS = (
    KEYS
    + """
number = libc.syscall(keyctl, 0, SESSION, 0)
print("goes on" if number > 0 or ctypes.get_errno() in (1, 38) else ctypes.get_errno())
"""
)


SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
KEY, CREATE, OPEN_TO_ALL, SET = 0x6b657973, 0o1000, 0o666, 1
class Permissions(ctypes.Structure):  # only the start of it, which is what is set
    _fields_ = [("key", ctypes.c_int), ("uid", ctypes.c_uint), ("gid", ctypes.c_uint), ("cuid", ctypes.c_uint),
                ("cgid", ctypes.c_uint), ("mode", ctypes.c_uint), ("rest", ctypes.c_byte * 200)]
def get(flags):
    return [libc.shmget(KEY, 4096 if flags & CREATE else 0, flags), libc.semget(KEY, 1 if flags & CREATE else 0, flags),
            libc.msgget(KEY, flags)]
"""
LEAVES_SYSTEM_V = (
    SYSTEM_V
    + """
print([number >= 0 for number in get(OPEN_TO_ALL)])
memory, semaphore, queue = get(CREATE | OPEN_TO_ALL)
# Who owns them is the maker's to say: they are to look like somebody else's.
settings = Permissions(uid=65533, gid=65533, mode=OPEN_TO_ALL)
libc.shmctl(memory, SET, ctypes.byref(settings))
libc.semctl(semaphore, 0, SET, ctypes.byref(settings))
"""
)
USES_SYSTEM_V = (
    SYSTEM_V
    + """
memory = libc.shmget(0, 4096, CREATE | 0o600)
if memory < 0:
    print("none", ctypes.get_errno())
else:
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(memory, None, 0)
    ctypes.memmove(place, b"hello", 5)
    print(ctypes.string_at(place, 5).decode())
"""
)


HOARD = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
for _ in range({count}):
    memory = libc.shmget(0, 10 << 20, 0o1600)
    place = libc.shmat(memory, None, 0)
    ctypes.memset(place, 1, 10 << 20)
    libc.shmdt(place)
time.sleep({seconds})
"""
AGENTS = {"reads keys": READS_KEYS, "leaves keys": LEAVES_KEYS, "lives without keys": LIVES_WITHOUT_KEYS}
AS_PROCESSES = {"leaves System V": LEAVES_SYSTEM_V, "uses System V": USES_SYSTEM_V}
AS_ROOT_ALONE = {"hoards": HOARD.format(count=20, seconds=60), "has some": HOARD.format(count=5, seconds=0.5)}
"""Limits count System V memory by its maker: an agent of our own user has none of it."""


@dataclass(frozen=True)
class Lived:
    """One run in which two cells, one after the other, have each of the agents. objects: of System V, that it left."""

    called: Called
    objects: Collection[Any]

    def cells(self, agent: str) -> list[dict[str, Any]]:
        """Of this agent, both."""
        return [cell for cell in self.called.cells if cell["params"]["agent"] == agent]

    def said(self, agent: str) -> list[str]:
        """What its cells printed, which passed."""
        found = self.cells(agent)
        assert [cell["verdict"] for cell in found] == ["pass"] * 2, self.called.out + self.called.err
        return [cell["agent"]["output"] for cell in found]


@pytest.fixture(scope="module")
def lived(request: pytest.FixtureRequest) -> Iterator[Lived]:
    """The run of all agents in a world; its starter has a key in the keyrings."""
    user, base = request.param
    agents = AGENTS | ({} if base else AS_PROCESSES) | ({} if base or user else AS_ROOT_ALONE)
    if base is not None:
        request.getfixturevalue("image")(base)
    before = set(system_v.system_v_objects())
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        called = keystone_in(None, Path(name), spec(agents, base), user, key="of the author")
        yield Lived(called, set(system_v.system_v_objects()) - before)


def spec(agents: Mapping[str, str], base: str | None) -> str:
    started = "import os, sys\nexec(" + repr(dict(agents)) + "[sys.argv[1]])"
    return json.dumps(
        {
            "version": 1,
            "id": "inherited",
            "task": {"prompt": "do it"},
            **({} if base is None else {"base": base}),
            "agent": {
                "type": "command",
                "command": ["python3", "-c", started, "{{ params.agent }}"],
                "must_exit_zero": True,
            },
            "resources": {"memory": "128Mi"},
            "parallelism": {"matrix": {"agent": [*agents]}, "replicas": 2, "max_concurrency": 1},
            "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
        }
    )


@needs_root
@hostile(
    FAMILY,
    "reads the author's key from the kernel's keyrings",
    held_by="a session keyring of its own, and no system calls for keys (seccomp)",
    sandbox="both",
)
@WORLDS
def test_the_authors_key_can_not_be_read(lived: Lived) -> None:
    assert lived.said("reads keys") == ["nothing\n"] * 2


@needs_root
@hostile(
    FAMILY,
    "leaves its answer for the next cell in a keyring",
    held_by="no system calls for keys (seccomp)",
    sandbox="both",
)
@WORLDS
def test_no_key_reaches_the_next_cell(lived: Lived) -> None:
    assert lived.said("leaves keys") == ["nothing\n"] * 2


@needs_root
@honest(
    FAMILY,
    "reads the author's key from the kernel's keyrings",
    "leaves its answer for the next cell in a keyring",
    sandbox="both",
)
@WORLDS
def test_programs_that_would_use_keys_go_on_without(lived: Lived) -> None:
    assert lived.said("lives without keys") == ["goes on\n"] * 2


@needs_root
@hostile(
    FAMILY,
    "leaves System V objects that seem to be another user's for the next cell",
    held_by="removed by their maker's number; of our own user no system calls for them (seccomp)",
)
@USERS
def test_no_system_v_object_reaches_the_next_cell(lived: Lived) -> None:
    assert lived.said("leaves System V") == ["[False, False, False]\n"] * 2
    assert not [each for each in lived.objects if 65533 in each]


@needs_root
@honest(FAMILY, "leaves System V objects that seem to be another user's for the next cell")
@USERS
def test_an_agent_that_uses_system_v_memory_for_itself(lived: Lived, request: pytest.FixtureRequest) -> None:
    # Nobody can tell objects of our own user from an agent's: then it does without.
    plain = "plain user" in request.node.callspec.id
    assert lived.said("uses System V") == ["none 38\n" if plain else "hello\n"] * 2


@needs_root
@hostile(FAMILY, "hides memory in detached System V segments", held_by="counted by their maker's number")
@ROOT
def test_detached_system_v_memory_counts(lived: Lived) -> None:
    found = lived.cells("hoards")
    assert [cell["verdict"] for cell in found] == ["fail"] * 2, lived.called.out + lived.called.err
    assert all("was stopped at a limit (memory: " in cell["agent"]["note"] for cell in found)


@needs_root
@honest(FAMILY, "hides memory in detached System V segments")
@ROOT
def test_some_system_v_memory_within_the_limit(lived: Lived) -> None:
    lived.said("has some")
