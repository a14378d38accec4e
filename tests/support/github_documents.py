"""The documents that a fake GitHub answers with: what it remembers, in the shape of GitHub's description."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from support.github_description import description
from support.github_state import BASE_SHA, FakeArtifact, FakeComment, FakePull, FakeRun, GitHubState

_SITE = "https://github.com"


def user(login: str) -> dict[str, Any]:
    """A user or an app's bot, as other documents name it."""
    kind = "Bot" if login.endswith("[bot]") else "User"
    return description().sample("simple-user", login=login, type=kind)


def public_user(login: str) -> dict[str, Any]:
    """The answer to `GET /user`."""
    return description().sample("public-user", login=login, user_view_type="public")


def repository(full_name: str, schema: str = "repository") -> dict[str, Any]:
    """A repository; schema: `repository` or `minimal-repository`."""
    owner, name = full_name.split("/")
    url = f"{_SITE}/{full_name}"
    return description().sample(schema, full_name=full_name, name=name, owner=user(owner), html_url=url)


def comment(one: FakeComment, repository_name: str) -> dict[str, Any]:
    """A comment, as GitHub gives it for `application/vnd.github+json`."""
    return description().sample(
        "issue-comment",
        id=one.id,
        user=None if one.created_by is None else user(one.created_by),
        body=one.body,
        html_url=f"{_SITE}/{repository_name}/pull/{one.number}#issuecomment-{one.id}",
        author_association="NONE",
    )


def pull(one: FakePull, repository_name: str, schema: str) -> dict[str, Any]:
    """schema: `pull-request` or `pull-request-simple`."""
    head_repository = one.head_repository
    owner = (head_repository or "ghost/gone").partition("/")[0]
    head = {
        "label": f"{owner}:{one.head_ref}",
        "ref": one.head_ref,
        "sha": one.head_sha,
        "repo": None if head_repository is None else repository(head_repository),
        "user": user(owner),
    }
    base_owner = repository_name.partition("/")[0]
    base = {
        "label": f"{base_owner}:{one.base_ref}",
        "ref": one.base_ref,
        "sha": one.base_sha,
        "repo": repository(repository_name),
        "user": user(base_owner),
    }
    url = f"{_SITE}/{repository_name}/pull/{one.number}"
    return description().sample(schema, number=one.number, state=one.state, head=head, base=base, html_url=url)


def comparison(merge_base: str, head: str, repository_name: str) -> dict[str, Any]:
    """What lies between a branch and a commit that left it; of its commits one page of one."""
    url = f"{_SITE}/{repository_name}/compare/main...{head}"
    commits = {sha: description().sample("commit", sha=sha) for sha in (merge_base, head)}
    return description().sample(
        "commit-comparison",
        status="identical" if merge_base == head else "ahead",
        merge_base_commit=commits[merge_base],
        base_commit=commits[merge_base],
        commits=[] if merge_base == head else [commits[head]],
        html_url=url,
    )


def status(state: GitHubState, given: dict[str, Any], creator: str) -> dict[str, Any]:
    """A commit status that was just set."""
    texts = {name: given.get(name) for name in ("state", "description", "target_url")}
    context = given.get("context", "default")
    return description().sample("status", id=state.new_id(), context=context, creator=user(creator), **texts)


def content(path: str, data: bytes) -> dict[str, Any]:
    """A file of a commit."""
    return description().sample(
        "content-file",
        name=path.rpartition("/")[2],
        path=path,
        sha=hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest(),
        size=len(data),
        encoding="base64",
        content=base64.b64encode(data).decode(),
    )


def workflow_run(one: FakeRun, repository_name: str) -> dict[str, Any]:
    """A run of a workflow."""
    return description().sample(
        "workflow-run",
        id=one.id,
        event=one.event,
        status=one.status,
        conclusion=one.conclusion,
        head_branch=one.head_branch,
        head_sha=one.head_sha,
        path=f".github/workflows/{one.workflow}",
        head_repository=repository(one.head_repository, "minimal-repository"),
        repository=repository(repository_name, "minimal-repository"),
        html_url=f"{_SITE}/{repository_name}/actions/runs/{one.id}",
    )


def artifact(one: FakeArtifact) -> dict[str, Any]:
    """An artifact, without its content."""
    run = {"id": one.run_id, "head_branch": "main", "head_sha": BASE_SHA}
    facts = {"id": one.id, "name": one.name, "size_in_bytes": len(one.content), "expired": one.expired}
    facts["created_at"] = "2026-01-02T03:04:05Z"
    return description().sample("artifact", workflow_run=run, **facts)
