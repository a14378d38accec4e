"""The workflows that call us, at the base commit and in a change: which are looked at, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.repositories import Change, git, make_change, write

from keystone_action.files.git.commands import GitFailed
from keystone_action.gate.base_commit import BaseCommit, open_base
from keystone_action.gate.workflow_files import MAX_BYTES, MAX_SHOWN, WorkflowFile, workflow_changes

FLOW = ".github/workflows/evals.yml"
OURS = "      - {uses: keystone-action/keystone-action@v0, with: {threshold: 0.85}}\n"
BASE = "on: pull_request\njobs:\n  a:\n    steps:\n" + OURS
WEAK = BASE.replace("0.85", "0.5")
OTHER = "on: push\njobs: {a: {steps: [{run: make}]}}\n"


def changes(
    tmp_path: Path,
    after: Mapping[str, str | None],
    before: Mapping[str, str] | None = None,
    *,
    path: str = FLOW,
    sub: str = "",
) -> dict[str, list[str]]:
    """Sentences by path."""
    base = {FLOW: BASE} if before is None else before
    made = make_change(tmp_path / "origin", {**base, f"{sub or '.'}/README": "x"}, after)
    return found(made, checked_out(tmp_path, made) / sub, WorkflowFile(path))


def checked_out(tmp_path: Path, made: Change, depth: int | None = None) -> Path:
    place = tmp_path / "clone"
    place.mkdir()
    return made.check_out(place, depth=depth)


def found(made: Change, directory: Path, workflow: WorkflowFile) -> dict[str, list[str]]:
    files = open_base(BaseCommit(made.base, "base"), directory)
    listed = workflow_changes(files, workflow, directory, None)
    assert {one.change for one in listed} <= {"changed"}
    return {one.path: list(one.differences) for one in listed}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({FLOW: WEAK}, {FLOW: ["threshold 0.85 → 0.5", "workflow changed (+1 −1)"]}),
        ({FLOW: BASE + "env: {A: b}\n"}, {FLOW: ["workflow changed (+1 −0)"]}),
        ({FLOW: "jobs: ["}, {FLOW: ["it can't be compared as it is at this commit: ", "workflow changed (+1 −5)"]}),
        (
            {FLOW: "#" * (MAX_BYTES + 1)},
            {FLOW: ["it can't be compared as it is at this commit: it", "workflow changed"]},
        ),
        ({FLOW: None, "x.yml": BASE}, {FLOW: ["workflow deleted"]}),
        (
            {FLOW: None, ".github/workflows/new.yml": WEAK},
            {".github/workflows/new.yml": [f"moved from {FLOW}", "threshold 0.85 → 0.5", "workflow changed (+1 −1)"]},
        ),
        ({".github/workflows/more.yaml": WEAK}, {".github/workflows/more.yaml": ["workflow added"]}),
        ({".github/workflows/other.yml": OTHER, "README": "y", ".github/workflows/sub/x.yml": WEAK}, {}),
    ],
)
def test_what_is_said_of_each_kind_of_change(
    tmp_path: Path, after: dict[str, str | None], expected: dict[str, list[str]]
) -> None:
    said = changes(tmp_path, after)
    assert list(said) == list(expected)
    for path, sentences in expected.items():
        assert len(said[path]) == len(sentences)
        assert all(one.startswith(start) for one, start in zip(said[path], sentences, strict=True)), said


@pytest.mark.parametrize("path", [".github/workflows/other.yml", ""])
def test_a_workflow_that_calls_us_counts_although_another_one_runs(tmp_path: Path, path: str) -> None:
    """That one may have been changed so that it no longer runs, and then it says nothing."""
    base = {FLOW: BASE, ".github/workflows/other.yml": OTHER}
    assert changes(tmp_path, {FLOW: BASE.replace("pull_request", "[]")}, base, path=path) == {
        FLOW: ["what it runs on changed", "workflow changed (+1 −1)"]
    }


def test_the_one_that_runs_counts_although_nobody_sees_that_it_calls_us(tmp_path: Path) -> None:
    assert changes(tmp_path, {FLOW: OTHER + "env: {A: b}\n"}, {FLOW: OTHER}) == {FLOW: ["workflow changed (+1 −0)"]}


def test_what_it_uses_of_this_repository_counts_at_any_depth(tmp_path: Path) -> None:
    """A link counts as what it leads to; who uses whom may be a circle."""
    base = {
        FLOW: "jobs: {a: {uses: ./.github/workflows/inner.yml, with: {x: 1}}}",
        ".github/workflows/inner.yml": f"jobs: {{b: {{steps: [{{uses: ./tools/run/}}, {{uses: ./{FLOW}}}]}}}}",
        "tools/run/action.yaml": "runs:\n  steps:\n" + OURS,
        "tools/more/action.yml": "runs:\n  steps:\n" + OURS,
    }
    after = {"tools/run/action.yaml": base["tools/run/action.yaml"].replace("0.85", "0.1"), FLOW: base[FLOW] + "\n"}
    after["tools/more/action.yml"] = "runs: {}\n"
    assert changes(tmp_path, after, base) == {
        FLOW: ["workflow changed (+1 −1)"],
        "tools/run/action.yaml": ["threshold 0.85 → 0.1", "action changed (+1 −1)"],
    }


def test_it_is_the_commit_that_counts_and_not_what_a_step_made_of_the_file(tmp_path: Path) -> None:
    made = make_change(tmp_path / "origin", {FLOW: BASE}, {FLOW: WEAK})
    clone = checked_out(tmp_path, made, depth=None)
    write(clone, {FLOW: BASE})
    expected = {FLOW: ["threshold 0.85 → 0.5", "workflow changed (+1 −1)"]}
    assert found(made, clone, WorkflowFile(FLOW)) == expected
    git(clone, "checkout", "-q", "-f", made.base)
    assert found(made, clone, WorkflowFile(FLOW)) == {}
    assert found(made, clone, WorkflowFile(FLOW, made.head)) == expected
    assert found(made, clone, WorkflowFile(FLOW, "9" * 40)) == {}, "a commit that is not here"


def test_links_and_paths_that_lead_out_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(WEAK)
    made = make_change(tmp_path / "origin", {FLOW: BASE, "real.yml": BASE}, {"a": "b"})
    clone = checked_out(tmp_path, made)
    for path, target in ((FLOW, str(tmp_path / "outside")), (".github/workflows/b.yml", "../../real.yml")):
        (clone / path).unlink(missing_ok=True)
        (clone / path).symlink_to(target)
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "links")
    assert found(made, clone, WorkflowFile(FLOW)) == {".github/workflows/b.yml": [f"moved from {FLOW}"]}
    assert found(made, clone, WorkflowFile("../../outside")) == {".github/workflows/b.yml": [f"moved from {FLOW}"]}


def test_paths_are_relative_to_the_call_and_a_crowd_is_counted(tmp_path: Path) -> None:
    crowd: dict[str, str | None] = {f".github/workflows/{n:03}.yml": BASE for n in range(30)}
    said = changes(tmp_path, {**crowd, FLOW: WEAK}, sub="deep/er")
    assert said[f"../../{FLOW}"][0] == "threshold 0.85 → 0.5"
    assert len(said) == MAX_SHOWN + 1
    assert said["../../.github/workflows"] == ["and 21 more workflows"]


def test_no_crowd_of_workflows_hides_the_one_that_forgives(tmp_path: Path) -> None:
    names = [f".github/workflows/{n:03}.yml" for n in range(30)]
    base: dict[str, str] = dict.fromkeys([*names, ".github/workflows/z.yml"], BASE)
    after: dict[str, str | None] = dict.fromkeys(names, BASE.replace("0.85", "0.85, annotations: 3"))
    said = changes(tmp_path, {**after, ".github/workflows/z.yml": WEAK}, base)
    assert next(iter(said)) == ".github/workflows/z.yml"
    assert said[".github/workflows/z.yml"][0] == "threshold 0.85 → 0.5"


def test_too_many_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(GitFailed, match="more than 200 workflows changed"):
        changes(tmp_path, {f".github/workflows/{n}.yml": BASE for n in range(201)})


@pytest.mark.parametrize(
    ("uses", "ours"),
    [
        ("keystone-action/keystone-action@v0", True),
        ("Fork/Keystone-Action@abc", True),
        ("x/keystone-action/.github/workflows/evaluate.yml@v0", True),
        ("mirror/gate@v1", True),
        ("docker://ghcr.io/x/keystone-action:v0", True),
        ("docker://ghcr.io/keystone-action/other", False),
        ("keystone-action@v0", False),
        ("keystone-action/setup@v0", False),
        ("actions/checkout@v5", False),
        ("", False),
    ],
)
def test_what_is_ours(uses: str, ours: bool) -> None:
    assert WorkflowFile("", action="Mirror/Gate").is_ours(uses) is ours
