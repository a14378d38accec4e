"""What a service kind is to the life of a cell. Kinds: http_mock, postgres, sqlite, external, and containers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keystone_action.evidence.audit import AuditLog
from keystone_action.evidence.model import Address, Database, RequestLog

if TYPE_CHECKING:
    from keystone_action.engine.networks import Network


@dataclass(frozen=True, slots=True)
class CellScope:
    """What a service needs to know of the cell it serves.

    private: a directory of ours that no sandbox can read. audit_log: open as long as the cell is served. exclusive:
    whether this is the only cell at a time (then a database service hands out exactly the user, password and database
    of its `env`). allowed_users: numeric users whose connections belong to this cell, None when users don't tell cells
    apart. network: the cell's own network on the container engine, where there is one; in_network: whether its agent
    runs in it, so that services are reached by their names (else by address, from this machine).
    """

    cell_id: str
    private: Path
    workspace: Path
    audit_log: AuditLog
    exclusive: bool
    allowed_users: set[int] | None = None
    network: Network | None = None
    in_network: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """A service as one cell has it. `for_agent` and `for_host` are the addresses valid there.

    settle: called when the agent has ended, before anything is observed: what its clients left running on the server
    ends too, and what they have sent is on record. Blocking; raises KeystoneError. said: what a report should say of it
    besides the notices, known once it was sealed.
    """

    name: str
    for_agent: Address
    for_host: Address
    database: Database | None = None
    requests: RequestLog | None = None
    notices: tuple[str, ...] = field(default=())
    settle: Callable[[], None] | None = None
    said: Callable[[], tuple[str, ...]] = field(default=lambda: ())


class RunningService(Protocol):
    """A service that was started for a run. All services of a spec start at once, before the first cell needs them, but
    for containers that use the addresses of others, which are each cell's own."""

    @property
    def name(self) -> str: ...

    async def start(self) -> None:
        """Start and wait for readiness (a real query or request). Raises ServiceError that says which service, what
        it printed last and how long it was given."""

    async def attach(self, scope: CellScope) -> Attached:
        """Make it ready for one cell: reset or fresh state. Raises ServiceError."""

    async def run_sql(self, attached: Attached, script: str) -> None:
        """For sql fixtures: run a script with the rights of the database's owner. Raises ServiceError."""

    async def seal(self, attached: Attached) -> None:
        """Just before the agent starts: what stands now (by fixtures and setup) stood before it. Raises
        ServiceError."""

    async def detach(self, attached: Attached) -> None:
        """The cell has been graded."""

    async def stop(self) -> None:
        """End it and remove what it kept. Never raises."""
