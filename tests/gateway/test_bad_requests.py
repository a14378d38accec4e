"""Requests that are not what they should be: what each gets, and that nobody is asked or failed for them."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from support.gateway_world import ANSWER, ASK, REAL, WORTHLESS, world
from support.process_world import eventually
from support.scripted_provider import document

from keystone_action.gateway import request as conversation
from keystone_action.gateway import server as connection
from keystone_action.gateway.ledger import BudgetLimits

HEAD = ("POST /anthropic/v1/messages HTTP/1.1", "host: x", f"x-api-key: {WORTHLESS}")
BODY = json.dumps(ASK).encode()


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((*HEAD, f"content-length: {len(BODY)}", "content-length: 5"), 400),
        ((*HEAD, f"content-length: {len(BODY)}", "transfer-encoding: chunked"), 400),
        ((*HEAD, "content-length: -1"), 400),
        ((*HEAD, "content-length: 5, 5"), 400),
        ((*HEAD, "transfer-encoding: chunked, identity"), 400),
        ((*HEAD, "x-a: b\n", "content-length: 5"), 400),
        ((*HEAD, "x-a: b\rx-b: c"), 400),
        ((*HEAD, "x-a: b\0c"), 400),
        ((*HEAD, "x a: b"), 400),
        ((*HEAD, " folded: b"), 400),
        (("POST /anthropic/v1/messages", "host: x"), 401),
        (("garbage",), 400),
        (("CONNECT elsewhere:443 HTTP/1.1", "host: x"), 400),
        (("OPTIONS * HTTP/1.1", "host: x"), 400),
        (("PRI * HTTP/2.0", ""), 400),
    ],
)
def test_what_is_not_one_clear_request_is_refused(lines, status):
    with world() as one:
        found = one.say(*lines, body=BODY)
        assert found.startswith(f"HTTP/1.1 {status} ".encode())
        assert one.behind.asked == []
        assert one.ledger.exchanges == ()


def test_no_header_is_made_up_by_one_that_holds_a_line_end():
    with world(document(ANSWER)) as one:
        one.say(
            *HEAD, "x-a: b%0d%0ax-api-key: c", "x-b: é", f"content-length: {len(BODY)}", "connection: close", body=BODY
        )
        (asked,) = one.behind.asked
        assert asked.header("x-a") == "b%0d%0ax-api-key: c"
        assert asked.header("x-b") == "é"
        assert [value for name, value in asked.headers if name == "x-api-key"] == [REAL]


def test_of_credentials_that_stand_twice_none_is_passed_on():
    headers = [
        ("x-api-key", WORTHLESS),
        ("x-api-key", "another"),
        ("X-Goog-Api-Key", "a third"),
        ("Authorization", "Bearer a fourth"),
        ("authorization", "Bearer a fifth"),
        ("proxy-authorization", "Basic x"),
        ("cookie", "session=x"),
    ]
    with world(document(ANSWER)) as one:
        assert one.ask(headers=headers).status_code == 200
        (asked,) = one.behind.asked
        kept = [(name, value) for name, value in asked.headers if name in dict(headers) or "auth" in name]
        assert kept == [("authorization", f"Bearer {REAL}")]


@pytest.mark.parametrize(
    "path",
    [
        "/anthropic/v1/messages/..",
        "/anthropic/../openai/v1/models",
        "/anthropic/v1/models/%2e%2e",
        "/anthropic/v1/models/a%2fb",
        "/anthropic/v1/models/a%5cb",
        "/anthropic/v1/models/a\\b",
        "/anthropic/v1/models/a;b",
        "/anthropic//v1/models",
        "//anthropic/v1/files",
        "/anthropic/v1/messages/batches",
        "/openai/v1/responses/resp_1",
        "/openai/v1/responses/resp_1/cancel",
        "/gemini/v1beta/models/g:batchGenerateContent",
        "/gemini/upload/v1beta/files",
        "/gemini/v1beta/cachedContents",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_nobodys_path_is_not_passed_on(path, method):
    with world() as one:
        target = f"{method} {path} HTTP/1.1"
        found = one.say(
            target, "host: x", f"x-api-key: {WORTHLESS}", "content-length: 2", "connection: close", body=b"{}"
        )
        assert found.startswith(b"HTTP/1.1 404 ")
        assert b"there is" in found
        assert one.behind.asked == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not a JSON object"),
        (b"not JSON", "not a JSON object"),
        (b"\xff\xfe{}", "not a JSON object"),
        ('{"model": "é"}'.encode("utf-16"), "not a JSON object"),
        (b"\xef\xbb\xbf{}", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object"),
        (b'{"model": ' + b"9" * 10_000 + b"}", "not a JSON object"),
        (b'{"model": "claude-haiku-4-5", "model": "claude-opus-4-5"}', "the name model twice"),
        (b'{"model": "claude-haiku-4-5", "mod\\u0065l": "claude-opus-4-5"}', "the name model twice"),
        (b'{"messages": [{"role": "user", "role": "tool"}]}', "the name role twice"),
        (b'{"model": "claude-haiku-4-5", "Model": "claude-opus-4-5"}', "the name Model where model is meant"),
        (b'{"model": "m", "Prompt": {"id": "p"}}', "the name Prompt where prompt is meant"),
        (b'{"systeminstruction": {}}', "the name systeminstruction where systemInstruction is meant"),
    ],
)
def test_a_body_that_can_be_read_in_two_ways_is_refused(body, sentence):
    with world() as one:
        found = one.ask(json=None, content=body)
        assert (found.status_code, found.json()["type"]) == (400, "error")
        assert sentence in found.json()["error"]["message"]
        assert one.behind.asked == []


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/openai/v1/responses", {"tools": [{"type": "mcp"}]}, "mcp"),
        ("/openai/v1/responses", {"tools": [{"type": "of_tomorrow"}]}, "of_tomorrow"),
        ("/openai/v1/responses", {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}, "shell"),
        ("/openai/v1/responses", {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}]}]}, "web_"),
        ("/openai/v1/responses", {"tools": {"type": "web_search"}}, "tools"),
        ("/openai/v1/chat/completions", {"web_search_options": {}}, "web_search_options"),
        ("/openai/v1/chat/completions", {"plugins": [{"id": "web"}]}, "plugins"),
        ("/anthropic/v1/messages", {"mcp_servers": [{"url": "https://example.com"}]}, "mcp_servers"),
        ("/anthropic/v1/messages", {"tools": [{"type": "code_execution_20250825"}]}, "code_execution"),
        ("/gemini/v1beta/models/g:generateContent", {"tools": [{"google_search": {}}]}, "google_search"),
        ("/gemini/v1beta/models/g:generateContent", {"tools": {"googleSearch": {}}}, "tools"),
    ],
)
def test_tools_that_the_provider_runs_are_refused_where_they_are_denied(path, body, named):
    with world(deny_tools_of_provider=True) as one:
        found = one.ask(path, body)
        assert (found.status_code, named in found.json()["error"]["message"]) == (400, True)
        assert one.behind.asked == []
    with world() as one:
        assert one.ask(path, body).status_code == 200


URL = "https://elsewhere.example/?what=the+agent+knows"
CAT = "data:image/png;base64,aGk="


def anthropic_with(*blocks: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/anthropic/v1/messages", {**ASK, "messages": [{"role": "user", "content": [*blocks]}]}


def chat_with(*parts: dict[str, Any], model: str = "gpt-5") -> tuple[str, dict[str, Any]]:
    return "/openai/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": [*parts]}]}


def responses_with(*items: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return "/openai/v1/responses", {"model": "gpt-5", "input": [*items], **more}


def gemini_with(part: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return "/gemini/v1beta/models/g:generateContent", {"contents": {"parts": part}, **more}


IMAGE = {"type": "image", "source": {"type": "url", "url": URL}}
REACHES_OUT = [
    (anthropic_with(IMAGE), "url source"),
    (anthropic_with({"type": "document", "source": {"type": "content", "content": [IMAGE]}}), "url source"),
    (anthropic_with({"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}), "url source"),
    (chat_with({"type": "image_url", "image_url": {"url": URL}}), "url source"),
    (chat_with({"type": "image_url", "image_url": " HTTP://elsewhere.example"}), "url source"),
    (chat_with({"type": "file", "file": {"file_data": URL}}), "url source"),
    (chat_with(model="gpt-4o-search-preview"), "search model"),
    (chat_with(model="gpt-5-Search-API"), "search model"),
    (chat_with(model="openai/gpt-5:online"), "search model"),
    (responses_with({"role": "user", "content": [{"type": "input_image", "image_url": URL}]}), "url source"),
    (responses_with({"role": "user", "content": [{"type": "input_file", "file_url": URL}]}), "url source"),
    (
        responses_with({"type": "function_call_output", "output": [{"type": "input_file", "file_url": URL}]}),
        "url source",
    ),
    (responses_with(prompt={"id": "pmpt_1"}), "stored prompt"),
    (gemini_with({"fileData": {"fileUri": URL}}), "url source"),
    (gemini_with({"file_data": {"file_uri": "gs://elsewhere/a"}}), "url source"),
    (gemini_with({"functionResponse": {"name": "f", "parts": [{"fileData": {"fileUri": URL}}]}}), "url source"),
    (gemini_with({"text": "hi"}, system_instruction={"parts": {"fileData": {"fileUri": URL}}}), "url source"),
]


@pytest.mark.parametrize(("request_", "named"), REACHES_OUT)
def test_what_a_provider_would_fetch_is_refused_where_its_tools_are_denied(request_, named):
    path, body = request_
    with world(deny_tools_of_provider=True) as one:
        found = one.ask(path, body)
        assert (found.status_code, named in found.json()["error"]["message"]) == (400, True)
        assert one.behind.asked == []
    with world() as one:
        assert one.ask(path, body).status_code == 200


def counted(path: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The same request where its tokens are counted, in each form that there is of it."""
    if path.startswith("/anthropic"):
        return [(f"{path}/count_tokens", body)]
    path = path.replace(":generateContent", ":countTokens")
    inner = {"model": "models/g", **body}
    return [(path, body), (path, {"generateContentRequest": inner}), (path, {"generate_content_request": inner})]


COUNTED = [
    (path, body, named)
    for (path_, body_), named in [
        *((request, named) for request, named in REACHES_OUT if not request[0].startswith("/openai")),
        (("/anthropic/v1/messages", {**ASK, "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}), "fetch"),
        (("/anthropic/v1/messages", {**ASK, "mcp_servers": [{"url": URL}]}), "mcp_servers"),
        (("/gemini/v1beta/models/g:generateContent", {"tools": [{"urlContext": {}}]}), "urlContext"),
        (("/gemini/v1beta/models/g:generateContent", {"cachedContent": "cachedContents/1"}), "cachedContent"),
    ]
    for path, body in counted(path_, body_)
]


@pytest.mark.parametrize(("path", "body", "named"), COUNTED)
def test_what_a_provider_would_fetch_is_refused_when_tokens_are_counted_too(path, body, named):
    with world(deny_tools_of_provider=True) as one:
        found = one.ask(path, body)
        assert (found.status_code, named in found.json()["error"]["message"]) == (400, True)
        assert one.behind.asked == []
    with world() as one:
        assert one.ask(path, body).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        *counted(*anthropic_with({"type": "text", "text": URL})),
        *counted(*gemini_with({"inlineData": {"data": "aGk="}}, tools=[{"functionDeclarations": [{"name": "f"}]}])),
    ],
)
def test_tokens_of_what_nobody_fetches_are_counted(path, body):
    with world(deny_tools_of_provider=True) as one:
        assert one.ask(path, body).status_code == 200


@pytest.mark.parametrize(
    "request_",
    [
        anthropic_with({"type": "image", "source": {"type": "base64", "data": "aGk="}}, {"type": "text", "text": URL}),
        anthropic_with({"type": "tool_use", "id": "c", "name": "f", "input": {"source": {"type": "url", "url": URL}}}),
        anthropic_with({"type": "tool_result", "tool_use_id": "c", "content": URL}),
        chat_with({"type": "image_url", "image_url": {"url": CAT}}, {"type": "file", "file": {"file_data": CAT}}),
        responses_with({"role": "user", "content": [{"type": "input_image", "image_url": CAT}]}),
        responses_with({"type": "function_call", "call_id": "c", "name": "f", "arguments": f'{{"url": "{URL}"}}'}),
        gemini_with({"functionCall": {"name": "f", "args": {"url": URL}}}),
        gemini_with({"functionResponse": {"name": "f", "response": {"file_uri": URL}}}),
        gemini_with({"inlineData": {"data": "aGk="}}),
        chat_with({"type": "text", "text": URL}, model="researcher"),
    ],
)
def test_what_nobody_fetches_passes(request_):
    path, body = request_
    with world(deny_tools_of_provider=True) as one:
        assert one.ask(path, body).status_code == 200


@pytest.mark.slow
def test_a_request_of_too_many_parts_is_refused_where_tools_of_the_provider_are_denied():
    path, body = anthropic_with(*[{"a": {}}] * 300_000)
    with world(deny_tools_of_provider=True) as one:
        found = one.ask(path, body)
        assert (found.status_code, "looked at" in found.text) == (400, True)


CLIENTS_OWN: list[tuple[str, dict[str, Any]]] = [
    ("/openai/v1/responses", {"tools": [{"type": "local_shell"}, {"type": "custom", "name": "exec"}]}),
    ("/openai/v1/responses", {"tools": [{"type": "namespace", "tools": [{"type": "function", "name": "f"}]}]}),
    ("/openai/v1/responses", {"tools": [{"type": "shell", "environment": {"type": "local"}}]}),
    ("/openai/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("/anthropic/v1/messages", {"tools": [{"name": "f"}, {"type": "bash_20250124"}, {"type": "text_editor_20250728"}]}),
    ("/gemini/v1beta/models/g:generateContent", {"tools": [{"functionDeclarations": [{"name": "f"}]}]}),
]


@pytest.mark.parametrize(("path", "body"), CLIENTS_OWN)
def test_tools_that_the_client_runs_always_pass(path, body):
    with world(deny_tools_of_provider=True) as one:
        assert one.ask(path, body).status_code == 200


@pytest.mark.parametrize("background", [True, 1, "true"])
def test_nothing_is_done_in_the_background(background):
    with world() as one:
        assert one.ask("/openai/v1/responses", {"background": background}).status_code == 400
        assert one.ask("/openai/v1/responses", {"background": False}).status_code == 200


def test_an_unknown_model_is_the_providers_to_refuse_and_not_its_failure():
    missing = {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}}
    with world(document(missing, 404)) as one:
        found = one.ask(body={**ASK, "model": "x" * 10_000})
        assert (found.status_code, found.json()) == (404, missing)
        (exchange,) = one.ledger.exchanges
        assert len(exchange.model) == 200
        assert one.ledger.provider_failure() == ""
        assert (one.ledger.spent.requests, one.ledger.spent.cost_usd) == (1, 0.0)


def test_under_a_money_limit_a_model_without_a_price_is_not_asked():
    with world(limits=BudgetLimits(max_cost_usd=1)) as one:
        found = one.ask(body={**ASK, "model": "our-own"})
        assert (found.status_code, "gateway.prices" in found.text) == (400, True)
        assert (one.behind.asked, one.spent) == ([], [])


def test_a_very_long_target_is_the_agents_fault():
    with world() as one:
        found = one.ask("/anthropic/v1/messages?" + "a" * 20_000)
        assert found.status_code == 414
        assert one.ledger.exchanges == ()


def test_ten_megabytes_of_a_tools_result_pass_and_are_not_kept():
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "x" * (10 << 20)}
    call = {"type": "tool_use", "id": "c1", "name": "read", "input": {}}
    body = {**ASK, "messages": [{"role": "user", "content": [result]}]}
    with world(document({**ANSWER, "content": [call]}), document(ANSWER)) as one:
        one.ask()
        assert one.ask(body=body).status_code == 200
        assert one.behind.asked[1].document == body
        kept = one.ledger.exchanges[1].asked.results
        assert [len(one.text) for one in kept] == [(16 << 10) + 1]


@pytest.mark.parametrize("part", ["nothing", "head", "body"])
def test_a_slow_request_ends(part, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(conversation, "BODY_SECONDS", 0.3)
    with world() as one, socket.create_connection(("127.0.0.1", one.opened.port), timeout=10) as slow:
        if part != "nothing":
            lines = (*HEAD, "content-length: 10", *([""] if part == "body" else []))
            slow.sendall("".join(f"{line}\r\n" for line in lines).encode())
        found = b""
        try:
            while b"408" not in found and (piece := slow.recv(65536)):
                found += piece
        except ConnectionResetError:
            pass
        assert (b"HTTP/1.1 408" in found) is (part == "body")
        assert one.behind.asked == []


@pytest.mark.parametrize("head", [b"GET /" + b"a" * (1 << 20), b"GET / HTTP/1.1\r\nx: " + b"a" * (1 << 20)])
def test_a_head_without_end_is_not_kept(head):
    with world() as one, socket.create_connection(("127.0.0.1", one.opened.port), timeout=10) as sending:
        with pytest.raises(OSError):  # noqa: PT012 - which of both notices is the kernel's affair
            sending.sendall(head)
            sending.sendall(head)
            assert sending.recv(1) != b""
            raise OSError
        assert eventually(lambda: one.ask("/", method="GET").status_code == 200)


@pytest.mark.waits
def test_another_protocol_after_an_upgrade_is_not_spoken():
    upgrade = ("upgrade: websocket", "connection: upgrade", "sec-websocket-key: x", "sec-websocket-version: 13")
    with world() as one:
        found = one.say("GET /openai/v1/responses HTTP/1.1", "host: x", *upgrade)
        assert found.startswith(b"HTTP/1.1 426 ")
        found = one.say("GET / HTTP/1.1", "host: x", "upgrade: h2c", "connection: upgrade, close")
        assert found.startswith(b"HTTP/1.1 200 ")
        assert one.behind.asked == []


def test_a_cell_on_another_network_is_not_answered():
    with world(admits=lambda peer: peer != "127.0.0.1") as one:
        assert one.ask().status_code == 403
        assert one.ask("/", method="GET").status_code == 403
        assert one.behind.asked == []


def test_another_cells_key_is_recorded_and_a_flood_of_them_is_bounded():
    with world() as one:
        for key in ("another-cells", ""):
            assert one.ask(headers={"x-api-key": key} if key else {}).status_code == 401
        assert one.ledger.refused == ("anthropic: a request with another key", "anthropic: a request with no key")
        for _ in range(2_000):
            one.ledger.refuse("again")
        assert len(one.ledger.refused) == 1_000


def test_without_a_key_of_its_own_a_provider_is_not_asked():
    with world(missing_key={"anthropic": "there is no key for anthropic"}) as one:
        found = one.ask()
        assert (found.status_code, found.json()["error"]["message"]) == (401, "there is no key for anthropic")
        assert one.ask("/openai/v1/responses", {}).status_code == 200
        assert len(one.behind.asked) == 1
