"""The recording mock beside uvicorn, which records nothing, and pytest-httpserver, which does: requests per second from
eight connections of `wrk`, and how long a run waits for a mock.

Ours is asked by the agent of a run, so that what a cell's mock does besides (whose connection it is, the record that is
kept before each answer, the audit log) is in the figure.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.installed import python_program
from benchmarks.measure import KEYSTONE, Row, command, interleaved

HTTPSERVER = "pytest-httpserver==1.2.0"
BUDGET, READY_BUDGET = 10_000.0, 0.1
"""Requests per second; seconds."""
_SECONDS = 3
_SCRIPT = """\
wrk.method = "POST"
wrk.body = '{"name": "Ada", "items": [1, 2, 3], "note": "' .. string.rep("x", 80) .. '"}'
wrk.headers["Content-Type"] = "application/json"
"""
_SPEC = """\
version: 1
id: {name}
task: {{prompt: "ask"}}
agent: {{type: command, command: {agent}}}
services: {services}
invariants:
  graded: {{check: {{type: command_exit, command: "true"}}}}
"""
_SERVER = """\
async def app(scope, receive, send):
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": b"{}"})
"""
_HTTPSERVER = """\
import signal
from pytest_httpserver import HTTPServer
server = HTTPServer()
server.expect_request("/v1/orders", method="POST").respond_with_json({})
server.start()
print(server.url_for(""), flush=True)
signal.pause()
"""
_UVICORN = """\
import socket, sys, uvicorn
sys.path.insert(0, sys.argv[1])
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(f"http://127.0.0.1:{port}", flush=True)
Server(uvicorn.Config("served:app", port=port, http="httptools", log_level="error", access_log=False)).run()
"""


def mock(rounds: int) -> Iterator[Row | str]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        yield from _ready(directory, rounds)
        if shutil.which("wrk") is None:
            yield "mock: wrk is not installed (Debian's package wrk), requests per second are not measured"
            return
        (directory / "ask.lua").write_text(_SCRIPT)
        (directory / "served.py").write_text(_SERVER)
        asked: dict[str, Callable[[], float]] = {"ours": _ours(directory)}
        url = stack.enter_context(_started([sys.executable, "-c", _UVICORN, name]))
        asked["uvicorn"] = lambda: _rate(_wrk(directory, url))
        try:
            python = python_program(HTTPSERVER, "python")
            recording = stack.enter_context(_started([str(python), "-c", _HTTPSERVER]))
            asked["pytest-httpserver"] = lambda: _rate(_wrk(directory, recording))
        except (OSError, subprocess.SubprocessError) as error:
            yield f"mock: pytest-httpserver can't be had here: {error}"
        yield from _rates({who: sample.median for who, sample in interleaved(asked, rounds).items()})


def _rates(rates: dict[str, float]) -> Iterator[str]:
    ours = rates.pop("ours")
    kept = "yes" if ours >= BUDGET else "NO"
    for who, theirs in rates.items():
        ratio = ours / theirs
        work = "recording mock, requests per second"
        yield f"{work:<38} {ours:7.0f}/s {BUDGET:7.0f}/s  {kept:<3} {ratio:8.2f} × {who} ({theirs:.0f}/s)"


def _ready(directory: Path, rounds: int) -> Iterator[Row]:
    things: dict[str, Callable[[], float]] = {}
    for what, services in {"without": "[]", "with": "[{name: api, type: http_mock, record: true}]"}.items():
        spec = directory / f"{what}.keystone.yaml"
        spec.write_text(_SPEC.format(name=what, agent='["true"]', services=services))
        things[what] = _fresh(directory, spec)
    seconds = interleaved(things, max(rounds, 5))
    further = seconds["with"].median - seconds["without"].median
    yield Row("recording mock, ready", further, "a run without one", seconds["without"].median, READY_BUDGET)


def _fresh(directory: Path, spec: Path) -> Callable[[], float]:
    output = directory / f"out-{spec.stem}"

    def once() -> float:
        shutil.rmtree(output, ignore_errors=True)
        return command([*KEYSTONE, "run", spec.name, "--output", str(output), "--quiet"], directory)()

    return once


def _ours(directory: Path) -> Callable[[], float]:
    words = _wrk(directory, "{{ services.api.url }}")
    spec = directory / "asked.keystone.yaml"
    mocked = "[{name: api, type: http_mock, record: true}]"
    agent = json.dumps(words).replace(str(directory / "ask.lua"), "ask.lua")
    spec.write_text(_SPEC.format(name="asked", agent=agent, services=mocked) + f"workspace: {json.dumps('asking')}\n")
    (directory / "asking").mkdir()
    shutil.copy(directory / "ask.lua", directory / "asking")
    once = _fresh(directory, spec)

    def asked() -> float:
        once()
        results = json.loads((directory / f"out-{spec.stem}" / "results.json").read_text())
        return _read(results["specs"][0]["cells"][0]["agent"]["output"])

    return asked


def _wrk(directory: Path, url: str) -> list[str]:
    return ["wrk", "-t1", "-c8", f"-d{_SECONDS}s", "-s", str(directory / "ask.lua"), f"{url}/v1/orders"]


def _rate(words: list[str]) -> float:
    return _read(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def _read(printed: str) -> float:
    """Requests per second; a server that failed some has none."""
    found = re.search(r"Requests/sec:\s*([\d.]+)", printed)
    if found is None or "Non-2xx" in printed or "Socket errors" in printed:
        raise RuntimeError(f"wrk says {printed[-500:]}")
    return float(found[1])


@contextmanager
def _started(words: list[str]) -> Iterator[str]:
    """Its address, which it prints when it listens."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.kill()
        process.wait()
