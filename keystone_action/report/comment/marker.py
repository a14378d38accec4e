"""The hidden lines at the end of a comment: which comment it is, and what it remembers for the next one.

They are HTML comments, which GitHub does not show. A comment is known by its very last line, so that the same line in
the midst of somebody's text means nothing; and nothing but these functions ever writes such a line.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_REMEMBERED = 14_000
"""Characters of what a comment remembers."""
_REMEMBERED = re.compile(rf"<!-- keystone-action remembers: ([A-Za-z0-9+/=]{{1,{MAX_REMEMBERED}}}) -->\Z")


@dataclass(frozen=True, slots=True)
class Marker:
    """Tells the comment of one key. line: the last of such a comment."""

    line: str

    @classmethod
    def of_key(cls, key: str) -> Marker:
        """key: the input comment-key. Only its digest is written, since it may hold anything."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return cls(f"<!-- keystone-action comment: {digest} -->")

    def is_in(self, body: str) -> bool:
        """Whether a comment has this key; its author does not matter."""
        return _lines(body).endswith(f"\n{self.line}")

    def memory(self, body: str) -> str:
        """What a comment of this key remembers, in base64; empty for nothing."""
        if not self.is_in(body):
            return ""
        found = _REMEMBERED.search(_lines(body).removesuffix(f"\n{self.line}"))
        return found[1] if found else ""

    def text(self, body: str) -> str:
        """What people see of a comment of this key."""
        lines = _lines(body).removesuffix(f"\n{self.line}")
        return _REMEMBERED.sub("", lines).rstrip()

    def sign(self, text: str, remembered: str = "") -> str:
        """The text as the comment of this key. remembered: base64, at most MAX_REMEMBERED characters."""
        lines = [without_hidden(text).rstrip(), ""]
        if remembered:
            lines.append(f"<!-- keystone-action remembers: {remembered} -->")
        return "\n".join([*lines, self.line]) + "\n"

    def size(self, remembered: str = "") -> int:
        """Characters that `sign` adds at most."""
        return len(self.sign("", remembered)) + 2


def without_hidden(text: str) -> str:
    """text with the beginning of every HTML comment shown instead: in a code span or a block it would be harmless on
    the page, but not to a program that looks for a marker."""
    # What a template gives knows that it is markup, and would escape what is put into it.
    return str(text).replace("<!--", "<!- -")


def _lines(body: str) -> str:
    return body.replace("\r\n", "\n").rstrip()
