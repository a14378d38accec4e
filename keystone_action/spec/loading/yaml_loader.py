"""Text → data and the place of every node, by the YAML 1.2 core schema.

libyaml parses (`yaml.CParser`), the resolution of plain scalars is ours: `no`, `12:30` and `2026-01-01` are texts, and
`0123` is the number 123, since the core schema reads `[-+]?[0-9]+` as decimal. Merge keys, custom tags, keys that
aren't text, several documents and duplicate keys are errors, all of a file at once where the syntax allows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml
from yaml._yaml import CParser
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from keystone_action.spec.loading.diagnostics import Diagnostic, SourcePosition, SpecError, show_value

MAX_DEPTH = 100
"""Nested collections. libyaml and Python would overflow the stack long before memory runs out."""
MAX_NODES = 1_000_000
"""Nodes after all aliases are expanded."""

KeyPath = tuple[str | int, ...]

_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
_NUMBER_STARTS = frozenset("0123456789+-.")
_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((sign + word for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_STANDARD = "tag:yaml.org,2002:"
_PLAIN, _QUOTED, _COLLECTION = "?", "!", "."
_SCALAR_TAGS = {
    "str": str,
    "int": int,
    "float": float | int,
    "bool": bool,
    "null": type(None),
}
_ADVICE = (
    ("mapping values are not allowed", "check the indentation, or put the text with ': ' into quotes"),
    ("could not find expected ':'", "a key needs ': ' after it; check the indentation"),
    ("did not find expected key", "check the indentation and the quotes of the lines before"),
    ("did not find expected '-' indicator", "check the indentation of this list"),
    ("found unexpected end of stream", "a quote or bracket was opened and not closed"),
    ("undefined alias", "define it with &name before it is used"),
    ("undefined tag handle", "remove the tag"),
    ("did not find expected ',' or", "a bracket was opened and not closed"),
    ("cannot start any token", "put the text into quotes"),
)


class Unrepresentable(ValueError):  # noqa: N818 - an outcome: the caller knows the place
    """A plain scalar is a number that is too large to be used; the message says how large."""


@dataclass(frozen=True)
class SourceText:
    """A file's name, as messages show it, and its text."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def lines(self) -> list[str]:
        return _BREAK.split(self.text)

    def position(self, line: int, column: int) -> SourcePosition:
        """By line and column counted from 0, as the parser has them; kept within the text."""
        line = min(max(line, 0), len(self.lines) - 1)
        text = self.lines[line]
        return SourcePosition(self.name, line + 1, min(max(column, 0), len(text)) + 1, text)

    def position_at(self, index: int) -> SourcePosition:
        """By the index of a character."""
        before = _BREAK.split(self.text[:index])
        return self.position(len(before) - 1, len(before[-1]))


@dataclass(frozen=True)
class Document:
    """The tree of one file, or of several that `extends` merged; nodes know the file they come from."""

    node: Node
    sources: dict[str, SourceText]
    _pairs: dict[int, dict[str, tuple[Node, Node]]] = field(default_factory=dict, repr=False)

    def position(self, path: Sequence[str | int], *, key: bool = False, offset: int = 0) -> SourcePosition:
        """Where the value at a path stands (or its key). A step that leads nowhere ends at the last place that
        exists. offset: characters into a text, as far as it is written as it reads (plain or quoted, on one line)."""
        place: Node = self.node
        node: Node | None = self.node
        for index, step in enumerate(path):
            found = self._child(node, step)
            if found is None:
                break
            key_node, node = found
            place = key_node if key_node is not None and key and index == len(path) - 1 else node
        if not offset or not isinstance(place, ScalarNode):
            return self.place_of(place)
        return self._within(place, offset)

    def _child(self, node: Node | None, step: str | int) -> tuple[Node | None, Node] | None:
        """As `child`, but quick for the many that ask for a place in a large mapping."""
        if not isinstance(node, MappingNode):
            return child_of(node, step)
        if id(node) not in self._pairs:
            self._pairs[id(node)] = {key.value: (key, value) for key, value in reversed(node.value) if _is_text(key)}
        return self._pairs[id(node)].get(str(step))

    def _within(self, node: ScalarNode, offset: int) -> SourcePosition:
        """The place of a character of a text: found by the text around it, since quotes and folding move it."""
        at = self.place_of(node)
        lines = self.sources[node.start_mark.name].lines[node.start_mark.line : node.end_mark.line + 1]
        following = node.value[offset : offset + 40].split("\n", 1)[0]
        earlier = node.value[:offset].count(following) if following else 0
        for number, line in enumerate(lines):
            column = line.find(following, node.start_mark.column if number == 0 else 0) if following else -1
            while column >= 0:
                if not earlier:
                    return self.sources[at.path].position(node.start_mark.line + number, column)
                earlier -= 1
                column = line.find(following, column + 1)
        return at

    def place_of(self, node: Node) -> SourcePosition:
        """Where a node begins."""
        mark = node.start_mark
        return self.sources[mark.name].position(mark.line, mark.column)


def child_of(node: Node | None, step: str | int) -> tuple[Node | None, Node] | None:
    """The key's node (None in lists) and the value's node, or None where there is no such child."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
        return None, node.value[step]
    return None


def _is_text(key: Node) -> bool:
    return isinstance(key, ScalarNode)


def resolve_plain(text: str) -> Any:
    """What a plain scalar is, by the core schema (YAML 1.2.2, 10.3.2). Raises Unrepresentable."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        if len(text) > 4000:
            raise Unrepresentable("a number of thousands of digits")
        number = int(text[2:] if base != 10 else text, base)
        if abs(number) > sys.float_info.max:  # such a number can't be compared with any other
            raise Unrepresentable(f"a number of {len(text.lstrip('+-'))} digits")
        return number
    return float(text) if _FLOAT.fullmatch(text) else text


def parse_yaml(text: str, name: str) -> Document | None:
    """The tree of a text; None when it holds nothing. Raises SpecError with the first error of syntax."""
    source = SourceText(name, text)
    try:
        node = _Parser(_NamedText(source)).get_single_node()
    except _TooDeep as error:
        mark = error.node.start_mark
        message = f"nested deeper than {MAX_DEPTH} levels"
        raise SpecError([Diagnostic.at(source.position(mark.line, mark.column), message)]) from None
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax_error(error, source)]) from None
    except yaml.reader.ReaderError as error:
        at = source.position_at(error.position)
        raise SpecError([Diagnostic.at(at, "a character that YAML doesn't allow", help="remove it")]) from None
    return None if node is None else Document(node, {name: source})


def build_data(document: Document) -> tuple[Any, list[Diagnostic]]:
    """The data of a tree and every error in it. Raises SpecError for what can't be expanded."""
    builder = _Builder(document)
    return builder.build(document.node), builder.problems


class _TooDeep(Exception):  # noqa: N818 - never leaves this file
    def __init__(self, node: Node) -> None:
        self.node = node


class _Hooks:
    """What a parser asks while it composes: tags (we resolve later) and nesting (we bound it)."""

    _levels = 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:  # noqa: ARG002
        if kind is ScalarNode:
            return _PLAIN if implicit[0] else _QUOTED
        return _COLLECTION

    def descend_resolver(self, current_node: Node | None, current_index: Any) -> None:  # noqa: ARG002
        self._levels += 1
        if self._levels > MAX_DEPTH and current_node is not None:
            raise _TooDeep(current_node)

    def ascend_resolver(self) -> None:
        self._levels -= 1


class _NamedText:
    """A text with a `name`, which is how a parser learns what to write into its marks."""

    def __init__(self, source: SourceText) -> None:
        self.name = source.name
        self._rest: str = source.text

    def read(self, size: int = -1) -> str:
        taken = self._rest if size < 0 else self._rest[:size]
        self._rest = self._rest[len(taken) :]
        return taken


class _Parser(_Hooks, CParser):
    """libyaml's, with our hooks first."""


def _syntax_error(error: yaml.MarkedYAMLError, source: SourceText) -> Diagnostic:
    mark = error.problem_mark or error.context_mark
    at = source.position(mark.line, mark.column) if mark else source.position(0, 0)
    problem = str(error.problem or error.context or "unreadable")
    if "expected a single document" in str(error.context):
        return Diagnostic.at(at, "a second document begins here", expected="one document in a file")
    character = at.source_line[at.column - 1 : at.column]
    if character == "\t" or "\t" in at.source_line[: at.column - 1].lstrip(" ")[:1]:
        return Diagnostic.at(at, "a tab in the indentation", expected="spaces")
    help_text = next((advice for part, advice in _ADVICE if part in problem), "")
    context = f" {error.context}" if error.context and error.context != problem else ""
    return Diagnostic.at(at, f"not readable as YAML: {problem}{context}", help=help_text)


class _Builder:
    """Nodes → Python values. Aliases share one value; what they would expand to is counted."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0
        self._open: set[int] = set()
        self._done: dict[int, tuple[Any, int]] = {}
        self.problems: list[Diagnostic] = []

    def build(self, node: Node) -> Any:
        """The value of a node. Raises SpecError at once for what can't be expanded."""
        if isinstance(node, ScalarNode):
            self._count += 1
            return self._scalar(node)
        identity = id(node)
        if identity in self._done:
            value, size = self._done[identity]
            self._add(size, node)
            return value
        if identity in self._open:
            self._stop(node, "an alias that contains itself", help_text="aliases can't be recursive")
        self._open.add(identity)
        before = self._count
        self._add(1, node)
        value = dict(self._pairs(node)) if isinstance(node, MappingNode) else [self.build(item) for item in node.value]
        if node.tag not in (_COLLECTION, _STANDARD + ("map" if isinstance(node, MappingNode) else "seq")):
            self._bad_tag(node)
        self._open.discard(identity)
        self._done[identity] = (value, self._count - before)
        return value

    def _pairs(self, node: MappingNode) -> Iterator[tuple[str, Any]]:
        first: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            if key in first:
                line = first[key].start_mark.line + 1
                self._problem(
                    key_node, f"the key {show_value(key)} is there twice", help_text=f"the first is on line {line}"
                )
                continue
            first[key] = key_node
            yield key, self.build(value_node)

    def _key(self, node: Node) -> str | None:
        if not isinstance(node, ScalarNode):
            advice = 'an expression at the start of a value needs quotes: "{{ … }}"; without them it is a mapping'
            self._problem(node, "a key that is a list or mapping", expected="a text", help_text=advice)
            return None
        if node.tag == _QUOTED:
            return str(self._scalar(node))
        if node.tag == _PLAIN and node.value == "<<":
            advice = "YAML 1.2 has none; use `extends`, or an alias for a whole value"
            self._problem(node, "a merge key `<<`", help_text=advice)
            return None
        value = self._scalar(node)
        if isinstance(value, str):
            return value
        self._problem(
            node, "a key that is not a text", found=show_value(value), help_text=f'write "{node.value}" in quotes'
        )
        return None

    def _scalar(self, node: ScalarNode) -> Any:
        tag = node.tag
        if tag == _QUOTED:
            if _UNUSABLE.search(node.value):
                self._problem(node, "the escape of a character that no file, command or variable can hold")
            return node.value
        try:
            value = resolve_plain(node.value)
        except Unrepresentable as problem:
            self._problem(node, str(problem), help_text="put it into quotes if it is a text")
            return 1  # which most numbers may be, so that nothing more is said of it
        return value if tag == _PLAIN else self._apply_tag(node, value)

    def _apply_tag(self, node: ScalarNode, value: Any) -> Any:
        word = node.tag.removeprefix(_STANDARD)
        if word == "str":
            return node.value
        if word not in _SCALAR_TAGS or node.tag == word:
            self._bad_tag(node)
        elif not isinstance(value, _SCALAR_TAGS[word]) or (isinstance(value, bool) and word != "bool"):
            self._problem(node, f"the tag !!{word} on {show_value(node.value)}", help_text="remove the tag")
        return float(value) if word == "float" and isinstance(value, int) else value

    def _add(self, count: int, node: Node) -> None:
        self._count += count
        if self._count > MAX_NODES:
            advice = "write less, or use fewer aliases of aliases"
            self._stop(node, f"more than {MAX_NODES:,} values once all aliases are expanded", help_text=advice)

    def _bad_tag(self, node: Node) -> None:
        tag = node.tag.replace(_STANDARD, "!!")
        self._problem(node, f"the tag {tag}", expected="no tags", help_text="a spec holds plain data only")

    def _problem(self, node: Node, message: str, *, expected: str = "", found: str = "", help_text: str = "") -> None:
        at = self._document.place_of(node)
        self.problems.append(Diagnostic.at(at, message, expected=expected, found=found, help=help_text))

    def _stop(self, node: Node, message: str, *, help_text: str) -> None:
        self._problem(node, message, help_text=help_text)
        raise SpecError(self.problems)
