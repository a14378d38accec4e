"""Links, pictures and anchors of README, docs and examples lead to something that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)|\b(?:src|srcset|href)=\"([^\"]*)\"")


def links(text: str) -> list[str]:
    """Where a page leads: to files and places, not to the web."""
    found = [first or second for first, second in _LINK.findall(_CODE.sub("``", text))]
    return [link for link in found if not re.match(r"https?:", link)]


def anchors(text: str) -> set[str]:
    """The places in a page: an `id`, and each heading as GitHub names it, the second of the same name with `-1`."""
    found = set(re.findall(r"\bid=\"([^\"]+)\"", _CODE.sub("", text)))
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", _FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(next(one for one in _numbered(name) if one not in found))
    return found


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(1))


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for link in links(text):
        name, _, anchor = link.partition("#")
        target = page.parent / unquote(name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text("utf-8")) == []


def test_it_looks_at_files_places_and_pictures() -> None:
    found = {page.relative_to(ROOT).as_posix(): links(page.read_text("utf-8")) for page in PAGES}
    assert {"README.md", "docs/checks/sql.md", "examples/reconcile/README.md"} < found.keys()
    assert {"docs/baseline.md", "docs/images/fail-comment.png", "docs/images/fail-comment-dark.png"} < {
        *found["README.md"]
    }
    assert "#touchstone" in found["docs/compatibility.md"]


@pytest.mark.parametrize("link", ["two.md", "#three", "one.md#three", "lost folder/", "#b-2"])
def test_what_leads_nowhere_is_found(tmp_path: Path, link: str) -> None:
    page = tmp_path / "one.md"
    page.write_text(
        '# One: `a_b` & [c](one.md)\n## B\n## B\n<a id="here"></a>\n```sh\n# three\n[x](two.md)\n```\n`[y](z)`\n'
    )
    (tmp_path / "a folder").mkdir()
    right = "".join(
        f"[x]({one})" for one in ("one.md", "#one-a_b--c", "one.md#b-1", "#here", "a%20folder", "https://x.test/#y")
    )
    text = page.read_text() + right
    assert broken(page, text) == []
    assert broken(page, f'{text}<img src="{link}">') == [link]
