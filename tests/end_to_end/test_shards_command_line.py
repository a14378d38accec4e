"""plan → run --shard → merge, by the real command, against the same run in one piece."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import ENVIRONMENT, Called, keystone

from keystone_action.cli.main import main
from keystone_action.spec.plan import shard_of

SCENARIOS = ("bulk", "copy", "edit")
SUITE = """\
version: 1
id: suite
task: {prompt: "do it"}
agent:
  type: command
  command: |
    echo "$CELL worked"
    case "$CELL" in %s) ;; *) echo done > done.txt;; esac
  env: {CELL: "{{ cell.id }}"}
parallelism: {replicas: 3}
scenarios: [%s]
invariants:
  done: {description: "It is done", weight: 2, check: {type: file_exists, path: done.txt}}
  tidy: {weight: 1, check: {type: file_absent, path: core}}
scoring: {pass_threshold: 0.85, replica_aggregation: majority}
"""
OTHER = """\
version: 1
id: other
task: {prompt: "do that"}
agent: {type: command, command: "true"}
invariants:
  nothing: {check: {type: file_absent, path: core}}
"""
FLAKY, FAILING = "suite.bulk.r1", "suite.bulk.r1|suite.edit.*"
VOLATILE = {"run_id", "started_at", "duration_s"}


def write(directory: Path, undone: str, names: Sequence[str] = SCENARIOS) -> None:
    scenarios = ", ".join(f"{{id: {name}, prompt: do {name}}}" for name in names)
    (directory / "keystone.yaml").write_text(SUITE % (undone, scenarios), "utf-8")
    (directory / "other.keystone.yaml").write_text(OTHER, "utf-8")


def run_shards(directory: Path, *words: object, count: int = 3) -> list[Called]:
    """Each shard into `shards/<i>`."""
    return [
        keystone("run", ".", "--shard", f"{i}/{count}", "--output", f"shards/{i}", *words, directory=directory)
        for i in range(1, count + 1)
    ]


def once(factory: pytest.TempPathFactory, undone: str, codes: list[int], *words: object) -> Path:
    """A directory in which a run has been in one piece, into `whole`, and in three shards; made once for all tests.
    codes: what the one and the three, sorted, exit with."""

    def call(directory: Path) -> Called:
        write(directory, undone)
        whole = keystone("run", ".", "--output", "whole", directory=directory)
        assert [whole.code, *sorted(shard.code for shard in run_shards(directory, *words))] == codes
        return whole

    name = "".join(letter for letter in f"shards-{undone}" if letter.isalnum())
    return called_once(factory, name, call).output.parent


@pytest.fixture(scope="module")
def passing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, "nothing", [0, 0, 0, 0])


@pytest.fixture(scope="module")
def flaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, FLAKY, [0, 0, 0, 1])


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once(tmp_path_factory, FAILING, [1, 0, 0, 0], "--fail-on", "never")


@pytest.fixture
def ready(tmp_path: Path, passing: Path) -> Path:
    """A copy of one that passed, for one test."""
    return shutil.copytree(passing, tmp_path / "ready")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """`keystone WORDS…` in this process, for calls that run no cell."""

    def call(*words: object, directory: Path) -> Called:
        monkeypatch.chdir(directory)
        code = main([str(word) for word in words], ENVIRONMENT)
        said = capsys.readouterr()
        return Called(code, said.out, said.err, directory / "out")

    return call


def steady(value: Any) -> Any:
    """A document without what differs between two runs of the same: times and ids of runs."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if key not in VOLATILE}
    return [steady(item) for item in value] if isinstance(value, list) else value


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("made", "verdict", "code"), [("passing", "pass", 0), ("flaky", "flaky", 0), ("failing", "fail", 1)]
)
def test_joined_shards_are_the_run_in_one_piece(
    tmp_path: Path, request: pytest.FixtureRequest, made: str, verdict: str, code: int
) -> None:
    directory = request.getfixturevalue(made)
    joined = keystone("merge", directory / "shards", "--output", "out", directory=tmp_path)
    assert joined.code == code, joined.err
    expected = json.loads((directory / "whole" / "results.json").read_text())
    assert steady(joined.document) == steady(expected)
    assert joined.document["verdict"] == verdict
    assert (joined.document["counts"]["cells"], joined.document["plan"]["shard"]) == (10, None)
    assert files(tmp_path / "out") == files(directory / "whole")
    said = (tmp_path / "out" / "cells" / "suite.copy.r2" / "agent.stdout").read_text()
    assert said == "suite.copy.r2 worked\n"
    assert sorted(joined.out.splitlines()) == sorted(line for line in joined.out.splitlines() if "r" in line)
    assert len(joined.out.splitlines()) == 10
    assert "shard" not in (tmp_path / "out" / "summary.md").read_text()


def test_plan_says_which_cell_is_in_which_shard_and_that_is_where_it_runs(
    flaky: Path, command: Callable[..., Called]
) -> None:
    planned = keystone("plan", ".", "--shards", "3", directory=flaky)
    assert planned.code == 0, planned.err
    lines = [line.split("\t") for line in planned.out.splitlines()]
    assert [cell for _, cell in lines] == command("plan", ".", directory=flaky).out.splitlines()
    for shard in ("1/3", "2/3", "3/3"):
        document = json.loads((flaky / "shards" / shard[0] / "results.json").read_text())
        ran = {cell["id"] for spec in document["specs"] for cell in spec["cells"]}
        assert ran == {cell for of, cell in lines if of == shard}
        assert (document["plan"]["shard"], document["plan"]["cells"]) == (shard, 10)
        assert f"shard {shard}: {len(ran)} of 10 cells" in (flaky / "shards" / shard[0] / "summary.md").read_text()


@pytest.mark.parametrize(("wanted", "shards"), [(1, 1), (3, 3), (10, 10), (11, 10), (256, 10)])
def test_the_matrix_has_never_more_shards_than_cells(
    tmp_path: Path, command: Callable[..., Called], wanted: int, shards: int
) -> None:
    write(tmp_path, FLAKY)
    planned = command("plan", ".", "--shards", wanted, "--github", directory=tmp_path)
    assert planned.code == 0, planned.err
    (line,) = planned.out.splitlines()
    assert json.loads(line) == {"shard": [f"{i}/{shards}" for i in range(1, shards + 1)]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shards", "257", "--github"], "257 shards are more than the 256 jobs"),
        (["--shards", "0"], "not a whole number from 1"),
        (["--shards", "many"], "not a whole number from 1"),
        (["--github"], "expected --shards N"),
        (["--shards", "2", "--shard", "1/2"], "leave one of them out"),
        (["--shards", "2", "--filter", "nothing"], "nothing to run"),
    ],
)
def test_a_plan_that_is_refused(tmp_path: Path, command: Callable[..., Called], words: list[str], said: str) -> None:
    write(tmp_path, FLAKY)
    called = command("plan", ".", *words, directory=tmp_path)
    assert (called.code, called.out) == (2, "")
    assert said in called.err


def test_more_than_github_takes_is_fine_elsewhere(tmp_path: Path, command: Callable[..., Called]) -> None:
    write(tmp_path, FLAKY)
    called = command("plan", "other.keystone.yaml", "--shards", "1000", directory=tmp_path)
    assert (called.code, called.out) == (0, "1/1\tother.r0\n")


def test_what_exits_with_1_and_where_the_summary_goes(tmp_path: Path, failing: Path) -> None:
    shards = failing / "shards"
    lenient = keystone(
        "merge", shards, "--output", "out", "--fail-on", "never", "--summary", "s/summary.md", directory=tmp_path
    )
    assert (lenient.code, lenient.document["verdict"]) == (0, "fail")
    assert (tmp_path / "s" / "summary.md").read_text() == (tmp_path / "out" / "summary.md").read_text()
    printed = keystone("merge", shards, "--output", "two", "--format", "json", "--quiet", directory=tmp_path)
    assert (printed.code, printed.err) == (1, "")
    assert json.loads(printed.out) == json.loads((tmp_path / "two" / "results.json").read_text())


def test_without_an_output_results_go_where_those_of_runs_go(ready: Path) -> None:
    shutil.rmtree(ready / "whole")
    assert keystone("merge", "shards", directory=ready).code == 0
    (results,) = (ready / ".keystone" / "runs").glob("*/results.json")
    assert json.loads(results.read_text())["verdict"] == "pass"
    assert keystone("merge", ".", "--output", "out", directory=ready).code == 0


def test_an_interrupted_shard_is_resumed_and_then_joined(tmp_path: Path, flaky: Path) -> None:
    shutil.copytree(flaky, tmp_path, dirs_exist_ok=True)
    index = shard_of(FLAKY, 3)  # it has cells to lose
    cut = tmp_path / "shards" / str(index)
    lines = (cut / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "journal.jsonl").write_bytes(b"".join(lines[:2]) + lines[2][:50])
    (cut / "results.json").unlink()
    killed = keystone("merge", "shards", "--output", "out", directory=tmp_path)
    assert (killed.code, (tmp_path / "out").exists()) == (3, False)
    assert f"shards/{index} has a journal, but no results.json" in killed.err
    again = keystone("run", ".", "--shard", f"{index}/3", "--resume", f"shards/{index}", directory=tmp_path)
    assert again.code == 1, again.err
    assert (cut / "journal.jsonl").read_bytes().startswith(b"".join(lines[:2]))
    joined = keystone("merge", "shards", "--output", "out", directory=tmp_path)
    assert joined.code == 0
    expected = json.loads((tmp_path / "whole" / "results.json").read_text())
    assert steady(joined.document) == steady(expected)


def test_a_folder_resumed_as_another_shard_counts_as_that_one(ready: Path) -> None:
    """The journal then has more cells than the results: those of the shard that it was are not joined twice."""
    shutil.copytree(ready / "shards" / "1", ready / "twice")
    assert keystone("run", ".", "--shard", "2/3", "--resume", "twice", directory=ready).code == 0
    shutil.rmtree(ready / "shards" / "2")
    joined = keystone("merge", "shards", "twice", "--output", "out", directory=ready)
    assert (joined.code, joined.document["counts"]["cells"]) == (0, 10), joined.err


def changed_spec(directory: Path) -> None:
    (directory / "keystone.yaml").write_text((directory / "keystone.yaml").read_text() + "# changed\n")
    keystone("run", ".", "--shard", "2/3", "--output", "new", directory=directory)
    shutil.rmtree(directory / "shards" / "2")


def other_threshold(directory: Path) -> None:
    index = shard_of(FLAKY, 3)  # the others have cells of this spec, too
    shutil.rmtree(directory / "shards" / str(index))
    keystone("run", ".", "--shard", f"{index}/3", "--output", "new", "--threshold", "0.5", directory=directory)


def other_count(directory: Path) -> None:
    keystone("run", ".", "--shard", "2/4", "--output", "new", directory=directory)


def other_cells(directory: Path) -> None:
    shutil.rmtree(directory / "shards" / "2")
    keystone("run", ".", "--shard", "2/3", "--output", "new", "--replicas", "4", directory=directory)


def twice(directory: Path) -> None:
    shutil.copytree(directory / "shards" / "2", directory / "new")


def missing(directory: Path) -> None:
    shutil.rmtree(directory / "shards" / "2")


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (changed_spec, 3, "the spec suite differs between them (by sha256)"),
        (other_threshold, 3, "pass_threshold of suite is 0.85 in one and 0.5 in the other"),
        (other_count, 3, "one is a shard of 4, the other of 3"),
        (other_cells, 3, "they planned different cells"),
        (missing, 3, "missing: shard 2/3 (found: 1/3, 3/3)"),
        (twice, 2, "shard 2/3 is given twice: new and shards/2"),
    ],
)
def test_what_can_not_be_joined(ready: Path, command: Callable[..., Called], change: Any, code: int, said: str) -> None:
    change(ready)
    places = ["new", "shards"] if (ready / "new").exists() else ["shards"]
    called = command("merge", *places, "--output", "out", directory=ready)
    assert (called.code, called.out) == (code, "")
    assert said in called.err
    assert "→" in called.err
    assert not (ready / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "DIR"),
        (["nowhere"], "there is no folder /"),
        (["empty"], "there are no results in"),
        (["empty", "--fail-on", "regressions"], "none of threshold, regression, error, never"),
        (
            ["empty", "--threshold", "0.5"],
            "no option --threshold: it is an option of `keystone run`",
        ),
        (["empty", "--summary", "empty"], "is a directory"),
    ],
)
def test_a_bad_call(tmp_path: Path, command: Callable[..., Called], words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    called = command("merge", *words, directory=tmp_path)
    assert called.code == 2
    assert said in called.err


def test_an_error_in_a_shard_is_an_error_of_all(tmp_path: Path) -> None:
    """A cell that could not be graded is never lost between the others."""
    write(tmp_path, "nothing", SCENARIOS[:1])
    text = (tmp_path / "other.keystone.yaml").read_text()
    (tmp_path / "other.keystone.yaml").write_text(text + "secrets: [MISSING_SECRET]\n")
    codes = [called.code for called in run_shards(tmp_path, count=2)]
    assert sorted(codes) == [0, 3]
    joined = keystone("merge", "shards", "--output", "out", directory=tmp_path)
    assert (joined.code, joined.document["verdict"], joined.document["counts"]["errors"]) == (3, "error", 1)
    assert "MISSING_SECRET" in (tmp_path / "out" / "summary.md").read_text()
    environ = {"MISSING_SECRET": "there it is"}
    again = keystone("run", ".", "--resume", "out", directory=tmp_path, environ=environ)
    assert (again.code, again.document["verdict"], again.document["counts"]["cells"]) == (0, "pass", 4)


def test_a_shard_without_a_cell_leaves_what_can_be_joined(tmp_path: Path) -> None:
    write(tmp_path, "nothing")
    for shard in ("1/2", "2/2"):
        place = f"shards/{shard[0]}"
        called = keystone("run", "other.keystone.yaml", "--shard", shard, "--output", place, directory=tmp_path)
        assert called.code == 0
    assert "0 of 1 cells; nothing to do here" in (tmp_path / "shards" / "2" / "summary.md").read_text()
    joined = keystone("merge", "shards", "--output", "out", directory=tmp_path)
    assert (joined.code, joined.document["verdict"], joined.document["counts"]["cells"]) == (0, "pass", 1)


LARGE = """\
version: 1
id: large
task: {prompt: x}
agent:
  type: command
  command: ['sh', '-c', 'echo "$0" > trace.jsonl', '{"type": "turn.completed", "usage": {"input_tokens": %d}}']
  trace: {format: codex, path: trace.jsonl}
"""


def test_what_one_call_writes_the_other_reads(tmp_path: Path) -> None:
    """One set of limits: a number that a run lets pass is not damage to `merge` and `--resume`."""
    tokens = 2**63 - 1
    (tmp_path / "keystone.yaml").write_text(
        LARGE % tokens + "invariants:\n"
        "  heavy: {weight: 2.0e+12, check: {type: file_absent, path: x}}\n"
        "  huge: {weight: 1.0e+300, check: {type: trace, max_tokens: 9223372036854775807}}\n"
    )
    assert keystone("run", ".", "--output", "large", directory=tmp_path).code == 0
    joined = keystone("merge", "large", "--output", "out", directory=tmp_path)
    assert (joined.code, joined.document["composite"]) == (0, 1.0), joined.err
    assert joined.document["usage"]["input_tokens"] >= tokens
    assert keystone("run", ".", "--resume", "large", directory=tmp_path).code == 0


def test_what_is_too_much_is_malformed_where_it_is_read_first(tmp_path: Path) -> None:
    for name, tokens in (("much", 2**63), ("more", 10**300)):
        text = (LARGE % tokens).replace("id: large", f"id: {name}")
        text += "invariants: {huge: {check: {type: trace, max_tokens: 5}}}\n"
        (tmp_path / f"{name}.keystone.yaml").write_text(text)
    assert keystone("run", ".", "--output", "large", directory=tmp_path).code == 1
    joined = keystone("merge", "large", "--output", "out", directory=tmp_path)
    assert joined.code == 1, joined.err
    messages = [cell["invariants"][0]["message"] for cell in joined.cells]
    assert ["malformed" in message for message in messages] == [True, True], messages
