"""A command on a terminal of its own, as people see it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.command_line import ENVIRONMENT, server

_ENVIRONMENT = {**ENVIRONMENT, "TERM": "xterm-256color"}


@dataclass(frozen=True)
class Shown:
    """A finished call: its exit code, and all that its terminal was sent."""

    code: int
    text: str

    @property
    def lines(self) -> list[str]:
        """As they came."""
        return self.text.replace("\r\n", "\n").split("\n")


def keystone_on_terminal(
    words: Sequence[str], directory: Path, environ: Mapping[str, str], *, columns: int = 100
) -> Shown:
    """`keystone WORDS…` that writes to a terminal of so many columns."""
    ours, theirs = _terminal(columns)
    called = server().start(words, directory, {**_ENVIRONMENT, **environ}, theirs, theirs)
    os.close(theirs)
    text = _read_all(ours)
    return Shown(called.wait(60), text)


def on_terminal(
    command: Sequence[str], directory: Path, environ: Mapping[str, str], *, columns: int = 100, typed: bytes = b""
) -> Shown:
    """Any command on a terminal. typed: what is written to it at once."""
    ours, theirs = _terminal(columns)
    environment = {**_ENVIRONMENT, **environ}
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        os.write(ours, typed)
        text = _read_all(ours)
    return Shown(process.returncode, text)


def _terminal(columns: int) -> tuple[int, int]:
    """Its end for us, and the one for programs."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    return ours, theirs


def _read_all(terminal: int) -> str:
    """What it is sent until the other end is closed; closes it."""
    text = b""
    while piece := _read(terminal):
        text += piece
    os.close(terminal)
    return text.decode("utf-8", "replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the other end is closed
        return b""
