"""What breaks one rule, of which a report shows the first."""

from __future__ import annotations

from keystone_action.scoring.results import ForbiddenResult

SHOWN = 10
"""Findings that are told one by one."""


class Findings:
    """Counts what breaks a rule and keeps the first sentences on it, so that millions take no memory."""

    def __init__(self, rule: str) -> None:
        self._rule, self._lines, self._count = rule, list[str](), 0

    def add(self, sentence: str) -> None:
        """One thing: what, where, when, how sure."""
        self._count += 1
        if len(self._lines) < SHOWN:
            self._lines.append(sentence)

    def result(self) -> ForbiddenResult:
        """Of the rule."""
        more = [f"and {self._count - SHOWN:,} more"] if self._count > SHOWN else []
        return ForbiddenResult(self._rule, violated=self._count > 0, details="\n".join([*self._lines, *more]))
