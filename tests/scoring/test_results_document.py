"""Results as documents: what is written is what the models say."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from keystone_action.scoring.document import cell_to_document, run_from_document, run_to_document
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult

TEXTS = st.text(max_size=8) | st.just("\ud800 lone")
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5)
VALUES = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | TEXTS | st.binary(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3) | st.tuples(inner, inner),
        max_leaves=3,
    ),
    max_size=3,
)


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a field with this annotation may hold."""
    inner = get_args(annotation)
    if is_dataclass(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        return st.builds(annotation, **{field.name: of(hints[field.name]) for field in fields(annotation)})
    if get_origin(annotation) is Annotated:
        return TEXTS if inner[0] is str else of(inner[0])
    if get_origin(annotation) is dict:
        return VALUES if inner[1] is Any else st.dictionaries(TEXTS, of(inner[1]), max_size=1)
    if get_origin(annotation) is tuple:
        return st.lists(of(inner[0]), max_size=1).map(tuple)
    if get_origin(annotation) in (Union, UnionType):
        return st.one_of(map(of, inner))
    return NUMBERS if annotation is float else st.from_type(annotation)


RUNS = of(RunResult)


@cache
def adapter() -> TypeAdapter[RunResult]:
    return TypeAdapter(RunResult)


@given(RUNS)
def test_what_is_written_is_what_pydantic_would_write(run: RunResult) -> None:
    expected = adapter().dump_python(run, mode="json", warnings=False)
    assert json.dumps(run_to_document(run)) == json.dumps(expected)


@given(RUNS)
def test_a_written_run_is_read_and_written_again_unchanged(run: RunResult) -> None:
    document = run_to_document(run)
    assert run_to_document(run_from_document(document)) == document


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_not_written(number: float) -> None:
    check = InvariantResult("a", "sql", "pass", number, 1.0, False, "")
    cell = CellResult("a", "a", {}, 0, "pass", 1.0, 0.1, None, None, (check,))
    with pytest.raises(ValueError, match="a result must be a finite number"):
        cell_to_document(cell)
