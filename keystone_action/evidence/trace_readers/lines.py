"""A transcript as a stream of JSON objects, one a line, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

LINE_LIMIT = 8 << 20
"""Bytes of one line that are read; a longer one is skipped."""
LINES_LIMIT = 2_000_000
"""Lines, and entries of lists in them, that are read: what half a gigabyte can hold of the shortest takes an hour."""
_SKIPPED = 1 << 16

Count = Callable[[str], None]


class TooManyLines(Exception):  # noqa: N818 - what a transcript has, not an error of ours
    """There are more than LINES_LIMIT of them."""


def objects_of(file: BinaryIO, count: Count) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number of the line, object). Other lines are skipped and told to `count`; blank lines are ignored.

    A list of objects is read as its objects, and a file that is one JSON document over several lines as that.
    `file` can be sought in. Raises TooManyLines.
    """
    document = _document(file)
    if document is not None:
        yield from _objects(1, _as_list(document), count)
        return
    number = entries = 0
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        values: list[Any] = []
        if len(line) > LINE_LIMIT and not line.endswith(b"\n"):
            _skip(file)
            count(f"longer than {LINE_LIMIT >> 20} MiB")
        elif stripped := line.strip():
            values = _values(stripped, count, last=not line.endswith(b"\n"))
        entries += max(1, len(values))
        if entries > LINES_LIMIT:
            raise TooManyLines(f"more than {LINES_LIMIT:,} lines and entries of lists")
        yield from _objects(number, values, count)


def _document(file: BinaryIO) -> Any:
    """The file as one JSON document, None when it is not one; leaves the file at its start then."""
    first = file.readline(LINE_LIMIT + 1).strip()
    document = None
    # Only what can be no line of its own is worth a look: an object or list that goes on in the next line.
    if first.removeprefix(b"\xef\xbb\xbf")[:1] in (b"{", b"[") and first[-1:] not in (b"}", b"]"):
        file.seek(0)
        data = file.read(LINE_LIMIT + 1)
        try:
            document = json.loads(data) if len(data) <= LINE_LIMIT else None
        except (ValueError, RecursionError):
            document = None
    file.seek(0)
    return document


def _skip(file: BinaryIO) -> None:
    while (rest := file.readline(_SKIPPED)) and not rest.endswith(b"\n"):
        pass


def _values(line: bytes, count: Count, *, last: bool) -> list[Any]:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        count("with bytes that are not UTF-8")
        text = line.decode("utf-8", "replace")
    try:
        return _as_list(json.loads(text))
    except RecursionError:
        count("nested too deep")
    except ValueError:
        count("that is only half written, the last one" if last else "that is no JSON")
    return []


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _objects(number: int, values: list[Any], count: Count) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for one in values:
        if isinstance(one, dict):
            yield number, one
        else:
            count("or entry that is no JSON object")
