"""What agents of a plain user could hand to each other, or leave, by names in memory (`/dev/shm`)."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.started_as import PLAIN_USER, keystone_in

FAMILY, WHAT = "files", "hands a file in memory to the next cell"
LEAVES = """
import errno, os
path = "/dev/shm/MARK"
print("found" if os.path.exists(path) else "nothing")
try:
    with open(path, "w") as file:
        os.chmod(path, 0o666)
        file.write("x")
    print("made")
except OSError as error:
    print(errno.errorcode[error.errno])
"""
WORKS = """
import multiprocessing.shared_memory, os
from concurrent.futures import ProcessPoolExecutor
with multiprocessing.Lock(), ProcessPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-1, -2])) == [1, 2]
made = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
made.buf[0] = 7
if os.fork() == 0:
    seen = multiprocessing.shared_memory.SharedMemory(name=made.name)
    os._exit(seen.buf[0])
print(os.waitstatus_to_exitcode(os.wait()[1]))
made.close()
made.unlink()
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="playing a plain user needs root")


def two_cells(agent: str, *, namespaces: bool = True) -> list[str]:
    """What the agents of two cells print, one after the other, as a plain user."""
    document: dict[str, Any] = {
        "version": 1,
        "id": "memory",
        "task": {"prompt": "x"},
        "agent": {"type": "command", "command": ["python3", "-c", agent], "must_exit_zero": True},
        "parallelism": {"replicas": 2, "max_concurrency": 1},
        "invariants": {"any": {"check": {"type": "file_absent", "path": "nothing"}}},
    }
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        Path(name).chmod(0o755)
        called = keystone_in(None, Path(name), json.dumps(document), PLAIN_USER, namespaces=namespaces)
        assert called.code == 0, (called.out, called.err)
        return [path.read_text() for path in sorted(called.output.glob("cells/*/agent.stdout"))]


@pytest.mark.parametrize("namespaces", [True, False])
@hostile(FAMILY, WHAT, held_by="memory of its own, that goes with it; without mounts, none (Landlock)")
def test_nothing_in_memory_goes_from_cell_to_cell(namespaces: bool) -> None:
    mark = f"keystone-test-{secrets.token_hex(8)}"
    printed = two_cells(LEAVES.replace("MARK", mark), namespaces=namespaces)
    assert printed == ["nothing\nmade\n" if namespaces else "nothing\nEACCES\n"] * 2
    assert not Path("/dev/shm", mark).exists()


@honest(FAMILY, WHAT)
def test_processes_of_one_agent_share_memory_by_name() -> None:
    printed = two_cells(WORKS)
    assert printed == ["7\n"] * 2
