"""Judges whose server can't be spoken to: what is the same in every try is named, and not tried again."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from support.certificates import make_certificate

from keystone_action.judge.clients import CallFailed, OpenAIClient, Question, connection_failure


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """A server with a certificate that nobody knows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_certificate(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_an_untrusted_certificate_is_named(untrusted: str) -> None:
    async def ask() -> None:
        client = OpenAIClient(key="sk-1", base_url=untrusted)
        try:
            await client.ask(Question(model="m", system="s", turns=(("user", "hi"),), temperature=None))
        finally:
            await client.close()

    with pytest.raises(CallFailed, match=r"the certificate of 127\.0\.0\.1 is not trusted: .*SSL_CERT_FILE") as failed:
        asyncio.run(ask())
    assert not failed.value.transient


@pytest.mark.parametrize(
    ("error", "said", "transient"),
    [
        (httpx.ProxyError("407 Proxy Authentication Required"), "refused: 407 Proxy", False),
        (httpx.ConnectError("refused"), "can't be reached (ConnectError)", True),
        (httpx.ReadError("x"), "can't be reached (ReadError)", True),
    ],
)
def test_what_may_pass_is_tried_again(error: Exception, said: str, transient: bool) -> None:
    failed = connection_failure("api.example", error)
    assert said in str(failed)
    assert failed.transient is transient
