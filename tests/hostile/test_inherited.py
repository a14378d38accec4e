"""What processes get from their parent, or leave behind, besides files: keyrings, System V objects, message queues."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.attack_runs import area
from support.attacks import honest, hostile
from support.images import PYTHON
from support.started_as import PLAIN_USER, keystone_in

from keystone_action.sandbox.processes import system_v

__all__ = ["area"]

FAMILY = "inherited"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="playing both root and a plain user needs root")
USERS = pytest.mark.parametrize("user", [0, PLAIN_USER], ids=["root", "plain user"])
WORLDS = pytest.mark.parametrize(
    ("user", "base"),
    [
        pytest.param(0, None, id="root"),
        pytest.param(PLAIN_USER, None, id="plain user"),
        pytest.param(0, PYTHON, id="docker", marks=pytest.mark.docker),
    ],
)


def spec(script: str, *, replicas: int = 1, **more: Any) -> str:
    return json.dumps(
        {
            "version": 1,
            "id": "inherited",
            "task": {"prompt": "do it"},
            "agent": {"type": "command", "command": ["python3", "-c", script], "must_exit_zero": True},
            "parallelism": {"replicas": replicas, "max_concurrency": 1},
            "invariants": {"any": {"check": {"type": "file_absent", "path": "x"}}},
            **more,
        }
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


def skip_without(base: str | None, request: pytest.FixtureRequest) -> dict[str, Any]:
    if base is None:
        return {}
    request.getfixturevalue("image")(base)
    return {"base": base}


@needs_root
@hostile(
    FAMILY,
    "reads the author's key from the kernel's keyrings",
    held_by="a session keyring of its own, and no system calls for keys (seccomp)",
    sandbox="both",
)
@WORLDS
def test_the_authors_key_can_not_be_read(
    area: Path, user: int, base: str | None, request: pytest.FixtureRequest
) -> None:
    more = skip_without(base, request)
    called = keystone_in(None, area, spec(READS_KEYS, **more), user, key="of the author")
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["output"] == "nothing\n"


@needs_root
@hostile(
    FAMILY,
    "leaves its answer for the next cell in a keyring",
    held_by="no system calls for keys (seccomp)",
    sandbox="both",
)
@WORLDS
def test_no_key_reaches_the_next_cell(area: Path, user: int, base: str | None, request: pytest.FixtureRequest) -> None:
    more = skip_without(base, request)
    called = keystone_in(None, area, spec(LEAVES_KEYS, replicas=2, **more), user, key="of the author")
    assert called.code == 0, called.out + called.err
    assert [cell["agent"]["output"] for cell in called.cells] == ["nothing\n"] * 2


@needs_root
@honest(FAMILY, "reads the author's key from the kernel's keyrings", sandbox="both")
@WORLDS
def test_a_program_that_would_use_keys_goes_on_without(
    area: Path, user: int, base: str | None, request: pytest.FixtureRequest
) -> None:
    more = skip_without(base, request)
    called = keystone_in(None, area, spec(LIVES_WITHOUT_KEYS, **more), user, key="of the author")
    assert called.code == 0, called.out + called.err
    assert called.cells[0]["agent"]["output"] == "goes on\n"


@needs_root
@honest(FAMILY, "leaves its answer for the next cell in a keyring", sandbox="both")
@WORLDS
def test_cells_that_go_on_without_keys(area: Path, user: int, base: str | None, request: pytest.FixtureRequest) -> None:
    more = skip_without(base, request)
    called = keystone_in(None, area, spec(LIVES_WITHOUT_KEYS, replicas=2, **more), user)
    assert called.code == 0, called.out + called.err
    assert [cell["agent"]["output"] for cell in called.cells] == ["goes on\n"] * 2


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


@needs_root
@hostile(
    FAMILY,
    "leaves System V objects that seem to be another user's for the next cell",
    held_by="removed by their maker's number; of our own user no system calls for them (seccomp)",
)
@USERS
def test_no_system_v_object_reaches_the_next_cell(area: Path, user: int) -> None:
    before = set(system_v.objects())
    called = keystone_in(None, area, spec(LEAVES_SYSTEM_V, replicas=2), user)
    assert called.code == 0, called.out + called.err
    assert [cell["agent"]["output"] for cell in called.cells] == ["[False, False, False]\n"] * 2
    assert not [each for each in set(system_v.objects()) - before if 65533 in each]


@needs_root
@honest(FAMILY, "leaves System V objects that seem to be another user's for the next cell")
@USERS
def test_an_agent_that_uses_system_v_memory_for_itself(area: Path, user: int) -> None:
    called = keystone_in(None, area, spec(USES_SYSTEM_V), user)
    assert called.code == 0, called.out + called.err
    # Nobody can tell objects of our own user from an agent's: then it does without.
    assert called.cells[0]["agent"]["output"] == ("none 38\n" if user else "hello\n")


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


@needs_root
@hostile(FAMILY, "hides memory in detached System V segments", held_by="counted by their maker's number")
def test_detached_system_v_memory_counts(area: Path) -> None:
    document = spec(HOARD.format(count=20, seconds=60), resources={"memory": "128Mi"})
    called = keystone_in(None, area, document)
    assert called.code == 1, called.out + called.err
    assert "was stopped at a limit (memory: " in called.cells[0]["agent"]["note"]


@needs_root
@honest(FAMILY, "hides memory in detached System V segments")
def test_some_system_v_memory_within_the_limit(area: Path) -> None:
    document = spec(HOARD.format(count=5, seconds=0.5), resources={"memory": "128Mi"})
    called = keystone_in(None, area, document)
    assert called.code == 0, called.out + called.err
