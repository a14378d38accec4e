"""The published schema is that of the models that write the document, and every document of ours is valid by it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from samples import SAMPLES, check_error, matrix

from keystone_action.report.write import render_results
from keystone_action.scoring.document import results_schema, run_from_document, run_to_document

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(results_schema())


def test_the_documentation_has_the_schema_of_the_models() -> None:
    assert json.loads((ROOT / "docs" / "results.schema.json").read_text()) == results_schema()
    Draft202012Validator.check_schema(results_schema())


@pytest.mark.parametrize("name", SAMPLES)
def test_every_document_is_valid_and_reads_back(name: str) -> None:
    run = SAMPLES[name]()
    document = json.loads(render_results(run))
    VALIDATOR.validate(document)
    assert document == run_to_document(run)
    assert list(document) == list(run_to_document(run))
    assert run_to_document(run_from_document(document)) == document


def test_one_cell_is_one_line() -> None:
    lines = [line.strip() for line in render_results(matrix()).splitlines() if line.startswith("    {")]
    cells = [json.JSONDecoder().raw_decode(line)[0] for line in lines]
    assert [cell["id"] for cell in cells] == [cell.id for spec in matrix().specs for cell in spec.cells]


def without(document: dict[str, Any], *path: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    inner: Any = changed
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return changed


@pytest.mark.parametrize(
    "path",
    [("run_id",), ("counts", "cells"), ("specs", 0, "sha256"), ("specs", 0, "cells", 0, "agent")],
)
def test_a_document_without_a_key_of_the_contract_is_invalid(path: tuple[Any, ...]) -> None:
    with pytest.raises(ValidationError):
        VALIDATOR.validate(without(run_to_document(check_error()), *path))
