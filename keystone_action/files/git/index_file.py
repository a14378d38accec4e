"""What an index of git (`.git/index`) says: all of it but the times, inodes and sizes of files, which `git status`
writes anew in a copied workspace."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

_EXTENDED = 0x4000
_FREE = {b"UNTR", b"FSMN"}
"""Extensions with names and times of files. `git status` writes them where the repository has asked for them, so only
whether they are there counts."""


class _NoIndex(Exception):  # noqa: N818 - an outcome
    pass


def meaning_of_index(data: bytes) -> str:
    """A digest that stays as it is when nothing but stamps of files changes. Empty for what is no index of git."""
    for name in ("sha1", "sha256"):
        size = hashlib.new(name, usedforsecurity=False).digest_size
        body, checksum = data[:-size], data[-size:]
        if checksum in (bytes(size), hashlib.new(name, body, usedforsecurity=False).digest()):  # none by index.skipHash
            meaning = hashlib.sha256()
            try:
                for part in _parts(body, size):
                    meaning.update(struct.pack(">Q", len(part)) + part)
            except (_NoIndex, struct.error, IndexError, ValueError):
                continue
            return meaning.hexdigest()
    return ""


_LONGEST_NAME = 4096


def _parts(body: bytes, size: int) -> Iterator[bytes]:
    """size: bytes of the name of an object. Raises what `meaning_of_index` takes for no index."""
    signature, version, count = struct.unpack_from(">4sII", body)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise _NoIndex
    yield body[4:12]
    at, name = 12, b""
    for _ in range(count):
        start = at
        (flags,) = struct.unpack_from(">H", body, start + 40 + size)
        at = start + 42 + size + (2 if flags & _EXTENDED else 0)
        yield body[start + 24 : start + 28] + body[start + 40 : at]  # mode, object, flags
        cut, at = _offset(body, at) if version == 4 else (len(name), at)
        end = body.index(b"\0", at)
        name = name[: max(0, len(name) - cut)] + body[at:end]
        if len(name) > _LONGEST_NAME:  # longer than any path; each entry could repeat it
            raise _NoIndex
        yield name
        at = end + 1 if version == 4 else start + (end - start + 8) // 8 * 8
        if body[end:at].strip(b"\0"):
            raise _NoIndex
    while at < len(body):
        kind, length = struct.unpack_from(">4sI", body, at)
        at += 8 + length
        if at > len(body):
            raise _NoIndex
        yield kind if kind in _FREE else body[at - 8 - length : at]


def _offset(body: bytes, at: int) -> tuple[int, int]:
    """A number as packs of git have offsets, and where it ends."""
    value = body[at] & 0x7F
    while body[at] & 0x80:
        at += 1
        value = (value + 1) << 7 | (body[at] & 0x7F)
    return value, at + 1
