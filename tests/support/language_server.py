"""The language server for YAML that editors start, asked over its standard input as they do."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

SECONDS = 60.0
"""Then the server is killed, and the question under way has no answer."""


class LanguageServer:
    """One that runs, with one document open."""

    def __init__(self, process: subprocess.Popen[bytes], schema: Path, folder: Path) -> None:
        self._process = process
        self._ids = count(1)
        self._uri = (folder / "keystone.yaml").as_uri()
        settings = {"schemas": {schema.as_uri(): ["*.yaml"]}, "schemaStore": {"enable": False}}
        self._settings = {"yaml": {**settings, "hover": True, "validate": True, "completion": True}}
        self.problems: list[str] = []

    def open(self, text: str) -> None:
        """Open a document, and wait until it was looked through."""
        capabilities = {
            "textDocument": {"hover": {"contentFormat": ["markdown"]}},
            "workspace": {"configuration": True},
        }
        self.ask("initialize", processId=None, rootUri=None, capabilities=capabilities)
        self._send(method="initialized", params={})
        self._send(method="workspace/didChangeConfiguration", params={"settings": self._settings})
        document = {"uri": self._uri, "languageId": "yaml", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        while (message := self._read()).get("method") != "textDocument/publishDiagnostics":
            self._answer(message)
        self.problems = [one["message"] for one in message["params"]["diagnostics"]]

    def hover(self, line: int, character: int) -> str:
        """What is shown at a place, in Markdown; empty when nothing is."""
        place = {"line": line, "character": character}
        found = self.ask("textDocument/hover", textDocument={"uri": self._uri}, position=place)
        return str(found["contents"]["value"]) if found else ""

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a request."""
        number = next(self._ids)
        self._send(id=number, method=method, params=params)
        while (message := self._read()).get("id") != number or "method" in message:
            self._answer(message)
        return message.get("result")

    def _answer(self, message: Mapping[str, Any]) -> None:
        """What the server asks in its turn: its settings, and leave to watch files."""
        if "method" in message and "id" in message:
            asked = message["params"].get("items", []) if message["method"] == "workspace/configuration" else None
            found = None if asked is None else [self._settings.get(one.get("section")) for one in asked]
            self._send(id=message["id"], result=found)

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        length = 0
        while line := stream.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        assert length, "the language server has ended"
        found: dict[str, Any] = json.loads(stream.read(length))
        return found


@contextmanager
def language_server(program: Path, schema: Path, folder: Path, text: str) -> Iterator[LanguageServer]:
    """The server, with this text open as a spec of the schema; gone when the block ends."""
    with subprocess.Popen(
        [program, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
    ) as process:  # fmt: skip
        watch = threading.Timer(SECONDS, process.kill)
        watch.start()
        try:
            server = LanguageServer(process, schema, folder)
            server.open(text)
            yield server
        finally:
            watch.cancel()
            process.kill()
