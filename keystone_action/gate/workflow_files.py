"""The workflows that call us, at the base commit beside those of the change: an input can weaken a gate as a spec can.

Read from commits, not from the working tree: GitHub runs the committed one, even if a step has changed the file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keystone_action.files.git import commands as git
from keystone_action.files.git.commits import Remote, Tree, TreeEntry, open_commit
from keystone_action.gate.base_commit import BaseFiles
from keystone_action.gate.named_files import count_lines
from keystone_action.gate.workflow_changes import GRAVEST, HARMLESS, Workflow, ranked_differences, read_workflow
from keystone_action.scoring.differences import SpecChange
from keystone_action.spec.loading.diagnostics import SpecError

FOLDER = ".github/workflows"
MAX_BYTES = 512 << 10
"""Of a file that is read; a larger one is only said to have changed."""
MAX_FILES = 200
"""That are compared."""
MAX_SHOWN = 10
_OWN_NAME = "keystone-action"
_IMAGE = "docker://"


@dataclass(frozen=True, slots=True)
class WorkflowFile:
    """path: of the workflow that runs, in its repository; empty when it is in another one. sha: of the commit that it
    was read from, empty when that is not known. action: `owner/name` of the action that we are, as far as is known."""

    path: str
    sha: str = ""
    action: str = ""

    def is_ours(self, uses: str) -> bool:
        """Whether a `uses` is of our action, or of our workflow: by our name, or the one that we were called by."""
        text = uses.strip().lower()
        is_image = text.startswith(_IMAGE)
        parts = text.removeprefix(_IMAGE).partition("@")[0].split("/")
        if is_image:
            return parts[-1].partition(":")[0] == _OWN_NAME
        return len(parts) > 1 and (parts[1] == _OWN_NAME or "/".join(parts[:2]) == self.action.lower())


def workflow_changes(
    files: BaseFiles, workflow: WorkflowFile, directory: Path, remote: Remote | None
) -> list[SpecChange]:
    """What changed in workflows: the one that runs with those of this repository that it uses, then all others that
    call us. files: of the base commit. directory: the call's. Raises git.GitFailed when a commit can't be read."""
    after = _tree_of_the_change(files, workflow, remote)
    compared = _Compared(files.tree, after, workflow)
    shown = directory.resolve()
    # The one that runs is told before others that are as grave.
    changes = sorted(compared.changes(), key=lambda one: (one[0], one[1] != workflow.path, one[1]))
    found = [SpecChange(_relative(files.root / path, shown), "changed", said) for _, path, said in changes]
    more = len(found) - MAX_SHOWN
    if more > 0:
        found[MAX_SHOWN:] = [
            SpecChange(_relative(files.root / FOLDER, shown), "changed", (f"and {more:,} more workflows",))
        ]
    return found


def _relative(path: Path, start: Path) -> str:
    return posixpath.relpath(path.as_posix(), start.as_posix())


def _tree_of_the_change(files: BaseFiles, workflow: WorkflowFile, remote: Remote | None) -> Tree:
    """Of the commit that the workflow was read from; where the checkout lacks it, of the one that is checked out."""
    place = files.top.parent
    for name, sha in (("workflow", workflow.sha), ("head", "")):
        folder = place / name
        folder.mkdir()
        if name == "head":
            found = git.run_git("rev-parse", "--verify", "-q", "HEAD^{commit}", directory=files.root)
            return open_commit(files.root, found.decode("ascii", "replace").strip(), folder, remote)
        try:
            return open_commit(files.root, sha, folder)
        except git.GitFailed:
            continue
    raise AssertionError


class _Compared:
    """Two trees and what was read of them."""

    def __init__(self, before: Tree, after: Tree, workflow: WorkflowFile) -> None:
        self._sides = before, after
        self._workflow = workflow
        self._read: dict[str, Workflow | str] = {}
        self._moved: dict[str, str] = {}

    def changes(self) -> Iterator[tuple[int, str, tuple[str, ...]]]:
        """How grave it is, path and sentences of each that differs."""
        others = [path for path in self._changed_in_folder() if self._calls_us(path)]
        self._moved = self._find_moved(others)
        running = list(self._running())
        for path in dict.fromkeys((*running, *others)):
            if path in self._moved.values():
                continue
            there = self._moved.get(path, path)
            old, new = self._entry(0, there), self._entry(1, path)
            if (old and old.id) != (new and new.id) or there != path:
                grave, sentences = self._sentences(there, path)
                yield grave, path, sentences

    def _running(self) -> Iterator[str]:
        """The workflow that runs, and what it uses of this repository, in either version, at any depth."""
        waiting, seen = [self._workflow.path], {""}
        while waiting and len(seen) < MAX_FILES:
            path = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            if self._entry(0, path) or self._entry(1, path):
                yield path
            for side, place in ((0, self._moved.get(path, path)), (1, path)):
                read = self._workflow_at(side, place)
                if isinstance(read, Workflow):
                    waiting += [one for local in read.local for one in _files_of(local)]

    def _changed_in_folder(self) -> Iterator[str]:
        found = 0
        names = dict.fromkeys(path for tree in self._sides for path in tree.below(FOLDER))
        for path in names:
            is_one = posixpath.dirname(path) == FOLDER and path.endswith((".yml", ".yaml"))
            old, new = self._entry(0, path), self._entry(1, path)
            if is_one and (old and old.id) != (new and new.id):
                found += 1
                if found > MAX_FILES:
                    raise git.GitFailed(f"more than {MAX_FILES} workflows changed")
                yield path

    def _calls_us(self, path: str) -> bool:
        """One that can't be read may."""
        read = [self._workflow_at(side, path) for side in (0, 1) if self._entry(side, path)]
        return any(isinstance(one, str) or any(self._workflow.is_ours(call.uses) for call in one.calls) for one in read)

    def _find_moved(self, others: list[str]) -> dict[str, str]:
        """Path here → path there, when one workflow that calls us went, and one came."""
        gone = [path for path in others if self._entry(1, path) is None]
        new = [path for path in others if self._entry(0, path) is None]
        return {new[0]: gone[0]} if len(gone) == len(new) == 1 else {}

    def _sentences(self, there: str, path: str) -> tuple[int, tuple[str, ...]]:
        kind = "workflow" if path.startswith(f"{FOLDER}/") else "action"
        if self._entry(0, there) is None:
            return HARMLESS, (f"{kind} added",)
        if self._entry(1, path) is None:
            return GRAVEST, (f"{kind} deleted",)
        sentences = [f"moved from {there}"] if there != path else []
        old, new = self._workflow_at(0, there), self._workflow_at(1, path)
        grave = GRAVEST
        if isinstance(old, Workflow) and isinstance(new, Workflow):
            grave, said = ranked_differences(old, new)
            sentences += said
        else:
            where, why = ("this commit", new) if isinstance(new, str) else ("the base commit", old)
            sentences.append(f"it can't be compared as it is at {where}: {why}")
        texts = [self._text(0, there), self._text(1, path)]
        if texts[0] != texts[1]:
            counted = "" if None in texts else f" ({count_lines(texts[0] or b'', texts[1] or b'')})"
            sentences.append(f"{kind} changed{counted}")
        return grave, tuple(sentences)

    def _entry(self, side: int, path: str) -> TreeEntry | None:
        """Of a link, what it leads to."""
        tree = self._sides[side]
        place = tree.resolve(path)
        return None if place is None else tree.entries.get(place)

    def _text(self, side: int, path: str) -> bytes | None:
        """None for one that is too large."""
        tree = self._sides[side]
        place = tree.resolve(path)
        if place is None or place not in tree.entries or tree.entries[place].size > MAX_BYTES:
            return None
        return tree.read([place])[place]

    def _workflow_at(self, side: int, path: str) -> Workflow | str:
        """Or why it can't be read; nothing of a path where nothing is."""
        entry = self._entry(side, path)
        if entry is None:
            return Workflow()
        if entry.id not in self._read:
            self._read[entry.id] = self._parse(self._text(side, path), path)
        return self._read[entry.id]

    def _parse(self, content: bytes | None, path: str) -> Workflow | str:
        if content is None:
            return f"it has more than {MAX_BYTES:,} bytes"
        try:
            return read_workflow(content.decode("utf-8", "replace"), path, self._workflow.is_ours)
        except SpecError as error:
            return error.diagnostics[0].message
        except ValueError as error:
            return str(error)


def _files_of(local: str) -> list[str]:
    """Where a `uses` of this repository leads: a workflow, or the folder of an action."""
    if local.endswith((".yml", ".yaml")):
        return [posixpath.normpath(local)]
    return [posixpath.normpath(posixpath.join(local, name)) for name in ("action.yml", "action.yaml")]
