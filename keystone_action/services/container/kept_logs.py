"""What a service's container printed, found after the run as `<service>[-<cell id>].log`."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, Capture

ENGINE_KEEPS = 4 << 20
"""Bytes of each of the two files in which the engine keeps a container's log: of a longer one it has the end only."""
_OF_A_LINE = 74
_LONGEST_CELL = 180
_ESCAPED = bytes(range(32)) + b'"\\<>&' + bytes(range(128, 256))
_LONGEST_ESCAPE = 6


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """directory: where the files go, made when the first one is written. mask: takes secrets out of a text."""

    directory: Path
    mask: Callable[[str], str]

    def keep(self, service: str, cell: str, printed: bytes) -> None:
        """Write what one container printed; an earlier container's file of the same name stays, and this one gets a
        number. Nothing is written of one that printed nothing. Never raises. Blocking."""
        if printed:
            self._write(service, cell, self.mask(_bound(printed).text()) + _loss(printed))

    def lack(self, service: str, cell: str, problem: str) -> None:
        """Write why a container's log could not be had. Never raises. Blocking."""
        self._write(service, cell, f"[what this container printed could not be had: {self.mask(problem)}]\n")

    def _write(self, service: str, cell: str, text: str) -> None:
        # A full disk must not keep us from removing the container.
        with contextlib.suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            stem = f"{service}-{_short(cell)}" if cell else service
            for number in itertools.count(1):
                path = self.directory / (f"{stem}.log" if number == 1 else f"{stem}.{number}.log")
                with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8", errors="replace") as file:
                    file.write(text)
                    return


def _short(cell: str) -> str:
    """A cell's id, which may be as long as a file name, with room for a service's before it."""
    if len(cell) <= _LONGEST_CELL:
        return cell
    return f"{cell[: _LONGEST_CELL - 9]}-{hashlib.sha256(cell.encode()).hexdigest()[:8]}"


def _bound(printed: bytes) -> Capture:
    if len(printed) <= CAPTURE_HEAD + CAPTURE_TAIL:
        return Capture(printed, b"", len(printed))
    return Capture(printed[:CAPTURE_HEAD], printed[-CAPTURE_TAIL:], len(printed))


def _loss(printed: bytes) -> str:
    """Whether the engine may have thrown away what came first. It does not say so; it does once a file is full of
    lines as it writes them, in JSON."""
    special = len(printed) - len(printed.translate(None, _ESCAPED))
    written = len(printed) + special * (_LONGEST_ESCAPE - 1) + printed.count(b"\n") * _OF_A_LINE
    if written < ENGINE_KEEPS:
        return ""
    return f"\n[the engine keeps the last {ENGINE_KEEPS >> 20} MiB of a log; what came before may be missing]\n"
