"""Artifacts of a workflow's run, laid out as GitHub's own actions do it: what is uploaded from a folder, and where it
goes on download (upload-artifact v7, download-artifact v8)."""

from __future__ import annotations

import fnmatch
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

_NOT_IN_NAMES = re.compile(r'[\\/":<>|*?\r\n]')


class ArtifactError(Exception):
    """The step fails."""


class Artifacts:
    """The artifacts of one run, each a folder below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self._root.iterdir())

    def folder(self, name: str) -> Path:
        return self._root / name

    def upload(self, inputs: Mapping[str, str], workspace: Path) -> None:
        """A folder: its content is the artifact's. A file: it alone. Hidden ones stay away; nothing at all is a warning
        unless `if-no-files-found` says otherwise. A name that is taken needs `overwrite`."""
        unknown = set(inputs) - {"name", "path", "overwrite", "retention-days", "if-no-files-found"}
        assert not unknown, f"this upload does not know {unknown}"
        name, source = inputs.get("name", "artifact"), workspace / inputs["path"]
        if not name or _NOT_IN_NAMES.search(name):
            raise ArtifactError(f"{name!r} is not a name of an artifact")
        found = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
        visible = [path for path in found if path.is_file() and not _hidden(path, source)]
        if not visible:
            if inputs.get("if-no-files-found") == "error":
                raise ArtifactError(f"nothing at {inputs['path']}")
            return
        target = self.folder(name)
        if target.exists():
            if inputs.get("overwrite") != "true":
                raise ArtifactError(f"an artifact {name} is there already")
            shutil.rmtree(target)
        for path in visible:
            copy = target / (path.relative_to(source) if source.is_dir() else path.name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)

    def download(self, inputs: Mapping[str, str], workspace: Path) -> None:
        """`name`: into `path` itself, and it must be there. `pattern`, or all: each into a folder of its name, but into
        `path` itself where there is only one."""
        unknown = set(inputs) - {"name", "path", "pattern", "merge-multiple", "github-token", "run-id"}
        assert not unknown, f"this download does not know {unknown}"
        target = workspace / inputs.get("path", ".")
        if "name" in inputs:
            names = [inputs["name"]]
            if names[0] not in self.names:
                raise ArtifactError(f"Artifact {names[0]!r} not found")
        else:
            names = [name for name in self.names if fnmatch.fnmatchcase(name, inputs.get("pattern", "*"))]
        for name in names:
            alone = len(names) == 1 or inputs.get("merge-multiple") == "true"
            shutil.copytree(self.folder(name), target if alone else target / name, dirs_exist_ok=True)


def _hidden(path: Path, source: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(source.parent).parts)
