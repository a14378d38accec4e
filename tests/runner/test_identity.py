"""The identity of a run: equal for equal facts, and any single difference is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import UsageError
from keystone_action.runner.journal.identity import (
    LOCAL,
    Identity,
    continue_identity,
    explain_differences,
    identity_contradictions,
    identity_differences,
    identity_from_document,
    identity_to_document,
    join_identities,
)

names = st.text("abc.-", min_size=1, max_size=6)
values = st.text("0123", max_size=4)
RUN_KINDS = ("version", "commit", "option", "parameter", "spec", "selection")
SPEC_KINDS = ("sandbox", "judge", "file", "folder", "helper", "remote branches", "image", "something new")


def facts(kinds: tuple[str, ...]) -> st.SearchStrategy[dict[str, dict[str, str]]]:
    return st.fixed_dictionaries({kind: st.dictionaries(names, values, max_size=2) for kind in kinds})


identities = st.builds(Identity, facts(RUN_KINDS), st.dictionaries(names, facts(SPEC_KINDS), max_size=2))
purposes = st.sampled_from(["resume", "merge"])


def copy_of(identity: Identity) -> dict[str, Any]:
    return json.loads(json.dumps(identity_to_document(identity)))  # type: ignore[no-any-return]


@given(identities, purposes)
def test_equal_facts_are_one_run_and_come_back_from_the_journal(identity: Identity, purpose: Any) -> None:
    again = identity_from_document(copy_of(identity))
    assert again == identity
    assert identity_differences(identity, again, purpose) == []
    assert identity_differences(join_identities([identity, again]), identity, purpose) == []
    assert continue_identity(identity, again) == identity


@given(identities, purposes, st.data())
def test_any_single_difference_is_named(identity: Identity, purpose: Any, data: st.DataObject) -> None:
    document = copy_of(identity)
    spec_id = data.draw(st.sampled_from([None, *sorted(identity.specs)]))
    told = document["run"] if spec_id is None else document["specs"][spec_id]
    kind = data.draw(st.sampled_from(sorted(told)))
    name = data.draw(names)
    before = told[kind].get(name)
    after = data.draw(values.filter(lambda value: value != before))
    told[kind][name] = after
    found = identity_differences(identity, identity_from_document(document), purpose)
    ignored = {"resume": "selection", "merge": "remote branches"}[purpose]
    unknown = before is None and kind in ("commit", "image")
    if kind == ignored or unknown:
        assert found == []
        return
    assert [(one.spec, one.kind, one.name, one.before, one.after) for one in found] == [
        (spec_id or "", kind, name, before, after)
    ]
    said = explain_differences(found, purpose)
    assert kind in ("commit", "sandbox") or name in said  # of these there is one
    assert spec_id is None or spec_id in said
    backwards = identity_differences(identity_from_document(document), identity, purpose)
    assert [(one.name, one.before, one.after) for one in backwards] == [(name, after, before)]


@given(identities, identities)
def test_more_about_the_same_run_contradicts_only_where_it_is_told_again(one: Identity, other: Identity) -> None:
    further = Identity({}, {spec_id: {"image": {"i": "1"}} for spec_id in other.specs if spec_id not in one.specs})
    assert identity_contradictions(one, further) == []
    assert identity_contradictions(continue_identity(one, further), further) == []
    assert identity_differences(one, continue_identity(one, further), "resume") == []


def test_the_selection_is_compared_by_merge_alone() -> None:
    one, other = (Identity({"selection": {"the filter": text}}) for text in ("a*", "b*"))
    assert identity_differences(one, other, "resume") == []
    assert explain_differences(identity_differences(one, other, "merge"), "merge") == "the filter is a* and b*"
    assert continue_identity(one, other) == other


def test_a_local_image_counts_by_its_name_where_machines_differ() -> None:
    one, other = (Identity({}, {"s": {"image": {"tool:1": f"{LOCAL}sha256:{end}"}}}) for end in "ab")
    registered = Identity({}, {"s": {"image": {"tool:1": "sha256:a"}}})
    assert identity_differences(one, other, "merge") == []
    assert len(identity_differences(one, other, "resume")) == 1
    assert len(identity_differences(one, registered, "merge")) == 1
    assert join_identities([one, other]) == Identity({}, {"s": {"image": {}}})
    assert join_identities([one, one]) == one


def test_what_cells_of_one_shard_alone_need_is_no_difference() -> None:
    """Which specs there are at all is a fact about the run; folders are read for those that have cells here."""
    run = {"spec": {"a": "1", "b": "2"}}
    one, other = Identity(run, {"a": {"file": {"x": "1"}}}), Identity(run, {"b": {"file": {"x": "2"}}})
    assert identity_differences(one, other, "merge") == []
    assert join_identities([one, other]).specs == {**one.specs, **other.specs}


SAID = [
    ("option", "the threshold", "0.85", "0.5", "the threshold was 0.85 and is 0.5", "the threshold is 0.85 and 0.5"),
    ("commit", "sha", "1" * 40, "2" * 40, f"the commit was {'1' * 40} and is {'2' * 40}", "the commit is 1"),
    ("spec", "suite", "1", "2", "the spec suite has changed since", "the spec suite differs between them"),
    ("spec", "suite", "1", None, "the spec suite is not among the specs of this call", "suite is in one of them only"),
    ("parameter", "model", None, "a", "the parameter model was not given and is a", "model is not given and a"),
]


@pytest.mark.parametrize(("kind", "name", "before", "after", "resumed", "merged"), SAID)
def test_plain_words(kind: str, name: str, before: str | None, after: str | None, resumed: str, merged: str) -> None:
    one, other = (Identity({kind: {} if value is None else {name: value}}) for value in (before, after))
    assert explain_differences(identity_differences(one, other, "resume"), "resume") == resumed
    assert merged in explain_differences(identity_differences(one, other, "merge"), "merge")


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("1", "2"), ("1", None)])
def test_a_helper_that_nothing_is_said_of_is_as_the_commit_has_it(before: str | None, after: str | None) -> None:
    one, other = ({} if value is None else {"checks/tables.py": value} for value in (before, after))
    found = identity_differences(Identity({}, {"s": {"helper": one}}), Identity({}, {"s": {"helper": other}}), "resume")
    helper = "the file checks/tables.py, which host scripts of s can read,"
    assert explain_differences(found, "resume") == f"{helper} has changed since"
    assert explain_differences(found, "merge") == f"{helper} differs between them"


def test_many_differences_are_counted() -> None:
    one, other = (Identity({}, {"s": {"file": {f"f{n}": value for n in range(2000)}}}) for value in "12")
    said = explain_differences(identity_differences(one, other, "resume"), "resume")
    assert "the file f0 of s has changed since" in said
    assert said.endswith("and 1,995 more differences")


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"run": {}},
        {"run": {}, "specs": []},
        {"run": {"a": 1}, "specs": {}},
        {"run": {"a": {"b": 1}}, "specs": {}},
        {"run": {}, "specs": {"s": {"file": {"x": None}}}},
        {"run": {}, "specs": {}, "more": {}},
    ],
)
def test_anything_else_is_no_identity(document: object) -> None:
    with pytest.raises(UsageError, match="not the identity of a run"):
        identity_from_document(document)


IGNORED = [("resume", "selection"), ("merge", "remote branches"), ("merge", "variable")]


@pytest.mark.parametrize("purpose", ["resume", "merge"])
@pytest.mark.parametrize("kind", sorted({*RUN_KINDS, *SPEC_KINDS, "gateway", "variable"}))
def test_what_differs_in_a_kind_of_facts_keeps_two_parts_apart(kind: str, purpose: Any) -> None:
    is_ignored = (purpose, kind) in IGNORED
    for before, after in (("0", "1"), ("0", None), (None, "1")):
        sides = [{kind: {} if value is None else {"it": value}} for value in (before, after)]
        of_run = identity_differences(Identity(sides[0]), Identity(sides[1]), purpose)
        of_spec = identity_differences(Identity({}, {"spec": sides[0]}), Identity({}, {"spec": sides[1]}), purpose)
        unknown = kind in ("commit", "image") and None in (before, after)
        assert [one.kind for one in of_run] == ([] if is_ignored or unknown else [kind])
        assert [one.spec for one in of_spec] == ([] if is_ignored or unknown else ["spec"])
