"""The processes that an engine tells of a container: where it does not tell them, nothing is taken for complete."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from keystone_action.engine.client import EngineClient
from keystone_action.engine.connection import EngineConnection
from keystone_action.errors import SandboxError
from keystone_action.sandbox.containers.sandbox import ContainerProcesses
from keystone_action.system.command import Capture, Completed

Answer = tuple[int, object]
LISTED: Answer = (200, {"Titles": ["PID", "PPID", "COMMAND"], "Processes": [["10", "1", "sh x"], ["11", "10", "ls"]]})
REFUSED: Answer = (500, {"message": "exec: ps: not found"})
NONE: Answer = (200, {"Titles": ["PID", "PPID", "COMMAND"], "Processes": None})
ODD: Answer = (200, {"Titles": ["USER"], "Processes": [["root"]]})
ENDED: Answer = (409, {"message": "container x is not running"})
WHY = {200: "it names none", 500: "exec: ps: not found"}
NOTHING = Capture(b"", b"", 0)


class Engine(BaseHTTPRequestHandler):
    """Answers one look after the other."""

    answers: list[Answer]

    def do_GET(self) -> None:
        status, document = self.answers.pop(0)
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def looked() -> Iterator[Callable[..., Completed]]:
    """The end of a command whose looks got these answers."""
    answers: list[Answer] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Engine,), {"answers": answers}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = EngineClient(EngineConnection(f"tcp://127.0.0.1:{server.server_address[1]}", version="1.41", timeout=20))

    def look(*given: Answer) -> Completed:
        seen = ContainerProcesses(client, ("sh", "x"), init=False)
        answers[:] = given
        for _ in given:
            seen.look("x")
        done = Completed(
            exit_code=0, signal=None, timed_out=False, limit=None, not_found=False, duration_s=1.0,
            stdout=NOTHING, stderr=NOTHING,
        )  # fmt: skip
        return seen.told(done)

    yield look
    client.close()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("given", [(LISTED,), (LISTED, LISTED, ENDED)])
def test_what_was_listed_is_told(looked: Callable[..., Completed], given: tuple[Answer, ...]) -> None:
    found = looked(*given).processes
    assert [one["argv"] for one in found] == [["sh", "x"], ["ls"]]
    assert [one["is_first"] for one in found] == [True, False]


@pytest.mark.parametrize("missed", [REFUSED, NONE, ODD], ids=["refused", "none", "odd"])
@pytest.mark.parametrize("before", [(), (LISTED,)], ids=["at first", "later"])
def test_a_look_that_told_nothing_while_it_ran_is_an_error(
    looked: Callable[..., Completed], before: tuple[Answer, ...], missed: Answer
) -> None:
    with pytest.raises(SandboxError, match=f"audit.processes: the engine can't list .*: .*{WHY[missed[0]]}"):
        looked(*before, missed, missed, LISTED)


@pytest.mark.parametrize("missed", [REFUSED, NONE, ODD], ids=["refused", "none", "odd"])
def test_so_are_looks_that_tell_nothing_for_long(
    looked: Callable[..., Completed], missed: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(looked(LISTED, missed, missed).processes) == 2
    monkeypatch.setattr("keystone_action.sandbox.containers.sandbox._LATE", -1.0)
    with pytest.raises(SandboxError, match=WHY[missed[0]]):
        looked(LISTED, missed, missed)


@pytest.mark.parametrize("last", [REFUSED, NONE, ODD], ids=["refused", "none", "odd"])
def test_an_engine_may_be_late_to_know_that_a_container_ended(looked: Callable[..., Completed], last: Answer) -> None:
    for given in ((LISTED, last), (LISTED, last, ENDED), (LISTED, last, last)):
        assert len(looked(*given).processes) == 2


@pytest.mark.parametrize("only", [ENDED, NONE], ids=["ended", "none"])
def test_a_command_that_no_look_saw_is_told_all_the_same(looked: Callable[..., Completed], only: Answer) -> None:
    assert [one["argv"] for one in looked(only).processes] == [["sh", "x"]]


def test_an_engine_that_can_t_list_at_all_is_an_error(looked: Callable[..., Completed]) -> None:
    with pytest.raises(SandboxError, match="exec: ps: not found") as caught:
        looked(REFUSED)
    assert "leave audit.processes out" in caught.value.help
