"""The real command without the wait for its imports: a process that has imported Keystone once, and a fork of it for
each call.

A fork has what a process of its own would have: arguments, directory, environment, streams, an empty table of other
open files, and the interpreter's own way to an exit code. tests/end_to_end/test_fork_server.py holds it to that. What
an interpreter reads when it starts (PYTHON…, LANG, LC_…) can't be given to it: `serves` says so.

This file is both the client and, as a program, the server, which for that imports nothing of the tests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

_READ_AT_START = ("PYTHON", "LANG", "LC_")
COMMAND = "keystone_action.__main__"
IMPORTED = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "csv",
    "encodings.utf_8_sig",
    "genai_prices.data",
    "httpcore",
    "httpx",
    "importlib.readers",
    "jinja2.sandbox",
    "keystone_action.agents.run",
    "keystone_action.cli.main",
    "keystone_action.cli.progress",
    "keystone_action.dialects.agenticassure.adapter",
    "keystone_action.dialects.agenticassure.suite",
    "keystone_action.dialects.known",
    "keystone_action.evidence.requests",
    "keystone_action.evidence.trace_readers.reading",
    "keystone_action.files.copies",
    "keystone_action.gate.change_base",
    "keystone_action.gateway.cell",
    "keystone_action.gateway.recordings.files",
    "keystone_action.gateway.server",
    "keystone_action.gateway.trace",
    "keystone_action.invariants.operators",
    "keystone_action.invariants.test_runs.pytest_run",
    "keystone_action.invariants.types.file_absent",
    "keystone_action.invariants.types.file_content",
    "keystone_action.invariants.types.passfail",
    "keystone_action.invariants.types.regex",
    "keystone_action.invariants.types.trace",
    "keystone_action.options.model:Options",
    "keystone_action.report.console",
    "keystone_action.report.page.charts",
    "keystone_action.report.so_far",
    "keystone_action.report.write",
    "keystone_action.runner.journal.earlier_runs",
    "keystone_action.runner.run",
    "keystone_action.runs",
    "keystone_action.sandbox.processes.sandboxes",
    "keystone_action.spec.registry_names",
    "keystone_action.spec.models.spec:Spec",
    "keystone_action.spec.models.policies:Audit",
    "keystone_action.spec.models.policies:Forbidden",
    "psycopg",
    "regex",
    "svg",
    "tomllib",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
    "xml.etree.ElementTree",
)
"""Modules that every tenth call imports or that take long to import, and `module:Model` what such a call has pydantic
build at the first use."""


_AT_START = signal.getsignal(signal.SIGINT)
"""An interpreter that a shell started in the background ignores it."""


class ForkServer:
    """One server, and what it is asked for. environment: of the server; calls have nothing but their own. program: the
    module whose `main` a call runs."""

    def __init__(
        self, environment: Mapping[str, str], program: str = COMMAND, imported: Sequence[str] = IMPORTED
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # It ends when this end of the pair is closed, at the latest with this process.
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), program, *imported],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @staticmethod
    def serves(environ: Mapping[str, str]) -> bool:
        """Whether a fork can have these variables: an interpreter that is there already reads no more of its own."""
        return not any(name.startswith(_READ_AT_START) for name in environ)

    def run(
        self, words: Sequence[str], directory: Path, environ: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """The program with these words, as `subprocess.run` would have it. timeout: seconds; raises TimeoutExpired."""
        pipes = [os.pipe() for _ in ("status", "stdout", "stderr")]
        self._order(words, directory, environ, [ours for _, ours in pipes])
        for _, write in pipes:
            os.close(write)
        with contextlib.ExitStack() as closing:
            for read, _ in pipes:
                closing.callback(os.close, read)
            status, out, err = _read_all([read for read, _ in pipes], words, timeout)
        code = status.split()[1:]
        assert code, f"the server that was to wait for {words} is gone"
        return subprocess.CompletedProcess([*words], int(code[0]), out, err)

    def start(self, words: Sequence[str], directory: Path, environ: Mapping[str, str], out: int, err: int) -> Forked:
        """The program with these words under way, its streams to these open files."""
        status, ours = os.pipe()
        self._order(words, directory, environ, [ours, out, err])
        os.close(ours)
        return Forked(status)

    def _order(self, words: Sequence[str], directory: Path, environ: Mapping[str, str], files: Sequence[int]) -> None:
        order = {"words": [*words], "directory": str(directory), "environ": dict(environ)}
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(order).encode())
            file.flush()
            socket.send_fds(self._control, [b"1"], [file.fileno(), *files])


class Forked:
    """A command under way, asked and ended as a `subprocess.Popen` is. status: the pipe that tells of it."""

    def __init__(self, status: int) -> None:
        self._status = status
        self._said = b""
        while b"\n" not in self._said and (part := os.read(status, 1 << 16)):
            self._said += part
        self.pid = int(self._said.split()[0])

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._exit_code(0.0)

    def wait(self, timeout: float) -> int:
        """Its exit code, once it has ended. Raises TimeoutExpired."""
        code = self._exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing is sent to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _exit_code(self, timeout: float) -> int | None:
        if self._said.count(b"\n") < 2:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                return None
            self._said += os.read(self._status, 1 << 16)
            os.close(self._status)
        code = self._said.split()[1:]
        assert code, f"the server that was to wait for {self.pid} is gone"
        return int(code[0])


def _read_all(pipes: Sequence[int], words: Sequence[str], timeout: float) -> list[bytes]:
    """What comes out of each until its end; the first one's first line is a process, which has ended when this raises
    because it takes too long."""
    found = dict.fromkeys(pipes, b"")
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for read in pipes:
            selector.register(read, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                _kill(pipes[0], found[pipes[0]])
                raise subprocess.TimeoutExpired([*words], timeout, *list(found.values())[1:])
            for key, _ in ready:
                part = os.read(key.fd, 1 << 16)
                found[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
    return [*found.values()]


def _kill(status: int, said: bytes) -> None:
    """Ends the command that this pipe is about. said: what was read of it so far; it may not have said yet which
    process that is."""
    while b"\n" not in said and (part := os.read(status, 1 << 16)):
        said += part
    if len(told := said.split()) == 1:
        with contextlib.suppress(ProcessLookupError):  # ended meanwhile
            os.kill(int(told[0]), 9)
    while os.read(status, 1 << 16):  # its end is that of the process
        pass


def _serve(control: socket.socket) -> int:
    """Takes orders as long as there are any, and says on each order's `status` which process the command is and how it
    ended. What it returns is the exit code of this process: the server's own, or in a fork, that of the command."""
    selector = selectors.PollSelector()  # which has no open file that a fork would have, too
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                selector.unregister(key.fd)
                _tell_end(key.fd, *key.data)
                continue
            _, files, _, _ = socket.recv_fds(control, 1, 4)
            if not files:
                return 0
            order, status, out, err = files
            command = os.fork()
            if command == 0:
                return _become(order, out, err)
            for file in (order, out, err):
                os.close(file)
            _write(status, command)
            selector.register(os.pidfd_open(command), selectors.EVENT_READ, (command, status))


def _tell_end(handle: int, command: int, status: int) -> None:
    os.close(handle)
    _, ended = os.waitpid(command, 0)
    _write(status, os.waitstatus_to_exitcode(ended))
    os.close(status)


def _write(status: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks any more
        os.write(status, f"{number}\n".encode())


def _become(order: int, out: int, err: int) -> int:
    """`python -m PROGRAM WORDS…` in its directory, from where the interpreter has started."""
    with open(order, encoding="utf-8") as file:
        file.seek(0)
        told = json.load(file)
    signal.signal(signal.SIGINT, _AT_START)
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = _stream(sys.stdout), _stream(sys.stderr)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(told["directory"])
    # What an interpreter in the C locale adds to its environment.
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update({**coerced, **told["environ"]})
    program = sys.modules[sys.argv[2]]
    sys.argv[:] = [str(program.__file__), *told["words"]]
    sys.path.insert(0, str(Path.cwd()))
    return int(program.main())


def _stream(before: TextIO) -> TextIO:
    """A stream like the interpreter's own over what its number now leads to."""
    assert isinstance(before, io.TextIOWrapper)
    kind: dict[str, Any] = {
        "encoding": before.encoding,
        "errors": before.errors,
        "line_buffering": before.line_buffering or os.isatty(before.fileno()),
    }
    return io.TextIOWrapper(open(before.fileno(), "wb", closefd=False), **kind)


def _main() -> int:
    """The program: the server, from which forks return as well."""
    sys.path.pop(0)  # the directory of this file
    for name in sys.argv[2:]:
        module, _, model = name.partition(":")
        found = importlib.import_module(module)
        if model:
            getattr(found, model).model_rebuild()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, for all tests: its commands end by it, then it does
    return _serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    sys.exit(_main())
