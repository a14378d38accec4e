"""Runs for steps whose point is what is told of them: the first of a kind is a real one, and what it left is told and
laid out again for the next, in whatever worker that is.

Of a kind are runs with equal options on equal trees, told of one base commit: what the event, the inputs or the product
make different is run. Runs in a git checkout always are, and those that may read what is not below their directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from keystone_action.gate.change_base import ChangeBase
    from keystone_action.options.model import Options
    from keystone_action.runner.progress import Progress
    from keystone_action.runs import Evaluation

_OF_ONE_STEP = {"directory", "workspace", "environ", "output", "run_id", "scratch", "summary_copy", "dialects"}
"""Options that differ between any two steps; besides the formats of specs, which none of these differ in."""
_TOLD = {"pull_request", "jobs"}
"""Groups of options that only what is told of a run depends on."""
_SHOWN = {"job_summary", "summary_template", "annotations", "format"}
"""Further options of that kind."""


@dataclass
class _Kept:
    """What a run came to, what was told while it ran, and its files by their place below its output."""

    result: Evaluation
    told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def again(self, options: Options, progress: Progress) -> Evaluation:
        for name, words, named in self.told:
            getattr(progress, name)(*words, **named)
        assert options.reports.output is not None
        assert options.caller.run_id is not None
        for place, content in self.files.items():
            path = options.reports.output / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.replace(self.result.run.run_id.encode(), options.caller.run_id.encode()))
        run = replace(self.result.run, run_id=options.caller.run_id)
        return replace(self.result, run=run, directory=options.reports.output)


class _Listener:
    """A `Progress` that keeps what it is told, and tells another."""

    def __init__(self, progress: Progress) -> None:
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._progress = progress

    def __getattr__(self, name: str) -> Callable[..., None]:
        def tell(*words: Any, **named: Any) -> None:
            self.told.append((name, words, named))
            getattr(self._progress, name)(*words, **named)

        return tell


class KeptRuns:
    """An `Evaluate` before another one. place: a directory that all workers share."""

    def __init__(self, place: Path, evaluate: Callable[[Options, ChangeBase, Progress], Evaluation]) -> None:
        self._place = place
        self._evaluate = evaluate

    def __call__(self, options: Options, base: ChangeBase, progress: Progress) -> Evaluation:
        kind = _kind(options, base)
        if kind is None:
            return self._evaluate(options, base, progress)
        kept = self._place / kind
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if kept.exists():
                found: _Kept = pickle.loads(kept.read_bytes())
                return found.again(options, progress)
            listener = _Listener(progress)
            result = self._evaluate(options, base, listener)
            files = {str(path.relative_to(result.directory)): path.read_bytes() for path in _files(result.directory)}
            kept.write_bytes(pickle.dumps(_Kept(result, listener.told, files)))
        return result


def _kind(options: Options, change: ChangeBase) -> str | None:
    """None for a run that depends on more than its options and what is below its directory."""
    directory, base = options.caller.directory, change.commit
    checkouts = [folder for folder in (directory, *directory.parents) if (folder / ".git").exists()]
    is_a_part = base is not None and base.workspace not in (None, directory)
    entries = sorted(directory.rglob("*"))
    leading = [*(directory / one for one in options.cells.specs), *(path for path in entries if path.is_symlink())]
    leads_out = any(not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)) for path in leading)
    if checkouts or is_a_part or leads_out or options.running.resume is not None:
        return None
    groups = [group for name, group in options if name not in _TOLD]
    asked = {name: value for group in groups for name, value in group if name not in _OF_ONE_STEP | _SHOWN}
    asked |= {"problem": change.problem, "workflow": change.workflow}
    # In no checkout nothing can be fetched: of the base commit only what is told of it counts.
    asked["base"] = base and (base.sha, base.name, base.incomplete)
    there = {str(path.relative_to(directory)): _entry(path) for path in entries}
    environ = {name: value for name, value in options.caller.environ.items() if name != "HOME"}
    text = repr((asked, there, environ)).replace(str(directory), "")
    return hashlib.sha256(text.encode()).hexdigest()


def _entry(path: Path) -> tuple[int, str | bytes]:
    """What an agent may see of a file, a folder or a link."""
    content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
    return path.lstat().st_mode, content


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


@pytest.fixture
def kept_runs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> KeptRuns:
    """What steps run, for modules that use it."""
    from keystone_action import runs as engine

    root = tmp_path_factory.getbasetemp()
    place = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "kept_runs"
    place.mkdir(exist_ok=True)
    kept = KeptRuns(place, engine.evaluate)
    monkeypatch.setattr(engine, "evaluate", kept)
    return kept
