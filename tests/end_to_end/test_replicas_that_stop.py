"""`parallelism.replicas: {min, max}` by the real command: what runs, what is said, shards, and going on with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import Called, keystone

SUITE = """\
version: 1
id: suite
task: {prompt: "do it"}
agent:
  type: command
  command: 'case "$CELL" in suite.never.*|suite.mixed.r[0-3]) ;; *) touch done;; esac'
  env: {CELL: "{{ cell.id }}"}
parallelism: {replicas: {min: 2, max: 12}, max_concurrency: 1}
scenarios: [{id: always, prompt: a}, {id: never, prompt: b}, {id: mixed, prompt: c}]
invariants: {done: {check: {type: file_exists, path: done}}}
scoring: {replica_aggregation: majority}
"""
VOLATILE = {"run_id", "started_at", "duration_s"}
ALWAYS, NEVER, MIXED = 7, 6, 11
"""How many replicas run of each: seven passes in a row separate the rate from one half; six failures, or seven passes,
of twelve can't be made up for."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Called:
    def call(directory: Path) -> Called:
        (directory / "keystone.yaml").write_text(SUITE, "utf-8")
        for index in (1, 2, 3):
            words = ("--shard", f"{index}/3", "--output", f"shards/{index}")
            assert keystone("run", ".", *words, directory=directory).code in (0, 1)
        return keystone("run", ".", "--output", "whole", directory=directory)

    return called_once(tmp_path_factory, "replicas-that-stop", call)


@pytest.fixture
def folder(ran: Called, tmp_path: Path) -> Path:
    shutil.copytree(ran.output.parent, tmp_path / "copy")
    return tmp_path / "copy"


def stable(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: stable(value) for key, value in found.items() if key not in VOLATILE}
    return [stable(each) for each in found] if isinstance(found, list) else found


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text("utf-8"))
    return found


def test_replicas_stop_when_it_is_decided_and_are_no_cells(ran: Called) -> None:
    assert ran.code == 1
    found = results(ran.output.parent / "whole")
    (spec,) = found["specs"]
    assert [group["total"] for group in spec["groups"]] == [ALWAYS, NEVER, MIXED]
    assert [group["not_run"] for group in spec["groups"]] == [5, 6, 1]
    assert [group["verdict"] for group in spec["groups"]] == ["pass", "fail", "flaky"]
    assert spec["groups"][0]["reason"] == "decided after 7 of 12"
    assert found["counts"]["cells"] == len(spec["cells"]) == ALWAYS + NEVER + MIXED
    assert len(found["plan"]["not_run"]) == 12
    assert (spec["reliability"], spec["smallest_drop"]) == (None, None)
    summary = (ran.output.parent / "whole/summary.md").read_text("utf-8")
    assert "3 of 3 groups decided early: 12 replicas of 36 did not have to run" in summary


def test_shards_stop_as_one_process_does_and_are_joined(folder: Path) -> None:
    joined = keystone("merge", "shards", "--output", "joined", directory=folder)
    assert joined.code == 1, joined.err
    whole, merged = results(folder / "whole"), results(folder / "joined")
    for document in (whole, merged):
        document["plan"]["not_run"].sort()
    assert stable(merged) == stable(whole)


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = results(folder)
    change(document)
    (folder / "results.json").write_text(json.dumps(document), "utf-8")


def test_a_shard_that_says_it_is_decided_and_is_not_is_refused(folder: Path) -> None:
    for index in (1, 2, 3):
        document = results(folder / f"shards/{index}")
        cells = [cell["id"] for spec in document["specs"] for cell in spec["cells"]]
        if "suite.always.r6" in cells:
            break

    def leave_out(document: dict[str, Any]) -> None:
        (spec,) = document["specs"]
        gone = [cell["id"] for cell in spec["cells"] if cell["scenario"] == "always" and cell["replica"] > 0]
        spec["cells"] = [cell for cell in spec["cells"] if cell["id"] not in gone]
        others = [name for name in document["plan"]["not_run"] if ".always." not in name]
        document["plan"]["not_run"] = [*gone, *(f"suite.always.r{n}" for n in range(7, 12)), *others]

    forge(folder / f"shards/{index}", leave_out)
    refused = keystone("merge", "shards", "--output", "joined", directory=folder)
    assert refused.code == 3
    assert "suite.always.r1 was not run, and its group is not decided without it" in refused.err


def test_resume_goes_on_where_it_was_and_runs_no_more(folder: Path) -> None:
    before = results(folder / "whole")
    again = keystone("run", ".", "--resume", "whole", directory=folder)
    assert again.code == 1, again.err
    assert stable(results(folder / "whole")["specs"]) == stable(before["specs"])
    journal = folder / "whole/journal.jsonl"
    kept = [line for line in journal.read_text("utf-8").splitlines(keepends=True) if ".always.r6" not in line]
    journal.write_text("".join(kept), "utf-8")
    (folder / "whole/results.json").unlink()
    assert keystone("run", ".", "--resume", "whole", directory=folder).code == 1
    after = results(folder / "whole")
    assert stable(after["specs"][0]["groups"]) == stable(before["specs"][0]["groups"])


def test_failed_chooses_what_others_spared_only_where_these_failed(folder: Path) -> None:
    """Six failures decided that `never` fails: if they pass now, the other six have to run."""
    again = keystone("run", ".", "--failed", "whole", "--output", "again", directory=folder)
    assert again.code == 1, again.err
    cells = [cell["id"] for cell in results(folder / "again")["specs"][0]["cells"]]
    assert cells == [*(f"suite.never.r{n}" for n in range(6)), *(f"suite.mixed.r{n}" for n in range(4))]
    text = SUITE.replace("suite.never.*|", "")
    (folder / "keystone.yaml").write_text(text, "utf-8")
    again = keystone("run", ".", "--failed", "whole", "--filter", "*never*", "--output", "mended", directory=folder)
    assert again.code == 0, again.err
    cells = [cell["id"] for cell in results(folder / "mended")["specs"][0]["cells"]]
    assert cells == [f"suite.never.r{n}" for n in range(7)]


def test_a_plain_number_runs_whole(folder: Path) -> None:
    whole = keystone("run", ".", "--replicas", "3", "--filter", "*always*", "--output", "three", directory=folder)
    assert whole.code == 0, whole.err
    (spec,) = results(folder / "three")["specs"]
    assert (spec["stopping"], spec["groups"][0]["total"], spec["groups"][0]["not_run"]) == (None, 3, 0)


@pytest.mark.parametrize(
    ("replicas", "rule", "words"),
    [
        ("{min: 3, max: 2}", "all", "min is above max, found the number 3, expected at most 2"),
        ("{min: 1, max: 5}", "mean", "replicas can't stop when it is decided where `mean` is the rule"),
        ("{min: 1, max: 5}", "{at_least: 6}", "at_least is above the 5 replicas"),
        ("{min: 1}", "all", "the key 'max' is missing"),
        ("{min: 1, max: 5, confidence: 1}", "all", "expected a number below 1"),
        ("{min: 0, max: 5}", "all", "expected a number of at least 1"),
        ("many", "all", "found 'many', expected a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_line(folder: Path, replicas: str, rule: str, words: str) -> None:
    text = SUITE.replace("{min: 2, max: 12}", replicas).replace("majority", rule)
    (folder / "keystone.yaml").write_text(text, "utf-8")
    refused = keystone("validate", ".", directory=folder)
    assert refused.code == 2
    assert words in refused.err + refused.out
