"""Which rows of a table are new, and which are gone, in bounded memory.

Of each row a keyed hash of 16 bytes is kept in a file; who does not know the key can't make two rows of one hash. A
program that runs without our package is given this file as text, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

DIGEST_BYTES = 16
DIGESTS_AT_ONCE = 1 << 19
"""Hashes that are held in memory at a time."""
_BLOCK = 1 << 20


def new_key() -> bytes:
    """For the looks that are compared with each other, and for nothing else."""
    return secrets.token_bytes(32)


def digest(row: bytes, key: bytes) -> bytes:
    """The hash of a row."""
    return blake2b(row, digest_size=DIGEST_BYTES, key=key).digest()


def keep_digests(rows: Iterable[bytes], path: str, key: bytes) -> int:
    """Write the hashes of all rows to a new file, in the order of the rows, and return how many there are. Raises
    OSError, and what `rows` raises."""
    count, block = 0, bytearray()
    with open(path, "xb") as file:  # noqa: PTH123 - this file does without pathlib
        for row in rows:
            block += blake2b(row, digest_size=DIGEST_BYTES, key=key).digest()
            count += 1
            if len(block) >= _BLOCK:
                file.write(block)
                block.clear()
        file.write(block)
    return count


class RowDifference(NamedTuple):
    """How many rows are only in the first file, and how many only in the second, whose hashes are in `added_path`."""

    removed: int
    added: int
    added_path: str


def row_difference(before: str, after: str, added_path: str) -> RowDifference:
    """Compare two files of hashes; equal rows are counted, so a second one of them is a new row. Raises OSError."""
    removed = added = 0
    with open(added_path, "xb") as kept:  # noqa: PTH123 - as above
        if _is_same(before, after):
            return RowDifference(0, 0, added_path)
        for old, new in _parts(before, after):
            only_new = new - old
            removed += (old - new).total()
            added += only_new.total()
            kept.writelines(one * times for one, times in only_new.items())
    return RowDifference(removed, added, added_path)


def added_at_once(path: str) -> Iterator[Counter[bytes]]:
    """The hashes of a file, as many at a time as memory is meant for. Raises OSError."""
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        while block := file.read(DIGESTS_AT_ONCE * DIGEST_BYTES):
            yield _count(block)


def _is_same(one: str, other: str) -> bool:
    if os.path.getsize(one) != os.path.getsize(other):  # noqa: PTH202 - as above
        return False
    with open(one, "rb") as first, open(other, "rb") as second:  # noqa: PTH123 - as above
        while block := first.read(_BLOCK):
            if block != second.read(_BLOCK):
                return False
    return True


def _parts(before: str, after: str) -> Iterator[tuple[Counter[bytes], Counter[bytes]]]:
    """Both files, divided by the first byte of the hashes so that a part fits into memory."""
    hashes = max(os.path.getsize(before), os.path.getsize(after)) // DIGEST_BYTES  # noqa: PTH202 - as above
    parts = min(256, -(-hashes // DIGESTS_AT_ONCE))
    if parts <= 1:
        yield _count(_read(before)), _count(_read(after))
        return
    names = [[f"{path}.{part}" for part in range(parts)] for path in (before, after)]
    try:
        for path, own in zip((before, after), names, strict=True):
            _divide(path, own)
        for old, new in zip(*names, strict=True):
            yield _count(_read(old)), _count(_read(new))
    finally:
        for name in (*names[0], *names[1]):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - as above


def _divide(path: str, names: list[str]) -> None:
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(name, "xb")) for name in names]  # noqa: PTH123 - as above
        source = opened.enter_context(open(path, "rb"))  # noqa: PTH123 - as above
        while block := source.read(_BLOCK):
            pieces = [bytearray() for _ in files]
            for at in range(0, len(block), DIGEST_BYTES):
                pieces[block[at] % len(files)] += block[at : at + DIGEST_BYTES]
            for file, piece in zip(files, pieces, strict=True):
                file.write(piece)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        return file.read()


def _count(block: bytes) -> Counter[bytes]:
    return Counter(block[at : at + DIGEST_BYTES] for at in range(0, len(block), DIGEST_BYTES))
