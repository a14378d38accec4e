"""The four checks of the default scorer, in their order; the first failure ends the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..results import AgentResult, ScoreResult
from ..scenario import Scenario
from .base import register_scorer


class PassFailScorer:
    """Output, tools, their arguments, and a text that the output has to hold."""

    name = "passfail"

    def score(self, scenario: Scenario, result: AgentResult) -> ScoreResult:
        """1.0 where all checks hold."""
        said, holds = [], True
        for what, holds in _checks(scenario, result):
            said.append("{}: {}.".format(what, "PASS" if holds else "FAIL"))
            if not holds:
                break
        return ScoreResult(
            scenario_id=scenario.id,
            scorer_name=self.name,
            score=float(holds),
            passed=holds,
            explanation=" ".join(said),
        )


def _checks(scenario: Scenario, result: AgentResult) -> Iterator[tuple[str, bool]]:
    yield "Output produced", bool(result.output.strip())
    if scenario.expected_tools is not None:
        called = {call.name for call in result.tool_calls}
        yield "Expected tools called", called.issuperset(scenario.expected_tools)
    if scenario.expected_tool_args is not None:
        yield "Tool arguments match", all(_has_call(result, *wanted) for wanted in scenario.expected_tool_args.items())
    if scenario.expected_output is not None:
        yield "Expected output found", scenario.expected_output.lower() in result.output.lower()


def _has_call(result: AgentResult, tool: str, wanted: Any) -> bool:
    """Whether some call of the tool has all these arguments."""
    return any(
        call.name == tool and all(key in call.arguments and call.arguments[key] == wanted[key] for key in wanted)
        for call in result.tool_calls
    )


register_scorer(PassFailScorer())
