"""A pattern matches somewhere in the output."""

from __future__ import annotations

import re

from ..results import AgentResult, ScoreResult
from ..scenario import Scenario
from .base import register_scorer


class RegexScorer:
    """The pattern is `metadata.regex_pattern`."""

    name = "regex"

    def score(self, scenario: Scenario, result: AgentResult) -> ScoreResult:
        """1.0 where it matches."""
        pattern = scenario.metadata.get("regex_pattern")
        try:
            match = re.search(pattern, result.output) if pattern else None
            why = "matches" if match else "does not match" if pattern else "no regex_pattern"
        except re.error as error:
            match, why = None, f"no regular expression: {error}"
        return ScoreResult(
            scenario_id=scenario.id,
            scorer_name=self.name,
            score=float(match is not None),
            passed=match is not None,
            explanation=why,
            details={"pattern": pattern, "match": match.group() if match else None},
        )


register_scorer(RegexScorer())
