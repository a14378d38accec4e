"""Links to what the words of ours mean: in each report once, where a word comes first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keystone_action.report.addresses import WORDS, word_page
from keystone_action.report.escape import inline

if TYPE_CHECKING:
    from markupsafe import Markup

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
