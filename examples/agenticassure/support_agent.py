"""A support agent that answers from a table of orders, so that the example needs no key; and one that guesses."""

import re

from agenticassure.results import AgentResult, ScoreResult, ToolCall
from agenticassure.scorers.base import register_scorer

ORDERS = {"12345": "is on its way and arrives on Friday", "67890": "was delivered on Monday"}


class SupportAgent:
    def run(self, input, context=None):
        order = re.search(r"#(\d+)", input)
        if order is None:
            return AgentResult(output="You can send anything back within 30 days, and get a refund.")
        calls = [ToolCall(name="query_orders", arguments={"order_id": order[1]}, result=ORDERS.get(order[1]))]
        if order[1] not in ORDERS:
            return AgentResult(output=f"There is no order #{order[1]}. Please check the number.", tool_calls=calls)
        calls.append(ToolCall(name="format_order_summary"))
        return AgentResult(output=f"Your order #{order[1]} {ORDERS[order[1]]}.", tool_calls=calls)


class GuessingAgent:
    """Never asks anybody: what it says of orders is made up."""

    def run(self, input, context=None):
        order = re.search(r"#(\d+)", input)
        return AgentResult(output=f"Your order {order[0]} is on its way." if order else "Sure, within 30 days.")


class Brevity:
    """A scorer of our own: full marks for a short answer, and none of them at `metadata.max_words`."""

    name = "brevity"

    def score(self, scenario, result):
        words, most = len(result.output.split()), scenario.metadata["max_words"]
        return ScoreResult(
            scenario_id=scenario.id,
            scorer_name=self.name,
            score=max(0.0, 1 - words / most),
            passed=words <= most,
            explanation=f"{words} words, at most {most}",
        )


register_scorer(Brevity())
