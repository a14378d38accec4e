"""A spec file as one tree of nodes: with the files that it extends, and translated when it is in another tool's format.

Each node knows the file that it comes from. The loader hands the tree of a file to the dialects that the front doors
gave it, and goes on with the tree of a Keystone spec that comes back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from yaml.nodes import MappingNode, Node, ScalarNode

from keystone_action.spec.loading.author_files import decode_file, is_file, read_bytes, unusable
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, listing, show_value
from keystone_action.spec.loading.loaded_spec import RunRules
from keystone_action.spec.loading.yaml_loader import Document, SourceText, build_data, child_of, parse_yaml
from keystone_action.spec.models.spec import Spec

MAX_CHAIN = 20
_KEYS_SHOWN = 8


@dataclass
class Merged:
    """A spec with what it extends."""

    document: Document
    data: Any
    """The tree as mappings, lists and scalars."""
    files: tuple[Path, ...]
    """The files that it was read from, the spec first."""
    problems: list[Diagnostic]
    """The problems found so far."""
    sha256: str
    """A digest of all bytes that were read."""


@dataclass
class _Reading:
    root: Path
    sources: dict[str, SourceText] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    digest: Any = field(default_factory=hashlib.sha256)
    files: list[Path] = field(default_factory=list)


def read_merged(path: Path, root: Path) -> Merged:
    """Read a spec and, upwards, what it extends: mappings merge, lists and scalars replace (spec.md 1).

    root: the directory that no path may leave. Raises SpecError for what can't be read at all.
    """
    reading = _Reading(root)
    node = _read_tree(path, reading)
    document = Document(node, reading.sources)
    data, problems = build_data(document)
    if len(reading.files) > 1:
        # What is wrong in one of the files was found when that file was read; the merged tree repeats it.
        problems = []
    problems = [*reading.problems, *problems]
    return Merged(document, data, tuple(reading.files), problems, reading.digest.hexdigest())


def _read_tree(path: Path, reading: _Reading) -> Node:
    name = str(path)
    content = read_bytes(path, name)
    reading.files.append(path.resolve())
    reading.digest.update(len(content).to_bytes(8, "big") + content)
    document = parse_yaml(decode_file(content, name), name)
    if document is None:
        raise SpecError([Diagnostic(name, 1, 1, "the file is empty", help="`keystone init` writes a first spec")])
    reading.sources.update(document.sources)
    if not isinstance(document.node, MappingNode):
        at = document.place_of(document.node)
        found = "a list" if not isinstance(document.node, ScalarNode) else show_value(document.node.value)
        raise SpecError([Diagnostic.at(at, "a spec", expected="a mapping with version, id, task, …", found=found)])
    named = child_of(document.node, "extends")
    extends = named is not None and isinstance(named[1], ScalarNode) and named[1].value
    if extends or len(reading.files) > 1:
        # Now, because merging walks the tree: no recursive alias may be left in it.
        reading.problems += build_data(document)[1]
    if named is None or not extends:
        return document.node
    return _extend(document, named[1], path, reading)


def _extend(document: Document, named: Node, path: Path, reading: _Reading) -> Node:
    at = document.place_of(named)
    if (problem := unusable(named.value)) is not None:
        raise SpecError([*reading.problems, Diagnostic.at(at, problem, found=show_value(named.value))])
    base = path.parent / named.value
    lexical = Path(os.path.normpath(base))
    if Path(named.value).is_absolute() or not base.resolve().is_relative_to(reading.root):
        message = f"extends leaves {reading.root}"
        raise SpecError([*reading.problems, Diagnostic.at(at, message, found=show_value(named.value))])
    if base.resolve() in reading.files:
        raise SpecError(
            [*reading.problems, Diagnostic.at(at, "extends goes in a circle", found=show_value(named.value))]
        )
    if len(reading.files) >= MAX_CHAIN:
        raise SpecError([*reading.problems, Diagnostic.at(at, f"more than {MAX_CHAIN} files extend each other")])
    if not is_file(base):
        advice = f"paths are relative to {path.parent}"
        raise SpecError(
            [*reading.problems, Diagnostic.at(at, f"there is no file {show_value(named.value)}", help=advice)]
        )
    node = _read_tree(lexical, reading)
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


Clone = Callable[[str, str], Path]
"""(URL, commit, branch or tag) → a directory with those files, ours alone, there until the run ends. Raises
CloneFailed."""


class CloneFailed(Exception):  # noqa: N818 - an outcome: a problem at a place of the file
    """A repository can't be had; the message is git's."""


@dataclass(frozen=True, slots=True)
class TranslationSource:
    """A file as it was read, before its translation."""

    merged: Merged
    path: Path
    root: Path
    """The directory that no path may leave."""
    agent: str | None
    """`module:Class` of the call."""
    clone: Clone | None = None
    """Gets a repository; None where that is not possible."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A Keystone spec as a tree, made from a file of another tool."""

    node: MappingNode
    rules: RunRules
    warnings: tuple[Diagnostic, ...] = ()
    """About the file, each at its place."""
    files: tuple[Path, ...] = ()
    """Further files that were read. They are withheld from the agent like the spec, and their bytes belong to the
    spec's digest."""
    visible: tuple[Path, ...] = ()
    """Files that belong to the digest too, but that the agent may see."""
    hidden: tuple[Path, ...] = ()
    """Files that were not read, and are withheld too."""
    problems: tuple[Diagnostic, ...] = ()
    """What is wrong with the file, so that nothing runs. The rest of the tree is there all the same, so that all other
    errors in it are reported at once."""

    def applied_to(self, merged: Merged) -> Merged:
        """The translated tree in place of the file's own, its digest over all files that were read."""
        document = Document(self.node, merged.document.sources)
        data, problems = build_data(document)
        digest = hashlib.sha256(bytes.fromhex(merged.sha256))
        read = (*self.files, *self.visible)
        for file in read:
            digest.update(file.read_bytes())
        return replace(
            merged,
            document=document,
            data=data,
            files=(*merged.files, *self.files),
            problems=list(dict.fromkeys([*merged.problems, *problems, *self.problems])),
            sha256=digest.hexdigest() if read else merged.sha256,
        )


class Dialects(Protocol):
    """The formats of other tools, as the front doors hand them to the loader."""

    def recognises(self, path: Path) -> bool:
        """Whether a file found in a directory is one of another tool: by the words in it, so that one with a mistake,
        in its syntax or in what it lacks, is not passed over in silence."""

    def translate(self, source: TranslationSource) -> Translation | None:
        """The file as a Keystone spec; None for a file that is one. Raises SpecError for a file that can't be read as
        a whole, UsageError for an `agent` that the file has no use for."""

    def library(self) -> bytes:
        """Modules that Python code in a sandbox finds after all others, as a zip archive: they stand in for packages
        that authors of such files import."""


def refuse_foreign_file(merged: Merged) -> None:
    """Raises SpecError with one error for a file of something else: five missing keys, and unknown ones beside them,
    would say less."""
    required = [name for name, field in Spec.model_fields.items() if field.is_required()]
    if merged.problems or not isinstance(merged.data, dict):
        return  # what else is wrong may have hidden what the file is
    if not set(merged.data).isdisjoint((*required, "extends")):
        return
    place = merged.document.place_of(merged.document.node)
    keys = listing(str(key) for key in list(merged.data)[:_KEYS_SHOWN])
    raise SpecError(
        [
            Diagnostic.at(
                place,
                f"this is not a Keystone spec: it has none of {listing(required)}",
                found=f"the keys {keys}" if keys else "an empty mapping",
                help="specs, Touchstone cases and AgenticAssure suites are read; `keystone init` writes a first spec",
            )
        ]
    )
