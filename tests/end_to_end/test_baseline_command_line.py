"""`--baseline`, `--fail-on regression` and `keystone compare` on real runs, and on files that are none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import Called, keystone

from keystone_action.errors import UsageError
from keystone_action.runner.journal.earlier_runs import beside_baseline, read_baseline
from keystone_action.scoring.aggregate import exit_code_of

SPEC = """
version: 1
id: small
task: {prompt: "do it"}
agent: {type: command, command: "%s"}
parallelism: {replicas: 2, matrix: {size: [1, 2]}}
invariants:
  first: {check: {type: file_exists, path: first}}
  second: {weight: 3, check: {type: file_exists, path: second}}
scoring: {pass_threshold: 0.7}
"""


def run(directory: Path, agent: str, output: str, *words: object) -> Called:
    (directory / "keystone.yaml").write_text(SPEC % agent)
    return keystone("run", "keystone.yaml", "--output", output, *words, directory=directory)


def baseline_of(directory: Path, output: str) -> dict[str, Any]:
    return json.loads((directory / output / "results.json").read_text())["baseline"]


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where the results of a run with this agent are; each is run once, for all tests."""

    def found(agent: str) -> Path:
        name = f"baseline-{agent.replace(' ', '-')}"
        return called_once(tmp_path_factory, name, lambda directory: run(directory, agent, "out")).output

    return found


@pytest.fixture
def base(tmp_path: Path, results_of: Callable[[str], Path]) -> Path:
    """A directory with the results of a run that passed."""
    shutil.copytree(results_of("touch first second"), tmp_path / "base")
    assert json.loads((tmp_path / "base" / "results.json").read_text())["verdict"] == "pass"
    return tmp_path


def test_what_is_broken_is_said_everywhere(base: Path) -> None:
    called = run(base, "touch first", "head", "--baseline", "base")
    assert called.code == 1
    found = baseline_of(base, "head")
    assert (found["source"], found["verdict"], found["composite"]) == ("base", "pass", 1.0)
    assert [(one["scenario"], one["params"], one["change"]) for one in found["groups"]] == [
        ("small", {"size": 1}, "broken"),
        ("small", {"size": 2}, "broken"),
    ]
    assert {(one["invariant"], one["before"], one["after"]) for one in found["invariants"]} == {
        ("second", "pass", "fail")
    }
    assert found["regressions"] == 4
    assert found["changed_specs"] == ["small"]
    assert found["specs"][0]["p_value"] == pytest.approx(1 / 18)  # two strata of 2 and 2, all of one side: (1/6)² · 2
    summary = (base / "head" / "summary.md").read_text("utf-8")
    assert "**Against the baseline:** 4 broken" in summary
    assert "Other spec files than in the baseline: small." in summary
    page = (base / "head" / "report.html").read_text("utf-8")
    assert "Against the baseline: 4 broken" in page
    assert "against the baseline: 4 broken (base" in called.err


def test_fixed(tmp_path: Path, results_of: Callable[[str], Path]) -> None:
    broken = results_of("touch first") / "results.json"
    called = run(tmp_path, "touch first second", "head", "--baseline", broken, "--fail-on", "regression")
    assert called.code == 0
    found = baseline_of(tmp_path, "head")
    assert {one["change"] for one in (*found["groups"], *found["invariants"])} == {"fixed"}
    assert "**Against the baseline:** 4 fixed" in (tmp_path / "head" / "summary.md").read_text("utf-8")


def test_what_failed_there_too_is_no_regression(tmp_path: Path, results_of: Callable[[str], Path]) -> None:
    words = ("--baseline", results_of("touch first"), "--fail-on", "regression")
    called = run(tmp_path, "touch first", "out", *words)
    assert (called.code, called.document["verdict"]) == (0, "fail")


@pytest.mark.parametrize(
    ("before", "after", "fail_on", "code", "verdict"),
    [
        ("touch first", "touch first", "threshold", 1, "fail"),
        ("touch first", "touch first", "regression", 0, "fail"),
        ("touch second", "touch second", "regression", 0, "pass"),
        ("touch first second", "touch second", "threshold", 0, "pass"),
        ("touch first second", "touch second", "regression", 1, "pass"),
        ("touch first", "true", "regression", 1, "fail"),
        ("touch first second", "touch first", "never", 0, "fail"),
    ],
)
def test_fail_on_regression(
    results_of: Callable[[str], Path], before: str, after: str, fail_on: str, code: int, verdict: str
) -> None:
    """5.4: "once a baseline exists, only checks and cells that were better there fail"; never the verdict."""
    found = beside_baseline(read_baseline(results_of(after)).run, read_baseline(results_of(before)))
    assert (exit_code_of(found, fail_on), found.verdict) == (code, verdict)


def test_a_run_that_passes_and_got_worse_exits_with_1(base: Path) -> None:
    """Of a call: the cases above ask for the code in this process."""
    called = run(base, "touch second", "out", "--baseline", "base", "--fail-on", "regression")
    assert (called.code, called.document["verdict"]) == (1, "pass")


def test_an_error_is_never_hidden(base: Path) -> None:
    (base / "keystone.yaml").write_text(SPEC % "true" + "secrets: [MISSING]\n")
    called = keystone("run", ".", "--output", "head", "--baseline", "base", "--fail-on", "regression", directory=base)
    assert called.code == 3
    assert {one["change"] for one in baseline_of(base, "head")["groups"]} == {"ungraded"}


def test_without_a_baseline_the_threshold_decides_and_that_is_said(tmp_path: Path) -> None:
    called = run(tmp_path, "touch first", "head", "--fail-on", "regression")
    assert called.code == 1
    assert "no baseline" in (tmp_path / "head" / "summary.md").read_text("utf-8")
    assert "threshold decides" in called.err


def test_a_part_of_the_cells(base: Path) -> None:
    called = run(base, "touch first second", "head", "--baseline", "base", "--param", "size=1")
    assert called.code == 0
    found = baseline_of(base, "head")
    assert (found["partial"], found["groups"]) == (True, [])


def test_shards_and_their_whole(base: Path) -> None:
    ran = []
    for index in (1, 2, 3):
        called = run(base, "touch first", f"shards/{index}", "--shard", f"{index}/3", "--baseline", "base")
        results = json.loads((base / "shards" / str(index) / "results.json").read_text())
        ran.append(results["counts"]["cells"])
        # One that the hashes of the cells' ids leave empty decides nothing.
        assert called.code == (1 if ran[-1] else 0)
        assert results["baseline"]["partial"] is True
    assert sum(ran) == 4
    assert sum(map(bool, ran)) > 1
    joined = keystone(
        "merge", "shards", "--output", "all", "--baseline", "base", "--fail-on", "regression", directory=base
    )
    assert joined.code == 1
    found = baseline_of(base, "all")
    assert (found["partial"], found["regressions"]) == (False, 4)


def test_compare(base: Path, results_of: Callable[[str], Path]) -> None:
    shutil.copytree(results_of("touch first"), base / "head")
    there = keystone("compare", "base", "head", directory=base)
    assert there.code == 1
    assert there.out.startswith("against the baseline: 4 broken (base, ")
    assert "broken: small (size=1) › second: pass (2/2) → fail (0/2)" in there.out
    back = keystone("compare", "head/results.json", "base", directory=base)
    assert (back.code, "fixed: small (size=1) › second" in back.out) == (0, True)
    same = keystone("compare", "base", "base", directory=base)
    assert (same.code, "no check or cell changed its outcome" in same.out) == (0, True)
    document = json.loads(keystone("compare", "base", "head", "--format", "json", directory=base).out)
    assert document["regressions"] == 4


def _edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def _cell(**values: Any) -> Callable[[Path], None]:
    return _edit(lambda document: document["specs"][0]["cells"][0].update(values))


def _link(path: Path) -> None:
    real = path.with_name("real.json")
    path.rename(real)
    path.symlink_to(real)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (Path.unlink, "there is no baseline"),
        (_link, "is a link, which is not followed"),
        (_fifo, "is not a regular file"),
        (lambda path: path.write_text("{"), "is not a JSON document"),
        (lambda path: path.write_text("[" * 100_000), "is not a JSON document"),
        (lambda path: path.write_text("[]"), "holds no results"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "is not a JSON document"),
        (_edit(lambda document: document.update(schema_version=2)), "schema_version: expected 1, found 2"),
        (_edit(lambda document: document.update(specs=[])), "no cell of any spec was finished"),
        (_edit(lambda document: document["specs"].append(document["specs"][0])), "a spec is there twice"),
        (_edit(lambda document: document["specs"][0].update(replica_aggregation="lots")), "is not a rule for replicas"),
        (_edit(lambda document: document["specs"][0].update(pass_threshold=7)), "pass_threshold 7"),
        (_edit(lambda document: document["specs"][0].update(sha256="../../x")), "the sha256 of small"),
        (_edit(lambda document: document.update(git_sha="$(touch x)")), "git_sha is not a commit"),
        (_edit(lambda document: document.update(started_at="<b>")), "started_at is not a time"),
        (_cell(composite=2.0), "a score that is not between 0 and 1"),
        (_cell(composite=None), "verdict pass with the composite None"),
        (_cell(composite="1.0"), "can't read"),
        (_cell(scenario="x" * 300), "a name that is too long"),
        (
            _edit(lambda document: document["specs"][0]["cells"].append(document["specs"][0]["cells"][0])),
            "a cell twice",
        ),
    ],
)
def test_a_baseline_that_is_none(base: Path, harm: Any, said: str) -> None:
    harm(base / "base" / "results.json")
    with pytest.raises(UsageError) as refused:
        read_baseline(base / "base")
    assert refused.value.exit_code == 2
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("harm", "said"), [(Path.unlink, "there is no baseline"), (_cell(composite=2.0), "a score that is not between")]
)
def test_a_baseline_that_is_none_is_exit_2_before_anything_runs(base: Path, harm: Any, said: str) -> None:
    harm(base / "base" / "results.json")
    called = run(base, "touch first second", "head", "--baseline", "base")
    assert (called.code, called.out) == (2, ""), called.err
    assert said in called.err
    assert not called.has_traceback
    assert not (base / "head").exists()


def test_verdicts_of_a_baseline_are_made_from_its_cells(base: Path) -> None:
    """A file that says that all was bad there would let everything pass."""
    path = base / "base" / "results.json"
    document = json.loads(path.read_text())
    document["verdict"] = document["specs"][0]["verdict"] = "fail"
    for group in document["specs"][0]["groups"]:
        group["verdict"] = "fail"
    path.write_text(json.dumps(document))
    called = run(base, "touch first", "head", "--baseline", "base", "--fail-on", "regression")
    assert called.code == 1
    assert baseline_of(base, "head")["verdict"] == "pass"


def test_hostile_names_of_a_baseline_are_text(base: Path) -> None:
    path = base / "base" / "results.json"
    document = json.loads(path.read_text())
    for cell in document["specs"][0]["cells"]:
        cell["scenario"] = "<img src=x>@octocat\n::error::x"
    path.write_text(json.dumps(document))
    called = run(base, "touch first second", "head", "--baseline", "base")
    assert called.code == 0
    for name in ("summary.md", "report.html"):
        assert "<img src=x>" not in (base / "head" / name).read_text("utf-8").replace("`<img src=x>@octocat", "")
    assert not any(line.startswith("::error") for line in called.err.splitlines())
