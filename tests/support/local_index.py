"""pytest for `setup.packages`, from a server on this machine: a wheel made of the one that runs these tests."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed."""


@contextmanager
def pytest_index(directory: Path, packages: Path) -> Iterator[dict[str, str]]:
    """Serves a wheel in a directory of the test's; gives what `setup.env` needs for pip to find nothing else.
    packages: pytest and what it imports."""
    _wheel(directory, packages)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"http://127.0.0.1:{server.server_address[1]}/"}
    finally:
        server.shutdown()
        server.server_close()


def _wheel(directory: Path, packages: Path) -> None:
    """All that pytest imports, in one wheel of its name."""
    number = version("pytest")
    about = f"pytest-{number}.dist-info"
    with zipfile.ZipFile(directory / f"pytest-{number}-py3-none-any.whl", "w") as to:
        for path in sorted(packages.rglob("*.py")):
            to.write(path, path.relative_to(packages))
        to.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: pytest\nVersion: {number}\n")
        to.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        to.writestr(f"{about}/RECORD", "".join(f"{one.filename},,\n" for one in to.infolist()))
