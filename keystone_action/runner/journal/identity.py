"""What a run is a run of: the first line of its journal, and the one rule for `--resume`, shards and `keystone merge`.

Two parts of a run belong together exactly when their identities do not differ. Pure: `identification.py` finds out what
is said here; this compares it and says a difference in words. An identity has facts about the run as a whole
(`version`, `commit`, `option`, …) and facts about each spec that has cells in this part (`sandbox`, `file`, `image`,
…): a text by name below each kind. A further kind needs no line here, unless it wants words of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from keystone_action.errors import UsageError
from keystone_action.scoring.soundness import shorten_text

RunFacts = Mapping[str, Mapping[str, str]]
"""Texts by kind and name."""
Purpose = Literal["resume", "merge"]

LOCAL = "local "
"""Begins the value of an image that no registry has: its id on this machine follows."""
_IGNORED: Mapping[Purpose, frozenset[str]] = {
    "resume": frozenset({"selection"}),
    # Each machine has its own clone, and its own HOME.
    "merge": frozenset({"remote branches", "variable"}),
}
_KNOWN_TO_BOTH = frozenset({"commit", "image"})
"""Kinds that count only where both sides know them: not every checkout can say its commit, and where an image could
not be had, no cell was graded."""
_DIGESTS = frozenset({"spec", "file", "folder", "helper", "remote branches", "variable"})
"""Kinds whose values say nothing to people."""
_LONGEST = 200
_WHAT: Mapping[str, str] = {
    "version": "the version of {name}",
    "commit": "the commit",
    "option": "{name}",
    "parameter": "the parameter {name}",
    "spec": "the spec {name}",
    "sandbox": "the sandbox of {spec}",
    "gateway": "the gateway mode of {spec}",
    "image": "the image {name} of {spec}",
    "judge": "the judge {name} of {spec}",
    "file": "the file {name} of {spec}",
    "folder": "the folder {name} of {spec}",
    "helper": "the file {name}, which host scripts of {spec} can read,",
    "variable": "the variable {name} that the agent of {spec} is given",
    "remote branches": "what the git history in the folder {name} of {spec} knows of remote branches",
    "selection": "{name}",
}
_ORDER = {kind: number for number, kind in enumerate(_WHAT)}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a run, or a part of it, is a run of."""

    run: RunFacts = field(default_factory=dict)
    """Facts about the run as a whole."""
    specs: Mapping[str, RunFacts] = field(default_factory=dict)
    """Facts about each spec, by its id."""


@dataclass(frozen=True, slots=True)
class IdentityDifference:
    """A fact that differs."""

    kind: str
    name: str
    before: str | None
    """None where the fact is not there."""
    after: str | None
    spec: str = ""
    """The spec that the fact is about; empty for the run's own."""


def identity_differences(before: Identity, after: Identity, purpose: Purpose) -> list[IdentityDifference]:
    """What keeps two parts from being parts of one run; nothing when they are.

    A spec that has cells in one of them only is not a difference: the facts about it are nowhere else to compare with.
    Which specs there are at all is a fact about the run.
    """
    found = list(_between(before.run, after.run, purpose))
    for spec_id in before.specs.keys() & after.specs.keys():
        of_spec = _between(before.specs[spec_id], after.specs[spec_id], purpose)
        found += [replace(one, spec=spec_id) for one in of_spec]
    return sorted(found, key=lambda one: (_ORDER.get(one.kind, len(_ORDER)), one.spec, one.kind, one.name))


def identity_contradictions(earlier: Identity, further: Identity) -> list[IdentityDifference]:
    """Where new facts about this run contradict those that are known: only kinds of facts that are told again count."""
    run = {kind: facts for kind, facts in earlier.run.items() if kind in further.run}
    specs = {
        spec_id: {kind: facts for kind, facts in earlier.specs[spec_id].items() if kind in told}
        for spec_id, told in further.specs.items()
        if spec_id in earlier.specs
    }
    return identity_differences(Identity(run, specs), further, "resume")


def _between(before: RunFacts, after: RunFacts, purpose: Purpose) -> Iterator[IdentityDifference]:
    for kind in (before.keys() | after.keys()) - _IGNORED[purpose]:
        ours, theirs = before.get(kind, {}), after.get(kind, {})
        names = ours.keys() & theirs.keys() if kind in _KNOWN_TO_BOTH else ours.keys() | theirs.keys()
        for name in names:
            left, right = ours.get(name), theirs.get(name)
            if left != right and not (purpose == "merge" and kind == "image" and _local(left) and _local(right)):
                yield IdentityDifference(kind, name, left, right)


def _local(value: str | None) -> bool:
    return value is not None and value.startswith(LOCAL)


def join_identities(parts: Sequence[Identity]) -> Identity:
    """The identity of all parts together; there must be at least one. Facts that the parts don't agree on (each machine
    built its own image) are left out."""
    run = _facts_of_all([part.run for part in parts])
    ids = dict.fromkeys(spec_id for part in parts for spec_id in part.specs)
    specs = {
        spec_id: _facts_of_all([part.specs[spec_id] for part in parts if spec_id in part.specs]) for spec_id in ids
    }
    return Identity(run, specs)


def continue_identity(earlier: Identity, later: Identity) -> Identity:
    """With more about this run: facts are added, and the last call's selection counts."""
    run = _overlaid(earlier.run, later.run)
    if "selection" in later.run:
        run = {**run, "selection": later.run["selection"]}
    ids = dict.fromkeys((*earlier.specs, *later.specs))
    return Identity(run, {one: _overlaid(earlier.specs.get(one, {}), later.specs.get(one, {})) for one in ids})


def _overlaid(under: RunFacts, over: RunFacts) -> RunFacts:
    kinds = dict.fromkeys((*under, *over))
    return {kind: {**under.get(kind, {}), **over.get(kind, {})} for kind in kinds}


def _facts_of_all(facts: Sequence[RunFacts]) -> RunFacts:
    values: dict[str, dict[str, set[str]]] = {}
    for one in facts:
        for kind, named in one.items():
            for name, value in named.items():
                values.setdefault(kind, {}).setdefault(name, set()).add(value)
    return {
        kind: {name: next(iter(found)) for name, found in named.items() if len(found) == 1}
        for kind, named in values.items()
    }


def explain_difference(difference: IdentityDifference, purpose: Purpose) -> str:
    """The difference in plain words."""
    spec, name = shorten_text(difference.spec, _LONGEST), shorten_text(difference.name, _LONGEST)
    what = _WHAT.get(
        difference.kind, f"{difference.kind} {{name}} of {{spec}}" if spec else f"{difference.kind} {{name}}"
    )
    subject = what.format(name=name, spec=spec)
    before, after = difference.before, difference.after
    if difference.kind in _DIGESTS:
        return f"{subject} {_change(difference, purpose)}"
    there, here = (_show_fact(before), _show_fact(after))
    return f"{subject} was {there} and is {here}" if purpose == "resume" else f"{subject} is {there} and {here}"


def _change(difference: IdentityDifference, purpose: Purpose) -> str:
    if difference.kind == "helper":  # one that is not told is as the commit has it
        return "differs between them" if purpose == "merge" else "has changed since"
    if purpose == "merge":
        both = difference.before is not None and difference.after is not None
        return "differs between them" if both else "is in one of them only"
    if difference.before is None:
        return "was not there"
    if difference.after is None:
        return "is not among the specs of this call" if difference.kind == "spec" else "is not there any more"
    return "has changed since"


def _show_fact(value: str | None) -> str:
    return "not given" if value is None else shorten_text(value, _LONGEST)


def explain_differences(found: Sequence[IdentityDifference], purpose: Purpose, most: int = 5) -> str:
    """All of them in one sentence; the first `most`, and how many more there are."""
    sentences = [explain_difference(one, purpose) for one in found[:most]]
    more = [f"and {len(found) - most:,} more differences"] if len(found) > most else []
    return "; ".join([*sentences, *more])


def identity_to_document(identity: Identity) -> dict[str, Any]:
    """As the journal's line has it."""
    return {
        "run": {kind: dict(named) for kind, named in identity.run.items()},
        "specs": {
            spec_id: {kind: dict(named) for kind, named in facts.items()} for spec_id, facts in identity.specs.items()
        },
    }


def identity_from_document(document: object) -> Identity:
    """The inverse of to_document. Raises UsageError for anything else."""
    if not isinstance(document, dict) or document.keys() != {"run", "specs"} or not isinstance(document["specs"], dict):
        raise UsageError("not the identity of a run: expected run and specs")
    return Identity(_facts(document["run"]), {name: _facts(facts) for name, facts in document["specs"].items()})


def _facts(document: object) -> RunFacts:
    if not isinstance(document, dict) or not all(
        isinstance(named, dict) and all(isinstance(value, str) for value in named.values())
        for named in document.values()
    ):
        raise UsageError("not the identity of a run: expected texts by kind and name")
    return document
