"""The expressions that tests evaluate for GitHub, held to its page on expressions."""

from __future__ import annotations

from typing import Any

import pytest
from support.workflow_expressions import Open, Unknown, condition, evaluate, interpolate, value_of

CONTEXTS = {
    "inputs": {"runs-on": "ubuntu-latest", "labels": '["self-hosted", "linux"]', "shards": 3, "quick": False},
    "needs": {"plan": {"result": "success", "outputs": Open(matrix='{"shard": ["1/2", "2/2"]}')}},
    "steps": {"keystone": {"outcome": "failure", "outputs": Open(verdict="fail")}},
    "matrix": {"shard": "1/2"},
    "secrets": Open(),
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("inputs.runs-on", "ubuntu-latest"),
        ("inputs['runs-on']", "ubuntu-latest"),
        ("fromJSON(needs.plan.outputs.matrix).shard[1]", "2/2"),
        ("startsWith(inputs.runs-on, '[') && fromJSON(inputs.runs-on) || inputs.runs-on", "ubuntu-latest"),
        ("startsWith(inputs.labels, '[') && fromJSON(inputs.labels) || inputs.labels", ["self-hosted", "linux"]),
        ("secrets.NOT_SET || 'none'", "none"),
        ("secrets.NOT_SET", None),
        ("needs.plan.outputs.nothing == ''", True),
        ("'It''s' == 'IT''S'", True),
        ("!inputs.quick && inputs.shards >= 3", True),
        ("1 == '1' && null == 0 && true == 1", True),
        ("contains(fromJSON('[\"a\", \"b\"]'), 'B')", True),
        ("format('{0}-{1}', matrix.shard, 2)", "1/2-2"),
        ("inputs.quick || 0", 0.0),
        ("-0x0f", -15.0),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert evaluate(text, CONTEXTS) == value


@pytest.mark.parametrize(
    "text", ["input.shards", "inputs.shard", "steps.other.outputs.x", "needs.run.result", "toYAML(1)", "matrix.shard.x"]
)
def test_what_is_not_there_is_an_error(text: str) -> None:
    with pytest.raises(Unknown):
        evaluate(text, CONTEXTS)


@pytest.mark.parametrize("text", ["", "1 +", "inputs.shards 2", "(1", "f(1", "a[1", '"text"', "&& 1"])
def test_what_is_no_expression_is_an_error(text: str) -> None:
    with pytest.raises((SyntaxError, Unknown)):
        evaluate(text, {**CONTEXTS, "a": [1], "f": 1})


def test_texts_are_filled_in() -> None:
    text = "${{ matrix.shard }} of ${{ inputs.shards }}: ${{ inputs.quick }}${{ secrets.NO }}${{ '}}' }}"
    assert interpolate(text, CONTEXTS) == "1/2 of 3: false}}"


def test_one_expression_keeps_its_type() -> None:
    given = {
        "matrix": "${{ fromJSON(needs.plan.outputs.matrix) }}",
        "fail-fast": False,
        "names": ["${{ inputs.shards }}"],
    }
    found = value_of(given, CONTEXTS)
    assert found == {"matrix": {"shard": ["1/2", "2/2"]}, "fail-fast": False, "names": [3]}


@pytest.mark.parametrize(
    ("text", "success", "holds"),
    [
        ("needs.plan.result == 'success'", True, True),
        ("needs.plan.result == 'success'", False, False),
        ("${{ !cancelled() && needs.plan.result == 'success' }}", False, True),
        ("always()", False, True),
        ("failure()", True, False),
        ("steps.keystone.outputs.verdict == 'pass'", True, False),
    ],
)
def test_conditions_ask_for_success_unless_they_ask_themselves(text: str, success: bool, holds: bool) -> None:
    functions = {
        "success": lambda: success,
        "failure": lambda: not success,
        "always": lambda: True,
        "cancelled": lambda: False,
    }
    assert condition(text, CONTEXTS, functions) is holds
