"""Clients of an mcp_mock that want another cell's server, our memory and time, or the record."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import pytest
from support.attacks import honest, hostile
from support.command_line import run_spec
from support.mcp import ORDER, mcp_model, request_of, running_mcp, text_of
from support.mocks import scope_in
from support.places import attached

from keystone_action.services.mcp_mock.service import McpMock

OTHERS = "a client of one cell's MCP server that calls another cell's"
FLOOD = "a client of an MCP server that sends what takes long to read, to check, and to hold"
RECORD = "an agent that looks for the record of its calls of MCP tools, and for the token of others"
CALL = request_of("tools/call", name="get_order", arguments={"id": 7})
HARD = {
    "name": "hard",
    "input_schema": {"type": "object", "properties": {"x": {"pattern": "^(a|aa)+$"}}},
    "result": "fits",
}


@hostile("services", OTHERS, held_by="a token of the cell's own in the URL", sandbox="none")
def test_a_call_of_another_cells_server_is_refused_and_is_no_call(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    with running_mcp(tmp_path / "mine") as mine, running_mcp(tmp_path / "theirs", server=mine.server) as theirs:
        token, host = mine.url.split("/")[3], f"http://127.0.0.1:{theirs.place.for_agent.port}"
        for path in (f"/{token}/mcp", f"/{token}/stdio", "/mcp", "/", f"/../{token}/mcp", "//mcp", f"/{'x' * 60_000}"):
            assert theirs.post(CALL, host + path).status_code == 401
        headers = {"Authorization": f"Bearer {token}", "Mcp-Session-Id": token, "Accept": "application/json"}
        assert httpx.post(f"{host}/mcp", content=CALL, headers=headers).status_code == 401
        assert (list(mine.calls()), list(theirs.calls())) == ([], [])
        assert [line for line in theirs.audit() if line["type"] == "mcp_call"] == []


@honest("services", OTHERS, sandbox="none")
def test_a_call_of_ones_own_server_is_answered(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
    with running_mcp(tmp_path / "mine") as mine, running_mcp(tmp_path / "theirs", server=mine.server) as theirs:
        assert text_of(mine.call("get_order", {"id": 7})) == text_of(theirs.call("get_order", {"id": 7}))
        assert [len(one.calls()) for one in (mine, theirs)] == [1, 1]


@hostile("services", FLOOD, held_by="bounds on bytes, depth, values and time, before the package reads", sandbox="none")
def test_a_flood_for_one_cell_leaves_the_mocks_of_others_alone(tmp_path: Path) -> None:
    bodies = [
        b"[" * 3_000_000,
        b'{"a":' * 600_000,
        b"[" + b"{}," * 1_000_000 + b"{}]",
        b"x" * 10_000_000,
        request_of("tools/call", name="hard", arguments={"x": "a" * 100_000 + "b"}).encode(),
        request_of("tools/call", name="x" * 1_000_000, arguments={}).encode(),
    ]
    stopped = threading.Event()
    (tmp_path / "other").mkdir()
    with running_mcp(tmp_path, tools=[ORDER, HARD]) as mock:

        def flood(body: bytes) -> None:
            while not stopped.is_set():
                try:
                    assert mock.post(body).status_code < 500
                except httpx.HTTPError:
                    continue

        threads = [threading.Thread(target=flood, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        try:
            other = McpMock(mcp_model(), mock.server)
            with attached(other, scope_in(tmp_path / "other")) as place:
                for number in range(20):
                    body = request_of("tools/call", name="get_order", arguments={"id": number})
                    answer = mock.post(body, place.for_agent.url)
                    assert text_of(answer.json()) == f"order {number} is paid"
                assert place.calls is not None
                assert len(place.calls.calls()) == 20
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        assert {call.tool[:4] for call in mock.calls()} == {"hard", "xxxx"}
        assert all(call.is_error for call in mock.calls())


@honest("services", FLOOD, sandbox="none")
def test_large_arguments_are_taken_whole(tmp_path: Path) -> None:
    word = "a" * 1_000_000
    given = {"x": word, "list": list(range(10_000)), "deep": json.loads("[" * 40 + "]" * 40)}
    with running_mcp(tmp_path, tools=[{"name": "keeps", "template": "{{ arguments.x | length }}"}]) as mock:
        assert text_of(mock.call("keeps", given)) == "1000000"
        (call,) = mock.calls()
        assert call.arguments == given


SPEC = """version: 1
id: looks
task: {{prompt: look}}
agent: {{type: command, command: {command}}}
services: [{{name: desk, type: mcp_mock, tools: [{{name: find, result: found}}]}}]
invariants:
  counted:
    check: {{type: mcp_assertions, service: desk, assertions: [{{field: call_count, equals: 1}}]}}
"""
ASKS = """printf '%s\\n' '{call}' | "$1" """.replace("{call}", request_of("tools/call", name="find", arguments={}))
LOOKS = """
find / -name '*.calls.jsonl' -o -name 'audit.jsonl' 2>/dev/null | while read -r file; do
  cat "$file" && echo "READ $file"; echo '{"tool": "find"}' >> "$file" && echo "WROTE $file"
done; rm -f "$1" && echo "REMOVED"; echo x >> "$1" && echo "CHANGED"; exit 0
"""


def run_agent(folder: Path, script: str) -> tuple[int, str]:
    command = json.dumps(["sh", "-c", script, "agent", "{{ services.desk.command }}"])
    called = run_spec(folder, SPEC.format(command=command))
    (cell,) = called.cells
    return called.code, cell["agent"]["stdout"] if "stdout" in cell["agent"] else cell["agent"]["output"]


@pytest.mark.sandbox
@hostile("evidence", RECORD, held_by="the record is where no sandbox reads; its program is ours")
def test_the_record_is_neither_read_nor_written_by_the_agent(tmp_path: Path) -> None:
    code, printed = run_agent(tmp_path, ASKS + "2>&1 >/dev/null;" + LOOKS)
    assert [word for word in ("READ", "WROTE", "REMOVED", "CHANGED") if word in printed] == []
    assert code == 0, printed


@pytest.mark.sandbox
@honest("evidence", RECORD)
def test_an_agent_that_only_asks_is_counted(tmp_path: Path) -> None:
    code, printed = run_agent(tmp_path, ASKS)
    assert (code, "found" in printed) == (0, True)
