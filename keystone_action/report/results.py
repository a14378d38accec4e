"""`results.json`: the document of the contract, one cell a line, so that people can read it and diffs stay small."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from keystone_action.scoring.document import cell_to_document, run_to_document
from keystone_action.scoring.results import RunResult, SpecResult


def render_results(run: RunResult) -> str:
    """The whole document, ending in a newline."""
    return "".join(results_pieces(run))


def results_pieces(run: RunResult) -> Iterator[str]:
    """The document in pieces of at most one cell, so that ten thousand of them take no memory."""
    outline = run_to_document(replace(run, specs=tuple(replace(spec, cells=()) for spec in run.specs)))
    for index, (key, value) in enumerate(outline.items()):
        yield ("{\n" if index == 0 else ",\n") + f" {_json(key)}: "
        if key == "specs":
            yield from _specs(run.specs, value)
        else:
            yield _json(value)
    yield "\n}\n"


def _specs(specs: tuple[SpecResult, ...], outlines: list[dict[str, Any]]) -> Iterator[str]:
    yield "["
    for index, (spec, outline) in enumerate(zip(specs, outlines, strict=True)):
        yield "," if index else ""
        for position, (key, value) in enumerate(outline.items()):
            yield ("\n  {" if position == 0 else ",\n   ") + f"{_json(key)}: "
            if key == "cells":
                cells = (_json(cell_to_document(cell)) for cell in spec.cells)
                yield "["
                yield from ((",\n    " if number else "\n    ") + cell for number, cell in enumerate(cells))
                yield "]"
            else:
                yield _json(value)
        yield "}"
    yield "]"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
