"""A server on this machine that `setup` asks: a package for pip, and a word for each command that runs."""

from __future__ import annotations

import base64
import hashlib
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WHEEL = "tinything-1.0-py3-none-any.whl"


def tiny_wheel(directory: Path) -> Path:
    """A package with one module and one command, as small as wheels get."""
    files = {
        "tinything.py": "def main():\n    print('tiny')\n",
        "tinything-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n",
        "tinything-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tinything-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tinything:main\n",
    }
    record = "tinything-1.0.dist-info/RECORD"
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
        for name, text in files.items()
    ]
    path = directory / WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in {**files, record: "\n".join([*lines, f"{record},,", ""])}.items():
            wheel.writestr(name, text)
    path.chmod(0o644)
    return path


class SetupServer:
    """asked: the paths that were asked for, in order. The first request for `/hang` is answered at the end, and one for
    `/sometimes` with an error while `broken` is set."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[str] = []
        self.over = threading.Event()
        self.broken = threading.Event()

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return self.asked.count(path)

    @property
    def for_pip(self) -> dict[str, str]:
        """What `setup.env` needs for pip to ask this server alone."""
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{self.address}/"}

    def ask(self, path: str) -> str:
        """A shell command that asks for this and fails when it is refused."""
        return f"python3 -c \"import urllib.request as u; u.urlopen('{self.address}{path}')\""


@contextmanager
def setup_server(directory: Path, certificate: Path | None = None) -> Iterator[SetupServer]:
    """directory: of the test's, for the package. certificate: with its key; the server then speaks TLS."""
    content = tiny_wheel(directory).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked.append(self.path)
            if self.path == "/hang" and told.count("/hang") == 1:
                told.over.wait(60)
            pages = {"/": f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), f"/{WHEEL}": content}
            page = pages.get(self.path, b"")
            self.send_response(500 if self.path == "/sometimes" and told.broken.is_set() else 200)
            self.send_header("Content-Type", "text/html" if self.path == "/" else "application/octet-stream")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    told = SetupServer(f"{scheme}://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield told
    finally:
        told.over.set()
        server.shutdown()
        server.server_close()
