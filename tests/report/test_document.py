"""Results survive the way through their JSON document, and nothing that JSON lacks gets out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.errors import UsageError
from keystone_action.scoring.document import (
    cell_from_document,
    cell_to_document,
    run_from_document,
    run_to_document,
)
from keystone_action.scoring.fields import COUNT_NAMES, USAGE_NAMES, plain_json
from keystone_action.scoring.results import (
    AgentResult,
    CellResult,
    ForbiddenResult,
    GroupResult,
    InvariantResult,
    PassRate,
    RunResult,
    SandboxInfo,
    SpecResult,
    TraceInfo,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
unit = st.floats(0, 1)
seconds = st.floats(0, 1e6)
texts = st.lists(text, max_size=3).map(tuple)
numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(text, json_values, max_size=3)
amounts = st.dictionaries(st.sampled_from(["input_tokens", "cost_usd", "x"]), st.none() | st.floats(0, 1e9), max_size=2)


def complete(*names: str) -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries({name: st.integers(0, 10**9) for name in names})


def partly_known(*names: str) -> st.SearchStrategy[dict[str, float | None]]:
    return st.fixed_dictionaries({name: st.none() | st.integers(0, 10**9) for name in names})


invariants = st.builds(
    InvariantResult,
    name=text,
    type=text,
    status=st.sampled_from(["pass", "fail", "skip", "error"]),
    score=st.none() | unit,
    weight=st.floats(0, 100),
    gate=st.sampled_from([True, False, "passed"]),
    message=text,
    details=mappings,
    duration_s=seconds,
    description=text,
    on_skip=st.sampled_from([None, "error", "ignore"]),
    disqualified=st.booleans(),
)
agents = st.builds(
    AgentResult,
    exit_code=st.none() | st.integers(0, 255),
    timed_out=st.booleans(),
    stopped=st.sampled_from([None, "budget"]),
    duration_s=seconds,
    output=text,
    signal=st.none() | st.integers(1, 64),
    note=text,
)
cells = st.builds(
    CellResult,
    id=text,
    scenario=text,
    params=mappings,
    replica=st.integers(0, 100),
    verdict=st.sampled_from(["pass", "fail", "error"]),
    composite=st.none() | unit,
    duration_s=seconds,
    error=st.none() | text,
    agent=st.none() | agents,
    trace=st.builds(
        TraceInfo,
        st.sampled_from(["gateway", "agent", "none"]),
        st.sampled_from([None, "exact", "stale", "changed"]),
    ),
    invariants=st.lists(invariants, max_size=2).map(tuple),
    forbidden=st.lists(st.builds(ForbiddenResult, rule=text, violated=st.booleans(), details=text), max_size=2).map(
        tuple
    ),
    reason=text,
    usage=partly_known(*USAGE_NAMES),
    judge_usage=amounts,
    unpriced=texts,
    judge_unpriced=texts,
    attempts=st.integers(1, 5),
    notices=texts,
)
verdicts = st.sampled_from(["pass", "fail", "flaky", "error"])
groups = st.builds(
    GroupResult,
    scenario=text,
    params=mappings,
    verdict=verdicts,
    composite=st.none() | unit,
    passed=st.integers(0, 9),
    total=st.integers(0, 9),
    reason=text,
)
specs = st.builds(
    SpecResult,
    id=text,
    path=text,
    sha256=text,
    threshold_source=st.sampled_from(["spec", "input"]),
    verdict=verdicts,
    composite=st.none() | unit,
    pass_threshold=unit,
    pass_rate=st.none() | st.builds(PassRate, unit, unit, unit),
    cells=st.lists(cells, max_size=2).map(tuple),
    groups=st.lists(groups, max_size=2).map(tuple),
    description=text,
    replica_aggregation=text,
    positions=st.dictionaries(text, st.integers(1, 5000), max_size=2),
)
sandboxes = st.builds(
    SandboxInfo,
    kind=st.sampled_from(["process", "docker"]),
    isolation=texts,
    limits=st.sampled_from(["enforced", "watched"]),
    not_enforced=texts,
)
runs = st.builds(
    RunResult,
    run_id=text,
    keystone_version=text,
    git_sha=st.none() | text,
    verdict=verdicts,
    composite=st.none() | unit,
    started_at=text,
    duration_s=seconds,
    specs=st.lists(specs, max_size=2).map(tuple),
    sandbox=sandboxes,
    counts=complete(*COUNT_NAMES),
    usage=partly_known(*USAGE_NAMES),
    judge_usage=partly_known("cost_usd"),
    notices=texts,
    substituted=texts,
    cancelled=st.booleans(),
    error=st.none() | text,
)


@settings(max_examples=3 * settings().max_examples // 5, deadline=None)
@given(runs)
def test_a_run_comes_back_from_its_document(run: RunResult) -> None:
    written = json.dumps(run_to_document(run), allow_nan=False)
    assert run_from_document(json.loads(written)) == run


@settings(max_examples=settings().max_examples, deadline=None)
@given(cells)
def test_a_cell_comes_back_from_its_journal_line(cell: CellResult) -> None:
    written = json.dumps(cell_to_document(cell), allow_nan=False)
    assert cell_from_document(json.loads(written)) == cell


ANYTHING = st.recursive(
    st.floats() | st.binary(max_size=4) | st.text(max_size=4) | st.datetimes() | st.decimals() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(ANYTHING)
def test_whatever_a_check_reports_is_written_as_strict_json(value: Any) -> None:
    json.dumps(plain_json(value), allow_nan=False, ensure_ascii=False).encode()


def test_what_json_lacks_becomes_text() -> None:
    assert plain_json({"a": math.nan, "b": b"\xff", "c": datetime(2026, 1, 1, tzinfo=UTC), 4: (1, 2)}) == {
        "a": "nan",
        "b": "\N{REPLACEMENT CHARACTER}",
        "c": "2026-01-01 00:00:00+00:00",
        "4": [1, 2],
    }
    assert plain_json(1 << 100_000) == "an integer of 100001 bits"
    assert plain_json("\ud800x") == "?x"


def test_endless_nesting_is_cut() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert json.dumps(plain_json(endless), ensure_ascii=False).count("[") == 64


CELL = CellResult("c", "s", {}, 0, "pass", 1.0, 0.1, None, None, ())
RUN = RunResult(
    run_id="r",
    keystone_version="0.1",
    git_sha=None,
    verdict="pass",
    composite=1.0,
    started_at="2026-01-01T00:00:00Z",
    duration_s=0.1,
    specs=(),
)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_composite_that_is_no_number_is_a_defect_and_not_a_result(number: float) -> None:
    with pytest.raises(ValueError, match="composite"):
        cell_to_document(replace(CELL, composite=number))
    with pytest.raises(ValueError, match="composite"):
        run_to_document(replace(RUN, composite=number))


def test_keys_are_those_of_the_contract_in_its_order() -> None:
    document = run_to_document(replace(RUN, usage={"cost_usd": 1, "input_tokens": 7.0, "requests": None}))
    before_specs = ["schema_version", "keystone_version", "git_sha", "run_id", "verdict", "composite", "started_at"]
    expected = [*before_specs, "duration_s", "counts", "usage", "sandbox", "judge_usage", "specs"]
    assert list(document)[: len(expected)] == expected
    assert list(document["counts"]) == list(COUNT_NAMES)
    usage = (
        '{"input_tokens": 7, "output_tokens": 0, "cache_read_tokens": 0, "cache_write_tokens": 0, "cost_usd": 1, '
        '"tool_calls": 0, "requests": null, "spent_usd": 0.0}'
    )
    assert json.dumps(document["usage"]) == usage
    expected = ["id", "scenario", "params", "replica", "verdict", "composite", "duration_s", "error", "agent", "trace"]
    expected += ["invariants", "forbidden"]
    cell = cell_to_document(replace(CELL, agent=AgentResult(0, False, 0.1, "done")))
    assert list(cell)[: len(expected)] == expected
    assert cell["trace"] == {"source": "none", "replayed": None, "recorded_at": None, "differs": ""}
    assert list(cell["usage"]) == list(USAGE_NAMES)
    assert list(cell["agent"])[:4] == ["exit_code", "timed_out", "stopped", "duration_s"]


@pytest.mark.parametrize("version", [None, 0, 2, "1", True])
def test_another_schema_version_is_refused(version: object) -> None:
    document = run_to_document(RUN) | {"schema_version": version}
    with pytest.raises(UsageError, match="schema_version: expected 1"):
        run_from_document(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "maybe"}, 'verdict: .* found "maybe"'),
        ({"composite": "1.0"}, 'composite: .* found "1.0"'),
        ({"composite": math.nan}, "not JSON"),
        ({"specs": 3}, "specs: .* found 3"),
        ({"specs": [3]}, "specs.0"),
        ({"specs": [{"pass_rate": {"value": 1}}]}, "specs.0"),
    ],
)
def test_a_malformed_document_is_refused_by_a_sentence_that_says_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_from_document(run_to_document(RUN) | change)


def test_a_cell_without_an_id_is_refused() -> None:
    document = cell_to_document(CELL)
    del document["id"]
    with pytest.raises(UsageError, match="id: field required"):
        cell_from_document(document)
