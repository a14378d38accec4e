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
        database = connect(os.environ["KEYSTONE_SERVICE_ORDERS_URL"])
        database.query("UPDATE orders SET state = 'delivered' WHERE id = 12")
        database.close()
        calls = [{"name": "look_up", "arguments": {"order": 12}}, {"name": "write_down", "arguments": {}}]
        print("order 12 was delivered")
        return {"output": "Order 12 was delivered", "tool_calls": calls, "token_usage": {"input_tokens": 5}}


def ask(url, body=None, **headers):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode(), answer.headers.get("X-Seen")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), None
