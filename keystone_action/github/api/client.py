"""GitHub's REST API, as far as we need it: comments, statuses, pull requests, runs and their artifacts.

    with GitHubClient.from_environ(environ, token=token, ca_bundle=None, log=commands.log) as github:
        for comment in github.comments(12): …

Every method raises GitHubError (see `api_errors`), whose sentences name what could not be done, why, and the
permission that is missing. For one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

from keystone_action.github.api.answers import (
    ApiAnswer,
    Artifact,
    Call,
    Comment,
    PullRequest,
    Status,
    StatusState,
    WorkflowRun,
    blob_of,
    merge_base_of,
)
from keystone_action.github.api.errors import ApiForbidden, BadSetting, GitHubError, NoPermission, UnexpectedAnswer
from keystone_action.github.api.requests import ApiRequests, Clock, RequestLimits, Writes
from keystone_action.github.api.transport import Transport, origin, tls_context

DEFAULT_API_URL = "https://api.github.com"
ACTIONS_BOT = "github-actions[bot]"
"""Whom the token of a job speaks for."""
MAX_DESCRIPTION = 140
"""Characters of a status' description."""
MAX_ARTIFACT = 64 * 1024 * 1024
"""Bytes of an artifact's zip that are read at most, held in memory."""

_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]*")

_ReadT = TypeVar("_ReadT")


class GitHubClient:
    """One repository by one token.

    api_url: GITHUB_API_URL, for example `https://github.example.com/api/v3`. repository: `owner/name`. token: may be
    empty; GitHub then refuses nearly everything. ca_bundle: what `tls.read_ca_bundle` gave. log: takes a line for every
    wait. writes: shared by the clients of one step, so that all of them know what GitHub has said to one. Raises
    BadSetting.
    """

    def __init__(
        self,
        *,
        api_url: str,
        repository: str,
        token: str,
        log: Callable[[str], None],
        ca_bundle: str | None = None,
        limits: RequestLimits | None = None,
        clock: Clock | None = None,
        writes: Writes | None = None,
    ) -> None:
        self._api_url = _checked_url(api_url)
        if not _REPOSITORY.fullmatch(repository) or {".", ".."} & set(repository.split("/")):
            raise BadSetting(f"GITHUB_REPOSITORY is {repository!r}; expected owner/name")
        if not _HEADER_VALUE.fullmatch(token):
            raise BadSetting("the input github-token holds blanks or other characters that no token has")
        self._repository = f"/repos/{repository}"
        self._login: str | None = None
        self._login_is_guess = False
        limits = limits or RequestLimits()
        self._transport = Transport(
            api_url=self._api_url, token=token, context=tls_context(ca_bundle), seconds=limits.seconds
        )
        self._requests = ApiRequests(
            transport=self._transport,
            api_url=self._api_url,
            has_token=bool(token),
            log=log,
            limits=limits,
            clock=clock or Clock(),
            writes=writes,
        )

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        token: str,
        log: Callable[[str], None],
        ca_bundle: str | None = None,
        limits: RequestLimits | None = None,
        clock: Clock | None = None,
        writes: Writes | None = None,
    ) -> GitHubClient:
        """The repository and the server of this job: GITHUB_REPOSITORY and GITHUB_API_URL."""
        return cls(
            api_url=environ.get("GITHUB_API_URL") or DEFAULT_API_URL,
            repository=environ.get("GITHUB_REPOSITORY", ""),
            token=token,
            log=log,
            ca_bundle=ca_bundle,
            limits=limits,
            clock=clock,
            writes=writes,
        )

    def __repr__(self) -> str:
        return f"GitHubClient({self._api_url}{self._repository})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def pause(self) -> None:
        """Waits until a second has gone by since the last write, as every write does."""
        self._requests.pause()

    def authenticated_login(self) -> str:
        """Whom the token speaks for, with `[bot]` for an app: the author that our comments have.

        A token of an app (the job's own is one) may not ask `GET /user`. The viewer of the GraphQL API tells it; where
        that does not answer, the job's own bot is taken for granted, until a comment of ours tells its author.
        """
        if self._login is None:
            self._login = self._ask_login()
        return self._login

    def _ask_login(self) -> str:
        failed = "the owner of the token could not be asked for"
        try:
            return self._read(Call("GET", "/user", failed, "contents: read"), _login)
        except (NoPermission, ApiForbidden):
            pass
        # On a GitHub Enterprise Server the one API is at /api/v3, the other at /api/graphql.
        url = self._api_url.removesuffix("/v3") if self._api_url.endswith("/api/v3") else self._api_url
        query = {"query": "{ viewer { login } }"}
        call = Call("POST", f"{url}/graphql", failed, "contents: read", body=query, once=True)
        try:
            login = self._read(call, lambda document: _login(document["data"]["viewer"]))
        except GitHubError:
            self._login_is_guess = True
            return ACTIONS_BOT
        return login if login.endswith("[bot]") else f"{login}[bot]"

    def comments(self, number: int) -> Iterator[Comment]:
        """Every comment on an issue or pull request, the oldest first, over all pages."""
        failed = f"the comments on #{number} could not be read"
        return self._list(
            self._call("GET", f"/issues/{number:d}/comments", failed, "pull-requests: read"), Comment.read
        )

    def create_comment(self, number: int, body: str, *, find_existing: Callable[[], Comment | None]) -> Comment:
        """Posts a comment on an issue or pull request.

        find_existing: looks for the comment that this call makes. After a lost answer or a 5xx, the comment may still
        have been made. So it is called before every further try and after the last, and the comment that it finds is
        returned. A GitHubError of its own ends the call.
        """
        found: list[Comment] = []

        def was_done() -> bool:
            existing = find_existing()
            if existing is not None:
                found.append(existing)
            return existing is not None

        failed = f"the comment on #{number} could not be posted"
        call = self._write("POST", f"/issues/{number:d}/comments", failed, "pull-requests: write", {"body": body})
        answer = self._requests.send(call, was_done=was_done)
        if answer is None:
            return found[0]
        try:
            made = _document(call, answer, Comment.read)
        except UnexpectedAnswer:
            if was_done():
                return found[0]
            raise
        if self._login_is_guess and made.author:
            self._login, self._login_is_guess = made.author, False
        return made

    def update_comment(self, comment_id: int, body: str) -> Comment:
        """Gives a comment another text. Raises NotFound when somebody deleted it."""
        failed = f"the comment {comment_id} could not be updated"
        path = f"/issues/comments/{comment_id:d}"
        return self._read(self._write("PATCH", path, failed, "pull-requests: write", {"body": body}), Comment.read)

    def create_status(
        self, sha: str, *, state: StatusState, context: str, description: str = "", target_url: str | None = None
    ) -> None:
        """Sets the status `context` of a commit; the newest of a context counts, so that doing it twice does no harm.
        description: at most 140 characters."""
        failed = f"the status {context} of {sha[:7]} could not be set"
        body: dict[str, Any] = {"state": state, "context": context, "description": description}
        if target_url:
            body["target_url"] = target_url
        call = self._write("POST", f"/statuses/{_checked_sha(sha, failed)}", failed, "statuses: write", body)
        # A proxy's page of greeting is a 200 too; what the answer says of the status is not needed.
        self._read(call, _object)

    def statuses(self, sha: str) -> Iterator[Status]:
        """Every status of a commit, the newest first, over all pages."""
        failed = f"the statuses of {sha[:7]} could not be read"
        path = f"/commits/{_checked_sha(sha, failed)}/statuses"
        return self._list(self._call("GET", path, failed, "statuses: read"), Status.read)

    def blob_of(self, path: str, sha: str) -> str:
        """The id by which git knows what a file holds in a commit of this repository or of a pull request to it. Raises
        NotFound where there is no such file."""
        failed = f"{path} of {sha[:7]} could not be asked for"
        place = "/".join(_segment(part, failed) for part in path.split("/"))
        query = (("ref", _checked_sha(sha, failed)),)
        return self._read(self._call("GET", f"/contents/{place}", failed, "contents: read", query), blob_of)

    def merge_base(self, branch: str, sha: str) -> str:
        """The newest commit that a branch of this repository has in common with a commit. Raises NotFound when there is
        none."""
        failed = f"the commit where {sha[:7]} left {branch} could not be asked for"
        path = f"/compare/{_segment(branch, failed)}...{_checked_sha(sha, failed)}"
        # Of the commits that lie between, one is enough.
        call = self._call("GET", path, failed, "contents: read", (("per_page", "1"),))
        return self._read(call, merge_base_of)

    def pulls_of_commit(self, sha: str) -> Iterator[PullRequest]:
        """The pull requests that hold a commit of this repository. A fork's commits are found by `open_pulls` only."""
        failed = f"the pull requests of {sha[:7]} could not be listed"
        path = f"/commits/{_checked_sha(sha, failed)}/pulls"
        return self._list(self._call("GET", path, failed, "pull-requests: read"), PullRequest.read)

    def open_pulls(self, *, owner: str, branch: str) -> Iterator[PullRequest]:
        """The open pull requests of one branch; owner: of the repository it is in, a fork's perhaps."""
        failed = f"the pull requests of {owner}:{branch} could not be listed"
        query = (("state", "open"), ("head", f"{owner}:{branch}"))
        return self._list(self._call("GET", "/pulls", failed, "pull-requests: read", query), PullRequest.read)

    def pull(self, number: int) -> PullRequest:
        """One pull request."""
        failed = f"pull request #{number} could not be read"
        return self._read(self._call("GET", f"/pulls/{number:d}", failed, "pull-requests: read"), PullRequest.read)

    def workflow_runs(
        self, workflow: str, *, branch: str | None = None, event: str | None = None, status: str | None = None
    ) -> Iterator[WorkflowRun]:
        """The runs of a workflow, the newest first.

        workflow: the name of its file, such as `evals.yml`. branch: a fork's branch of that name counts too, see
        `WorkflowRun.head_repository`. status: a status or a conclusion, such as `completed` or `success`.
        """
        failed = f"the runs of {workflow} could not be listed"
        given = (("branch", branch), ("event", event), ("status", status))
        query = tuple((name, value) for name, value in given if value)
        path = f"/actions/workflows/{_segment(workflow, failed)}/runs"
        return self._list(self._call("GET", path, failed, "actions: read", query), WorkflowRun.read, "workflow_runs")

    def artifacts(self, run_id: int, *, name: str | None = None) -> Iterator[Artifact]:
        """The artifacts of a run, or those of one name."""
        failed = f"the artifacts of run {run_id} could not be listed"
        query = (("name", name),) if name else ()
        call = self._call("GET", f"/actions/runs/{run_id:d}/artifacts", failed, "actions: read", query)
        return self._list(call, Artifact.read, "artifacts")

    def download_artifact(self, artifact_id: int, *, limit: int = MAX_ARTIFACT) -> bytes:
        """The zip of an artifact, for `archive.unpack`. Raises NotFound when it has expired, UnexpectedAnswer when it
        is larger than limit bytes."""
        failed = f"the artifact {artifact_id} could not be downloaded"
        path = f"{self._repository}/actions/artifacts/{artifact_id:d}/zip"
        # The store that GitHub redirects to has a signature in its address; that server must not get the token.
        answer = self._requests.send(Call("GET", path, failed, "actions: read", follows=True, limit=limit))
        assert answer is not None
        return answer.body

    def _call(
        self, method: str, path: str, failed: str, permission: str, query: tuple[tuple[str, str], ...] = ()
    ) -> Call:
        return Call(method, self._repository + path, failed, permission, query)

    def _write(self, method: str, path: str, failed: str, permission: str, body: Mapping[str, Any]) -> Call:
        return Call(method, self._repository + path, failed, permission, body=body, writes=True)

    def _read(self, call: Call, read: Callable[[Any], _ReadT]) -> _ReadT:
        answer = self._requests.send(call)
        assert answer is not None
        return _document(call, answer, read)

    def _list(self, call: Call, read: Callable[[Any], _ReadT], name: str | None = None) -> Iterator[_ReadT]:
        for entry in self._requests.pages(call, name):
            yield _check_document(call, entry, read)


def _document(call: Call, answer: ApiAnswer, read: Callable[[Any], _ReadT]) -> _ReadT:
    return _check_document(call, answer.json(call), read)


def _check_document(call: Call, document: Any, read: Callable[[Any], _ReadT]) -> _ReadT:
    try:
        return read(document)
    except (ValueError, KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"{call.failed}: GitHub answered JSON of another shape ({error})") from None


def _object(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise TypeError("it is not an object")
    return document


def _login(document: Any) -> str:
    login = document.get("login") if isinstance(document, Mapping) else None
    if not isinstance(login, str) or not login:
        raise ValueError("login is not text")
    return login


def _checked_url(url: str) -> str:
    try:
        origin(url)
    except ValueError as error:
        raise BadSetting(f"GITHUB_API_URL can't be used: {error}", help=f"it is {DEFAULT_API_URL} by default") from None
    if "?" in url or "#" in url:
        raise BadSetting("GITHUB_API_URL can't be used: it has a query or a fragment")
    return url.rstrip("/")


def _checked_sha(sha: str, failed: str) -> str:
    if not _SHA.fullmatch(sha):
        raise BadSetting(f"{failed}: that is not a full commit id")
    return sha


def _segment(name: str, failed: str) -> str:
    if name in ("", ".", ".."):
        raise BadSetting(f"{failed}: that is not a name")
    return quote(name, safe="")
