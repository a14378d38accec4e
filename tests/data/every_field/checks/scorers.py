from agenticassure.results import ScoreResult
from agenticassure.scorers.base import register_scorer


class Short:
    name = "short"

    def score(self, scenario, result):
        short = len(result.output.split()) <= scenario.metadata["words"]
        return ScoreResult(scenario_id=str(scenario.id), scorer_name=self.name, score=float(short), passed=short)


register_scorer(Short())
