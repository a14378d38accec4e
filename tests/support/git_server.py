"""git's own server behind HTTP, which wants a token of every request, as GitHub does of a private repository."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.fake_runner import REPOSITORY


class GitServer:
    """One repository, at `url`/octo/agents. origin: where it is, bare. authorizations: what requests brought."""

    def __init__(self, origin: Path, *, host: str = "127.0.0.1") -> None:
        self.origin = origin
        self.authorizations: list[str] = []
        owner = self

        class Handler(_Handler):
            git = owner

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def __enter__(self) -> GitServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    git: GitServer

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        self._serve(self.rfile.read(int(length)) if length else self._chunked())

    def _chunked(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline().strip(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _serve(self, body: bytes) -> None:
        given = self.headers.get("Authorization", "")
        self.git.authorizations.append(given)
        if not given:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        done = subprocess.run(
            ["git", "http-backend"],
            env=self._environ(len(body)),
            input=body,
            capture_output=True,
            check=False,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        self.send_response(status)
        for name, value in lines:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _environ(self, length: int) -> dict[str, str]:
        path, _, query = self.path.partition("?")
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "GIT_PROJECT_ROOT": str(self.git.origin),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": path.replace(f"/{REPOSITORY}", ""),
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "x",
        }

    def log_message(self, *_: object) -> None:
        """Quiet."""
