"""Where all that commands wrote is, and when nobody can say."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from support.worlds import process_world, world_of

from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import sandboxes as process
from keystone_action.system.command import Command

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="refused without a user of its own")
IN_FOLDERS = "import os; [open(f'{place}/x', 'w') for place in ('.', os.environ['HOME'], os.environ['TMPDIR'])]"
QUEUE = "import ctypes; ctypes.CDLL(None).msgget(0, 0o1600)"
MEMORY = "open('/dev/shm/keystone-test-left', 'w')"


@pytest.mark.parametrize(
    ("command", "told"),
    [(IN_FOLDERS, True), pytest.param(QUEUE, False, marks=AS_ROOT), pytest.param(MEMORY, False, marks=AS_ROOT)],
    ids=["in its folders", "a message queue", "shared memory"],
)
def test_they_are_told_unless_something_lies_elsewhere(command: str, told: bool) -> None:
    async def main() -> None:
        async with process_world() as world:
            if world.provider.isolation == ("none",):
                pytest.skip("nothing isolates here")
            sandbox = await world.open()
            places = sandbox.written_folders()
            assert places is not None
            assert places[0] == world.workspace
            done = await sandbox.run(Command(("python3", "-c", command)))
            assert done.succeeded, done.failure()
            assert sandbox.written_folders() == (places if told else None)
            if told:
                assert [(place / "x").exists() for place in places] == [True] * 3
            await sandbox.close()

    asyncio.run(main())


def test_without_landlock_commands_may_write_anywhere() -> None:
    async def main() -> None:
        root = Path(tempfile.mkdtemp(prefix="keystone-test-"))
        provider = await process.start(root, landlock=False)
        try:
            async with world_of(provider) as world:
                sandbox = await world.open()
                assert sandbox.written_folders() is None
                await sandbox.close()
        finally:
            await provider.close()
            remove_tree(root)

    asyncio.run(main())
