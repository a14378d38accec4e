"""Graders of a Touchstone case → invariants (`004_722b8593dcd13c4e.txt`; spec.md 5.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yaml.nodes import MappingNode, Node

from keystone_action.dialects.nodes import build_node
from keystone_action.dialects.touchstone.reading import CaseField, CaseReader
from keystone_action.spec.loading.diagnostics import listing, nearest, show_value

DEFAULT_JUDGE = "claude-opus-4-8"
"""The judge where a `model_judge` names none."""
_TESTS = ("cmd", "inject", "junit_xml", "pass_threshold", "protect", "timeout_s")
_KEYS: dict[str, tuple[str, ...]] = {
    "command": ("cmd", "expect_exit", "timeout_s"),
    "files": ("expect_dir", "patterns"),
    "tests": _TESTS,
    "pytest": _TESTS,
    "swebench": (
        "cmd_prefix",
        "fail_to_pass",
        "gate_weight",
        "inject",
        "pass_threshold",
        "pass_to_pass",
        "protect",
        "timeout_s",
    ),
    "implemented": ("files",),
    "model_judge": ("include_trace", "model", "models", "pass_threshold", "rubric"),
    "trace": (
        "forbid_tools",
        "max_cost_usd",
        "max_tokens",
        "max_tool_calls",
        "require_no_denied",
        "require_tools",
    ),
    "efficiency": ("pass_threshold", "target_cost_usd", "target_tokens", "target_tool_calls"),
    "tool_correctness": ("expected", "match", "ordered"),
}
"""What each type of grader knows; `protect` is ours."""
GRADERS = tuple(_KEYS)
_COMMON = ("gate", "type", "weight")
_REQUIRED = {"command": ("cmd",), "tests": ("cmd",), "swebench": ("fail_to_pass",), "model_judge": ("rubric",)}
_SECONDS = {"command": 300.0, "tests": 300.0, "pytest": 300.0, "swebench": 600.0, "model_judge": 120.0}
"""How long each may take where nothing is said; all others 60 s."""
TRACED = ("trace", "efficiency", "tool_correctness")
"""Graders that need the trace of a harness that has one."""

Asset = Callable[[CaseReader, CaseField, str], Node | None]
"""Where a path of the author's leads, by its kind (`inject` or another): the node to use for it. None, and a problem,
when it leads nowhere."""


@dataclass(slots=True)
class Graders:
    """The graders of a case, translated."""

    invariants: list[tuple[Node, Node]] = field(default_factory=list)
    """Pairs of nodes: a name, and the invariant."""
    only_gates: bool = True
    """Whether none of them gives credit."""
    seconds: float = 0.0
    """How long all of them may take together."""
    traced: list[CaseField] = field(default_factory=list)
    """The fields of those that need a trace."""


def read_graders(reader: CaseReader, of: CaseField, asset: Asset) -> Graders:
    """Every grader, named by its type, a second one of a type `-2`."""
    found = Graders()
    items = reader.items(of)
    if isinstance(of.value, list) and not items:
        reader.problem(of.key, "no graders", help="nothing would be graded: a case needs at least one")
    counts: dict[str, int] = {}
    for item in items:
        grader = _Grader(reader, item)
        if not grader.kind:
            continue
        number = counts[grader.kind] = counts.get(grader.kind, 0) + 1
        name = grader.kind if number == 1 else f"{grader.kind}-{number}"
        if grader.is_whole:
            found.invariants.append((build_node(name, item.node), grader.invariant(asset)))
        found.only_gates = found.only_gates and grader.is_gate
        found.seconds += grader.seconds
        if grader.kind in TRACED:
            found.traced.append(item)
    return found


class _Grader:
    """One grader, taken apart into what an invariant says and what its check does."""

    def __init__(self, reader: CaseReader, item: CaseField) -> None:
        self.reader, self.item = reader, item
        self.kind = self._kind()
        known = (*_COMMON, *_KEYS.get(self.kind, ()))
        required = _REQUIRED.get(self.kind, ())
        self.fields = reader.fields(item, known, required=required) if self.kind else {}
        self.is_whole = all(name in self.fields for name in required)
        self.is_gate = reader.boolean(self.fields.get("gate"))
        self.seconds = _SECONDS.get(self.kind, 60.0)
        limit = self.fields.get("timeout_s")
        if limit is not None and isinstance(limit.value, int | float):
            self.seconds = float(limit.value)

    def _kind(self) -> str:
        value = self.item.value
        if not isinstance(value, dict):
            self.reader.problem(self.item.node, f"{self.item.name}: expected a mapping", found=show_value(value))
            return ""
        if "type" not in value:
            self.reader.problem(self.item.node, "the key 'type' is missing", expected=f"one of {listing(GRADERS)}")
            return ""
        if value["type"] in GRADERS:
            return str(value["type"])
        kind = value["type"]
        close = nearest(kind, GRADERS) if isinstance(kind, str) else ""
        at = next(node for key, node in self.item.node.value if key.value == "type")
        expected = f"one of {listing(GRADERS)}"
        self.reader.problem(at, f"unknown grader type {show_value(kind)}", expected=expected, suggestion=close)
        return ""

    def invariant(self, asset: Asset) -> Node:
        """The invariant's nodes: those of the grader wherever they fit."""
        at = self.item.node
        outer: dict[str, Any] = {}
        weight = self.fields.get("weight")
        if self.is_gate:
            # Cap-only: it disqualifies and never adds credit, and one that can't apply is left out.
            outer = {"gate": self.fields["gate"].node, "on_skip": "ignore", "weight": 0}
            self.reader.number(weight, 0.0, above=-math.inf)
            self._warn_of_threshold()
        elif weight is not None:
            outer = {"weight": weight.node}
        adapt = _ADAPTED.get(self.kind)
        changed = adapt(self, asset) if adapt is not None else {}
        pairs = [(one.key, one.node) for name, one in self.fields.items() if name not in (*changed, "weight", "gate")]
        added = [
            (self.fields[name].key if name in self.fields else build_node(name, at), build_node(value, at))
            for name, value in changed.items()
            if value is not None
        ]
        check = MappingNode(at.tag, [*pairs, *added], at.start_mark, at.end_mark)
        return build_node({**outer, "check": check}, at)

    def _warn_of_threshold(self) -> None:
        given = self.fields.get("pass_threshold")
        at = given if given is not None and given.value != 1 else self.fields["gate"]
        if at is given or (given is None and self.kind in ("model_judge", "efficiency")):
            self.reader.warning(at.key, f"{self.item.name}: a gate needs a score of 1.0, whatever its pass_threshold")

    def dropped(self, name: str, warning: str) -> dict[str, Any]:
        """A field that says nothing to us, with a warning when it is there."""
        if name in self.fields:
            self.reader.warning(self.fields[name].key, f"{self.fields[name].name}: {warning}")
        return {name: None}


def _with_inject(grader: _Grader, asset: Asset) -> dict[str, Any]:
    """Hidden tests: from the repository of `fixtures`, where there is one."""
    inject = grader.fields.get("inject")
    if inject is None or not isinstance(inject.value, list):
        return {}
    entries: list[Node] = []
    for item in grader.reader.items(inject):
        if isinstance(item.value, str):
            found = asset(grader.reader, item, "inject")
            entries += [found] if found is not None else []
            continue
        fields = grader.reader.fields(item, ("dest", "src"), required=("dest", "src"))
        source = fields.get("src")
        if source is None or "dest" not in fields or not grader.reader.text(source):
            continue
        place = asset(grader.reader, source, "inject")
        if place is None:
            continue
        pairs = [(key, place if key.value == "src" else node) for key, node in item.node.value]
        entries.append(MappingNode(item.node.tag, pairs, item.node.start_mark, item.node.end_mark))
    return {"inject": build_node(entries, inject.node)}


def _swebench(grader: _Grader, asset: Asset) -> dict[str, Any]:
    warning = "PASS_TO_PASS is a gate, which never adds credit, so its weight says nothing"
    return {**_with_inject(grader, asset), **grader.dropped("gate_weight", warning)}


def _files(grader: _Grader, asset: Asset) -> dict[str, Any]:
    directory = grader.fields.get("expect_dir")
    if directory is None or not isinstance(directory.value, str):
        return {}
    return {"expect_dir": asset(grader.reader, directory, "file") or directory.node}


def _implemented_check(grader: _Grader, asset: Asset) -> dict[str, Any]:  # noqa: ARG001 - as all of them
    files = grader.fields.get("files")
    return {"files": None} if files is not None and files.value == [] else {}


def _model_judge(grader: _Grader, asset: Asset) -> dict[str, Any]:
    changed: dict[str, Any] = {"include_trace": None}
    trace = grader.fields.get("include_trace")
    if trace is not None and grader.reader.boolean(trace):
        advice = "leave it out, or write a Keystone spec with a second llm_as_judge and input_from: trace"
        grader.reader.refuse(trace, advice)
    rubric = grader.fields.get("rubric")
    if rubric is not None and isinstance(rubric.value, str):
        place = asset(grader.reader, rubric, "file") or rubric.node
        changed |= {"rubric": None, "criteria": build_node({"file": place}, rubric.node)}
    models = grader.fields.get("models")
    if models is not None and isinstance(models.value, str):
        changed["models"] = [models.node]
    elif models is not None and models.value == []:
        models, changed["models"] = None, None
    if models is None and "model" not in grader.fields:
        changed["model"] = DEFAULT_JUDGE
    return changed


def _tool_correctness(grader: _Grader, asset: Asset) -> dict[str, Any]:  # noqa: ARG001 - as all of them
    return {} if "match" in grader.fields else {"match": "kind"}


_ADAPTED: Mapping[str, Callable[[_Grader, Asset], dict[str, Any]]] = {
    "tests": _with_inject,
    "pytest": _with_inject,
    "swebench": _swebench,
    "files": _files,
    "implemented": _implemented_check,
    "model_judge": _model_judge,
    "tool_correctness": _tool_correctness,
}
