"""The specs of many tests in one run of the command, each in a folder of its own; each test reads its own cell, as if
its spec had been run alone. A whole call costs some thirty times as much as a further cell."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.called_once import called_once
from support.command_line import Called, keystone

CODES = {"pass": 0, "fail": 1, "error": 3}
"""The exit code of a run whose only cell ended with this verdict."""


@dataclass(frozen=True)
class Spec:
    """A spec with one cell, and the files beside it by path. Its id is given to it."""

    document: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)


def run_side_by_side(
    factory: pytest.TempPathFactory,
    name: str,
    specs: Mapping[str, Spec],
    *words: str,
    environ: Mapping[str, str] | None = None,
) -> Callable[[str], Called]:
    """Run all of these by one call for all workers. What it returns gives the run of one, as if there were no others.
    The streams are those of all."""
    ids = {case: f"s{number}" for number, case in enumerate(specs)}

    def call(directory: Path) -> Called:
        for case, one in specs.items():
            document = json.dumps({**one.document, "id": ids[case]})
            for path, text in {**one.files, "keystone.yaml": document}.items():
                (directory / ids[case] / path).parent.mkdir(parents=True, exist_ok=True)
                (directory / ids[case] / path).write_text(text, "utf-8")
        paths = [f"{folder}/keystone.yaml" for folder in ids.values()]
        return keystone("run", *paths, "--output", "out", *words, directory=directory, environ=dict(environ or {}))

    called = called_once(factory, name, call)
    assert called.code in CODES.values(), called.out + called.err
    found = {one["id"]: one for one in called.document["specs"]}
    assert sorted(found) == sorted(ids.values())
    assert called.code == max(CODES[one["verdict"]] for one in found.values()), called.out + called.err
    return lambda case: _alone(called, found[ids[case]])


def _alone(called: Called, spec: Mapping[str, Any]) -> Called:
    """The run of this spec alone: its part of the document, and the files of its cell, for as long as the tests run."""
    (cell,) = spec["cells"]
    output = Path(tempfile.mkdtemp(prefix=f"{spec['id']}-", dir=called.output.parent))
    document = {**called.document, "specs": [spec]}
    (output / "results.json").write_text(json.dumps(document), "utf-8")
    if (called.output / "cells" / cell["id"]).exists():
        shutil.copytree(called.output / "cells" / cell["id"], output / "cells" / cell["id"])
    return Called(CODES[cell["verdict"]], called.out, called.err, output)
