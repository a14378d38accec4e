"""The output is what was expected."""

from __future__ import annotations

from ..results import AgentResult, ScoreResult
from ..scenario import Scenario
from .base import register_scorer


class ExactMatchScorer:
    """Both without white space around them and in lower case, unless `metadata.exact_normalize` is false."""

    name = "exact"

    def score(self, scenario: Scenario, result: AgentResult) -> ScoreResult:
        """1.0 where both are the same."""
        wanted, found = scenario.expected_output, result.output
        if scenario.metadata.get("exact_normalize", True):
            wanted, found = wanted and wanted.strip().lower(), found.strip().lower()
        holds = wanted is not None and wanted == found
        why = "as expected" if holds else "no expected_output" if wanted is None else "not what was expected"
        return ScoreResult(
            scenario_id=scenario.id, scorer_name=self.name, score=float(holds), passed=holds, explanation=why
        )


register_scorer(ExactMatchScorer())
