"""The protocol of an mcp_mock: requests of HTTP, as they come from a guarded connection, through the official `mcp`
package and back.

The package takes a second to be imported, and so does this file. It serves requests without sessions, each for itself.
What a hostile client can send is bounded before it: the bytes of a body, its depth, how many values it has, and how
many requests are answered at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared import inbound
from mcp.shared.exceptions import MCPError

from keystone_action import __version__
from keystone_action.services.http_mock.request import RawRequest
from keystone_action.services.http_mock.responses import MockReply, ReplyFailed, compile_text, json_reply, refusal
from keystone_action.services.mcp_mock.tools import ToolAnswer

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from keystone_action.spec.models.mcp import McpPrompt
    from keystone_action.spec.models.services import McpMockService

BODY_LIMIT = 4 << 20
"""Bytes of a request; the package's own limit, too."""
DEPTH_LIMIT = 64
"""Lists and objects in one another."""
VALUES_LIMIT = 50_000
"""Values in a request."""
_AT_A_TIME = 8
"""Requests of a cell that are answered at the same time; further ones wait."""
_PARSE_ERROR = -32700
_EXCHANGE = "keystone"

CallTool = Callable[[str, Any], Awaitable[ToolAnswer]]
RefuseCall = Callable[[str, Any, str], object]


class McpProtocol:
    """Answers the requests of one cell. It is in use between `start` and `stop`, in the mock server's loop."""

    def __init__(self, definition: McpMockService, call: CallTool, refuse: RefuseCall) -> None:
        """call: answers a call of a tool, with the record of it written; raises LookupError where there is no such
        tool, once that is on record. refuse: records a call that the package refuses by itself, for its parameters
        or its headers, and what that said."""
        self._refuse = refuse
        self._server = _Catalogue(definition, call).server()
        self._stop = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._manager: Any = None
        self._slots = asyncio.Semaphore(_AT_A_TIME)

    async def start(self) -> None:
        """Returns when requests can be answered."""
        ready = asyncio.Event()
        self._serving = asyncio.get_running_loop().create_task(self._serve(ready))
        await ready.wait()

    async def _serve(self, ready: asyncio.Event) -> None:
        self._manager = StreamableHTTPSessionManager(
            self._server, stateless=True, json_response=True, max_request_body_size=BODY_LIMIT
        )
        async with self._manager.run():
            ready.set()
            await self._stop.wait()

    async def stop(self) -> None:
        """Ends what is under way."""
        self._stop.set()
        if self._serving is not None:
            await asyncio.wait([self._serving])

    async def reply(self, request: RawRequest, *, is_relayed: bool) -> MockReply:
        """Never fails. is_relayed: by our own program, which does not know the headers of newer protocols."""
        if request.method != "POST":
            return refusal(405, "only POST is answered: there are neither sessions nor streams")
        if request.cut or len(request.body) > BODY_LIMIT:
            return refusal(413, f"the request is larger than {BODY_LIMIT >> 20} MiB")
        async with self._slots:
            document, problem = await anyio.to_thread.run_sync(_read, bytes(request.body))
            if problem:
                error = {"code": _PARSE_ERROR, "message": problem}
                return json_reply(400, {"jsonrpc": "2.0", "id": None, "error": error})
            headers = [(name.lower(), value) for name, value in request.headers]
            if is_relayed:
                headers += _headers_of(document)
            return await self._exchange(bytes(request.body), document, headers)

    async def _exchange(self, body: bytes, document: Any, headers: list[tuple[str, str]]) -> MockReply:
        exchange = _Exchange(body)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
            _EXCHANGE: exchange,
        }
        await self._manager.handle_request(scope, exchange.receive, exchange.send)
        reply = exchange.reply()
        is_call = isinstance(document, dict) and document.get("method") == "tools/call" and "id" in document
        if is_call and not exchange.is_call:
            params = document.get("params")
            given = params if isinstance(params, dict) else {}
            name, arguments = given.get("name", ""), given.get("arguments")
            shown = name if isinstance(name, str) else json.dumps(name)
            why = _error_in(reply.body) or f"the request was refused ({reply.status})"
            self._refuse(shown, arguments if isinstance(arguments, dict) else {}, why)
        return reply


class _Exchange:
    """One request for the package, and what comes back. is_call: a call that we were asked to answer. answer: to it."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 500
        self._headers: tuple[tuple[str, str], ...] = ()
        self._content = bytearray()
        self.is_call = False
        self.answer: ToolAnswer | None = None

    async def receive(self) -> dict[str, Any]:
        if self._body is None:
            await asyncio.Event().wait()  # a client that stays
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message.get("headers", ())
                if name.lower() not in (b"content-length", b"date", b"connection")
            )
        else:
            self._content += message.get("body", b"")

    def reply(self) -> MockReply:
        body, answer = bytes(self._content), self.answer
        if answer is not None and answer.fault is not None:
            return MockReply(0, (), b"", "", answer.delay, answer.fault)
        return MockReply(self._status, self._headers, body, "", answer.delay if answer is not None else 0.0)


def _read(body: bytes) -> tuple[Any, str]:
    """A document, and why nobody should read it; empty where all is well. Blocks."""
    too_deep = f"the request is nested deeper than {DEPTH_LIMIT} levels"
    try:
        document = json.loads(body, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        return None, too_deep
    except OverflowError as problem:
        return None, str(problem)
    except ValueError:
        return None, "Parse error"
    level, values = [document], 0
    for _ in range(DEPTH_LIMIT):
        values += len(level)
        if values > VALUES_LIMIT:
            return None, f"the request has more than {VALUES_LIMIT:,} values"
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        if not below:
            return document, ""
        level = below
    return None, too_deep


def _finite(text: str) -> float:
    """A number of JSON. Raises OverflowError for what is none: NaN, Infinity, 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise OverflowError(f"Parse error: {text[:40]} is not a finite number")
    return number


def _error_in(body: bytes) -> str:
    """What an answer of the package says of its error; empty where it says nothing."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return ""


def _headers_of(document: Any) -> list[tuple[str, str]]:
    """What a client of newer protocols says of its request in headers, read from the request itself."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        params, method = document["params"], document["method"]
        version = params["_meta"]["io.modelcontextprotocol/protocolVersion"]
        headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: str(version), inbound.MCP_METHOD_HEADER: str(method)}
        name = params.get(inbound.NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[inbound.MCP_NAME_HEADER] = inbound.encode_header_value(name)
        return [(key, value) for key, value in headers.items() if value.isascii() and value.isprintable()]
    return []


class _Catalogue:
    """What a spec says that there is: its tools, resources and prompts, as the package asks for them."""

    def __init__(self, definition: McpMockService, call: CallTool) -> None:
        """Raises UsageError for a prompt that can't be read."""
        self._definition, self._call = definition, call
        self._texts = {one.uri: one for one in definition.resources}
        self._prompts = {one.name: _PromptPlan(one, definition.name) for one in definition.prompts}

    def server(self) -> Server[Any]:
        """Of the package. What there is none of, it has not."""
        return Server(
            self._definition.name,
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources if self._texts else None,
            on_read_resource=self._read_resource if self._texts else None,
            on_list_prompts=self._list_prompts if self._prompts else None,
            on_get_prompt=self._get_prompt if self._prompts else None,
        )

    async def _list_tools(self, _context: Any, _params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(name=one.name, description=one.description or None, input_schema=one.input_schema)
            for one in self._definition.tools
        ]
        return types.ListToolsResult(tools=tools)

    async def _call_tool(
        self, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request: Any = context.request
        exchange: _Exchange = request.scope[_EXCHANGE]
        exchange.is_call = True
        try:
            answer = exchange.answer = await self._call(params.name, params.arguments or {})
        except LookupError as problem:
            raise MCPError(types.INVALID_PARAMS, str(problem)) from None
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)], is_error=answer.is_error
        )

    async def _list_resources(self, _context: Any, _params: Any) -> types.ListResourcesResult:
        resources = [
            types.Resource(uri=one.uri, name=one.name, description=one.description or None, mime_type=one.mime_type)
            for one in self._texts.values()
        ]
        return types.ListResourcesResult(resources=resources)

    async def _read_resource(self, _context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        one = self._texts.get(str(params.uri))
        if one is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown resource: {params.uri}")
        content = types.TextResourceContents(uri=one.uri, mime_type=one.mime_type, text=one.text)
        return types.ReadResourceResult(contents=[content])

    async def _list_prompts(self, _context: Any, _params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[one.listed() for one in self._prompts.values()])

    async def _get_prompt(self, _context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        one = self._prompts.get(params.name)
        if one is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        try:
            text = await anyio.to_thread.run_sync(one.text, params.arguments or {})
        except ReplyFailed as problem:
            raise MCPError(types.INVALID_PARAMS, str(problem)) from None
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(description=one.prompt.description or None, messages=[message])


class _PromptPlan:
    """One prompt of a spec."""

    def __init__(self, prompt: McpPrompt, service: str) -> None:
        """Raises UsageError."""
        self.prompt = prompt
        self._render = compile_text(prompt.text, f"service {service}, prompt {prompt.name}")

    def text(self, arguments: Mapping[str, Any]) -> str:
        """What it says. Raises ReplyFailed."""
        for one in self.prompt.arguments:
            if one.required and one.name not in arguments:
                raise ReplyFailed(f"the argument {one.name} is missing")
        return str(self._render({"arguments": arguments}))

    def listed(self) -> types.Prompt:
        """As clients see it."""
        arguments = [
            types.PromptArgument(name=one.name, description=one.description or None, required=one.required)
            for one in self.prompt.arguments
        ]
        return types.Prompt(name=self.prompt.name, description=self.prompt.description or None, arguments=arguments)
