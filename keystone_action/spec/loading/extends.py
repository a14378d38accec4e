"""A spec file and what it extends, merged into one tree whose nodes know the file they come from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import MappingNode, Node, ScalarNode

from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, show
from keystone_action.spec.loading.text_files import decode, is_file, read_bytes, unusable
from keystone_action.spec.loading.yaml_loader import Document, Source, child, construct, parse

MAX_CHAIN = 20


@dataclass
class Merged:
    """The tree, the files it was read from (the spec first), the problems found so far and a digest of all bytes."""

    document: Document
    data: Any
    files: tuple[Path, ...]
    problems: list[Diagnostic]
    sha256: str


@dataclass
class _Reading:
    root: Path
    sources: dict[str, Source] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    files: list[Path] = field(default_factory=list)


def read_merged(path: Path, root: Path) -> Merged:
    """Read a spec and, upwards, what it extends: mappings merge, lists and scalars replace (spec.md 1).

    root: the directory that no path may leave. Raises SpecError for what can't be read at all.
    """
    reading = _Reading(root)
    node = _read(path, reading)
    document = Document(node, reading.sources)
    data, problems = construct(document)
    if len(reading.files) > 1:
        # What is wrong in one of the files was found when that file was read; the merged tree repeats it.
        problems = []
    problems = [*reading.problems, *problems]
    return Merged(document, data, tuple(reading.files), problems, reading.digest.hexdigest())


def _read(path: Path, reading: _Reading) -> Node:
    name = str(path)
    content = read_bytes(path, name)
    reading.files.append(path.resolve())
    reading.digest.update(len(content).to_bytes(8, "big") + content)
    document = parse(decode(content, name), name)
    if document is None:
        raise SpecError([Diagnostic(name, 1, 1, "the file is empty", help="`keystone init` writes a first spec")])
    reading.sources.update(document.sources)
    if not isinstance(document.node, MappingNode):
        at = document.place_of(document.node)
        found = "a list" if not isinstance(document.node, ScalarNode) else show(document.node.value)
        raise SpecError([Diagnostic.at(at, "a spec", expected="a mapping with version, id, task, …", found=found)])
    named = child(document.node, "extends")
    extends = named is not None and isinstance(named[1], ScalarNode) and named[1].value
    if extends or len(reading.files) > 1:
        # Now, because merging walks the tree: no recursive alias may be left in it.
        reading.problems += construct(document)[1]
    if named is None or not extends:
        return document.node
    return _extend(document, named[1], path, reading)


def _extend(document: Document, named: Node, path: Path, reading: _Reading) -> Node:
    at = document.place_of(named)
    if (problem := unusable(named.value)) is not None:
        raise SpecError([*reading.problems, Diagnostic.at(at, problem, found=show(named.value))])
    base = path.parent / named.value
    lexical = Path(os.path.normpath(base))
    if Path(named.value).is_absolute() or not base.resolve().is_relative_to(reading.root):
        message = f"extends leaves {reading.root}"
        raise SpecError([*reading.problems, Diagnostic.at(at, message, found=show(named.value))])
    if base.resolve() in reading.files:
        raise SpecError([*reading.problems, Diagnostic.at(at, "extends goes in a circle", found=show(named.value))])
    if len(reading.files) >= MAX_CHAIN:
        raise SpecError([*reading.problems, Diagnostic.at(at, f"more than {MAX_CHAIN} files extend each other")])
    if not is_file(base):
        advice = f"paths are relative to {path.parent}"
        raise SpecError([*reading.problems, Diagnostic.at(at, f"there is no file {show(named.value)}", help=advice)])
    node = _read(lexical, reading)
    return _merge(node, document.node)


def _merge(base: Node, over: Node) -> Node:
    if not isinstance(base, MappingNode) or not isinstance(over, MappingNode):
        return over
    pairs: dict[str, tuple[Node, Node]] = {key.value: (key, value) for key, value in _text_keys(base)}
    for key, value in _text_keys(over):
        below = pairs.get(key.value)
        pairs[key.value] = (key, _merge(below[1], value) if below is not None else value)
    return MappingNode(over.tag, list(pairs.values()), over.start_mark, over.end_mark)


def _text_keys(node: MappingNode) -> list[tuple[Node, Node]]:
    """The pairs whose key is a scalar; the others are problems already."""
    return [(key, value) for key, value in node.value if isinstance(key, ScalarNode)]
