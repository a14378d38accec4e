"""A way to the Docker engine that can break: on a socket of its own, or by TCP on the loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

ENGINE = "/var/run/docker.sock"


class EngineProxy:
    """Passes bytes both ways. address: for DOCKER_HOST."""

    def __init__(self, path: Path | None = None) -> None:
        """path: of its socket; None = a free port."""
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen(64)
            self.address = f"unix://{path}"
        self._ends: list[socket.socket] = []
        self._silent = threading.Event()
        self._halves = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._delay = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._running.wait()
                far = socket.socket(socket.AF_UNIX)
                far.connect(ENGINE)
                self._ends += [near, far]
                for source, target in ((near, far), (far, near)):
                    answers = source is far
                    threading.Thread(target=self._pass, args=(source, target, answers), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._running.wait()
                if answers:
                    time.sleep(self._delay)
                    if self._halves.is_set() and not self._silent.is_set():
                        self._silent.set()
                        target.sendall(data[: len(data) // 2])
                if not self._silent.is_set():
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def halve(self) -> None:
        """Of its next answer comes only the first half, and no further one."""
        self._halves.set()

    def slow_down(self, seconds: float) -> None:
        """From now on it thinks so long about each piece of an answer."""
        self._delay = seconds

    def silence(self) -> None:
        """From now on it takes everything and answers nothing."""
        self._silent.set()

    def freeze(self) -> None:
        """From now on it does not even read, as a process that was stopped (SIGSTOP): the kernel still takes
        connections for it, and what its buffers hold."""
        self._running.clear()

    def close(self) -> None:
        """From now on nothing is there; what was open breaks."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._silent.set()
        self._running.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
