"""`keystone run --failed DIR`: only the cells that did not pass there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.command_line import Called, keystone

from keystone_action.spec.plan import shard_of

SUITE = """\
version: 1
id: suite
tags: [all]
task: {prompt: do it}
agent: {type: command, command: 'grep -qx {{ cell.id }} "{{ agent.dir }}/bad" && touch x; true', dir: agent}
parallelism: {replicas: 3}
scenarios: [{id: one, prompt: p, tags: [first]}, {id: two, prompt: q}, {id: three, prompt: r}]
invariants: {clean: {check: {type: file_absent, path: x}}}
scoring: {replica_aggregation: any}
"""
FAILED = ["suite.one.r1", "suite.two.r0"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spec of nine cells, and `first`, a run of it in which two failed: `one` and `two` are flaky."""
    directory = tmp_path_factory.mktemp("suite")
    (directory / "agent").mkdir()
    (directory / "keystone.yaml").write_text(SUITE, "utf-8")
    (directory / "agent" / "bad").write_text("\n".join(FAILED), "utf-8")
    first = keystone("run", "--output", "first", directory=directory)
    assert (first.code, results(directory / "first")["verdict"]) == (0, "flaky")
    (directory / "agent" / "bad").write_text("", "utf-8")
    return directory


@pytest.fixture
def place(tmp_path: Path, suite: Path) -> Path:
    """A copy of the suite that the test may change."""
    return shutil.copytree(suite, tmp_path / "suite")


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text("utf-8"))


def ran(called: Called) -> list[str]:
    assert called.code == 0, called.err
    return sorted(cell["id"] for cell in called.cells)


@pytest.mark.parametrize("where", ["first", "first/results.json", "{}/first"])
def test_only_what_did_not_pass_runs_again_and_that_is_said(place: Path, where: str) -> None:
    called = keystone("run", "--failed", where.format(place), "--output", "out", directory=place)
    assert ran(called) == FAILED
    said = f"a part of the run: 2 of 9 cells, those that did not pass in the run {results(place / 'first')['run_id']}"
    assert said in called.err
    assert said in called.document["notices"]
    assert "a part of the run: 2 of 9 cells" in (place / "out" / "summary.md").read_text("utf-8")
    again = keystone("run", "--failed", "out", directory=place)
    assert (again.code, again.out) == (2, "")
    assert "every cell passed in out; nothing to run again" in again.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--filter", "two"], FAILED[1:]),
        (["--tag", "first"], FAILED[:1]),
        (["--shard", "1/3"], [name for name in FAILED if shard_of(name, 3) == 1]),
        (["--shard", "2/3"], [name for name in FAILED if shard_of(name, 3) == 2]),
        (["--shard", "3/3"], [name for name in FAILED if shard_of(name, 3) == 3]),
        ([], FAILED),
    ],
)
def test_other_choices_choose_among_them(suite: Path, words: list[str], expected: list[str]) -> None:
    called = keystone("plan", "--failed", "first", *words, directory=suite)
    assert (called.code, called.out.split()) == (0, expected)


def test_shards_of_them_are_one_run(place: Path) -> None:
    for index in (1, 2):
        words = ["--failed", "first", "--shard", f"{index}/2", "--output", f"shards/{index}"]
        assert keystone("run", *words, directory=place).code == 0
    joined = keystone("merge", "shards", "--output", "out", directory=place)
    assert ran(joined) == FAILED
    assert "a part of the run: 2 of 9 cells" in joined.err
    shutil.rmtree(place / "shards" / "2")
    assert keystone("run", "--filter", "t*", "--shard", "2/2", "--output", "shards/2", directory=place).code == 0
    assert keystone("merge", "shards", "--output", "other", directory=place).code == 3, "the choice is compared"


def test_what_did_not_run_did_not_pass(place: Path) -> None:
    """Cells in error, and those that a run that was cut short never came to."""
    document = results(place / "first")
    cells = document["specs"][0]["cells"]
    cells[0] |= {"verdict": "error", "composite": None, "error": "no time"}
    lost = cells.pop()["id"]
    (place / "first" / "results.json").write_text(json.dumps(document), "utf-8")
    planned = keystone("plan", "--failed", "first", directory=place)
    assert sorted(planned.out.split()) == sorted({*FAILED, cells[0]["id"], lost})
    document["plan"]["chosen"] = ["tag first"]
    (place / "first" / "results.json").write_text(json.dumps(document), "utf-8")
    planned = keystone("plan", "--failed", "first", directory=place)
    assert lost.startswith("suite.one") or lost not in planned.out, "it was never to run what its tag left out"


def test_of_a_shard_that_was_cut_short_only_its_own_cells_are_left(place: Path) -> None:
    assert keystone("run", "--shard", "2/3", "--output", "part", directory=place).code == 0
    document = results(place / "part")
    own = [cell["id"] for cell in document["specs"][0]["cells"]]
    del document["specs"][0]["cells"][1:]
    (place / "part" / "results.json").write_text(json.dumps(document), "utf-8")
    planned = keystone("plan", "--failed", "part", directory=place)
    assert (planned.code, sorted(planned.out.split())) == (0, sorted(own[1:]))


def test_a_cell_that_is_gone_is_named(place: Path) -> None:
    text = SUITE.replace("{id: one, prompt: p, tags: [first]}", "{id: renamed, prompt: p}")
    (place / "keystone.yaml").write_text(text, "utf-8")
    called = keystone("run", "--failed", "first", "--output", "out", directory=place)
    assert ran(called) == FAILED[1:]
    assert "note: not run again: the specs of this call do not have suite.one.r1" in called.err
    (place / "keystone.yaml").write_text(text.replace("id: two", "id: second"), "utf-8")
    called = keystone("run", "--failed", "first", directory=place)
    assert (called.code, called.out) == (2, "")
    assert "do not have suite.one.r1, suite.two.r0" in called.err


def test_options_that_make_cells_have_to_be_given_again(place: Path) -> None:
    (place / "agent" / "bad").write_text("suite.one.r4\nsuite.one.r1", "utf-8")
    words = ["--replicas", "5", "--filter", "one", "--output", "more"]
    assert keystone("run", *words, directory=place).code == 0
    called = keystone("plan", "--failed", "more", directory=place)
    assert called.out.split() == ["suite.one.r1"]
    assert "suite.one.r4; that run had more replicas: give --replicas as it did" in called.err
    called = keystone("plan", "--failed", "more", "--replicas", "5", directory=place)
    assert called.out.split() == ["suite.one.r1", "suite.one.r4"]
    assert "do not have" not in called.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--failed", "nowhere"], "there is no results file"),
        (["--failed", "agent"], "there is no results file"),
        (["--failed", "agent/bad"], "is not a JSON document"),
        (["--failed", "a killed"], "that run was killed before it wrote its results: `--resume 'a killed'` goes on"),
        (["--failed", "first", "--resume", "first"], "--resume and --failed name the same run"),
        (["--failed", "first/results.json", "--resume", "first"], "--resume and --failed name the same run"),
        (["--failed", "first", "--output", "first"], "--resume"),
        (["--failed", "first", "--filter", "three"], "no cell that did not pass in the run"),
        (["--failed", "first", "--filter", "fuor"], "nothing matches --filter fuor"),
        (["--failed", "first", "--filter", "thre"], "did you mean `three`?"),
        (["--failed", "damaged"], "'0/9' is not a shard"),
        (["--failed", "boundless"], "its plan has a number of cells that no run has"),
        (["--failed", "negative"], "its plan has a number of cells that no run has"),
    ],
)
def test_a_bad_call_ends_with_2_and_runs_nothing(place: Path, words: list[str], said: str) -> None:
    shutil.copytree(place / "first", place / "a killed")
    (place / "a killed" / "results.json").unlink()
    document = results(place / "first")
    document["plan"]["shard"] = "0/9"
    (place / "damaged").mkdir()
    (place / "damaged" / "results.json").write_text(json.dumps(document), "utf-8")
    for name, count in (("boundless", 10**30), ("negative", -1)):
        document["plan"] |= {"shard": None, "cells": count}
        (place / name).mkdir()
        (place / name / "results.json").write_text(json.dumps(document), "utf-8")
    before = (place / "first" / "results.json").read_bytes()
    called = keystone("run", *words, directory=place)
    assert (called.code, called.out) == (2, ""), called.err
    assert said in called.err
    assert (place / "first" / "results.json").read_bytes() == before
    assert not (place / ".keystone").exists()


def test_a_folder_of_runs_names_its_newest(place: Path) -> None:
    for number, name in enumerate(("older", "newer")):
        shutil.copytree(place / "first", place / "my runs" / name)
        os.utime(place / "my runs" / name, (number, number))
    called = keystone("run", "--failed", "my runs", directory=place)
    assert called.code == 2
    assert "the newest run there is `--failed 'my runs/newer'`" in called.err


def test_a_name_that_no_folder_can_have_is_a_bad_call(place: Path) -> None:
    called = keystone("run", "--failed", "x" * 300, directory=place)
    assert called.code == 2
    assert "File name too long" in called.err
