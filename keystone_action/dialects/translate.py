"""A file of another tool → the tree of a Keystone spec, by the dialect it is written in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.dialects.recognition import Dialect
from keystone_action.spec.loading.yaml_loader import Document, construct

if TYPE_CHECKING:
    from keystone_action.dialects.clones import Clone
    from keystone_action.dialects.translation import Translation
    from keystone_action.spec.loading.extends import Merged


@dataclass(frozen=True, slots=True)
class Source:
    """What a dialect translates. root: the directory that no path may leave. agent: `module:Class` of the call. clone:
    how a repository is had, None where it can't be."""

    merged: Merged
    path: Path
    root: Path
    agent: str | None
    clone: Clone | None = None


def translate(
    dialect: Dialect, merged: Merged, path: Path, root: Path, agent: str | None, clone: Clone | None = None
) -> tuple[Merged, Translation]:
    """The translated tree in place of the file's own, its digest over all files that were read.

    Raises SpecError with everything that is wrong with the file.
    """
    translation = _translate(dialect, Source(merged, path, root, agent, clone))
    document = Document(translation.node, merged.document.sources)
    data, problems = construct(document)
    digest = hashlib.sha256(bytes.fromhex(merged.sha256))
    read = (*translation.files, *translation.visible)
    for file in read:
        digest.update(file.read_bytes())
    return replace(
        merged,
        document=document,
        data=data,
        files=(*merged.files, *translation.files),
        problems=list(dict.fromkeys([*merged.problems, *problems, *translation.problems])),
        sha256=digest.hexdigest() if read else merged.sha256,
    ), translation


def _translate(dialect: Dialect, source: Source) -> Translation:
    if dialect == "agenticassure":
        from keystone_action.dialects.agenticassure.suite import translate_suite

        return translate_suite(source)
    from keystone_action.dialects.touchstone.case import translate_case

    return translate_case(source)
