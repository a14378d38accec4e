"""A run that stops at a stage and waits there, so that something can be broken under it; and what it came to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from support.command_line import ENVIRONMENT, NO_ENGINE, server
from support.fork_server import Forked

Stage = Literal["setup", "agent", "checks", "whole run"]
PATIENCE = 60.0


@dataclass
class BrokenRun:
    """One run in an area of its own. token: stands in the command line of what waits at the stage."""

    area: Path
    stage: Stage
    token: str
    environ: Mapping[str, str] = field(default_factory=dict)
    services: Sequence[Mapping[str, Any]] = ()
    base: str | None = None
    timeout: str = "60s"
    limit: str | None = None
    prefix: Sequence[str] = ()
    replicas: int = 1
    process: subprocess.Popen[bytes] | Forked | None = None
    _others: set[int] = field(default_factory=set)
    """Processes that were there before it and have been since."""

    @property
    def output(self) -> Path:
        """Where results go: a folder of its own, so that a small file system can be mounted there."""
        return self.area / "results" / "out"

    @property
    def temporary(self) -> Path:
        return self.area / "tmp"

    def document(self) -> dict[str, Any]:
        """A spec that waits at the stage, and passes when it is let go on."""
        wait = f"sleep {self.token} || true; "
        at = {stage: wait if stage == self.stage else "" for stage in ("setup", "agent", "checks")}
        return {
            "version": 1,
            "id": "broken",
            "task": {"prompt": "do it"},
            **({"base": self.base} if self.base else {}),
            "setup": {"commands": [f"{at['setup']}echo ready > ready.txt"]},
            "agent": {
                "type": "command",
                "command": f"{at['agent']}echo done > done.txt",
                "timeout": self.timeout,
                "must_exit_zero": True,
            },
            "services": list(self.services),
            **({"resources": {"timeout": self.limit}} if self.limit else {}),
            "parallelism": {"replicas": self.replicas, "max_concurrency": 1},
            "invariants": {
                "done": {"check": {"type": "file_exists", "path": "done.txt"}},
                "runs": {"check": {"type": "command_exit", "command": f"{at['checks']}test -f done.txt"}},
            },
        }

    def start(self) -> None:
        """Start it, and wait until it has come to the stage."""
        (self.area / "keystone.yaml").write_text(json.dumps(self.document()), "utf-8")
        self.temporary.mkdir(exist_ok=True)
        self.temporary.chmod(0o711)
        self.output.parent.mkdir(exist_ok=True)
        words = ["run", "keystone.yaml", "--output", str(self.output)]
        environ = {**ENVIRONMENT, **NO_ENGINE, "TMPDIR": str(self.temporary), **self.environ}
        self._others = _numbers()
        with (self.area / "stdout").open("wb") as out, (self.area / "stderr").open("wb") as err:
            if self.prefix:
                self.process = subprocess.Popen(
                    [*self.prefix, sys.executable, "-m", "keystone_action", *words],
                    cwd=self.area,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
            else:
                self.process = server().start(words, self.area, environ, out.fileno(), err.fileno())
        if self.stage != "whole run":
            self.until(lambda: bool(self._comes()) or self.process.poll() is not None, f"the stage {self.stage}")  # type: ignore[union-attr]
            assert self.process.poll() is None, self.said()

    def _comes(self) -> bool:
        """Whether a process waits at the stage. Asked again and again: it looks at new processes only."""
        self._others &= (now := _numbers())
        return any(words == ["sleep", self.token] for _, words in _processes(now - self._others))

    def until(self, condition: Any, what: str) -> None:
        """Wait for a condition. Raises AssertionError when it doesn't come."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come; {self.said()}"
            time.sleep(0.02)

    def waiting(self) -> list[int]:
        """The processes that wait at the stage."""
        return [pid for pid, words in _processes(_numbers()) if words == ["sleep", self.token]]

    def go_on(self) -> None:
        """Let it leave the stage."""
        for pid in self.waiting():
            os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        """Its exit code, as a shell has it."""
        assert self.process is not None
        code = self.process.wait(timeout=PATIENCE * 3)
        return code if code >= 0 else 128 - code

    def said(self) -> str:
        """Both streams."""
        return "".join((self.area / name).read_text("utf-8", "replace") for name in ("stdout", "stderr"))

    def verdict(self) -> str:
        """The run's, by results.json; `none` where there are no results."""
        try:
            document = json.loads((self.output / "results.json").read_text("utf-8"))
        except (OSError, ValueError):
            return "none"
        return "cancelled" if document["cancelled"] else str(document["verdict"])

    def left_behind(self, allowed: Collection[str] = ()) -> list[str]:
        """Processes, temporary files and System V objects of the run that are still there, a word each. Those that are
        not allowed have a while to go."""
        deadline = time.monotonic() + 10
        while True:
            found = [*self._processes_left(), *self._files_left()]
            if {*found} <= {*allowed} or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def _processes_left(self) -> Iterator[str]:
        own = self.process.pid if self.process is not None else 0
        for pid, words in _processes(_numbers()):
            if pid != own and (str(self.area) in " ".join(words) or words == ["sleep", self.token] or self._in(pid)):
                yield f"process {Path(words[0]).name}"

    def _in(self, pid: int) -> bool:
        """Whether it works in the run's area: a fork of the run has the command line of what the run is a fork of."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self.area)
        return False

    def _files_left(self) -> Iterator[str]:
        with contextlib.suppress(OSError):
            yield from (f"temporary {path.name.split('-')[0]}" for path in self.temporary.iterdir())


def _numbers() -> set[int]:
    """Of the processes there are."""
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}


def _processes(numbers: Collection[int]) -> Iterator[tuple[int, list[str]]]:
    """Those of these numbers that are there, with their command lines."""
    for pid in numbers:
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text:
            yield pid, text.decode("utf-8", "replace").rstrip("\0").split("\0")


def fill(place: Path) -> None:
    """Take all the room that is left at a place."""
    with contextlib.suppress(OSError), (place / "filled-by-others").open("wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
