"""The nodes that a translated spec is built from, and the mistakes that are found meanwhile.

A translated spec is a tree of YAML nodes like any other. Nodes of the original are used again where they fit, and new
ones stand where that of the original stands which they come from: so every error still has its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError

_STR, _INT, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_BOOL, _NULL = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"
_MAP, _SEQ = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"


@dataclass(slots=True)
class FileFindings:
    """What is wrong with a file of another tool, collected, so that all of it is told at once."""

    problems: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    def stop_if_any(self) -> None:
        """Raises SpecError with every problem so far."""
        if self.problems:
            raise SpecError(self.problems)


def build_node(value: Any, at: Node) -> Node:
    """Nodes for a value (mappings, lists, texts, numbers, booleans, None; nodes in it are taken as they are), all of
    them standing where `at` does."""
    start, end = at.start_mark, at.end_mark
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        pairs = [(build_node(key, at), build_node(item, at)) for key, item in value.items()]
        return MappingNode(_MAP, pairs, start, end, flow_style=False)
    if isinstance(value, list | tuple):
        return SequenceNode(_SEQ, [build_node(item, at) for item in value], start, end, flow_style=False)
    if isinstance(value, str):
        # Quoted, so that it stays a text even if it looks like a number.
        return ScalarNode(_STR, value, start, end, style='"')
    tag, text = _plain(value)
    return ScalarNode(tag, text, start, end, style=None)


def _plain(value: Any) -> tuple[str, str]:
    if value is None:
        return _NULL, "null"
    if isinstance(value, bool):
        return _BOOL, "true" if value else "false"
    if isinstance(value, int):
        return _INT, str(value)
    if isinstance(value, float):
        return _FLOAT, repr(value)
    raise TypeError(f"{type(value).__name__} has no node")


def pairs_of(node: Node | None) -> dict[str, tuple[Node, Node]]:
    """Key → (key's node, value's node) of a mapping; empty for anything else. Of a key that is there twice, which is an
    error, the first, as in the data."""
    found: dict[str, tuple[Node, Node]] = {}
    for key, value in node.value if isinstance(node, MappingNode) else ():
        if isinstance(key, ScalarNode):
            found.setdefault(key.value, (key, value))
    return found


def items_of(node: Node | None) -> Iterable[Node]:
    """The nodes of a list; none for anything else."""
    return list(node.value) if isinstance(node, SequenceNode) else []


def without_expressions(text: str) -> str:
    """The text with `{{` as two braces, for the fields of agents, where expressions work."""
    return text.replace("{{", "\\{{")
