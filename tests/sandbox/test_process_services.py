"""Programs that run on while cells come and go."""

# ruff: noqa: ASYNC240 - the loop has nothing else to do meanwhile

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from support.process_world import ROOT, alive, eventually, run, token, world

from keystone_action.errors import SandboxError
from keystone_action.sandbox.processes import system_v
from keystone_action.services.server_process import named_user
from keystone_action.system.command import Command

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="as another user needs root")
PATH = {"PATH": "/usr/bin:/bin"}
GRACEFUL = "trap 'echo bye; exit 3' TERM; trap 'echo quick; exit 4' INT; echo ready; while :; do sleep 0.05; done"


def test_a_service_runs_until_it_is_asked_to_stop() -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            service = await sandboxes.spawn_service(["sh", "-c", GRACEFUL], PATH, Path("/"))
            assert await asyncio.to_thread(eventually, lambda: service.tail() == "ready\n")
            assert service.is_running
            assert Path(f"/proc/{service.pid}").exists()
            assert await service.stop(30) == 3
            assert (service.is_running, service.tail()) == (False, "ready\nbye\n")
            assert await service.stop() == await service.wait() == 3
            quick = await sandboxes.spawn_service(["sh", "-c", GRACEFUL], PATH, Path("/"))
            assert await asyncio.to_thread(eventually, lambda: quick.tail() == "ready\n")
            assert await quick.stop(30, signal.SIGINT) == 4

    run(main)


def test_one_that_does_not_listen_is_killed_with_its_descendants() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (sandboxes, _):
            stubborn = f"trap '' TERM; (setsid sleep {mark} &); echo ready; while :; do sleep {mark}; done"
            service = await sandboxes.spawn_service(["sh", "-c", stubborn], PATH, Path("/"))
            assert await asyncio.to_thread(eventually, lambda: service.tail() == "ready\n" and len(alive(mark)) == 3)
            assert await service.stop(0.2) == 128 + signal.SIGKILL
            assert alive(mark) == []

    run(main)


SEGMENT = """
import ctypes, time
print(ctypes.CDLL(None).shmget(0, 4096, 0o1600), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("uid", [False, True, pytest.param("named", marks=NEEDS_ROOT)])
def test_shared_memory_that_a_child_of_its_made_goes_with_it(uid: bool | str) -> None:
    """As initdb's servers do, which it starts one after the other."""

    async def main() -> None:
        async with world() as (sandboxes, _):
            others = ctypes.CDLL(None).shmget(0, 4096, 0o1600)
            user = named_user() if uid == "named" else bool(uid)
            script = ["sh", "-c", '/usr/bin/python3 -c "$0" & wait', SEGMENT]
            service = await sandboxes.spawn_service(script, PATH, Path("/"), uid=user)
            assert await asyncio.to_thread(eventually, lambda: service.tail().strip().isdecimal())
            made = int(service.tail())
            assert {made, others} <= segments()
            await service.stop(0)
            assert made not in segments()
            assert others in segments()
            system_v.remove_made_by({os.getpid()}, None)
            assert others not in segments()

    run(main)


def segments() -> set[int]:
    return {each.identifier for each in system_v.system_v_objects("shm")}


def test_one_that_ends_by_itself() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (sandboxes, _):
            text = f"echo no space left >&2; (setsid sleep {mark} &); sleep 0.1; exit 5"
            service = await sandboxes.spawn_service(["sh", "-c", text], PATH, Path("/"), name="db")
            assert await service.wait() == 5
            assert (service.tail(), alive(mark)) == ("no space left\n", [])

    run(main)


def test_one_that_can_not_be_started() -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            with pytest.raises(SandboxError, match="db could not be started: no-such-server: not found in PATH"):
                await sandboxes.spawn_service(["no-such-server"], PATH, Path("/"), name="db", uid=True)
            with pytest.raises(SandboxError, match="can't enter the directory /no/such/place"):
                await sandboxes.spawn_service(["true"], PATH, Path("/no/such/place"))

    run(main)


def test_a_user_of_its_own() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            data = sandboxes.root / "data"
            (data / "sub").mkdir(parents=True)
            text = "id -u; touch sub/file && echo written; env | sort | tr '\\n' ' '; sleep 600"
            service = await sandboxes.spawn_service(["sh", "-c", text], PATH, data, uid=True, writable=[data])
            assert await asyncio.to_thread(eventually, lambda: "PWD" in service.tail())
            user, written, environment = service.tail().splitlines()
            assert (written, environment.split()) == ("written", [f"PATH={PATH['PATH']}", f"PWD={data}"])
            assert (service.uid is not None) == ROOT
            assert (data / "sub" / "file").stat().st_uid == int(user)
            if ROOT:
                assert int(user) == service.uid != sandbox.uid
                given = await sandboxes.spawn_service(["id", "-u"], PATH, Path("/"), uid=65534)
                await given.wait()
                assert given.tail() == "65534\n"

    run(main)


def test_a_talkative_service_is_cut_at_the_front() -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            text = "head -c 100000000 /dev/zero; echo; echo end; sleep 600"
            service = await sandboxes.spawn_service(["sh", "-c", text], PATH, Path("/"))
            assert await asyncio.to_thread(eventually, lambda: service.tail().endswith("\nend\n"))
            assert len(service.tail()) <= 64 << 10

            def log_size() -> int:
                return sum(
                    path.stat().st_size for path in Path(f"/proc/{service.pid}/fd").iterdir() if path.name == "1"
                )

            assert await asyncio.to_thread(eventually, lambda: log_size() < 64 << 20)

    run(main)


def test_services_end_with_the_run() -> None:
    mark = token()

    async def main() -> None:
        async with world() as (sandboxes, _):
            service = await sandboxes.spawn_service(["sleep", mark], PATH, Path("/"))
            # It has started; what a program is called can be read a moment later.
            assert await asyncio.to_thread(eventually, lambda: len(alive(mark)) == 1)
        assert not service.is_running
        assert alive(mark) == []

    run(main)


def test_cells_can_reach_a_service_over_loopback() -> None:
    server = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={port}, bind='127.0.0.1')"
    client = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/').status)"

    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            python = sandbox.which("python3")
            assert python, "these tests need a python3 that every user can run"
            empty = sandboxes.root / "empty"
            empty.mkdir()
            await sandboxes.spawn_service(
                [python, "-c", server.format(port=port)], PATH, empty, uid=True, writable=[empty]
            )
            assert await asyncio.to_thread(eventually, lambda: _listens(port))
            result = await sandbox.run(Command((python, "-c", client.format(port=port))))
            assert result.stdout.text() == "200\n", result.stderr.text()

    run(main)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            return True
    time.sleep(0.02)
    return False
