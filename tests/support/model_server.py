"""A scripted model server: real HTTP on a random port, answering by a list of replies.

    with ModelServer([answer(0.8, "fine")]) as server:
        judge = ModelJudge(server.environ())

It speaks the Anthropic Messages API and OpenAI chat completions, by the path that is asked for; the same script serves
both. Each request takes the next reply; the last one is repeated for ever. `requests` has what came in.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-0123456789abcdef"


@dataclass(frozen=True)
class Reply:
    """One scripted answer. text: what the model says (None: `body` is sent as it is). stop: Anthropic's stop reason,
    turned into OpenAI's where that is asked for. fault: `reset` breaks the connection, `hang` never answers."""

    text: str | None = None
    status: int = 200
    stop: str = "end_turn"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    content_type: str = "application/json"
    fault: str = ""
    thinking: str = ""
    usage: tuple[int, int] = (100, 20)
    cache: tuple[int, int] = (0, 0)
    """Tokens read from a cache and written to one: of Anthropic's besides `usage`, of OpenAI's the first are in it."""


@dataclass(frozen=True)
class Received:
    """One request as it came in; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def prompt(self) -> str:
        """The text of the first user turn."""
        return str(next(turn["content"] for turn in self.body["messages"] if turn["role"] == "user"))

    @property
    def system(self) -> str:
        """The system prompt, wherever this API has it."""
        if "system" in self.body:
            return str(self.body["system"])
        return str(next(turn["content"] for turn in self.body["messages"] if turn["role"] == "system"))


def answer(score: Any, reason: str = "because", **more: Any) -> Reply:
    """A well-formed grade."""
    return Reply(json.dumps({"reason": reason, "score": score, "passed": True, **more}))


def says(text: str, **more: Any) -> Reply:
    """Whatever text, as the model's answer."""
    return Reply(text, **more)


def error(status: int, message: str = "scripted", *, kind: str = "api_error", **headers: str) -> Reply:
    """An error document as both APIs have it; `retry_after="1"` becomes the header `retry-after`."""
    document = {"type": "error", "error": {"type": kind, "message": message}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status=status, body=json.dumps(document), headers=named)


Script = Sequence[Reply] | Callable[[Received], Reply]


class ModelServer:
    """Serves a script, or a function from the request to its reply. Use as a context manager. host: the address that it
    listens on; containers reach this machine by the address of their bridge, not by loopback."""

    def __init__(self, script: Script, host: str = "127.0.0.1") -> None:
        self._host = host
        self._script = script
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.requests: list[Received] = []
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def environ(self, **more: str) -> dict[str, str]:
        """An environment in which both providers are this server."""
        return {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self.url,
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": f"{self.url}/v1",
            **more,
        }

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}"

    def __enter__(self) -> ModelServer:
        owner = self

        class Handler(_Handler):
            model_server = owner

        self._server = ThreadingHTTPServer((self._host, 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def next_reply(self, received: Received) -> Reply:
        """Records the request and takes its reply."""
        with self._lock:
            place = len(self.requests)
            self.requests.append(received)
        if callable(self._script):
            return self._script(received)
        return self._script[min(place, len(self._script) - 1)]

    def hold(self) -> None:
        """Blocks until the server is closed: a client that never gets its answer."""
        self._released.wait(60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model_server: ModelServer

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = Received(self.path, headers, json.loads(self.rfile.read(length) or b"null"))
        reply = self.model_server.next_reply(received)
        if reply.fault == "hang":
            self.model_server.hold()
            self.close_connection = True
        elif reply.fault == "reset":
            # Linger of zero: the client sees a reset, not an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        else:
            self._send(reply, received)

    def _send(self, reply: Reply, received: Received) -> None:
        body = reply.body if reply.body is not None else json.dumps(_document(reply, received))
        data = body.encode()
        self.send_response(reply.status)
        self.send_header("content-type", reply.content_type)
        self.send_header("content-length", str(len(data)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing is printed."""


def _document(reply: Reply, received: Received) -> dict[str, Any]:
    if received.path.endswith("/chat/completions"):
        return _chat_completion(reply, received)
    content: list[dict[str, Any]] = []
    if reply.thinking:
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": "scripted"})
    if reply.text is not None:
        content.append({"type": "text", "text": reply.text})
    return {
        "id": "msg_scripted",
        "type": "message",
        "role": "assistant",
        "model": received.body.get("model", ""),
        "content": content,
        "stop_reason": reply.stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.usage[0],
            "output_tokens": reply.usage[1],
            "cache_read_input_tokens": reply.cache[0],
            "cache_creation_input_tokens": reply.cache[1],
        },
    }


def _chat_completion(reply: Reply, received: Received) -> dict[str, Any]:
    finish = {"max_tokens": "length", "refusal": "stop"}.get(reply.stop, "stop")
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.stop == "refusal":
        message = {"role": "assistant", "content": None, "refusal": "I can't help with that."}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": received.body.get("model", ""),
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": reply.usage[0],
            "prompt_tokens_details": {"cached_tokens": reply.cache[0]},
            "completion_tokens": reply.usage[1],
            "total_tokens": sum(reply.usage),
        },
    }
