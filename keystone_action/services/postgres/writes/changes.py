"""What the readers of output plugins have in common: the changes that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row of a table, or the whole of it. operation: `insert`, `update`, `delete`, `truncate`. values: those that
    were written, where they are wanted."""

    schema: str
    table: str
    operation: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of the transaction of the changes before it. at: in UTC as ISO 8601."""

    at: str


class PluginReader(Protocol):
    """Reads what an output plugin prints of a log, message by message, in order.

    plugin: its name on the server. options: what it is asked with, but for names of publications."""

    plugin: ClassVar[str]
    options: ClassVar[Mapping[str, str]]

    def __init__(self, wanted_values: Wanted) -> None: ...

    def read(self, message: bytes) -> Sequence[RowChange | Commit]:
        """Raises ValueError for what the plugin does not print."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of which tables values are wanted: of all, or of those of one schema."""

    everything: bool
    schema: str

    def __contains__(self, schema: str) -> bool:
        return self.everything or schema == self.schema
