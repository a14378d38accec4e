"""What is written into a database on a server that is not ours, as the user of its URL sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from keystone_action.evidence.writes import WriteLog
from keystone_action.services.database_comparison import NET_CHANGES, ComparedDatabase

NOT_SEEN = (
    NET_CHANGES,
    "what the user of its url can't see is not looked at, nor are the server's own databases, users and settings",
    "who wrote is not known there: what others do meanwhile counts, and what a session does after the agent does not",
)


class WatchedWrites(WriteLog, Protocol):
    """A log that is told when the agent starts and when it has ended."""

    def seal(self) -> None:
        """What stands now stood before the agent. Blocking. Raises ServiceError."""

    def settle(self) -> None:
        """What stands now is what the agent left. Blocking. Raises ServiceError."""


def compared(service: str, kind: str, keywords: Mapping[str, Any], directory: Path) -> WatchedWrites:
    """kind: `postgresql` or `mysql`. keywords: what the client connects with. directory: of ours, for hashes."""
    if kind == "postgresql":
        from keystone_action.services.postgres.external_writes import ComparedPostgres

        return ComparedPostgres(service, keywords, NOT_SEEN)
    from keystone_action.services.mysql.database_view import errors, view_opener

    return ComparedDatabase(service, view_opener(keywords, None, service), errors(), directory, NOT_SEEN)
