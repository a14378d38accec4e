"""What services ask of a process sandbox: programs that run on until they are stopped, and a confined world for a
program that reads what an agent wrote."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from keystone_action.sandbox.own_programs import OwnPython
    from keystone_action.sandbox.protocol import Sandbox
    from keystone_action.system.command import CommandLimits

ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
"""All that a server gets of an environment: nothing of ours (keys, tokens) is inherited."""

SERVER_TAIL_CHARACTERS = 4000
"""How much is shown of what a server printed last."""


class ServerProcess(Protocol):
    """A program that was started."""

    @property
    def is_running(self) -> bool:
        """Whether it still runs."""

    async def wait(self) -> int:
        """Its exit code, once it and all its descendants have ended."""

    def tail(self) -> str:
        """What it printed last."""

    async def stop(self, timeout: float = ..., number: int = ...) -> int:
        """Ask it by a signal to end, and kill it after `timeout` seconds."""


class Spawner(Protocol):
    """What starts servers: a process sandbox. They end with us, however we end."""

    async def spawn_service(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        uid: bool | int = ...,
        writable: Sequence[Path] = ...,
        name: str = ...,
    ) -> ServerProcess:
        """uid: True gives it a user of its own, a number that user; `writable` directories are given to it. Where we
        are not root, it runs as us. Raises SandboxError."""


class ScriptHost(Protocol):
    """What confines a program of ours: a process sandbox. See `SandboxProvider`, which has the same methods."""

    @property
    def root(self) -> Path:
        """A directory of ours that the users of sandboxes may pass through and not list."""

    async def open_host(self, directory: Path, *, limits: CommandLimits) -> Sandbox:
        """`directory` is given to the sandbox's user. Raises SandboxError."""

    async def host_python(self) -> OwnPython:
        """Our interpreter, as a program in there finds it. Raises SandboxError."""


class Provider(Spawner, ScriptHost, Protocol):
    """A process sandbox, as far as services need it. root: below it, directories are passable for servers' users."""


def named_user() -> int:
    """A user other than root that has a name: `nobody` where there is one. Raises OSError."""
    users = sorted(pwd.getpwall(), key=lambda entry: (entry.pw_name != "nobody", -entry.pw_uid))
    for entry in users:
        if entry.pw_uid != 0:
            return entry.pw_uid
    raise OSError("no user but root has a name on this machine")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
