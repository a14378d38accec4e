"""A body is the same however it was cut: in chunks by its sender, in pieces on its way."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mocks import running_mock


@pytest.fixture
def mock(tmp_path):
    with running_mock(tmp_path, routes=[{"path": "/**", "json": {"ok": True}}]) as running:
        yield running


BODIES = st.binary(max_size=400)


@st.composite
def split(draw, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@st.composite
def conversations(draw) -> tuple[bytes, list[bytes]]:
    """A body, and a request that carries it in arbitrary chunks, cut into arbitrary pieces of TCP."""
    body = draw(BODIES)
    chunks = [chunk for chunk in draw(split(body)) if chunk]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    request = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + coded
    return body, draw(split(request))


@settings(
    deadline=None,
    max_examples=3 * settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(conversations())
def test_the_same_body_in_any_chunks_and_pieces_gives_the_same_record(mock, conversation):
    body, pieces = conversation
    before = len(mock.requests())
    assert mock.exchange(*pieces).startswith(b"HTTP/1.1 200 OK")
    assert len(mock.requests()) == before + 1
    one = mock.requests()[-1]
    assert (one.method, one.path, one.query) == ("POST", "/a", {"b": "c"})
    assert (one.body, one.body_bytes, one.cut) == (body.decode("utf-8", "replace"), len(body), 0)
