"""An agent that does what its input says: a JSON document with what to return, or how to fail."""

import json
import time
from pathlib import Path

from agenticassure.results import AgentResult, ScoreResult, ToolCall
from agenticassure.scorers.base import register_scorer


class Agent:
    def __init__(self):
        self.calls = 0

    def run(self, input, context=None):  # noqa: A002 - the protocol's own name
        self.calls += 1
        told = json.loads(input)
        time.sleep(told.get("sleeps", 0))
        if told.get("prints"):
            print(told["prints"])
        if "raises" in told:
            raise RuntimeError(told["raises"])
        if "exits" in told:
            raise SystemExit(told["exits"])
        if "as_dict" in told:
            return told["as_dict"]
        output = f"call {self.calls}" if told.get("counts") else told["output"]
        calls = [ToolCall(**call) for call in told.get("calls", [])]
        for call in calls if told.get("tuples") else ():
            call.arguments = {key: tuple(value) for key, value in call.arguments.items()}
        return AgentResult(output=output, tool_calls=calls)


class Half:
    """Gives half a point and passes: a scenario passes when every scorer does, whatever the scores."""

    name = "half"

    def score(self, scenario, result):
        return ScoreResult(scenario_id=scenario.id, scorer_name=self.name, score=0.5, passed="no" not in result.output)


class Raising:
    name = "raising"

    def score(self, scenario, result):
        raise ValueError("no scorer today")


class Reading:
    """Looks at what a scenario is and what was returned."""

    name = "reading"

    def score(self, scenario, result):
        wanted = scenario.metadata.get("wanted")
        called = [call.arguments.get("city") for call in result.tool_calls]
        passed = wanted in called and scenario.name.startswith("read") and scenario.tags != []
        return ScoreResult(
            scenario_id=scenario.id,
            scorer_name=self.name,
            score=1.0 if passed else 0.25,
            passed=passed,
            explanation=f"{called} against {wanted}",
            details={"here": str(Path.cwd())},
        )


for scorer in (Half(), Raising(), Reading()):
    register_scorer(scorer)
