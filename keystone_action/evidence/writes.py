"""What an agent wrote into a database, as its service observed it; nothing in here is the agent's word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HowKnown = Literal["log", "comparison"]
"""`log`: read from the server's own log of changes, each of them. `comparison`: what stood before the agent and what
stands after it differ, so only net changes show."""
DEFINITION = "the definition of "
"""How the name begins of what is no table, but holds a text that was written: a default, a body, a comment."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """What was done to one table, or to another thing that holds data.

    table: as people write it (`schema.table`; without a schema where the kind has none). operation: `insert`, `update`,
    `delete`, `truncate`, `create`, `alter`, `drop`, `change` where a comparison can't tell. rows: how many, None where
    that is not known. ts: when the first was seen, in UTC as ISO 8601; empty for a comparison. what: `table` or what
    else it is (`sequence`, `large object`, `function` …).
    """

    service: str
    table: str
    operation: str
    rows: int | None
    how_known: HowKnown
    ts: str = ""
    what: str = "table"


class WriteLog(Protocol):
    """What a database service saw between `seal` and `settle` of its place. Blocking."""

    @property
    def not_seen(self) -> Sequence[str]:
        """Sentences on what this way of looking does not see, for reports."""

    def writes(self) -> Sequence[TableWrite]:
        """One for each table and operation, in the order of the first. Rolled back writes are not there. Raises
        ServiceError where it can't be told: then nothing may be said of the cell."""

    def texts(self) -> Iterator[tuple[str, str]]:
        """The values that were written, as texts, each with its table, or with the `DEFINITION` that it stands in,
        where those are looked at: to look for secrets in. In bounded memory, whatever the number of rows. Raises
        ServiceError."""
