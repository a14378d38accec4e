"""What can go wrong between us and GitHub's API, named for the cause.

    GitHubError
    ├── BadSetting            the address, repository, token or CA bundle can't be used; nothing was sent
    ├── BadToken              401: no token, or one that GitHub does not know (any more)
    ├── NoPermission          403: the token may not do this; names the permission
    ├── Forbidden             403 for what no permission mends: locked, archived, blocked by the organization
    ├── NotFound              404 or 410
    ├── BodyTooLong           422: the text is longer than GitHub takes
    ├── Rejected              any other 4xx
    ├── RateLimited           GitHub asks for more patience than there is
    ├── Unavailable           5xx, time-outs and lost connections, after all tries
    ├── UntrustedCertificate  the server's certificate is signed by nobody that we trust
    ├── UnexpectedAnswer      an answer that is not what GitHub describes
    └── BadArchive            an artifact's zip that is not safe to unpack

None of them holds the token. Reporting never changes a verdict: the code that posts catches GitHubError and says its
sentences in the log.
"""

# ruff: noqa: N818 - they are named for the cause, as a sentence about it would

from __future__ import annotations

from keystone_action.errors import KeystoneError


class GitHubError(KeystoneError):
    """Base. message: what could not be done, and why. help: the permission or setting to change."""


class BadSetting(GitHubError):
    """The address, repository, token or CA bundle can't be used; nothing was sent."""


class BadToken(GitHubError):
    """401: no token, or one that GitHub does not know (any more)."""


class NoPermission(GitHubError):
    """403: the token may not do this. permission: as a workflow names it, for example `pull-requests: write`.
    is_personal: the token is somebody's own, so that no workflow can give it more."""

    def __init__(self, message: str, *, permission: str, is_personal: bool = False) -> None:
        job = f"give the job `permissions: {permission}` (a job's own block replaces the workflow's)"
        super().__init__(message, help=f"give the personal access token `{permission}`" if is_personal else job)
        self.permission = permission
        self.is_personal = is_personal

    def again(self, failed: str) -> NoPermission:
        """The error of another thing that needs this permission, and is not tried. failed: as a `Call` has it."""
        message = f"{failed}: GitHub has refused the token such a thing before"
        return NoPermission(message, permission=self.permission, is_personal=self.is_personal)


class ApiForbidden(GitHubError):
    """403 for a reason that no permission mends: a locked conversation, an archived repository, an organization's
    single sign-on or list of addresses."""


class NotFound(GitHubError):
    """404 or 410: it is not there (any more), or this token can't see it."""


class BodyTooLong(GitHubError):
    """422: a text is longer than GitHub takes: 65,536 characters of a comment, 140 of a status."""


class Rejected(GitHubError):
    """Any other 4xx: GitHub understood, and will not do it however often it is asked."""


class RateLimited(GitHubError):
    """GitHub asks to wait longer than reporting may take."""


class Unavailable(GitHubError):
    """5xx, time-outs and lost connections, after all tries. maybe_done: a write may have been done even so."""

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class UntrustedCertificate(GitHubError):
    """The server's certificate is signed by nobody that we trust."""


class UnexpectedAnswer(GitHubError):
    """An answer that is not what GitHub describes: no JSON, another shape, too large, a redirect to elsewhere."""


class BadArchive(GitHubError):
    """An artifact's zip that is broken, too large, or names places outside of the folder it is unpacked to."""
