"""The post step: after the step, and after a SIGKILL of it, nothing that its run made stays, and nothing says that it
still runs.

It never fails a job: what it can't do is a warning.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TextIO

from keystone_action import __version__
from keystone_action.errors import KeystoneError, UsageError
from keystone_action.files.copies import hand_over
from keystone_action.files.temporary import find_temporary, remove_temporary
from keystone_action.github.log_commands import LogCommands
from keystone_action.github.outputs import StepState
from keystone_action.github.reporting import CANCELLED, REPORTED, RESULTS, Reporting
from keystone_action.report.words import count
from keystone_action.scoring.document import RESULTS_FILE
from keystone_action.scoring.results import RunResult

_SWEEP_SECONDS = 60.0
"""For all that is asked of the engine: one that hangs must not hold up the end of a job."""
_Remove = Callable[[StepState, Mapping[str, str], LogCommands], list[str]]
"""One part of cleaning up: what it removed, in words."""


def main(environ: Mapping[str, str], *, stdout: TextIO) -> int:
    """Clean up after the step that saved its state in this environment. Always returns 0."""
    commands = LogCommands(stdout, verbose=environ.get("RUNNER_DEBUG") == "1")
    state = StepState.load(environ)
    if state is None:
        commands.debug("the step started nothing that could be left behind")
        return 0
    removed: list[str] = []
    try:
        for remove in (_sweep_engine, _remove_folders, _give_back, _tell_of_the_end):
            removed += _try_removal(remove, state, environ, commands)
    except KeyboardInterrupt:
        commands.warning("cleaning up was cancelled; `keystone clean` on this machine removes what may be left")
    if removed:
        commands.log(f"removed what run {state.run_id} left behind: {', '.join(removed)}")
    else:
        commands.debug(f"run {state.run_id} left nothing behind")
    return 0


def _try_removal(remove: _Remove, state: StepState, environ: Mapping[str, str], commands: LogCommands) -> list[str]:
    try:
        return remove(state, environ, commands)
    except Exception as error:  # noqa: BLE001 - the verdict stands, and the rest can still be cleaned up
        commands.debug(traceback.format_exc())
        commands.warning(f"cleaning up broke: {type(error).__name__}: {error}")
        return []


def _sweep_engine(state: StepState, environ: Mapping[str, str], commands: LogCommands) -> list[str]:
    from keystone_action.engine.connect import NoEngine, connect
    from keystone_action.engine.sweep import sweep

    try:
        with closing(connect(environ)) as client, client.cut_after(_SWEEP_SECONDS):
            swept = asyncio.run(sweep(client, state.run_id))
    except NoEngine:
        return []
    except KeystoneError as error:
        commands.warning(f"whether run {state.run_id} left containers is not known: {error.sentences}")
        return []
    for problem in swept.problems:
        commands.warning(f"run {state.run_id} left something that {problem}")
    counts = {"container": swept.containers, "network": swept.networks, "volume": swept.volumes, "image": swept.images}
    return [count(number, word) for word, number in counts.items() if number]


def _remove_folders(state: StepState, environ: Mapping[str, str], commands: LogCommands) -> list[str]:
    folder = environ.get("RUNNER_TEMP", "")
    found = [one for one in find_temporary(Path(folder)) if one.is_of(state.run_id)] if folder else []
    for one in found:
        if not remove_temporary(one):
            commands.warning(f"run {state.run_id} left {one.path}, which can't be removed")
    gone = sum(not one.path.exists() for one in found)
    return [count(gone, "folder")] if gone else []


def _give_back(state: StepState, environ: Mapping[str, str], commands: LogCommands) -> list[str]:  # noqa: ARG001
    """Hand results and cache to the workspace's owner. Only what is, links followed, in the workspace or the runner's
    folder: such were the paths that the step had checked."""
    named = [environ.get("GITHUB_WORKSPACE", ""), environ.get("RUNNER_TEMP", "")]
    if not named[0] or not Path(named[0]).is_dir():
        return []
    inside = [Path(name).resolve() for name in named if name]
    left = [path for path in state.left if any(one in path.resolve().parents for one in inside)]
    hand_over(left, inside[0])
    return []


def _tell_of_the_end(state: StepState, environ: Mapping[str, str], commands: LogCommands) -> list[str]:
    """A step that was killed, or cancelled while GitHub was slow, could not tell: its status would stay pending, its
    comment would say that it runs."""
    if environ.get(f"STATE_{REPORTED}") == "true":
        return []
    from keystone_action.github.event import read_event
    from keystone_action.github.inputs import InputReader, read_options

    options = read_options(InputReader(environ))
    run = _step_result(state, environ, options.reports.folder) or _stopped_result(state, environ)
    Reporting(options, read_event(environ), environ, commands).finish(run, has_time=True)
    return []


def _step_result(state: StepState, environ: Mapping[str, str], folder: Path) -> RunResult | None:
    """What the step's run came to, if it is there as the step has left it."""
    from keystone_action.github.foreign_comment import read_bounded
    from keystone_action.scoring.document import run_from_document

    try:
        content = read_bounded(folder / RESULTS_FILE)
    except UsageError:
        return None
    if hashlib.sha256(content).hexdigest() != environ.get(f"STATE_{RESULTS}"):
        return None
    run = run_from_document(json.loads(content))
    return run if run.run_id == state.run_id else None


def _stopped_result(state: StepState, environ: Mapping[str, str]) -> RunResult:
    return RunResult(
        run_id=state.run_id,
        keystone_version=__version__,
        git_sha=environ.get("GITHUB_SHA") or None,
        verdict="error",
        composite=None,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        duration_s=0.0,
        specs=(),
        cancelled=environ.get(f"STATE_{CANCELLED}") == "true",
        error="The step was stopped before it could tell how it ended: cancelled, or the machine ran out of memory.",
    )
