"""What a step of a workflow is compared with: the base commit of its specs, and earlier results."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import KeystoneError, UsageError
from keystone_action.files.git.commits import Remote
from keystone_action.gate.base_commit import BaseCommit, known_merge_base, merged_onto
from keystone_action.gate.change_base import ChangeBase
from keystone_action.gate.workflow_files import WorkflowFile
from keystone_action.github.api.requests import RequestLimits
from keystone_action.github.event import EventBase, base_of_event
from keystone_action.github.inputs import variable
from keystone_action.github.log_commands import LogCommands
from keystone_action.options.model import Options
from keystone_action.scoring.differences import SpecChanges
from keystone_action.scoring.soundness import Baseline

if TYPE_CHECKING:
    from keystone_action.github.baseline import FoundBaseline

_WORKFLOW = re.compile(r"([^/]+/[^/]+)/(\.github/workflows/[^/@]+\.ya?ml)@.+")
_PATIENCE = RequestLimits(tries=2, waiting=5.0)
"""A run does not wait long for what only makes its report more exact."""


def find_change_base(options: Options, environ: Mapping[str, str], commands: LogCommands) -> ChangeBase:
    """What the specs of this step are compared with. Where a pushed branch left the default one, GitHub is asked; when
    that fails, it is said, and the run goes on."""
    mode, spec_from = options.jobs.mode, options.cells.spec_from
    if mode not in ("run", "plan") or (mode == "plan" and spec_from == "head"):
        return ChangeBase()  # the jobs that run the cells compare
    base, problem = _base_commit(options, base_of_event(environ), environ, commands)
    return ChangeBase(base, problem, _workflow(environ) if mode == "run" else None)


def find_baseline(options: Options, environ: Mapping[str, str], commands: LogCommands) -> tuple[Baseline | None, str]:
    """The earlier results that the option `baseline` names, or why the latest ones (`auto`), which GitHub is asked for,
    could not be had. Raises UsageError for a named file that is not a baseline."""
    event = base_of_event(environ)
    if options.verdict.baseline == "auto":
        return _latest(options, event, environ, commands)
    named = _named_baseline(options)
    if named is not None:
        named = replace(named, changed=_baseline_changes(options, event, environ, commands))
    return named, ""


def _baseline_changes(
    options: Options, event: EventBase, environ: Mapping[str, str], commands: LogCommands
) -> SpecChanges | None:
    """What the change did to a baseline that its repository holds; where results are joined too, since it decides
    there."""
    from keystone_action.files.git.commits import is_committed
    from keystone_action.gate.base_commit import changed_baseline

    path = _as_named(environ, "baseline", _directory(options, environ))
    # A path that is not in the commit can be a link to one that is.
    places = {path, Path(options.verdict.baseline or path)}
    if not any(is_committed(options.caller.directory, one) for one in places):
        return None
    base, _ = _base_commit(options, event, environ, commands)
    found = None if base is None else changed_baseline(base, options.caller.directory, path)
    return None if base is None or found is None else SpecChanges(base.sha, base.name, workflows=(found,))


def _workflow(environ: Mapping[str, str]) -> WorkflowFile:
    """No change here can alter a workflow of another repository; others that call us may still be here."""
    reference = _WORKFLOW.fullmatch(environ.get("GITHUB_WORKFLOW_REF", ""))
    is_here = reference is not None and reference[1].lower() == environ.get("GITHUB_REPOSITORY", "").lower()
    # On pull_request_target the base's workflow runs; what matters is the one that the change would leave there.
    is_base = environ.get("GITHUB_EVENT_NAME") == "pull_request_target"
    return WorkflowFile(
        path=reference[2] if reference is not None and is_here else "",
        sha="" if is_base else environ.get("GITHUB_WORKFLOW_SHA", ""),
        action=environ.get("GITHUB_ACTION_REPOSITORY", ""),
    )


def _base_commit(
    options: Options, event: EventBase, environ: Mapping[str, str], commands: LogCommands
) -> tuple[BaseCommit | None, str]:
    incomplete = ""
    if event.left and event.head:
        event, incomplete = _where_it_left(options, event, environ, commands)
    elif event.is_merged and event.sha is not None:
        event = replace(
            event, sha=merged_onto(options.caller.directory, environ.get("GITHUB_SHA", ""), event.head) or event.sha
        )
    if event.sha is None:
        return None, event.why_none if event.is_problem or options.cells.spec_from == "base" else ""
    server = environ.get("GITHUB_SERVER_URL") or "https://github.com"
    url = f"{server.rstrip('/')}/{environ.get('GITHUB_REPOSITORY', '')}"
    remote = Remote(url, options.pull_request.github_token, options.pull_request.ca_bundle or "")
    directory = _directory(options, environ)
    return BaseCommit(event.sha, event.name, remote, incomplete, options.caller.workspace, directory), ""


def _directory(options: Options, environ: Mapping[str, str]) -> Path:
    return _as_named(environ, "working-directory", options.caller.workspace)


def _as_named(environ: Mapping[str, str], name: str, start: Path) -> Path:
    """The path of an input without following links, which are the change's doing."""
    return Path(os.path.normpath(start / environ.get(variable(name), "").strip()))


def _where_it_left(
    options: Options, event: EventBase, environ: Mapping[str, str], commands: LogCommands
) -> tuple[EventBase, str]:
    """The base of a push to a branch of its own, and what the comparison lacks. Pushes before this one count too, so
    that a gate is not weakened by the first and passed by the second."""
    found, why = _merge_base(options, event, environ, commands)
    if found is None:
        found = known_merge_base(options.caller.directory, event.left, event.head)
    if found == event.head:  # the default branch has it already, so that only this branch changes
        return event, ""
    if found is not None:
        return replace(event, sha=found, name=f"where this branch left {event.left}"), ""
    unknown = f"where this branch left {event.left} is not known ({why.rstrip('.')}); `fetch-depth: 0` tells it too"
    if event.sha is None or options.cells.spec_from == "base":
        return replace(event, sha=None, why_none=unknown, is_problem=True), ""
    return event, f"only this push was compared, not those before it: {unknown}"


def _merge_base(
    options: Options, event: EventBase, environ: Mapping[str, str], commands: LogCommands
) -> tuple[str | None, str]:
    """As GitHub knows it, or why it does not say. Who gives no token wants nothing asked of it."""
    from keystone_action.github.api.client import GitHubClient

    token, ca_bundle = options.pull_request.github_token, options.pull_request.ca_bundle
    if not token:
        return None, "GitHub was not asked, since the input github-token is empty"
    try:
        with GitHubClient.from_environ(
            environ, token=token, ca_bundle=ca_bundle, log=commands.log, limits=_PATIENCE
        ) as github:
            return github.merge_base(event.left, event.head), ""
    except (KeystoneError, OSError) as error:
        return None, error.sentences if isinstance(error, KeystoneError) else str(error.strerror)


def _named_baseline(options: Options) -> Baseline | None:
    from keystone_action.runner.journal.earlier_runs import read_baseline

    path = options.verdict.baseline
    if not isinstance(path, Path):
        return None
    shown = path.relative_to(options.caller.workspace) if path.is_relative_to(options.caller.workspace) else path
    return read_baseline(path, str(shown))


def _latest(
    options: Options, event: EventBase, environ: Mapping[str, str], commands: LogCommands
) -> tuple[Baseline | None, str]:
    """The results, or why there are none."""
    from keystone_action.github.api.client import GitHubClient
    from keystone_action.github.baseline import artifact_names, find_baselines

    names = artifact_names(options.pull_request.comment_key, environ)
    token, ca_bundle = options.pull_request.github_token, options.pull_request.ca_bundle
    try:
        with (
            tempfile.TemporaryDirectory(prefix="keystone-baseline-") as private,
            GitHubClient.from_environ(environ, token=token, ca_bundle=ca_bundle, log=commands.log) as github,
        ):
            folder = Path(private) / "artifact"
            found = find_baselines(github, names=names, branches=event.branches, environ=environ, folder=folder)
            baseline = _first_fit(found, commands)
    except LookupError as none:
        return None, str(none.args[0])
    except (KeystoneError, OSError) as error:
        return None, error.sentences if isinstance(error, KeystoneError) else f"it can't be unpacked: {error.strerror}"
    commands.log(f"baseline: {baseline.source}")
    return baseline, ""


def _first_fit(found: Iterable[FoundBaseline], commands: LogCommands) -> Baseline:
    """What is of no use is said and passed over. Raises LookupError with what was wrong with the newest, and what
    the search raises."""
    newest = ""
    try:
        for one in found:
            baseline, why = _fit(one)
            if baseline is not None:
                return baseline
            commands.log(f"no baseline is {one.source}: {why}")
            newest = newest or why
    except LookupError as none:
        raise LookupError(f"{none.args[0]}; of the newest: {newest}" if newest else str(none.args[0])) from None
    raise LookupError("no run has results")


def _fit(found: FoundBaseline) -> tuple[Baseline | None, str]:
    from keystone_action.runner.journal.earlier_runs import read_baseline

    if found.path is None:
        return None, found.unfit
    try:
        baseline = read_baseline(found.path, found.source)
    except UsageError as error:  # no cell was graded, another version, or not ours at all
        return None, error.sentences
    return (baseline, "") if baseline.is_whole else (None, "it did not go to its end, or nothing was graded")
