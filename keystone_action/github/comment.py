"""The one comment of a key on a pull request: found by its hidden marker and its author, updated where it is.

A comment of somebody else is never touched, even with our marker. When two jobs made one each at once, the
older is kept and the other refers to it: so there are never two that say different things. GitHub has no way to write
only where nobody else has: when two jobs update one at once, the later hides what the earlier wrote. So each
looks at it again, a moment after it wrote, and where its own part is gone, writes it into what is there by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from keystone_action.github.api.answers import Comment
from keystone_action.github.api.client import GitHubClient
from keystone_action.github.api.errors import BodyTooLong, NotFound
from keystone_action.report.comment.history import Marker, Previous
from keystone_action.report.comment.render import render_superseded
from keystone_action.report.ladder import COMMENT_LIMIT

Compose = Callable[[Previous | None, int], str | None]
"""Makes a comment of the one that is there and of a number of characters; None leaves that one as it is."""

Holds = Callable[[Previous], bool]
"""Whether a comment has in it what a job wrote there."""

SMALLER = 16_384
"""Characters of a second try, where GitHub took no more."""
_MAX_ROUNDS = 3
_MAX_LOOKS = 5


class StickyComment:
    """The comment of one key on one pull request. number: of the pull request. Raises GitHubError (`api_errors`)."""

    def __init__(self, github: GitHubClient, number: int, marker: Marker) -> None:
        self._github = github
        self._number = number
        self._marker = marker

    def find(self) -> list[Comment]:
        """All comments of this key that are ours, the oldest first, over all pages."""
        login = self._github.authenticated_login().lower()
        found = [
            comment
            for comment in self._github.comments(self._number)
            if comment.author.lower() == login and self._marker.is_in(comment.body)
        ]
        return sorted(found, key=lambda comment: comment.id)

    def write(self, compose: Compose, *, create: bool = True, holds: Holds | None = None) -> Comment | None:
        """Updates the comment, or makes it. create: False leaves a pull request alone that has none, and returns None.
        One that is left as it is is returned untouched.

        What another job wrote meanwhile is looked at after every comment that was made; a comment that was deleted
        meanwhile is made again. A text that GitHub finds too long is made smaller, once. holds: for what must not be
        hidden by another job that writes in the same second; it is looked for a second after each update, and written
        again where it is gone, a few times.
        """
        if holds is None:
            return self._fitting(compose, create)[0]
        # What is read is to be new when it is written over: the pause between writes comes before.
        self._github.pause()
        written, is_update = self._fitting(compose, create)
        for _ in range(_MAX_LOOKS):
            # One that was just made has been read by nobody who would write over it; one without our part was left.
            if written is None or not is_update or not holds(Previous.read(written.body, self._marker)):
                break
            self._github.pause()
            found = next(iter(self.find()), None)
            if found is None or holds(Previous.read(found.body, self._marker)):
                break
            written, is_update = self._fitting(compose, create)
        return written

    def _fitting(self, compose: Compose, create: bool) -> tuple[Comment | None, bool]:
        try:
            return self._write(lambda previous: compose(previous, COMMENT_LIMIT), create)
        except BodyTooLong:
            return self._write(lambda previous: compose(previous, SMALLER), create)

    def _write(self, compose: Callable[[Previous | None], str | None], create: bool) -> tuple[Comment | None, bool]:
        """The comment, and whether it was there before and has another text now."""
        found, made_now = self.find(), False
        for _ in range(_MAX_ROUNDS):
            if not found:
                body = compose(None) if create else None
                if body is None:
                    return None, False
                made = self._create(body)
                # Another job that made one meanwhile sees both, as we do now: the oldest is everybody's. Ours
                # counts even where the list does not have it yet.
                there = {made.id: made} | {comment.id: comment for comment in self.find()}
                found, made_now = sorted(there.values(), key=lambda comment: comment.id), True
                continue
            kept, *others = found
            # One that we made a moment ago tells of nothing but this very run.
            is_own = made_now and kept.id == made.id
            body = compose(None if is_own else Previous.read(kept.body, self._marker))
            if body is None:
                return kept, False
            is_same = _same(kept.body, body)
            try:
                written = kept if is_same else self._github.update_comment(kept.id, body)
            except NotFound:
                # Somebody deleted it just now. When it is still listed, it is there, and we may not see why.
                again = self.find()
                if any(comment.id == kept.id for comment in again):
                    raise
                found = again
                continue
            self._supersede(others, written)
            return written, not is_same
        raise NotFound(f"the comment on #{self._number} could not be posted: it is deleted as often as it is made")

    def _create(self, body: str) -> Comment:
        return self._github.create_comment(self._number, body, find_existing=lambda: next(iter(self.find()), None))

    def _supersede(self, others: list[Comment], kept: Comment) -> None:
        for other in others:
            with suppress(NotFound):  # it was deleted, which is as good
                self._github.update_comment(other.id, render_superseded(kept.url))


def _same(one: str, other: str) -> bool:
    return one.replace("\r\n", "\n").strip() == other.strip()
