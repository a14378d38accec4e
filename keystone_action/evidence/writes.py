"""What an agent wrote into a database, as its service observed it; nothing in here is the agent's word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

HowKnown = Literal["log", "comparison"]
"""`log`: each change was read from the server's own log. `comparison`: the data before the agent and after it were
compared, so only net changes show."""
DEFINITION = "the definition of "
"""The beginning of the name of something that is not a table and holds a text that was written: a default, the body of
a function, a comment."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """What was done to one table, or to another thing that holds data."""

    service: str
    table: str
    """Its name as people write it: `schema.table`, without a schema where the kind of service has none."""
    operation: str
    """`insert`, `update`, `delete`, `truncate`, `create`, `alter` or `drop`; `change` where a comparison can't tell."""
    rows: int | None
    """How many; None where that is not known."""
    how_known: HowKnown
    ts: str = ""
    """When the first write was seen, in UTC as ISO 8601; empty for a comparison."""
    what: str = "table"
    """What it is: `table`, `sequence`, `large object`, `function` and so on."""


class WriteLog(Protocol):
    """What a database service saw between `seal` and `settle` of its place. Blocking."""

    @property
    def not_seen(self) -> Sequence[str]:
        """Sentences on what this way of looking does not see, for reports."""

    def writes(self) -> Sequence[TableWrite]:
        """One for each table and operation, in the order of the first write. Writes that were rolled back are left out.
        Raises ServiceError when the writes can't be found out; then nothing may be claimed about the cell."""

    def texts(self) -> Iterator[tuple[str, str]]:
        """The values that were written, as texts, to be searched for secrets: each with its table, or with the
        `DEFINITION` that it stands in. Memory is bounded, whatever the number of rows. Raises ServiceError."""
