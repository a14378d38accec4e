"""What a Markdown reader makes of a text: by the parser that rich brings, with GitHub's tables and strikethrough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What GitHub links in text, or takes for the name of an emoji, although no Markdown says so.
LINKED_BY_THE_FORGE = re.compile(r"@\w|#\d|://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b|:(?:tada|100|8ball):", re.IGNORECASE)


def tokens(text: str) -> Iterator[Token]:
    """All tokens, inline ones in place of the token that holds them."""
    for token in READER.parse(text):
        yield from token.children or [token]


def kinds(text: str) -> list[str]:
    """The kinds of the block tokens, which say how a document is built."""
    return [token.type for token in READER.parse(text)]


def shown(text: str) -> str:
    """What is read on the page, blanks aside."""
    parts = [token.content for token in tokens(text) if token.type in ("text", "code_inline", "fence", "code_block")]
    return "".join("".join(parts).split())
