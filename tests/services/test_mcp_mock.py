"""An mcp_mock, asked by the official client and by others that are worse."""

import asyncio
import json
import os
import socket
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from support.mcp import HEADERS, mcp_model, official_client, request_of, running_mcp, text_of
from support.mocks import running_mock

from keystone_action.errors import OutputError, ServiceError, UsageError
from keystone_action.services.mcp_mock.service import McpMock
from keystone_action.services.sql_script import SqlScript

MANY = {
    "tools": [
        {
            "name": "get_order",
            "description": "The state of an order.",
            "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            "template": "order {{ arguments.id }}",
        },
        {"name": "stock", "json": {"bread": 3, "note": "\\{{ as it is }}"}},
        {"name": "closed", "result": "closed on Sundays", "is_error": True},
        {"name": "later", "sequence": [{"result": "not yet", "is_error": True}, {"json": [1]}, {"result": "done"}]},
        {"name": "nothing"},
    ],
    "resources": [{"uri": "docs://policy", "name": "policy", "mime_type": "text/markdown", "text": "# Refunds"}],
    "prompts": [
        {
            "name": "refund",
            "description": "Refunds",
            "arguments": [{"name": "order", "required": True}],
            "text": "Refund {{ arguments.order }}",
        }
    ],
}


@pytest.mark.parametrize("way", ["http", "stdio"])
def test_the_official_client_gets_all_that_the_spec_says(tmp_path, way):
    from mcp.shared.exceptions import MCPError

    async def talk(place: Any) -> list[Any]:
        async with official_client(place, way) as client:
            tools = [(tool.name, tool.description) for tool in (await client.list_tools()).tools]
            assert tools[:2] == [("get_order", "The state of an order."), ("stock", None)]
            found = []
            asked = [("get_order", {"id": 7}), ("get_order", {"id": "7"}), ("stock", {}), ("closed", {})]
            for name, arguments in [*asked, *[("later", {})] * 4, ("nothing", {"x": ["é", None]})]:
                result = await client.call_tool(name, arguments)
                found.append((result.content[0].text, result.is_error))
            with pytest.raises(MCPError, match="Unknown tool: no_such"):
                await client.call_tool("no_such", {"a": 1})
            resources = await client.list_resources()
            assert [one.uri for one in resources.resources] == ["docs://policy"]
            assert (await client.read_resource("docs://policy")).contents[0].text == "# Refunds"
            assert (await client.list_prompts()).prompts[0].arguments[0].required
            prompt = await client.get_prompt("refund", {"order": "7"})
            assert prompt.messages[0].content.text == "Refund 7"
            with pytest.raises(MCPError, match="the argument order is missing"):
                await client.get_prompt("refund", {})
            with pytest.raises(MCPError, match="Unknown resource"):
                await client.read_resource("docs://other")
            return found

    with running_mcp(tmp_path, **MANY) as mock:
        found = asyncio.run(talk(mock.place))
        calls, audit = mock.calls(), mock.audit()
    assert found == [
        ("order 7", False),
        ("Input validation error: id: '7' is not of type 'integer'", True),
        ('{"bread": 3, "note": "{{ as it is }}"}', False),
        ("closed on Sundays", True),
        ("not yet", True),
        ("[1]", False),
        ("done", False),
        ("done", False),
        ("", False),
    ]
    assert [(one.result, one.is_error) for one in calls] == [*found, ("Unknown tool: no_such", True)]
    assert calls[8].arguments == {"x": ["é", None]}
    assert [line["type"] for line in audit] == ["mcp_call"] * 10
    assert audit[0]["details"] == {
        "service": "shop",
        "tool": "get_order",
        "arguments": {"id": 7},
        "result": "order 7",
        "is_error": False,
    }


def test_a_client_of_an_older_protocol_shakes_hands(tmp_path):
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    with running_mcp(tmp_path, **MANY) as mock:
        answer = mock.ask("initialize", **hello)["result"]
        assert (answer["protocolVersion"], answer["serverInfo"]["name"]) == ("2024-11-05", "shop")
        assert mock.post('{"jsonrpc": "2.0", "method": "notifications/initialized"}').status_code == 202
        assert mock.ask("ping")["result"] == {}
        assert text_of(mock.call("get_order", {"id": 1})) == "order 1"
        assert httpx.get(mock.url).status_code == httpx.delete(mock.url).status_code == 405
        assert len(mock.calls()) == 1


def test_without_record_nothing_is_kept_but_the_audit_log(tmp_path):
    with running_mcp(tmp_path, record=False) as mock:
        mock.call("get_order", {"id": 1})
        assert mock.place.calls is None
        assert [line["type"] for line in mock.audit()] == ["mcp_call"]
        assert not list(mock.scope.private.glob("*.jsonl"))


def test_an_answer_is_on_record_before_it_is_sent(tmp_path):
    """The client is gone long before it could read it."""
    with running_mcp(tmp_path, tools=[{"name": "slow", "delay": 3600}]) as mock:
        body = request_of("tools/call", name="slow", arguments={}).encode()
        with socket.create_connection((mock.place.for_agent.host, mock.place.for_agent.port or 0)) as connection:
            path = "/" + mock.url.split("/", 3)[3]
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAccept: application/json, text/event-stream\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            mock.place.settle()
        assert [one.tool for one in mock.calls()] == ["slow"]


@pytest.mark.parametrize("fault", ["reset", "empty", "garbage"])
def test_a_fault_is_a_call_that_got_no_answer(tmp_path, fault):
    with running_mcp(tmp_path, tools=[{"name": "breaks", "result": "never seen", "fault": fault}]) as mock:
        with pytest.raises(httpx.HTTPError):
            mock.call("breaks", {})
        assert [(one.tool, one.result, one.is_error) for one in mock.calls()] == [("breaks", "", True)]


def test_a_request_without_the_token_of_the_cell_is_no_call(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with running_mcp(tmp_path / "one") as mine, running_mcp(tmp_path / "two", server=mine.server) as other:
        body = request_of("tools/call", name="get_order", arguments={"id": 1})
        here, there = mine.place.for_agent, other.place.for_agent
        with_my_token = there.url.replace(there.url.split("/")[3], here.url.split("/")[3])
        for url in (with_my_token, f"http://{there.host}:{there.port}/mcp", f"{there.url}/more", f"{there.url}é"):
            assert mine.post(body, url).status_code == 401
        assert (list(mine.calls()), list(other.calls())) == ([], [])
        assert other.post(body, f"{there.url}?x=1").status_code == 200
        assert [len(one.calls()) for one in (mine, other)] == [0, 1]


BAD = {
    "garbage": (b"\x00\xff{", 400),
    "not JSON": (b"{'a': 1}", 400),
    "a list": (b"[]", 400),
    **{
        f"the number {number}": (
            request_of("tools/call", name="get_order", arguments={"id": 0}).replace("0}", f"{number}}}"),
            400,
        )
        for number in ("NaN", "-Infinity", "1e999", "-1e999")
    },
    "a flood of lists": (b"[" * 1_000_000, 400),
    "a deep document": (b'{"a":' * 70 + b"1" + b"}" * 70, 400),
    "many values": (b"[" + b"1," * 60_000 + b"1]", 400),
    "10 MB": (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "' + b"x" * 10_000_000 + b'"}}', 413),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_a_sentence_and_others_are_served(tmp_path, name):
    body, status = BAD[name]
    (tmp_path / "http").mkdir()
    with ExitStack() as stack:
        mock = stack.enter_context(running_mcp(tmp_path))
        other = stack.enter_context(running_mock(tmp_path / "http", routes=[{"path": "/", "response": "served"}]))
        answer = mock.post(body)
        assert (answer.status_code, list(mock.calls())) == (status, [])
        assert "error" in answer.json()
        assert httpx.get(other.url).text == "served"
        assert text_of(mock.call("get_order", {"id": 1})) == "order 1 is paid"


@pytest.mark.parametrize(
    ("params", "tool", "arguments"),
    [
        ({"name": "get_order", "arguments": [1]}, "get_order", {}),
        ({"name": "get_order", "arguments": "x"}, "get_order", {}),
        ({"name": 7, "arguments": {"id": 1}}, "7", {"id": 1}),
        ({"name": ["é"]}, '["\\u00e9"]', {}),
        ({"name": None}, "null", {}),
        ({"arguments": {"id": 1}}, "", {"id": 1}),
        ({"name": "get_order", "arguments": {"id": 1}, "_meta": 3}, "get_order", {"id": 1}),
        ([], "", {}),
        (None, "", {}),
    ],
)
@pytest.mark.parametrize("way", ["mcp", "stdio"])
def test_a_call_with_parameters_of_another_form_is_a_call_that_failed(tmp_path, params, tool, arguments, way):
    with running_mcp(tmp_path) as mock:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = mock.post(json.dumps(body), mock.url.removesuffix("mcp") + way).json()
        assert answer["error"]["code"] == -32602
        found = [(one.tool, one.arguments, one.result, one.is_error) for one in mock.calls()]
        assert found == [(tool, arguments, answer["error"]["message"], True)]
        assert [line["details"]["is_error"] for line in mock.audit()] == [True]


VERSION = "2026-07-28"
META = {
    f"io.modelcontextprotocol/{key}": value
    for key, value in {
        "protocolVersion": VERSION,
        "clientInfo": {"name": "new", "version": "1"},
        "clientCapabilities": {},
    }.items()
}
FINE = {"MCP-Protocol-Version": VERSION, "Mcp-Method": "tools/call", "Mcp-Name": "get_order"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Mcp-Name": "refund"}, -32020),
        ({"Mcp-Method": "tools/list"}, -32020),
        ({"Mcp-Name": ""}, -32020),
        ({"MCP-Protocol-Version": "2031-01-01"}, None),
        ({"Accept": "text/html"}, None),
        ({}, 0),
    ],
)
def test_a_call_that_is_refused_for_its_headers_is_a_call_that_failed(tmp_path, headers, code):
    """Those of the newest protocol say again what is called."""
    body = request_of("tools/call", name="get_order", arguments={"id": 1}, _meta=META)
    with running_mcp(tmp_path) as mock:
        answer = httpx.post(mock.url, content=body, headers={**HEADERS, **FINE, **headers}, timeout=60)
        (call,) = mock.calls()
        audit = [line["details"]["is_error"] for line in mock.audit()]
    if code == 0:
        assert (text_of(answer.json()), call.is_error) == ("order 1 is paid", False)
        return
    assert answer.status_code >= 400
    assert (call.tool, call.arguments, call.is_error, audit) == ("get_order", {"id": 1}, True, [True])
    if code is not None:
        error = answer.json()["error"]
        assert (error["code"], call.result) == (code, error["message"])


def test_what_is_not_a_call_is_not_on_record(tmp_path):
    """A notice is not answered, and other requests are refused for their parameters as well."""
    with running_mcp(tmp_path) as mock:
        mock.post(json.dumps({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": 7}}))
        assert mock.ask("resources/read", uri=7)["error"]
        assert mock.ask("prompts/get", name=7)["error"]
        assert text_of(mock.call("get_order", {"id": 1e300})) == "order 1e+300 is paid"
        assert len(mock.calls()) == 1


HARD: dict[str, tuple[dict[str, Any], Any]] = {
    "a pattern": ({"properties": {"x": {"pattern": "^(a|aa)+$"}}}, {"x": "a" * 5_000 + "b"}),
    "patterns of names": ({"patternProperties": {"^(a|aa)+$": {}}}, {"a" * 5_000 + "b": 1}),
    "no other names": ({"patternProperties": {"^(a|aa)+$": {}}, "additionalProperties": False}, {"a" * 5_000 + "b": 1}),
    "a schema in itself": (
        {
            "$defs": {"t": {"anyOf": [{"items": {"$ref": "#/$defs/t"}, "minItems": 9}] * 8}},
            "additionalProperties": {"$ref": "#/$defs/t"},
        },
        {"x": json.loads("[" * 50 + "]" * 50)},
    ),
    "a large number": ({"properties": {"x": {"multipleOf": 0.1}}}, {"x": 10**400}),
    "a circle": ({"properties": {"x": {"$ref": "#/properties/x"}}}, {"x": 1}),
}


@pytest.mark.parametrize("name", HARD)
def test_arguments_that_take_long_hold_nobody_up(tmp_path, name):
    schema, arguments = HARD[name]
    tools = [{"name": "hard", "input_schema": {"type": "object", **schema}}, {"name": "easy", "result": "done"}]
    with running_mcp(tmp_path, tools=tools) as mock:
        answer = mock.call("hard", arguments)
        assert answer["result"]["isError"], answer
        assert text_of(mock.call("easy", {})) == "done"
        assert [(one.tool, one.is_error) for one in mock.calls()] == [("hard", True), ("easy", False)]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"x": {"pattern": "^a"}}}, {"x": "ab"}, {"x": "b"}),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1, "b": "x"}, {"n_a": "x"}),
        ({"properties": {"x": {}}, "additionalProperties": False}, {"x": 1}, {"y": 1}),
        ({"additionalProperties": {"type": "string"}}, {"x": "a"}, {"x": 1}),
        ({"properties": {"x": {"uniqueItems": True}}}, {"x": [1, True, "1", [1]]}, {"x": [1, {"a": 1}, 1.0]}),
        ({"properties": {"x": {"items": {"enum": ["a"]}}}}, {"x": ["a"]}, {"x": ["a", "b"]}),
    ],
)  # fmt: skip
def test_schemas_mean_what_they_say(tmp_path, schema, good, bad):
    with running_mcp(tmp_path, tools=[{"name": "t", "input_schema": {"type": "object", **schema}}]) as mock:
        assert not mock.call("t", good)["result"].get("isError")
        assert mock.call("t", bad)["result"]["isError"]


def test_a_template_that_fails_is_an_error_that_says_why(tmp_path):
    with running_mcp(tmp_path, tools=[{"name": "t", "template": "{{ arguments.id }}"}]) as mock:
        answer = mock.call("t", {})
        assert answer["result"]["isError"]
        assert "the answer's template failed: 'dict object' has no attribute 'id'" in text_of(answer)
        assert mock.call("t", {"id": "{{ 7 * 7 }}"})["result"]["content"][0]["text"] == "{{ 7 * 7 }}"
    with pytest.raises(UsageError, match="service shop, tool t: the template"):
        McpMock(mcp_model(tools=[{"name": "t", "template": "{{ arguments. }}"}]))


def test_a_record_that_can_not_be_written_is_an_error_and_never_silent(tmp_path):
    with running_mcp(tmp_path) as mock:
        full = os.open("/dev/full", os.O_WRONLY)
        journal = mock.place.cell.journal  # type: ignore[attr-defined]
        try:
            os.dup2(full, journal._file._descriptor)
        finally:
            os.close(full)
        answer = mock.call("get_order", {"id": 1})
        assert answer["result"]["isError"]
        with pytest.raises(OutputError, match="the record of shop is incomplete: a call could not be recorded"):
            mock.calls()


def test_several_calls_at_the_same_time_are_all_on_record(tmp_path):
    async def ask(url: str) -> list[str]:
        async with httpx.AsyncClient(headers={"Accept": "application/json, text/event-stream"}, timeout=60) as client:
            asked = [
                client.post(url, json=json.loads(request_of("tools/call", name="get_order", arguments={"id": number})))
                for number in range(30)
            ]
            return [text_of(answer.json()) for answer in await asyncio.gather(*asked)]

    with running_mcp(tmp_path) as mock:
        assert asyncio.run(ask(mock.url)) == [f"order {number} is paid" for number in range(30)]
        assert sorted(one.arguments["id"] for one in mock.calls()) == list(range(30))


def test_it_is_not_a_database(tmp_path):
    with running_mcp(tmp_path) as mock, pytest.raises(ServiceError, match="service shop is an mcp_mock; sql needs"):
        asyncio.run(mock.place.run_sql(SqlScript("sql", text="SELECT 1")))
