"""`baseline: auto`: the latest results of the base branch, from the artifact that an earlier run of this workflow left.

Only runs of this repository's own branch count, started by a push or a schedule: a fork can have a branch of the same
name, and users who may start a workflow by hand may run it on anything. The artifact's content is checked all the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from keystone_action.github.api.archive import ArchiveLimits, unpack
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import BadArchive, GitHubError, NotFound
from keystone_action.github.api.types import Artifact, WorkflowRun

RESULTS = "results.json"
MAX_RUNS = 200
"""Runs of a branch that are looked at."""
MAX_FOUND = 5
"""Artifacts that are fetched, and looked at."""
MAX_SIZE = 256 << 20
"""Bytes of an artifact, with the logs of all cells."""
MAX_WITHOUT = 20
"""Runs that would count, but have no such artifact."""
_LIMITS = ArchiveLimits(files=1, size=256 * 1024 * 1024)
_WORKFLOW = re.compile(r"[^/]+/[^/]+/(?:.*/)?([^/@]+\.ya?ml)@.+")


@dataclass(frozen=True, slots=True)
class FoundBaseline:
    """path: of the results file, ours. source: the run that it is from, in words. unfit: why there is no path, in
    sentences."""

    path: Path | None
    source: str
    unfit: str = ""


class _Unfit(GitHubError):  # noqa: N818 - as its base class is named
    """An artifact that holds no results of use."""


def artifact_names(comment_key: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """`keystone-results-<key>`. The default key begins with the workflow's reference, which names the branch: the part
    after `@` is left out there, since the base branch has another one."""
    reference = environ.get("GITHUB_WORKFLOW_REF", "")
    keys = [comment_key]
    if reference and comment_key.startswith(reference):
        keys.insert(0, reference.partition("@")[0] + comment_key[len(reference) :])
    return tuple(dict.fromkeys(f"keystone-results-{re.sub('[^A-Za-z0-9-]', '-', key)}" for key in keys))


def find_baselines(
    github: GitHubClient, *, names: Iterable[str], branches: Iterable[str], environ: Mapping[str, str], folder: Path
) -> Iterator[FoundBaseline]:
    """The results there are, at most MAX_FOUND, newest first, each unpacked into a folder of its own below `folder`:
    not all are of use, a run can have been cancelled, or its artifact be another.

    names: of artifacts. branches: those of the first one come first. Raises LookupError with a sentence at the end,
    GitHubError when GitHub says no (a missing `actions: read` is named).
    """
    workflow = _WORKFLOW.fullmatch(environ.get("GITHUB_WORKFLOW_REF", ""))
    if workflow is None:
        raise LookupError("GITHUB_WORKFLOW_REF does not name this workflow's file")
    wanted, places = list(names), list(branches)
    if not places:
        raise LookupError("the event does not say which branch is the base")
    found = 0
    for branch in places:
        for run in _runs(github, workflow[1], branch, environ):
            artifact = _artifact(github, run, wanted)
            if artifact is not None and found < MAX_FOUND:
                found += 1
                yield _find_baseline(github, run, artifact, branch, folder / str(found))
    unfit = f" of a run that went to its end and graded something ({found} looked at)" if found else ""
    raise LookupError(
        f"no run of {workflow[1]} on {' or '.join(places)}, from a push or schedule, has an unexpired artifact"
        f" {' or '.join(wanted)}{unfit}"
    )


def _runs(github: GitHubClient, workflow: str, branch: str, environ: Mapping[str, str]) -> Iterable[WorkflowRun]:
    repository = environ.get("GITHUB_REPOSITORY", "").lower()
    runs = itertools.islice(github.workflow_runs(workflow, branch=branch, status="completed"), MAX_RUNS)
    fitting = (
        run
        for run in runs
        if run.event in ("push", "schedule")
        and run.head_branch == branch
        and run.head_repository.lower() == repository
        and str(run.id) != environ.get("GITHUB_RUN_ID")
    )
    return itertools.islice(fitting, MAX_WITHOUT)


def _artifact(github: GitHubClient, run: WorkflowRun, names: list[str]) -> Artifact | None:
    """The newest of a run; a run that was started again can have several."""
    for name in names:
        found = [one for one in github.artifacts(run.id, name=name) if one.name == name and not one.expired]
        if found:
            return max(found, key=lambda one: (one.created_at, one.id))
    return None


def _find_baseline(
    github: GitHubClient, run: WorkflowRun, artifact: Artifact, branch: str, folder: Path
) -> FoundBaseline:
    ended = f", {run.conclusion}" if run.conclusion not in ("", "success") else ""
    source = f"run {run.id} of {branch} ({run.event}, {run.created_at[:10]}{ended})"
    try:
        return FoundBaseline(_unpack(github, run, artifact, folder), source)
    except (_Unfit, BadArchive, NotFound) as error:  # it can have expired since it was listed
        return FoundBaseline(None, source, error.sentences)


def _unpack(github: GitHubClient, run: WorkflowRun, artifact: Artifact, folder: Path) -> Path:
    if artifact.size_bytes > MAX_SIZE:
        raise _Unfit(
            f"the artifact {artifact.name} of run {run.id} has {artifact.size_bytes >> 20:,} MiB; at most"
            f" {MAX_SIZE >> 20:,} are fetched",
            help=f"upload {RESULTS} alone under that name, and the rest of the folder under another",
        )
    content = github.download_artifact(artifact.id, limit=MAX_SIZE)
    unpacked = unpack(content, folder, wanted=lambda name: name == RESULTS, limits=_LIMITS)
    if not unpacked:
        raise _Unfit(
            f"the artifact {artifact.name} of run {run.id} holds no {RESULTS}",
            help="upload the folder that output-dir names, and nothing around it",
        )
    return unpacked[0]
