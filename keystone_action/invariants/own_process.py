"""Work on what an agent wrote that could take for ever, take all memory or crash an interpreter: a program of ours in a
process of its own, which can be stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MEMORY_LIMIT = 2 << 30
"""Bytes of address space of such a process."""
_START = (
    "import resource, runpy, sys\n"
    "resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)\n"
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    "runpy.run_path(sys.argv[1], run_name='__main__')\n"
)


class NotFinished(Exception):  # noqa: N818 - an outcome: the check fails
    """The process was stopped at the time limit, or what it was given was too much for it; a sentence without its full
    stop."""


async def ask_program(program: Path, document: Any, *, timeout: float) -> Any:
    """What a program answers: JSON on its stdout, for JSON on its stdin. It sees nothing of our environment.

    program: a file that imports nothing of ours. timeout: seconds. Raises NotFinished; the process is gone then.
    """
    import anyio

    text = json.dumps(document).encode("ascii")
    command = [sys.executable, "-I", "-c", _START, str(program), str(MEMORY_LIMIT)]
    with anyio.move_on_after(timeout) as limit:
        done = await anyio.run_process(
            command, input=text, env={"LC_ALL": "C.UTF-8"}, cwd="/", stderr=subprocess.DEVNULL, check=False
        )
    if limit.cancelled_caught:
        raise NotFinished(f"it took longer than {timeout:g} s")
    if done.returncode != 0:
        raise NotFinished("it is too large or too deeply nested to be looked at")
    return json.loads(done.stdout)
