"""What a scorer has to have, and the registry of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..results import AgentResult, ScoreResult
    from ..scenario import Scenario


@runtime_checkable
class Scorer(Protocol):
    """Something with a name and `score`."""

    name: str

    def score(self, scenario: Scenario, result: AgentResult) -> ScoreResult:
        """What the scorer makes of an agent's result."""


_SCORER_REGISTRY: dict[str, Scorer] = {}


def register_scorer(scorer: Scorer) -> None:
    """Have a scorer found by its name; an earlier one of that name is replaced."""
    _SCORER_REGISTRY[scorer.name] = scorer


def get_scorer(name: str) -> Scorer:
    """The scorer of a name. Raises KeyError."""
    if name not in _SCORER_REGISTRY:
        raise KeyError("no scorer {!r} is registered, only {}".format(name, ", ".join(_SCORER_REGISTRY)))
    return _SCORER_REGISTRY[name]


def list_scorers() -> list[str]:
    """The names of all scorers, in the order they were registered."""
    return list(_SCORER_REGISTRY)
