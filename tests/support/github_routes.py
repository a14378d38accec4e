"""What a fake GitHub does for each operation, with the refusals that the real one is known for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from support import github_documents as documents
from support.github_description import Operation
from support.github_state import GitHubState, Token

MAX_BODY = 65_536
MAX_DESCRIPTION = 140
_NOT_ACCESSIBLE = "Resource not accessible by integration"
_PERMISSIONS = {
    "issues/list-comments": ("pull_requests", "read"),
    "issues/create-comment": ("pull_requests", "write"),
    "issues/update-comment": ("pull_requests", "write"),
    "repos/create-commit-status": ("statuses", "write"),
    "repos/list-commit-statuses-for-ref": ("statuses", "read"),
    "repos/get-content": ("contents", "read"),
    "repos/list-pull-requests-associated-with-commit": ("pull_requests", "read"),
    "repos/compare-commits-with-basehead": ("contents", "read"),
    "pulls/list": ("pull_requests", "read"),
    "pulls/get": ("pull_requests", "read"),
    "actions/list-workflow-runs": ("actions", "read"),
    "actions/list-workflow-run-artifacts": ("actions", "read"),
    "actions/download-artifact": ("actions", "read"),
}


@dataclass(frozen=True)
class Result:
    """An answer. entries: of a list, of which one page is sent, each as `show` makes it, in the field `name` if there
    is one."""

    status: int
    document: Any = None
    entries: Sequence[Any] | None = None
    show: Callable[[Any], Any] = str
    name: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """One request that is well-formed. store: the address that an artifact's zip is served at."""

    operation: Operation
    query: Mapping[str, str]
    body: Any
    token: Token | None
    store: Callable[[int], str]


def error(status: int, message: str, *errors: Mapping[str, str], **headers: str) -> Result:
    """An error document."""
    document = {"message": message, "documentation_url": "https://docs.github.com/rest", "status": str(status)}
    return Result(status, document | ({"errors": list(errors)} if errors else {}), headers=headers)


def answer(state: GitHubState, asked: Asked) -> Result:
    """Does what is asked for, if the token may."""
    if asked.operation.id == "users/get-authenticated":
        if asked.token is None:
            return error(401, "Requires authentication")
        return (
            error(403, _NOT_ACCESSIBLE) if asked.token.is_app else Result(200, documents.public_user(asked.token.login))
        )
    return _refusal(state, asked) or _HANDLERS[asked.operation.id](state, asked)


def _refusal(state: GitHubState, asked: Asked) -> Result | None:
    values = asked.operation.values
    if f"{values['owner']}/{values['repo']}".lower() != state.repository.lower():
        return error(404, "Not Found")
    name, level = _PERMISSIONS[asked.operation.id]
    if asked.token is None:
        if state.private:
            return error(404, "Not Found")
        needs_one = level == "write" or asked.operation.id == "actions/download-artifact"
        return error(401, "Requires authentication") if needs_one else None
    has = asked.token.permissions.get(name, "")
    if level == "write" and has != "write":
        return error(403, _NOT_ACCESSIBLE)
    if level == "read" and not has and state.private:
        return error(403, _NOT_ACCESSIBLE)
    return None


def _list_comments(state: GitHubState, asked: Asked) -> Result:
    number = int(asked.operation.values["issue_number"])
    if number not in state.pulls:
        return error(404, "Not Found")
    return Result(200, entries=state.comments_of(number), show=lambda one: documents.comment(one, state.repository))


def _too_long(body: str) -> Result | None:
    if len(body) <= MAX_BODY:
        return None
    message = f"Body is too long (maximum is {MAX_BODY} characters)"
    field_error = {"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": message}
    return error(422, "Validation Failed", field_error)


def _create_comment(state: GitHubState, asked: Asked) -> Result:
    number = int(asked.operation.values["issue_number"])
    if number not in state.pulls:
        return error(404, "Not Found")
    if number in state.locked:
        return error(403, "Unable to create comment because issue is locked.")
    if refused := _too_long(asked.body["body"]):
        return refused
    assert asked.token is not None
    made = state.add_comment(number, asked.body["body"], asked.token.login)
    return Result(201, documents.comment(made, state.repository))


def _update_comment(state: GitHubState, asked: Asked) -> Result:
    assert asked.token is not None
    for one in state.comments:
        if one.id == int(asked.operation.values["comment_id"]):
            if refused := _too_long(asked.body["body"]):
                return refused
            one.body = asked.body["body"]
            return Result(200, documents.comment(one, state.repository))
    return error(404, "Not Found")


def _create_status(state: GitHubState, asked: Asked) -> Result:
    if len(asked.body.get("description") or "") > MAX_DESCRIPTION:
        message = f"description is too long (maximum is {MAX_DESCRIPTION} characters)"
        wrong = {"resource": "Status", "code": "custom", "field": "description", "message": message}
        return error(422, "Validation Failed", wrong)
    assert asked.token is not None
    state.statuses.append({"sha": asked.operation.values["sha"], **asked.body})
    return Result(201, documents.status(state, asked.body, asked.token.login))


def _list_statuses(state: GitHubState, asked: Asked) -> Result:
    sha = asked.operation.values["ref"]
    found = [one for one in reversed(state.statuses) if one["sha"] == sha]
    return Result(200, entries=found, show=lambda one: documents.status(state, one, "github-actions[bot]"))


def _get_content(state: GitHubState, asked: Asked) -> Result:
    """Only files, and only by a commit."""
    content = state.files.get((asked.query.get("ref", ""), asked.operation.values["path"]))
    if content is None:
        return error(404, "Not Found")
    return Result(200, documents.content(asked.operation.values["path"], content))


def _pulls_of_commit(state: GitHubState, asked: Asked) -> Result:
    """A fork's commit is not in this repository: GitHub then answers an empty list."""
    sha = asked.operation.values["commit_sha"]
    found = [one for one in state.pulls.values() if one.head_sha == sha and one.head_repository == state.repository]
    return Result(200, entries=found, show=lambda one: documents.pull(one, state.repository, "pull-request-simple"))


def _list_pulls(state: GitHubState, asked: Asked) -> Result:
    wanted, head = asked.query.get("state", "open"), asked.query.get("head")
    found = [
        one
        for one in state.pulls.values()
        if wanted in ("all", one.state)
        and head in (None, f"{(one.head_repository or 'ghost/gone').split('/')[0]}:{one.head_ref}")
    ]
    return Result(200, entries=found, show=lambda one: documents.pull(one, state.repository, "pull-request-simple"))


def _get_pull(state: GitHubState, asked: Asked) -> Result:
    one = state.pulls.get(int(asked.operation.values["pull_number"]))
    if one is None:
        return error(404, "Not Found")
    return Result(200, documents.pull(one, state.repository, "pull-request"))


def _compare(state: GitHubState, asked: Asked) -> Result:
    base, separator, head = asked.operation.values["basehead"].partition("...")
    if not separator or (base, head) not in state.merge_bases:
        return error(404, "Not Found")
    found = state.merge_bases[base, head]
    if found is None:
        return error(404, f"No common ancestor between {base} and {head}.")
    return Result(200, documents.comparison(found, head, state.repository))


def _list_runs(state: GitHubState, asked: Asked) -> Result:
    workflow, query = asked.operation.values["workflow_id"], asked.query
    if all(one.workflow != workflow for one in state.runs):
        return error(404, "Not Found")
    found = [
        one
        for one in sorted(state.runs, key=lambda run: -run.id)
        if one.workflow == workflow
        and query.get("branch") in (None, one.head_branch)
        and query.get("event") in (None, one.event)
        and query.get("status") in (None, one.status, one.conclusion)
    ]
    return Result(
        200,
        entries=found,
        show=lambda one: documents.workflow_run(one, state.repository),
        name="workflow_runs",
    )


def _list_artifacts(state: GitHubState, asked: Asked) -> Result:
    run_id, name = int(asked.operation.values["run_id"]), asked.query.get("name")
    if all(one.id != run_id for one in state.runs):
        return error(404, "Not Found")
    found = [one for one in state.artifacts.values() if one.run_id == run_id and name in (None, one.name)]
    return Result(200, entries=found, show=documents.artifact, name="artifacts")


def _download_artifact(state: GitHubState, asked: Asked) -> Result:
    one = state.artifacts.get(int(asked.operation.values["artifact_id"]))
    if one is None or asked.operation.values["archive_format"] != "zip":
        return error(404, "Not Found")
    if one.expired:
        return error(410, "Artifact has expired")
    return Result(302, headers={"location": asked.store(one.id)})


_HANDLERS: dict[str, Callable[[GitHubState, Asked], Result]] = {
    "issues/list-comments": _list_comments,
    "issues/create-comment": _create_comment,
    "issues/update-comment": _update_comment,
    "repos/create-commit-status": _create_status,
    "repos/list-commit-statuses-for-ref": _list_statuses,
    "repos/get-content": _get_content,
    "repos/list-pull-requests-associated-with-commit": _pulls_of_commit,
    "repos/compare-commits-with-basehead": _compare,
    "pulls/list": _list_pulls,
    "pulls/get": _get_pull,
    "actions/list-workflow-runs": _list_runs,
    "actions/list-workflow-run-artifacts": _list_artifacts,
    "actions/download-artifact": _download_artifact,
}


def page(result: Result, query: Mapping[str, str], url: str, *, most: int) -> tuple[Any, dict[str, str]]:
    """One page of a list, with its `Link` header. url: of the request, without its query. most: entries of a page."""
    assert result.entries is not None
    size = min(int(query.get("per_page", "30")), most)
    number = max(int(query.get("page", "1")), 1)
    last = max(-(-len(result.entries) // size), 1)
    found = [result.show(one) for one in result.entries[(number - 1) * size : number * size]]
    named = {"prev": number - 1, "next": number + 1, "last": last, "first": 1}
    links = [
        f'<{url}?{urlencode({**query, "page": str(target)})}>; rel="{relation}"'
        for relation, target in named.items()
        if 1 <= target <= last and (relation in ("prev", "next") or target != number)
    ]
    document = {"total_count": len(result.entries), result.name: found} if result.name else found
    return document, {"link": ", ".join(links)} if links else {}
