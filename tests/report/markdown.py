"""What a Markdown reader makes of a text: by the parser that rich brings, with GitHub's tables and strikethrough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

from keystone_action.report.addresses import CHECKS, WORDS, check_page, word_page

OUR_PAGES = frozenset([*map(check_page, CHECKS), *map(word_page, WORDS)])
"""Addresses of ours that a report may link, whoever wrote its texts."""
READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What GitHub links in text, or takes for the name of an emoji, although no Markdown says so.
LINKED_BY_THE_FORGE = re.compile(r"@\w|#\d|://|www\.|\bGH-\d|\b[0-9a-f]{7,40}\b|:(?:tada|100|8ball):", re.IGNORECASE)


def tokens(text: str) -> Iterator[Token]:
    """All tokens, inline ones in place of the token that holds them; a `<code>` with nothing but text in it is code as
    a code span is."""
    for token in READER.parse(text):
        yield from _with_code(token.children) if token.children else [token]


def _with_code(children: list[Token]) -> Iterator[Token]:
    inside: list[Token] | None = None
    for token in children:
        tag = token.content if token.type == "html_inline" else ""
        if tag == "<code>" and inside is None:
            inside = [token]
        elif inside is not None and tag == "</code>":
            content = "".join(one.content for one in inside[1:] if one.type != "html_inline")
            yield Token("code_inline", "code", 0, content=content)
            inside = None
        elif inside is not None and (token.type == "text" or tag == "<wbr>"):
            inside.append(token)
        elif inside is not None:
            yield from [*inside, token]
            inside = None
        else:
            yield token
    yield from inside or ()


def kinds(text: str) -> list[str]:
    """The kinds of the block tokens, which say how a document is built."""
    return [token.type for token in READER.parse(text)]


def shown(text: str) -> str:
    """What is read on the page, blanks aside."""
    parts = [token.content for token in tokens(text) if token.type in ("text", "code_inline", "fence", "code_block")]
    return "".join("".join(parts).split())
