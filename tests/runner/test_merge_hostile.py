"""Whatever stands in a shard's results: they are joined and rendered, or refused with a sentence. Never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.hostile_documents import VALUES, places, replaced
from support.shard_runs import cell, shards_of, spec, whole

from keystone_action import __version__
from keystone_action.errors import KeystoneError
from keystone_action.github.log_commands import annotations_of
from keystone_action.report.write import render
from keystone_action.runner.journal.entries import identity_line
from keystone_action.runner.journal.identity import Identity
from keystone_action.runner.journal.merge import read_shard_folder
from keystone_action.scoring.document import run_to_document, sandbox_to_document
from keystone_action.scoring.shards import ShardRun, merge
from keystone_action.spec.plan import cells_digest

PARTS = shards_of(
    whole(
        [
            spec("alpha", [cell("alpha", "one", 0, skipped=True, model="small"), cell("alpha", "two", 0)]),
            spec("beta", [cell("beta", "one", 0, "fail", score=0.5, broken=True), cell("beta", "two", 0, "error")]),
        ],
        notices=("a notice",),
    ),
    2,
)
DOCUMENT = run_to_document(PARTS[1])


def leave(folder: Path, document: Any) -> None:
    """The document with the journal that agrees with it, as far as it has cells."""
    folder.mkdir(exist_ok=True)
    (folder / "results.json").write_text(json.dumps(document), "utf-8")
    lines: list[bytes] = [identity_line(Identity({"spec": {"beta": "b" * 64}}), "shard-2")]
    sandbox = sandbox_to_document(PARTS[1].sandbox)
    for one in document["specs"] if isinstance(document["specs"], list) else ():
        if isinstance(one, dict) and isinstance(one.get("cells"), list):
            head = {"spec": one["id"], "sha256": one["sha256"], "sandbox": sandbox}
            lines += [json.dumps({**head, **c}).encode() + b"\n" for c in one["cells"] if isinstance(c, dict)]
    (folder / "journal.jsonl").write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "shard-2"


def test_the_shard_as_it_is_can_be_read(folder: Path) -> None:
    """Else what is replaced in it below is never looked at."""
    leave(folder, DOCUMENT)
    assert read_shard_folder(folder)[0] == PARTS[1]


@settings(max_examples=3 * settings().max_examples)
@given(path=st.sampled_from(list(places(DOCUMENT))), value=VALUES)
@example(path=("plan", "cells"), value=10**18)
@example(path=("started_at",), value="0001-01-01T00:00:00+23:59")
@example(path=("started_at",), value="9999-12-31T23:59:59-23:59")
@example(path=("specs", 0, "positions", "holds"), value=-(10**30))
@example(path=("specs", 0, "cells", 0, "agent", "duration_s"), value=1e308)
@example(path=("specs", 0, "cells", 0, "agent", "duration_s"), value=10**309)
@example(path=("specs", 0, "cells", 0, "usage", "input_tokens"), value=10**309)
@example(path=("specs", 0, "cells", 0, "invariants", 0, "duration_s"), value=10**309)
@example(path=("duration_s",), value=10**309)
@example(path=("specs", 0, "cells", 0, "agent", "exit_code"), value=10**300)
def test_one_value_of_a_shard_replaced(folder: Path, path: tuple[Any, ...], value: Any) -> None:
    leave(folder, replaced(DOCUMENT, path, value))
    try:
        shards = [ShardRun("shard-1", PARTS[0]), ShardRun("shard-2", read_shard_folder(folder)[0])]
        run = merge(shards, version=__version__, digest_of=cells_digest)
    except KeystoneError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert 0 < len(refused.message) < 2000
        assert refused.exit_code in (2, 3)
        return
    assert run.verdict == "error", "a cell of shard 2 could not be graded"
    for fmt in ("md", "html", "junit", "json"):
        assert render(run, fmt)  # type: ignore[arg-type]
    annotations_of(run, directory=folder, workspace=folder, limit=9)
