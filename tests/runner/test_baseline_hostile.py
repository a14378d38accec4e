"""Whatever stands in a baseline: the run is compared with it and rendered, or it is refused with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.hostile_documents import VALUES, places, replaced
from support.shard_runs import cell, spec, whole

from keystone_action.errors import UsageError
from keystone_action.report.write import render
from keystone_action.runner.journal.earlier_runs import beside_baseline, read_baseline
from keystone_action.scoring.document import run_to_document

RUN = whole(
    [
        spec("alpha", [cell("alpha", "one", n, verdict, model="small") for n, verdict in enumerate(["pass", "fail"])]),
        spec("beta", [cell("beta", "one", 0, "fail", score=0.0), cell("beta", "two", 0, skipped=True)]),
    ]
)
DOCUMENT = run_to_document(RUN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("baseline")


@settings(max_examples=2 * settings().max_examples)
@given(path=st.sampled_from(list(places(DOCUMENT))), value=VALUES)
@example(path=("plan", "chosen"), value=["tag smoke"])
@example(path=("plan", "shard"), value="x" * 10_000)
@example(path=("specs", 0, "cells", 0, "params"), value={"a": {"b": [1e308, None]}})
@example(path=("specs", 0, "cells", 0, "scenario"), value="")
@example(path=("specs", 0, "cells", 1, "replica"), value=-(10**18))
@example(path=("specs", 0, "replica_aggregation"), value="at least 999999999")
@example(path=("specs", 1, "id"), value="alpha")
def test_one_value_of_a_baseline_replaced(folder: Path, path: tuple[Any, ...], value: Any) -> None:
    (folder / "results.json").write_text(json.dumps(replaced(DOCUMENT, path, value)), "utf-8")
    try:
        baseline = read_baseline(folder, "before")
    except UsageError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert 0 < len(refused.message) < 2000
        return
    run = beside_baseline(RUN, baseline)
    assert run.baseline is not None
    assert (run.verdict, run.counts) == (RUN.verdict, RUN.counts)
    for fmt in ("md", "html", "junit", "json"):
        assert render(run, fmt)  # type: ignore[arg-type]
