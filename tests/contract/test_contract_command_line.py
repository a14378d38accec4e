"""What spec.md says of the command line, sentence by sentence, by the real command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import keystone, run_spec, spec

THREE = spec(parallelism="{replicas: 3}")
FAILING = "{type: file_exists, path: x}"
BROKEN = "{type: cli, binary: no-such-program}"


def test_output_that_holds_results_can_be_resumed_and_not_be_used_again(tmp_path: Path) -> None:
    """5.1: "Exit 2 … `--output` that holds results (without `--resume`)"."""
    assert run_spec(tmp_path, THREE).code == 0
    again = run_spec(tmp_path, THREE)
    assert (again.code, "--resume" in again.err) == (2, True)
    journal = tmp_path / "out" / "journal.jsonl"
    journal.write_text("".join(journal.read_text("utf-8").splitlines(keepends=True)[:2]) + '{"cut', "utf-8")
    resumed = run_spec(tmp_path, THREE, "--resume", "out")
    assert (resumed.code, resumed.document["counts"]["passed"]) == (0, 3)
    first, *lines = journal.read_text("utf-8").splitlines()
    assert json.loads(first).keys() >= {"identity"}, '5.4: "Its first line is the run\'s identity"'
    assert [json.loads(line)["verdict"] for line in lines] == ["pass"] * 3
    assert run_spec(tmp_path, THREE, "--resume", "other").code == 2


@pytest.mark.parametrize(("rule", "failed"), [("threshold", 1), ("error", 0), ("never", 0)])
def test_fail_on_changes_the_exit_code_never_the_verdict(tmp_path: Path, rule: str, failed: int) -> None:
    """5.4: "`fail-on` changes the exit code, never the verdict … `never`: exit 1 becomes 0, 2 and 3 stay"."""
    called = run_spec(tmp_path, spec(check=FAILING), "--fail-on", rule)
    assert (called.code, called.document["verdict"]) == (failed, "fail")
    (tmp_path / "more").mkdir()
    assert run_spec(tmp_path / "more", spec(BROKEN), "--fail-on", rule).code == 3


@pytest.mark.parametrize("check", ["{type: file_absent, path: x}", FAILING])
@pytest.mark.parametrize("kind", ["json", "plain"])
def test_stdout_carries_the_report_and_nothing_else(tmp_path: Path, kind: str, check: str) -> None:
    """2: "stdout carries the report (one line a cell with `--format plain`, one JSON document with `json`)"."""
    called = run_spec(tmp_path, spec(check=check, parallelism="{replicas: 2}"), "--format", kind)
    if kind == "json":
        assert json.loads(called.out) == called.document
    else:
        assert [line.split()[0] for line in called.out.splitlines()] == [cell["verdict"] for cell in called.cells]


def test_a_shard_without_a_cell_of_a_run_that_has_some_passes_and_says_so(tmp_path: Path) -> None:
    """5.4: "a shard with no cell of a run that has some is exit 0 and says so"."""
    called = run_spec(tmp_path, THREE, "--shard", "5/5")
    assert (called.code, called.document["composite"], called.cells) == (0, None, [])
    assert "0 of 3 cells" in called.err


def test_cells_that_the_time_is_up_for_are_errors(tmp_path: Path) -> None:
    """5.4: "`--timeout` starts no further cell, and those not run are `error`"; 3: errors have no composite."""
    text = spec("{type: command, command: sleep 1.2}", parallelism="{replicas: 2, max_concurrency: 1}")
    called = run_spec(tmp_path, text, "--timeout", "1s")
    assert (called.code, [cell["verdict"] for cell in called.cells]) == (3, ["pass", "error"])
    assert (called.cells[1]["composite"], called.document["composite"]) == (None, 1.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--param", "unknown=1"], "no spec uses a parameter"),
        (["--filter", "other*"], "nothing to run"),
        (["--tag", "other"], "nothing to run"),
        (["--threshold", "1.5"], "from 0 to 1"),
        (["--baseline", "x"], "there is no baseline"),
        (["--max-cost-usd", "-1"], "a number from 0"),
        (["--agent", "a:B"], "--agent is for AgenticAssure suites; a Keystone spec names its agent itself"),
        (["--spec-from", "base"], "is in no git checkout"),
    ],
)
def test_bad_calls_end_with_2_before_anything_runs(tmp_path: Path, words: list[str], said: str) -> None:
    """5.1: "Exit 2, before anything runs: a bad spec or call, … nothing to run, … a `--param` nothing uses"."""
    called = run_spec(tmp_path, spec(), *words)
    assert (called.code, called.out) == (2, "")
    assert said in called.err
    assert not (tmp_path / "out" / "results.json").exists()


def test_threshold_replaces_every_specs_and_is_told(tmp_path: Path) -> None:
    """5.1: "`threshold` (option, input) replaces every spec's `pass_threshold`"; 3: `threshold_source`."""
    own = run_spec(tmp_path, spec(check=FAILING)).document["specs"][0]
    assert (own["pass_threshold"], own["threshold_source"], own["verdict"]) == (1.0, "spec", "fail")
    (tmp_path / "more").mkdir()
    given = run_spec(tmp_path / "more", spec(check=FAILING), "--threshold", "0").document["specs"][0]
    assert (given["pass_threshold"], given["threshold_source"], given["verdict"]) == (0.0, "input", "pass")


def test_specs_are_found_in_directories_and_by_globs(tmp_path: Path) -> None:
    """2: "`keystone run SPEC…` (files, directories searched for `keystone.yaml`/`*.keystone.yaml`, globs)"."""
    for name, identity in (("a/keystone.yaml", "one"), ("b/x.keystone.yaml", "two"), ("b/other.yaml", "three")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(spec().replace("id: small", f"id: {identity}"), "utf-8")
    found = keystone("run", "a", "b/*.keystone.yaml", "--output", "out", directory=tmp_path)
    assert [one["id"] for one in found.document["specs"]] == ["one", "two"]
    assert keystone("validate", ".", directory=tmp_path).out.count("valid") == 2
    assert keystone("run", "c", directory=tmp_path).code == 2


def test_without_a_spec_those_below_the_directory_run(tmp_path: Path) -> None:
    """2: "`keystone run [SPEC…]` (… none = `.`, for `validate` and `plan` too)"."""
    folders = (
        "evals",
        ".git",
        ".venv/lib",
        "node_modules/x",
        ".keystone/runs/x",
        "results/cells/x",
        "results/services",
    )
    for number, folder in enumerate(folders):
        (tmp_path / folder).mkdir(parents=True)
        text = spec().replace("id: small", f"id: spec-{number}")
        (tmp_path / folder / "a.keystone.yaml").write_text(text, "utf-8")
    for name in ("results.json", "journal.jsonl"):
        (tmp_path / "results" / name).write_text("", "utf-8")
    assert keystone("plan", directory=tmp_path).out == "spec-0.r0\n"
    assert keystone("validate", directory=tmp_path).out.startswith("evals/a.keystone.yaml: spec-0: valid")
    called = keystone("run", "--output", "out", directory=tmp_path)
    assert (called.code, [one["id"] for one in called.document["specs"]]) == (0, ["spec-0"])
    assert keystone("plan", "results/cells", directory=tmp_path).out == "spec-5.r0\n", "a folder that is named is meant"
