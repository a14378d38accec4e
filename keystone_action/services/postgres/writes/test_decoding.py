"""Reading what the output plugin `test_decoding` prints. It needs no publication and no replica identity, so nothing of
the tables has to be changed for it; the official images have it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

from keystone_action.evidence.audit import shown_time
from keystone_action.services.postgres.writes.changes import Commit, RowChange, Wanted

_PART = rb'(?:"(?:[^"]|"")*"|[^".,: ]+)'
_NAME = rb"(?:" + _PART + rb"\." + _PART + rb")"
_ROW = re.compile(rb"table (" + _PART + rb")\.(" + _PART + rb"): (INSERT|UPDATE|DELETE): ")
_OLD_KEY = re.compile(rb"\Aold-key: .*? new-tuple: ", re.DOTALL)
"""What a key was before; it was not written now."""
_TRUNCATE = re.compile(rb"table (" + _NAME + rb"(?:, " + _NAME + rb")*): TRUNCATE: ")
_NAMES = re.compile(rb"(" + _PART + rb")\.(" + _PART + rb")(?:, |$)")
_COMMIT = re.compile(rb"COMMIT \(at (.+)\)")


class TestDecoding:
    """See `PluginReader`."""

    __test__ = False  # of no interest to pytest
    plugin: ClassVar[str] = "test_decoding"
    options: ClassVar[Mapping[str, str]] = {
        "include-xids": "0",
        "include-timestamp": "1",
        "skip-empty-xacts": "1",
    }

    def __init__(self, wanted_values: Wanted) -> None:
        self._wanted = wanted_values

    def read(self, message: bytes) -> Sequence[RowChange | Commit]:
        """See `PluginReader`. The values of a row come as one text, with names and types of columns between them."""
        row = _ROW.match(message)
        if row is not None:
            schema = _plain(row[1])
            # A value stands between quotes, with its own doubled: undone in the whole line, each is there as it is.
            is_wanted = schema in self._wanted and row[3] != b"DELETE"
            new = _OLD_KEY.sub(b"", message[row.end() :], count=1) if is_wanted else b""
            text = new.decode("utf-8", "replace").replace("''", "'")
            return (RowChange(schema, _plain(row[2]), row[3].decode().lower(), (text,) if text else ()),)
        if emptied := _TRUNCATE.match(message):
            names = _NAMES.findall(emptied[1])
            return [RowChange(_plain(schema), _plain(table), "truncate") for schema, table in names]
        if committed := _COMMIT.fullmatch(message):
            at = datetime.fromisoformat(committed[1].decode()).astimezone(UTC)
            return (Commit(shown_time(at)),)
        if message != b"BEGIN" and not message.startswith(b"message: "):
            raise ValueError(f"test_decoding printed {message[:80]!r}")
        return ()


def _plain(name: bytes) -> str:
    text = name.decode("utf-8", "replace")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text
