"""`exact`: the agent's output is what was expected (AgenticAssure; spec.md 5.3)."""

from __future__ import annotations

from typing import ClassVar

from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.invariants.comparison import line_ends

_SHOWN = 200


class Exact(Check):
    """Passes when the agent's output is the expected text.

    Without `normalize` every character counts, a line's end after the last word too. An output that was asked for and
    is missing fails, even if an empty one is expected.
    """

    type_name: ClassVar[str] = "exact"
    origin: ClassVar[str] = "AgenticAssure"

    expected: str
    """What the whole output must be.

    Example: `"42"`
    """
    normalize: bool = True
    """Compare both without white space around them and in lower case.

    Example: `false`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        agent = context.evidence.agent
        if agent.problem:
            return failed(f"There is no output: {agent.problem}.")
        wanted, found = self._form(self.expected), self._form(agent.whole_output())
        if wanted == found:
            return passed("The output is what was expected.", normalize=self.normalize)
        return failed(
            f"expected {_shorten(wanted)}, found {_shorten(found)}{_where(wanted, found)}.", normalize=self.normalize
        )

    def _form(self, text: str) -> str:
        return text.strip().lower() if self.normalize else text


def _where(wanted: str, found: str) -> str:
    """Where the two part, when what is shown of them may not tell."""
    if ends := line_ends(wanted.encode("utf-8", "replace"), found.encode("utf-8", "replace")):
        return f"; they differ in their line ends alone: expected {ends[0]}, found {ends[1]}"
    if len(wanted) <= _SHOWN and len(found) <= _SHOWN:
        return ""
    pairs = zip(wanted, found, strict=False)
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(wanted), len(found)))
    around = f"{_shorten(wanted[at : at + 40])} against {_shorten(found[at : at + 40])}"
    return f"; they differ from character {at + 1:,} on: {around}"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
