"""The engine's framing of output, taken apart whatever way it arrives."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.engine.streams import Demultiplexer, KeptStream
from keystone_action.errors import SandboxError
from keystone_action.system.command import KeptWhole

FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


def framed(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxL", kind, len(data)) + data for kind, data in frames)


@given(FRAMES, st.integers(1, 30))
def test_frames_come_apart_wherever_they_are_cut(frames: list[tuple[int, bytes]], step: int) -> None:
    data = framed(frames)
    demultiplexer = Demultiplexer(KeptStream(), KeptStream())
    for start in range(0, len(data), step):
        demultiplexer.feed(data[start : start + step])
    for kind, stream in ((1, demultiplexer.stdout), (2, demultiplexer.stderr)):
        expected = b"".join(part for number, part in frames if number == kind)
        capture = stream.capture()
        assert capture.head + capture.tail == expected
        assert capture.total == len(expected)


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(0, 20), st.integers(0, 20))
def test_the_first_and_the_last_bytes_are_kept(parts: list[bytes], head: int, tail: int) -> None:
    kept = KeptStream(head, tail)
    for part in parts:
        kept.add(part)
    whole = b"".join(parts)
    capture = kept.capture()
    assert capture.head == whole[:head]
    rest = whole[head:]
    assert capture.tail == (rest[-tail:] if tail else b"")
    assert capture.total == len(whole)
    assert capture.cut == len(whole) - len(capture.head) - len(capture.tail)


def test_what_is_no_output_is_refused() -> None:
    with pytest.raises(SandboxError, match="not the output of a container"):
        Demultiplexer(KeptStream(), KeptStream()).feed(b"HTTP/1.1 500 Internal Server Error")


def test_a_file_for_stdout_that_can_not_be_written_is_named_and_not_taken_for_an_engine_that_is_gone() -> None:
    demultiplexer = Demultiplexer(KeptStream(whole=KeptWhole(Path("/dev/full"), above=4)), KeptStream())
    with contextlib.closing(demultiplexer):
        demultiplexer.feed(framed([(1, b"fine")]))
        with pytest.raises(SandboxError, match=r"^/dev/full can't be written: No space left"):
            demultiplexer.feed(framed([(2, b"fine"), (1, b"lost")]))


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(0, 20), st.integers(0, 20), st.integers(0, 300))
def test_a_file_gets_all_of_a_stream_up_to_its_limit(parts: list[bytes], head: int, tail: int, limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stdout"
        kept = KeptStream(head, tail, whole=KeptWhole(file, above=head + tail, limit=limit))
        for part in parts:
            kept.add(part)
        kept.close()
        whole = b"".join(parts)
        assert (file.read_bytes() if file.exists() else b"") == (whole[:limit] if kept.capture().cut else b"")
