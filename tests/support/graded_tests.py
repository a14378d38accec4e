"""Workspaces with a past: what the author gave, what the agent left, and checks that run tests on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.context import grade

from keystone_action.files.workspace import compare_entries, keep_originals, snapshot
from keystone_action.invariants.check import Outcome


def files_of(root: Path, prefix: str) -> dict[str, str | bytes]:
    """The files below a directory by their paths below `prefix`, for `lay_out`: byte code is bytes, all else text."""
    places = (place for place in root.rglob("*") if place.is_file())
    return {
        f"{prefix}/{place.relative_to(root)}": place.read_bytes()
        if place.suffix == ".pyc"
        else place.read_text("utf-8")
        for place in places
    }


def lay_out(root: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Write files by path; None removes one."""
    for path, text in files.items():
        place = root / path
        if text is None:
            place.unlink()
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)


class World:
    """A spec's directory with hidden files, a workspace before the agent and after it."""

    def __init__(self, root: Path, packages: Path | None = None) -> None:
        self.root, self.packages = root, packages
        self.author, self.workspace = root / "author", root / "workspace"
        self.author.mkdir()
        self.workspace.mkdir()
        self.environment: dict[str, str] = {}
        self.readable: tuple[Path, ...] = ()
        self._before: Any = None
        self._originals: Path | None = None

    def hidden(self, **files: str) -> None:
        """Files of the author's that are injected: `test_x="…"` is test_x.py."""
        lay_out(self.author, {f"{name}.py": text for name, text in files.items()})

    def given(self, files: Mapping[str, str]) -> None:
        """The workspace before the agent."""
        lay_out(self.workspace, files)

    def start(self) -> None:
        """The agent starts: what it does to the workspace from here on is its work."""
        self._originals = keep_originals(self.workspace, self.root / "before")
        self._before = snapshot(self.workspace)

    def left(self, files: Mapping[str, str | None]) -> None:
        """The agent writes these."""
        if self._before is None:
            self.start()
        lay_out(self.workspace, files)

    def grade(self, document: Mapping[str, Any], **fields: Any) -> Outcome:
        if self._before is None:
            self.start()
        after = snapshot(self.workspace)
        evidence = {
            "before": self._before,
            "after": after,
            "changes": compare_entries(self._before, after),
            "originals": self._originals,
        }
        environment = dict(self.environment)
        readable = self.readable
        if self.packages is not None:
            environment["PYTHONPATH"] = ":".join(filter(None, [str(self.packages), environment.get("PYTHONPATH")]))
            readable = (*readable, self.packages)
        return grade(
            document,
            self.workspace,
            directory=self.author,
            evidence=evidence,
            check_environment=environment,
            readable=readable,
            **{"timeout": 60.0, **fields},
        )
