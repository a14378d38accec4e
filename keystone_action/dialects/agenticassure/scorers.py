"""The scorers of a scenario as checks (AgenticAssure's scorers; `002_220bb8e992e29d33.txt`; spec.md 5.3 and 5.5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yaml.nodes import Node

from keystone_action.dialects.agenticassure.fields import METADATA, NAME, SuiteFields
from keystone_action.dialects.nodes import pairs_of
from keystone_action.spec.loading.diagnostics import nearest, show_value
from keystone_action.spec.loading.yaml_loader import KeyPath

BUILT_IN = ("passfail", "exact", "regex", "similarity")
_FROM_METADATA = {"regex": "regex_pattern", "exact": "exact_normalize", "similarity": "similarity_threshold"}
_READERS = {
    "expected_output": ("passfail", "exact", "similarity"),
    "expected_tools": ("passfail",),
    "expected_tool_args": ("passfail",),
}
"""Fields of a scenario → the built-in scorers that look at them."""


@dataclass(frozen=True, slots=True)
class ScenarioText:
    """One scenario as it is written."""

    values: Mapping[str, Any]
    """Its fields, checked."""
    node: Node
    """The mapping."""
    path: KeyPath

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes of its fields."""
        return {key: value for key, (_, value) in pairs_of(self.node).items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the author wrote for scorers."""
        found: Mapping[str, Any] = self.values.get("metadata", {})
        return found

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"the scenario {show_value(self.values.get('name', ''))}"


def check_of(scorer: str, scenario: ScenarioText, custom: Mapping[str, Any]) -> dict[str, Any]:
    """The check of one scorer, with the scenario's own nodes. custom: what a scorer of the author's needs besides."""
    nodes, metadata = scenario.nodes, pairs_of(scenario.nodes.get("metadata"))
    configured = {key: value for key, (_, value) in metadata.items()}
    if scorer == "passfail":
        return {"type": "passfail", **{key: nodes[key] for key in _READERS if key in nodes}}
    if scorer == "exact":
        return {"type": "exact", "expected": nodes["expected_output"]} | _rename_scorers(
            configured, exact_normalize="normalize"
        )
    if scorer == "regex":
        return {"type": "regex", "pattern": configured["regex_pattern"]}
    if scorer == "similarity":
        found = {"type": "similarity", "expected": nodes["expected_output"]}
        return found | _rename_scorers(configured, similarity_threshold="threshold")
    return {"type": "scorer", "scorer": scorer, **custom}


def _rename_scorers(nodes: Mapping[str, Node], **names: str) -> dict[str, Node]:
    return {new: nodes[old] for old, new in names.items() if old in nodes}


def check_scenario(scenario: ScenarioText, scorers: Sequence[str], fields: SuiteFields) -> None:
    """Tell what a scenario's scorers miss, what is malformed for them, and what none of them looks at."""
    values, path, metadata = scenario.values, scenario.path, scenario.metadata
    for scorer in scorers:
        if scorer in ("exact", "similarity") and "expected_output" not in values and _readable(scenario):
            message = f"the scorer {scorer} needs 'expected_output', which {scenario.label} has not"
            fields.problem(path, message, key=True)
        if scorer == "similarity" and "expected_output" in values:
            fields.fits(values["expected_output"], (*path, "expected_output"), NAME)
        if scorer == "regex" and "regex_pattern" not in metadata:
            near = nearest("regex_pattern", metadata)
            message = f"the scorer regex needs 'metadata.regex_pattern', which {scenario.label} has not"
            at = (*path, "metadata", near) if near else path
            advice = f"it has {show_value(near)}" if near else ""
            fields.problem(at, message, key=True, help=advice)
    for scorer, key in _FROM_METADATA.items():
        if scorer in scorers and key in metadata:
            fields.fits(metadata[key], (*path, "metadata", key), METADATA[key])
    _arguments(scenario, fields)
    if all(scorer in BUILT_IN for scorer in scorers):
        for at, message in _unread(scenario, scorers):
            fields.warning(at, message, key=True)


def _readable(scenario: ScenarioText) -> bool:
    """Whether a missing expected_output is really missing, and not there with a mistake in it."""
    return "expected_output" not in scenario.nodes


def _arguments(scenario: ScenarioText, fields: SuiteFields) -> None:
    for tool, arguments in scenario.values.get("expected_tool_args", {}).items():
        at = (*scenario.path, "expected_tool_args", tool)
        if not isinstance(arguments, dict):
            expected = "a mapping of the tool's arguments"
            fields.problem(at, f"the arguments of {show_value(tool)}", expected=expected, found=show_value(arguments))


def _unread(scenario: ScenarioText, scorers: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    """What stands in a scenario and is looked at by none of its scorers: most often one was forgotten."""
    for key, readers in _READERS.items():
        if key in scenario.values and not set(readers) & set(scorers):
            yield (*scenario.path, key), f"none of the scorers {', '.join(scorers)} looks at '{key}'"
    for scorer, key in _FROM_METADATA.items():
        if key in scenario.metadata and scorer not in scorers:
            yield (*scenario.path, "metadata", key), f"'{key}' is for the scorer {scorer}, which is not used here"


def invariant_name(scorer: str, taken: Mapping[str, Any]) -> str:
    """A name for a scorer's invariant: its own as far as names of invariants allow, numbered where one is taken."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", scorer).strip("-")[:100] or "scorer"
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    return name
