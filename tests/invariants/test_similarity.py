"""AgenticAssure's similarity scorer. Its package is an extra that no test installs: a small one of the same name stands
in for it (tests/data/embedding_package), the absence is the real one."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.context import grade, make_check
from support.observed import evidence

from keystone_action.invariants.types import similarity

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "data" / "embedding_package"
COMPONENTS = st.floats(-1e200, 1e200, allow_nan=False)
VECTORS = st.integers(1, 8).flatmap(
    lambda size: st.tuples(
        st.lists(COMPONENTS, min_size=size, max_size=size), st.lists(COMPONENTS, min_size=size, max_size=size)
    )
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    similarity._load.cache_clear()
    yield
    sys.modules.pop("sentence_transformers", None)
    similarity._load.cache_clear()


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent even where somebody has it."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)


def similar(output: str, *, problem: str = "", **fields: Any):
    document = {"type": "similarity", "expected": "the cat sat on the mat", **fields}
    return grade(document, HERE, evidence=evidence(output, problem=problem))


@pytest.mark.usefixtures("absent")
def test_without_the_package_it_is_skipped_and_names_the_extra() -> None:
    for output in ("the cat sat on the mat", ""):
        outcome = similar(output)
        assert (outcome.status, outcome.score) == ("skip", None)
        assert "pip install 'keystone-action[similarity]'" in outcome.message


@pytest.mark.usefixtures("installed")
def test_the_cosine_is_the_score_and_the_threshold_decides() -> None:
    same, near, far = similar("The cat sat on the mat"), similar("the cat sat"), similar("stocks fell sharply")
    assert (same.status, same.score) == ("pass", pytest.approx(1.0))
    assert (near.status, near.score) == ("pass", pytest.approx(4 / math.sqrt(8 * 3)))
    assert (far.status, far.score) == ("fail", pytest.approx(0.0))
    assert similar("the cat sat", threshold=0.9).status == "fail"
    assert "0.700 or more passes" in far.message


@pytest.mark.usefixtures("installed")
def test_a_negative_cosine_earns_nothing_and_is_shown() -> None:
    outcome = similar("x", model="opposite")
    assert (outcome.status, outcome.score, outcome.details["cosine_similarity"]) == ("fail", 0.0, -1.0)


@pytest.mark.usefixtures("installed")
def test_a_missing_or_blank_output_fails_without_asking_the_model() -> None:
    for outcome in (similar(" \n", model="gone"), similar("x", problem="out.txt does not exist", model="gone")):
        assert (outcome.status, outcome.score) == ("fail", 0.0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("model", ["gone", "not-a-number"])
def test_a_model_that_gives_no_embeddings_is_an_error(model: str) -> None:
    outcome = similar("the cat sat on the mat", model=model)
    assert (outcome.status, outcome.score) == ("error", None)
    assert model in outcome.message


@pytest.mark.usefixtures("installed")
def test_a_model_is_loaded_once() -> None:
    similar("a")
    similar("b")
    assert sys.modules["sentence_transformers"].MADE == ["all-MiniLM-L6-v2"]


@pytest.mark.parametrize(
    "fields",
    [{"expected": ""}, {"expected": " "}, {"expected": None}, {"threshold": 1.5}, {"threshold": "0.7"}, {"model": ""}],
)
def test_malformed_fields_are_refused_when_the_spec_is_read(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "similarity", "expected": "x", **fields})


@given(VECTORS)
def test_the_cosine_is_in_range_and_symmetric(pair: tuple[list[float], list[float]]) -> None:
    first, second = pair
    value = similarity.cosine(first, second)
    assert -1.0 <= value <= 1.0
    assert similarity.cosine(second, first) == pytest.approx(value, abs=1e-9)
    expected = 1.0 if any(first) else 0.0
    assert similarity.cosine(first, first) == pytest.approx(expected)
    assert similarity.cosine(first, [-one for one in first]) == pytest.approx(-expected)


@pytest.mark.parametrize("second", [[1.0], [1.0, math.nan], [math.inf, 0.0]])
def test_vectors_that_are_none_are_refused(second: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        similarity.cosine([1.0, 0.0], second)
