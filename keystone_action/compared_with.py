"""What a step of a workflow is compared with: the base commit of its specs, and earlier results."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keystone_action.errors import KeystoneError
from keystone_action.github.base import EventBase, base_of_event
from keystone_action.github.commands import Commands
from keystone_action.github.inputs import Settings
from keystone_action.runner.base_commit import BaseCommit
from keystone_action.sandbox.git_tree import Remote
from keystone_action.scoring.baseline import Baseline


@dataclass(frozen=True, slots=True)
class ComparedWith:
    """As `RunOptions` takes it."""

    base: BaseCommit | None = None
    base_problem: str = ""
    baseline: Baseline | None = None
    baseline_problem: str = ""


def compared_with(settings: Settings, environ: Mapping[str, str], commands: Commands) -> ComparedWith:
    """Nothing is fetched but a baseline that is looked for (`auto`); when that fails, it is said, and the run goes on.

    Raises UsageError for a baseline that was named and is none.
    """
    event = base_of_event(environ)
    base, base_problem = _base(settings, event, environ)
    if settings.baseline == "auto":
        baseline, problem = _latest(settings, event, environ, commands)
        return ComparedWith(base, base_problem, baseline, problem)
    return ComparedWith(base, base_problem, _named(settings))


def _base(settings: Settings, event: EventBase, environ: Mapping[str, str]) -> tuple[BaseCommit | None, str]:
    if settings.mode not in ("run", "plan"):
        return None, ""
    if event.sha is None:
        return None, event.why_none if event.is_problem or settings.spec_from == "base" else ""
    if settings.mode == "plan" and settings.spec_from == "head":
        return None, ""  # the jobs that run the cells compare
    server = environ.get("GITHUB_SERVER_URL") or "https://github.com"
    url = f"{server.rstrip('/')}/{environ.get('GITHUB_REPOSITORY', '')}"
    remote = Remote(url, settings.github_token, settings.ca_bundle or "")
    return BaseCommit(event.sha, event.name, remote), ""


def _named(settings: Settings) -> Baseline | None:
    from keystone_action.runner.baseline import read_baseline

    path = settings.baseline
    if not isinstance(path, Path):
        return None
    shown = path.relative_to(settings.workspace) if path.is_relative_to(settings.workspace) else path
    return read_baseline(path, str(shown))


def _latest(
    settings: Settings, event: EventBase, environ: Mapping[str, str], commands: Commands
) -> tuple[Baseline | None, str]:
    """The results, or why there are none."""
    from keystone_action.github.baseline import artifact_names, find_baseline
    from keystone_action.github.client import GitHubClient
    from keystone_action.runner.baseline import read_baseline

    names = artifact_names(settings.comment_key, environ)
    token, ca_bundle = settings.github_token, settings.ca_bundle
    try:
        with (
            tempfile.TemporaryDirectory(prefix="keystone_baseline_") as private,
            GitHubClient.from_environ(environ, token=token, ca_bundle=ca_bundle, log=commands.log) as github,
        ):
            folder = Path(private) / "artifact"
            found = find_baseline(github, names=names, branches=event.branches, environ=environ, folder=folder)
            baseline = read_baseline(found.path, found.source)
    except LookupError as none:
        return None, str(none.args[0])
    except (KeystoneError, OSError) as error:
        return None, error.sentences if isinstance(error, KeystoneError) else f"it can't be unpacked: {error.strerror}"
    commands.log(f"baseline: {found.source}")
    return baseline, ""
