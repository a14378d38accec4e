"""`determinism.clock`: the time that a cell's agent, and checks that execute, live in (contract, 5.7).

libfaketime, loaded into each program before its other libraries, adds the same offset to every time that it asks for.
Its place and the offset are variables of the environment: what a program starts lives in the same time, and time goes
on. Programs that ask the kernel without the C library (static ones, those of Go) and those started with another
environment see the machine's time. Our own processes do: gateway and proxy check certificates by it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.runner.roots import make_readable
from keystone_action.sandbox.protocol import Sandbox
from keystone_action.system.command import Command

_FOLDERS = ("/usr/lib/*/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
_NAME = "libfaketime.so.1"
_SLEEP = b"\0clock_nanosleep\0"
_TOLERANCE = 600.0
"""Seconds by which a look at the time may be late."""
_PROBE_SECONDS = 60.0
_PROBE = ("/bin/sh", "-c", "date +%s || python3 -c 'import time; print(int(time.time()))'")


def find_library() -> Path | None:
    """Where this machine has libfaketime; None where it is not installed."""
    for folder in _FOLDERS:
        found = sorted(Path("/").glob(f"{folder[1:]}/{_NAME}"))
        if found:
            return found[0]
    return None


@dataclass(frozen=True, slots=True)
class CellClock:
    """The time of one cell."""

    folder: Path
    """A folder of ours with the library, which code in the sandbox may read."""

    offset: int
    """Seconds from the machine's time to the cell's."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What puts a program into this time."""
        return {
            "LD_PRELOAD": str(self.folder / _NAME),
            "FAKETIME": f"{self.offset:+d}",
            # Waits and time limits are measured by a clock that nobody sets.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            # Newer versions need no shared memory to agree on an offset.
            "FAKETIME_DISABLE_SHM": "1",
        }


def lay_out_clock(area: Path) -> Path:
    """The folder of our copy of the library in the cell's area: an image has none of its own. Blocking. Raises
    HarnessError."""
    library, folder = find_library(), area / "clock"
    if library is None:
        raise HarnessError("determinism.clock needs libfaketime, which is not installed")
    try:
        folder.mkdir()
        (folder / _NAME).write_bytes(_with_true_sleep(library.read_bytes()))
    except OSError as error:
        raise HarnessError(f"determinism.clock: libfaketime can't be copied: {error.strerror}") from error
    make_readable(folder)
    return folder


def begin_time(wanted: datetime, folder: Path) -> CellClock:
    """The cell's time begins now, when all that the agent needs is ready. folder: see `lay_out_clock`."""
    return CellClock(folder, math.ceil(wanted.timestamp() - time.time()))


def _with_true_sleep(library: bytes) -> bytes:
    """The library without its `clock_nanosleep`: versions up to 0.9.10 take a monotonic time for a given one, and the
    `time.sleep` of Python 3.11 and newer, which waits by that clock, fails or never ends. The name comes first in the
    table of what it exports; no program looks there for another."""
    return library.replace(_SLEEP, _SLEEP[:-2] + b"_\0", 1)


async def require_effect(clock: CellClock, sandbox: Sandbox, environment: Mapping[str, str], image: str | None) -> None:
    """Ask for the time in the agent's own sandbox, as the agent will find it. environment: the agent's. image: its
    name. Raises HarnessError where the clock has no effect."""
    done = await sandbox.run(Command(_PROBE, env=environment, timeout=_PROBE_SECONDS))
    printed, said = done.stdout.text().strip(), done.stderr.text().strip()
    expected = time.time() + clock.offset
    if printed.isascii() and printed.isdigit() and abs(int(printed) - expected) < _TOLERANCE:
        return
    where = f"in the image {image}" if image is not None else "in the sandbox"
    raise HarnessError(f"determinism.clock has no effect {where}: {_reason(printed, said, environment)}")


def _reason(printed: str, said: str, environment: Mapping[str, str]) -> str:
    if "GLIBC_" in said:
        return "its C library is older than the one that libfaketime here was built for; take a newer image"
    if "Error loading shared library" in said or "Error relocating" in said:
        return "its C library is musl, which libfaketime here was not built for; take an image with glibc (Debian's)"
    if "wrong ELF class" in said or "cannot open shared object file" in said:
        return f"libfaketime can't be loaded there: {said.splitlines()[0]}"
    if _NAME not in environment.get("LD_PRELOAD", ""):
        return "LD_PRELOAD of agent.env or setup.env takes the place of libfaketime"
    if printed.isdigit():
        return "`date` still prints the machine's time; its programs may be static ones, which load no library"
    return f"neither `date` nor python3 tells the time there: {said[-300:] or printed[-300:] or 'nothing was printed'}"
