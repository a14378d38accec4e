"""The documentation as a site. The pages are plain Markdown, made to be read on GitHub; what a site needs more is here.

What goes in: docs/**/*.md. What comes out: HTML. The navigation is what index.md links to, heading by heading. Links
that lead out of docs/ become links to the repository. A link or an anchor that leads nowhere ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
REPOSITORY = "https://github.com/keystone-action/keystone-action"

project = "Keystone Action"
html_title = project
extensions = ["myst_parser"]
exclude_patterns = ["images"]
html_theme = "furo"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_copy_source = False
html_show_copyright = False
smartquotes = False
# Anchors as GitHub makes them.
myst_heading_anchors = 6
# Some blocks are excerpts, which no lexer takes for a whole document.
suppress_warnings = ["misc.highlighting_failure"]

_LINK = re.compile(r"(?<=\]\()([^()\s:#]+)(?=[)#])")
_SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_LOG = logging.getLogger(__name__)


def lead_to_the_repository(_app: Sphinx, name: str, source: list[str]) -> None:
    """Links out of docs/ become links to GitHub. One to a file that is not there is a warning, as any broken link."""
    folder = (DOCS / name).parent

    def address(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.is_relative_to(DOCS) or not link[1].startswith(".."):
            return link[1]
        if not target.exists():
            _LOG.warning("no such file: %s", link[1], location=name)
        kind = "tree" if target.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}"

    source[0] = _LINK.sub(address, source[0])


def add_navigation(_app: Sphinx, name: str, source: list[str]) -> None:
    """index.md: a part of the navigation for each heading, of the pages that it links to; checks/README.md: all."""
    if name == "index":
        for heading, text in _SECTION.findall(source[0]):
            pages = [link for link in _LINK.findall(text) if link.endswith(".md")]
            source[0] += _toctree(pages, caption=heading)
    elif name == "checks/README":
        source[0] += _toctree(sorted(path.name for path in (DOCS / "checks").glob("*.md") if path.stem != "README"))


def _toctree(pages: list[str], **options: str) -> str:
    lines = [f":{name}: {value}" for name, value in options.items()]
    return "\n".join(("\n\n```{toctree}", ":hidden:", *lines, "", *dict.fromkeys(pages), "```\n"))


def setup(app: Sphinx) -> None:
    app.connect("source-read", lead_to_the_repository)
    app.connect("source-read", add_navigation)
