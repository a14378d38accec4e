"""What a fake GitHub remembers: one repository with its pull requests, comments, statuses, runs and artifacts."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPOSITORY = "octo-org/evals"
FORK = "someone/evals"
ACTIONS_BOT = "github-actions[bot]"
WORKFLOW = "evals.yml"
BASE_SHA = "b" * 40
HEAD_SHA = "a" * 40

_READ = {"pull_requests": "read", "statuses": "read", "actions": "read", "contents": "read"}
_WRITE = {**_READ, "pull_requests": "write", "statuses": "write"}


@dataclass(frozen=True)
class Token:
    """login: whom it speaks for. permissions: `read` or `write` by name. is_app: may not ask who it is."""

    login: str
    permissions: Mapping[str, str]
    is_app: bool = True


TOKENS = {
    "ghs_jobWriteToken0123456789": Token(ACTIONS_BOT, _WRITE),
    "ghs_jobReadToken0123456789": Token(ACTIONS_BOT, _READ),
    "ghs_appToken0123456789": Token("our-reviewer[bot]", _WRITE),
    "ghp_personToken0123456789": Token("octocat", _WRITE, is_app=False),
}
KINDS = dict(zip(("write", "read-only", "app", "person"), TOKENS, strict=True)) | {"none": ""}
"""The token of each kind."""


@dataclass
class FakeComment:
    """created_by: a login; None for a deleted account."""

    id: int
    number: int
    created_by: str | None
    body: str


@dataclass(frozen=True)
class FakePull:
    """head_repository: None when the fork was deleted."""

    number: int
    head_sha: str
    head_ref: str
    head_repository: str | None
    base_sha: str
    base_ref: str
    state: str


@dataclass(frozen=True)
class FakeRun:
    """A run of a workflow; the one with the highest id is the newest."""

    id: int
    workflow: str
    event: str
    head_branch: str
    head_sha: str
    head_repository: str
    status: str
    conclusion: str | None


@dataclass(frozen=True)
class FakeArtifact:
    """content: the zip."""

    id: int
    run_id: int
    name: str
    content: bytes
    expired: bool


@dataclass
class GitHubState:
    """Everything is public, to be looked at and changed by tests. private: what a token has no permission for can't be
    read either. files: by a commit and a path. merge_bases: by a branch and a commit; None where they have nothing in
    common."""

    repository: str = REPOSITORY
    private: bool = False
    locked: set[int] = field(default_factory=set)
    comments: list[FakeComment] = field(default_factory=list)
    pulls: dict[int, FakePull] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    merge_bases: dict[tuple[str, str], str | None] = field(default_factory=dict)
    runs: list[FakeRun] = field(default_factory=list)
    artifacts: dict[int, FakeArtifact] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=lambda: dict(TOKENS))

    def __post_init__(self) -> None:
        self._ids = itertools.count(1001)

    def add_pull(
        self,
        number: int,
        *,
        head_sha: str = HEAD_SHA,
        head_ref: str = "feature",
        head_repository: str | None = REPOSITORY,
        base_sha: str = BASE_SHA,
        base_ref: str = "main",
        state: str = "open",
    ) -> FakePull:
        """A pull request, of this repository's own branch by default."""
        pull = FakePull(number, head_sha, head_ref, head_repository, base_sha, base_ref, state)
        self.pulls[number] = pull
        return pull

    def add_comment(self, number: int, body: str, created_by: str | None = "octocat") -> FakeComment:
        """A comment on a pull request."""
        comment = FakeComment(next(self._ids), number, created_by, body)
        self.comments.append(comment)
        return comment

    def comments_of(self, number: int) -> list[FakeComment]:
        """The comments on a pull request, the oldest first."""
        return [comment for comment in self.comments if comment.number == number]

    def add_run(
        self,
        *,
        workflow: str = WORKFLOW,
        event: str = "push",
        head_branch: str = "main",
        head_sha: str = BASE_SHA,
        head_repository: str = REPOSITORY,
        status: str = "completed",
        conclusion: str | None = "success",
    ) -> FakeRun:
        """A run, newer than those before."""
        place = (workflow, event, head_branch, head_sha, head_repository, status, conclusion)
        run = FakeRun(next(self._ids), *place)
        self.runs.append(run)
        return run

    def add_artifact(
        self, run_id: int, name: str, files: Mapping[str, str | bytes] | bytes, *, expired: bool = False
    ) -> FakeArtifact:
        """An artifact of a run; files: by name, or the bytes of a zip."""
        content = files if isinstance(files, bytes) else zipped(files)
        artifact = FakeArtifact(next(self._ids), run_id, name, content, expired)
        self.artifacts[artifact.id] = artifact
        return artifact

    def new_id(self) -> int:
        """A number that nothing else has."""
        return next(self._ids)


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip of files by name."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()
