"""What an adapter has to have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..results import AgentResult


@runtime_checkable
class AgentAdapter(Protocol):
    """Something with `run`."""

    def run(self, input: str, context: dict[str, Any] | None = None) -> AgentResult:  # noqa: A002
        """The agent's answer to an input."""
