"""The tools of the shop: a small client of the Model Context Protocol, over a program that it starts."""

import itertools
import json
import subprocess


class Shop:
    def __init__(self, program):
        self._numbers = itertools.count(1)
        self._server = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        client = {"name": "example", "version": "1"}
        self._ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client)
        self._send(method="notifications/initialized")

    def _send(self, **message):
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._server.stdin.flush()

    def _ask(self, method, **params):
        self._send(id=next(self._numbers), method=method, params=params)
        answer = json.loads(self._server.stdout.readline())
        if "error" in answer:
            raise LookupError(answer["error"]["message"])
        return answer["result"]

    def call(self, tool, **arguments):
        """(the text of the answer, whether the tool failed)"""
        result = self._ask("tools/call", name=tool, arguments=arguments)
        return result["content"][0]["text"], result.get("isError", False)

    def read(self, uri):
        return self._ask("resources/read", uri=uri)["contents"][0]["text"]
