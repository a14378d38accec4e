"""The output means about what was expected."""

from __future__ import annotations

from ..results import AgentResult, ScoreResult
from ..scenario import Scenario
from .base import register_scorer


class SimilarityScorer:
    """The cosine of the embeddings, against `metadata.similarity_threshold` [0.7]. Raises ImportError without the
    package sentence-transformers."""

    name = "similarity"

    def __init__(self, model_name: str = "all-MiniLM-L6-v2") -> None:
        self.model_name = model_name

    def score(self, scenario: Scenario, result: AgentResult) -> ScoreResult:
        """The cosine, 0 where it is negative."""
        cosine, threshold = 0.0, float(scenario.metadata.get("similarity_threshold", 0.7))
        if scenario.expected_output is not None:
            package = __import__("sentence_transformers")
            model = package.SentenceTransformer(self.model_name)
            wanted, found = model.encode([scenario.expected_output, result.output], normalize_embeddings=True)
            pairs = zip(wanted, found)  # noqa: B905 - written for 3.8
            cosine = sum(float(one) * float(other) for one, other in pairs)
        return ScoreResult(
            scenario_id=scenario.id,
            scorer_name=self.name,
            score=min(max(cosine, 0.0), 1.0),
            passed=scenario.expected_output is not None and cosine >= threshold,
            explanation=f"cosine similarity {cosine:.3f}, threshold {threshold:.3f}",
        )


register_scorer(SimilarityScorer())
