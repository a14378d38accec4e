"""Answers a question about an order: asks the shop, and writes into the database what it heard."""

import json
import os
import urllib.error
import urllib.request

from postgres import connect


class Agent:
    def run(self, input, context):  # noqa: A002 - the contract's name
        assert input.startswith("Where is order 12? Be ")
        shop = context["services"]["shop"]["url"]
        order = ask(f"{shop}/orders/12?fast=1", {"order": 12}, **{"X-Kind": "status"})
        assert order == (201, '{"id": "12", "state": "sent"}', "12"), order
        assert ask(f"{shop}/orders/12?fast=1", {"order": 12}, **{"X-Kind": "status"})[0] == 410  # it answers once
        assert ask(f"{shop}/greeting")[1] == "Hello"
        assert ask(f"{shop}/terms")[1] == "Short sentences.\n"
        assert [ask(f"{shop}/slowly")[:2] for _ in range(3)] == [
            (503, "not yet"),
            (200, '{"ready": true}'),
            (200, "Short sentences.\n"),
        ]
        for path in ("broken", "slowly"):
            try:
                ask(f"{shop}/{path}")
            except OSError:
                continue
            raise AssertionError(f"{path} answered")
        visit(context["services"]["desk"]["url"])
        database = connect(os.environ["KEYSTONE_SERVICE_ORDERS_URL"])
        database.query("UPDATE orders SET state = 'delivered' WHERE id = 12")
        database.close()
        calls = [{"name": "look_up", "arguments": {"order": 12}}, {"name": "write_down", "arguments": {}}]
        print("order 12 was delivered")
        return {"output": "Order 12 was delivered", "tool_calls": calls, "token_usage": {"input_tokens": 5}}


def visit(desk):
    """All that the MCP server has, by its protocol."""
    text = {"type": "text"}
    assert rpc(desk, "tools/list")["tools"][0]["description"] == "Finds an order."
    for name, arguments, said, failed in (
        ("find", {"order": 12}, "order 12 is here", False),
        ("stock", {}, '{"bread": 3}', False),
        ("closed", {}, "not on Sundays", True),
        ("later", {}, "not yet", True),
        ("later", {"word": "soon"}, "soon", False),
        ("later", {}, '["done"]', False),
    ):
        answer = rpc(desk, "tools/call", name=name, arguments=arguments)
        assert answer == {"content": [{**text, "text": said}], "isError": failed}, answer
    for name in ("broken", "later"):
        try:
            rpc(desk, "tools/call", name=name, arguments={})
        except OSError:
            continue
        raise AssertionError(f"{name} answered")
    (resource,) = rpc(desk, "resources/list")["resources"]
    (read,) = rpc(desk, "resources/read", uri=resource["uri"])["contents"]
    assert (resource["name"], read["mimeType"], read["text"]) == ("policy", "text/markdown", "Within 30 days.")
    (prompt,) = rpc(desk, "prompts/list")["prompts"]
    assert prompt["arguments"] == [{"name": "order", "description": "Its number", "required": True}]
    (message,) = rpc(desk, "prompts/get", name="refund", arguments={"order": "12"})["messages"]
    assert message["content"]["text"] == "Refund the order 12."


def rpc(url, method, **params):
    accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    status, text, _ = ask(url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **accepted)
    assert status == 200, text
    return json.loads(text)["result"]


def ask(url, body=None, **headers):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), answer.headers.get("X-Seen")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), None
