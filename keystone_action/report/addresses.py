"""Addresses that a report may lead to: plain ones, made by us of the runner's variables, and our own pages, to which a
report links once, where a word of ours comes first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from keystone_action.report.escape import inline

if TYPE_CHECKING:
    from markupsafe import Markup

DOCS = "https://github.com/keystone-action/keystone-action/blob/main/docs"
"""Where our pages are read; a message must not send anybody to a file that is only in our repository."""
WORDS = ("cell", "composite", "gate")
"""Words of ours that a page explains, each below a heading of its own."""
CHECKS = frozenset(
    {
        *("budget", "command_exit", "custom", "diff", "efficiency", "exact", "file_absent", "file_content"),
        *("file_exists", "files", "http", "http_mock_assertions", "implemented", "json", "llm_as_judge"),
        *(
            "mcp_assertions",
            "passfail",
            "regex",
            "scorer",
            "similarity",
            "sql",
            "swebench",
            "tests",
            "tool_correctness",
            "trace",
        ),
    }
)
"""Types of checks with a page of their own; a check of somebody's package has none here."""
_URL = re.compile(r"https?://[A-Za-z0-9.:-]+(?:/[A-Za-z0-9._~%-]+)*")


def check_page(type_name: str) -> str:
    """The page of a type of checks; empty where there is none."""
    return f"{DOCS}/checks/{type_name}.md" if type_name in CHECKS else ""


def word_page(word: str) -> str:
    """The place that explains a word of WORDS."""
    return f"{DOCS}/words.md#{word}"


def cell_anchor(cell_id: str) -> str:
    """What leads to a cell in report.html, behind its address: `#` and the cell's id."""
    return "#" + quote(cell_id, safe="", errors="replace")


def safe_link(url: str) -> Markup | None:
    """An address that a link may have; None for anything else."""
    from markupsafe import Markup

    return Markup(url) if _URL.fullmatch(url) else None  # noqa: S704 - checked just here


def report_link(place: str) -> Markup | None:
    """The address of report.html, as it is linked. place: the file's own name where the text lies beside it, else the
    page of a workflow's run, whose artifacts it is among; None for anything else."""
    from markupsafe import Markup

    if place == "report.html":
        return Markup(place)  # noqa: S704 - the one that it is compared with
    page = safe_link(place)
    return None if page is None else page + "#artifacts"


def safe_links(links: Mapping[str, str] | None) -> dict[str, Markup]:
    """Those of several addresses that a link may have."""
    checked = {name: safe_link(url) for name, url in (links or {}).items()}
    return {name: url for name, url in checked.items() if url is not None}


_WORD = re.compile(rf"(?<![\w`[/-])({'|'.join(WORDS)})s?(?![\w`\]/-])")


class Terms:
    """Made anew for each report, since it remembers which words were explained."""

    def __init__(self) -> None:
        self._left = set(WORDS)

    def __call__(self, text: str) -> Markup:
        """A text of ours as Markdown on one line, its words linked that were not linked before."""
        from markupsafe import Markup

        return Markup(_WORD.sub(self._linked, inline(text)))  # noqa: S704 - `inline` escapes, the addresses are ours

    def _linked(self, found: re.Match[str]) -> str:
        if found[1] not in self._left:
            return found[0]
        self._left.remove(found[1])
        return f"[{found[0]}]({word_page(found[1])})"
