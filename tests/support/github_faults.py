"""What a fake GitHub does wrong on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal


@dataclass
class Fault:
    """One thing to go wrong, for requests whose path fits.

    path: a pattern for the path below the repository (`/issues/*/comments`), else below the API (`/user`, `/graphql`);
    the store of artifacts is `/store/<id>`. times: for so many requests; None for ever. skip: so many requests are
    served first. done: the work is done before the answer goes wrong. status, headers, body: what is answered, JSON
    with `message` by default. reset_in: the rate limit is used up for so many seconds. how: `hang` never answers,
    `drip` sends a byte of the head now and then, `reset` breaks the connection, `cut` ends it amid the body.
    """

    method: str
    path: str
    how: Literal["answer", "hang", "drip", "reset", "cut"] = "answer"
    times: int | None = 1
    skip: int = 0
    done: bool = False
    status: int = 500
    message: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    reset_in: int | None = None

    def strikes(self, method: str, path: str) -> bool:
        """Whether it is this request's turn; counts it."""
        if method != self.method or not fnmatchcase(path, self.path):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0
