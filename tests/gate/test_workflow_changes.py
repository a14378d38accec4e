"""What differs between two versions of a workflow in how it calls us: by name, what can let more pass first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.gate.workflow_changes import (
    MAX_CALLS,
    MAX_DIFFERENCES,
    MAX_STEPS,
    ranked_differences,
    read_workflow,
)
from keystone_action.spec.loading.diagnostics import SpecError

BASE = """
name: evals
on: {pull_request: {}}
jobs:
  evaluate:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v5
      - uses: keystone-action/keystone-action@v0
        with:
          spec: evals
          threshold: 0.85
"""


def is_ours(uses: str) -> bool:
    return uses.lower().startswith("keystone-action/")


def said(after: str, before: str = BASE) -> tuple[str, ...]:
    return ranked_differences(*(read_workflow(text, "x.yml", is_ours) for text in (before, after)))[1]


def with_inputs(*lines: str) -> str:
    return "\n          ".join(lines)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0.85", "0.5", ("threshold 0.85 → 0.5",)),
        ("0.85", "'0.85'", ()),
        ("threshold: 0.85", "Threshold: 0.5", ("threshold 0.85 → 0.5",)),
        ("          threshold: 0.85\n", "", ("threshold removed (was 0.85)",)),
        ("0.85", "0.85\n          fail-on: never", ("fail-on added: never",)),
        (
            "spec: evals\n          threshold: 0.85",
            with_inputs("comment: never", "gateway: replay", "threshold: 0.9", "fail-on-stale: false", "spec: evals"),
            ("fail-on-stale added: false", "gateway added: replay", "threshold 0.85 → 0.9", "comment added: never"),
        ),
        (
            "spec: evals\n          threshold: 0.85",
            with_inputs("comment: never", "gateway: live", "threshold: 0.5", "fail-on-stale: true", "spec: evals"),
            ("threshold 0.85 → 0.5", "fail-on-stale added: true", "gateway added: live", "comment added: never"),
        ),
        (
            "spec: evals\n          threshold: 0.85",
            "annotations: 1\n          fail-on: error\n          threshold: 0.9\n          spec: one",
            ("fail-on added: error", "spec evals → one", "threshold 0.85 → 0.9", "annotations added: 1"),
        ),
        ("0.85", "${{ vars.T }}", ("threshold 0.85 → ${{ vars.T }}",)),
        ("0.85", "0.85\n          github-token: ghp_secret", ("github-token added",)),
        ("0.85", '"0.85\\n\\u202e"', ("threshold changed",)),
        ("@v0", "@v1", ("uses keystone-action/keystone-action@v0 → keystone-action/keystone-action@v1",)),
        (
            "keystone-action/keystone-action@v0",
            "someone/else@v0",
            ("keystone-action/keystone-action@v0 no longer used in job evaluate, step 2",),
        ),
        ("    runs-on", "    continue-on-error: true\n    runs-on", ("continue-on-error of the job added: true",)),
        ("    runs-on", "    if: ${{ false }}\n    runs-on", ("if of the job added: ${{ false }}",)),
        ("@v0\n", "@v0\n        if: false\n", ("if added: false",)),
        ("{pull_request: {}}", "{pull_request: {paths: [docs]}}", ("what it runs on changed",)),
        ("{pull_request: {}}", "pull_request", ()),
        ("name: evals", "name: other\nenv: {A: b}", ()),
        ("  evaluate:", "  renamed:", ()),
        ("  evaluate:", "  renamed:\n    if: a", ("if of the job added: a",)),
        ("actions/checkout@v5", "./local", ("./local added in job evaluate, step 1",)),
    ],
)
def test_each_kind_of_difference(old: str, new: str, expected: tuple[str, ...]) -> None:
    assert BASE.count(old) == 1
    assert said(BASE.replace(old, new)) == expected


def test_of_several_calls_each_is_told_by_its_place() -> None:
    """A call that keeps its place and does nothing is not a cover for one that is new."""
    call = "      - {uses: keystone-action/keystone-action@v0, name: all, with: {spec: evals, threshold: 0.85}}\n"
    before = "jobs:\n  a:\n    steps:\n" + call
    decoy = call.replace("name: all", "name: all, if: false")
    weak = call.replace("name: all", "name: weak").replace("0.85", "0")
    assert said(before + decoy.replace("all", "more") + weak, before) == (
        "keystone-action/keystone-action@v0 added in job a, step more (threshold 0.85, spec evals)",
        "keystone-action/keystone-action@v0 added in job a, step weak (threshold 0, spec evals)",
    )
    assert said("jobs:\n  a:\n    steps:\n" + decoy + weak, before) == (
        "job a, step all: if added: false",
        "keystone-action/keystone-action@v0 added in job a, step weak (threshold 0, spec evals)",
    )


def test_a_workflow_that_is_called_has_inputs_too() -> None:
    text = (
        "jobs: {a: {uses: keystone-action/keystone-action/.github/workflows/evaluate.yml@v0, with: {threshold: 0.85}}}"
    )
    assert said(text.replace("0.85", "0.5, fail-on: never"), text) == ("threshold 0.85 → 0.5", "fail-on added: never")
    action = "runs: {using: composite, steps: [{uses: keystone-action/keystone-action@v0, with: {threshold: 0.85}}]}"
    assert said(action.replace("0.85", "'0.5'"), action) == ("threshold 0.85 → 0.5",)


def test_what_is_used_of_the_own_repository_is_named() -> None:
    text = "jobs: {a: {uses: ./.github/workflows/b.yml}, c: {steps: [{uses: ./tools/run/}, {uses: actions/x@v1}, {}]}}"
    assert read_workflow(text, "x.yml", is_ours).local == (".github/workflows/b.yml", "tools/run")


def test_what_is_too_much_or_no_yaml_is_said() -> None:
    steps = (
        f"x: &a [{'{}, ' * 999}{{}}]\njobs: {{{', '.join(f'j{n}: {{steps: *a}}' for n in range(MAX_STEPS // 1000))}}}"
    )
    many = ", ".join("{uses: keystone-action/x@v0}" for _ in range(MAX_CALLS + 1))
    inputs = ", ".join(f"i{n}: 1" for n in range(MAX_CALLS + 1))
    for text in (
        steps,
        f"jobs: {{a: {{steps: [{many}]}}}}",
        f"jobs: {{a: {{steps: [{{uses: keystone-action/x@v0, with: {{{inputs}}}}}]}}}}",
    ):
        with pytest.raises(ValueError, match="it has more than"):
            read_workflow(text, "x.yml", is_ours)
    for text in ("jobs: [", "a: b: c", "\x00", "[" * 5000):
        with pytest.raises(SpecError):
            read_workflow(text, "x.yml", is_ours)


def test_a_crowd_of_differences_hides_nothing_that_weakens() -> None:
    crowd = "".join(f"          a{n}: b\n" for n in range(MAX_CALLS - 5))
    found = said(BASE.replace("          threshold: 0.85\n", crowd + "          threshold: 0.1\n"))
    assert found[0] == "threshold 0.85 → 0.1"
    assert len(found) == MAX_DIFFERENCES + 1
    assert found[-1].startswith("and ")


@given(
    st.recursive(
        st.sampled_from(["jobs", "steps", "uses", "with", "on", "if", "runs", "keystone-action/x@v0", "./a", ""]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["jobs", "steps", "a"]), inner),
        max_leaves=20,
    )
)
def test_a_workflow_of_any_shape_is_read(document: object) -> None:
    import json

    read = read_workflow(json.dumps(document), "x.yml", is_ours)
    assert ranked_differences(read, read)[1] == ()
