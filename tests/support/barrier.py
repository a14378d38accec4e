"""A meeting point for agents of several cells: where they have come together, they do run at once."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any

MEET = """
import json, os, socket
def meet(word=""):
    connection = socket.create_connection(("127.0.0.1", int(os.environ["BARRIER"])))
    connection.sendall(json.dumps(word).encode() + b"\\n")
    return json.loads(connection.makefile("rb").readline())
"""
"""Python for agents: `meet(word)` waits for the others and returns what all of them said, themselves included."""


class Barrier:
    """Serves `parties` agents, as often as they come together. port: for their environment variable BARRIER."""

    def __init__(self, parties: int) -> None:
        self.met = 0
        """How often all of them came together."""
        self._parties = parties
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            waiting: list[tuple[socket.socket, Any]] = []
            try:
                while len(waiting) < self._parties:
                    connection = self._server.accept()[0]
                    with connection.makefile("rb") as stream, contextlib.suppress(ValueError):
                        # Agents of other tests try every port that they can see, and say something else or nothing.
                        waiting.append((connection, json.loads(stream.readline())))
            except OSError:
                return
            self.met += 1
            for connection, _ in waiting:
                connection.sendall(json.dumps([word for _, word in waiting]).encode() + b"\n")
                connection.close()

    def close(self) -> None:
        """Whoever still waits, waits on."""
        self._server.close()
