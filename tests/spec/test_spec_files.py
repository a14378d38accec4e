"""Reading files: encodings, sizes, and things that are not files."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from keystone_action.spec.loading.author_files import MAX_BYTES, decode_file, read_author_text
from keystone_action.spec.loading.diagnostics import SpecError


def error_of(content: bytes) -> str:
    with pytest.raises(SpecError) as caught:
        decode_file(content, "f.yaml")
    return caught.value.message


def test_utf8_with_and_without_a_byte_order_mark() -> None:
    assert decode_file("é: 1".encode(), "f.yaml") == "é: 1"
    assert decode_file("é: 1".encode("utf-8-sig"), "f.yaml") == "é: 1"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-le"])
def test_other_encodings_are_named(encoding: str) -> None:
    message = error_of("version: 1".encode(encoding))
    assert "UTF-" in message
    assert "save it as UTF-8" in message


def test_a_byte_that_is_not_utf8_has_a_place() -> None:
    message = error_of(b"a: 1\nb: caf\xe9\n")
    assert message.startswith("f.yaml:2:7: the byte 0xe9 is not UTF-8")


@pytest.mark.parametrize("character", ["\0", "\x1b", "\x07", "\x9b", "\x7f"])
def test_control_characters_are_refused_and_made_visible(character: str) -> None:
    message = error_of(f"a: 1\nb: x{character}y\n".encode())
    assert message.startswith(f"f.yaml:2:5: the control character U+{ord(character):04X}")
    assert character not in message


def test_a_file_of_100_megabytes_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(SpecError) as caught:
            read_author_text(path, "big.yaml")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert caught.value.message == "big.yaml:1:1: is too large: 100.0 MiB; at most 10 MiB are read"


def test_the_limit_itself_is_read(tmp_path: Path) -> None:
    path = tmp_path / "full.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_author_text(path, "full.yaml")) == MAX_BYTES


def test_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "loop").symlink_to("loop")
    for path, expected in (
        (tmp_path, "is a directory; name a file in it"),
        (fifo, "is not a regular file; name a file"),
        (tmp_path / "gone", "there is no such file; check the path"),
        (tmp_path / "loop", "can't be read"),
    ):
        with pytest.raises(SpecError) as caught:
            read_author_text(path, "x.yaml")
        assert expected in caught.value.message


def test_a_file_without_permission() -> None:
    # Not below tmp_path: nobody else may pass through the directories above it.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "closed.yaml"
        path.write_text("version: 1")
        path.parent.chmod(0o755)
        path.chmod(0)
        if os.geteuid() != 0:
            with pytest.raises(SpecError, match="Permission denied"):
                read_author_text(path, "closed.yaml")
            return
        assert _as_nobody(lambda: read_author_text(path, "closed.yaml")) == "Permission denied"
        path.chmod(0o644)
        assert _as_nobody(lambda: read_author_text(path, "closed.yaml")) == "read"


def _as_nobody(action: Callable[[], object]) -> str:
    """What becomes of an action in a child that has given up root, which reads everything."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = "broke"
        try:
            os.setuid(65534)
            action()
            outcome = "read"
        except SpecError as error:
            outcome = "Permission denied" if "Permission denied" in error.message else error.message
        finally:
            os.write(writing, outcome.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        outcome = stream.read().decode()
    os.waitpid(child, 0)
    return outcome
