"""What the loader has to do with files in other formats: it hands a file's tree to the dialects that it was given, and
goes on with the tree of a Keystone spec that comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from keystone_action.spec.loading.diagnostics import Diagnostic
from keystone_action.spec.loading.run_rules import RunRules
from keystone_action.spec.loading.yaml_loader import Document, construct

if TYPE_CHECKING:
    from yaml.nodes import MappingNode

    from keystone_action.spec.loading.extends import Merged

Clone = Callable[[str, str], Path]
"""(URL, commit, branch or tag) → a directory with those files, ours alone, there until the run ends. Raises
CloneFailed."""


class CloneFailed(Exception):  # noqa: N818 - an outcome: a problem at a place of the file
    """What git said."""


@dataclass(frozen=True, slots=True)
class TranslationSource:
    """A file as it was read. root: the directory that no path may leave. agent: `module:Class` of the call. clone:
    gets a repository; None where that is not possible."""

    merged: Merged
    path: Path
    root: Path
    agent: str | None
    clone: Clone | None = None


@dataclass(frozen=True, slots=True)
class Translation:
    """A Keystone spec as a tree. warnings: about the file, each at its place. files: further files that were read for
    it, withheld from the agent like the spec itself; their bytes belong into the spec's digest. visible: files that
    belong into the digest, too, but the agent may see. hidden: files that were not read, and are withheld, too.
    problems: what is wrong with the file; nothing runs then, and the rest of the tree is there so that everything else
    that is wrong with it is told at once."""

    node: MappingNode
    rules: RunRules
    warnings: tuple[Diagnostic, ...] = ()
    files: tuple[Path, ...] = ()
    visible: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    problems: tuple[Diagnostic, ...] = ()

    def applied_to(self, merged: Merged) -> Merged:
        """The translated tree in place of the file's own, its digest over all files that were read."""
        document = Document(self.node, merged.document.sources)
        data, problems = construct(document)
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
