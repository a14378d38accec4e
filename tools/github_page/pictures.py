"""The pictures of the README: comment and summary of two recorded runs, in GitHub's light and dark colours."""

from __future__ import annotations

import hashlib
from pathlib import Path

from keystone_action.report.comment.history import LastResult, Marker
from keystone_action.report.comment.render import CommentFacts, render_comment
from keystone_action.report.summary import render_summary
from keystone_action.scoring.document import run_from_document
from keystone_action.scoring.results import RunResult
from tools.github_page import Page
from tools.github_page.recorded import RECORDED, document

ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"
SOURCES = IMAGES / "sources.json"
RUN_URL = "https://github.com/octo/agents/actions/runs/6001/attempts/1"


def pages() -> dict[str, Page]:
    """File name → what it shows. Comments, which are seen at once, are sharp on screens of two pixels to one too."""
    return {
        f"{name}-{kind}{'-dark' if theme == 'dark' else ''}.png": Page(
            text, theme=theme, scale=2 if kind == "comment" else 1
        )
        for name in RECORDED
        for kind, text in (("comment", _comment(name)), ("summary", render_summary(_run(name))))
        for theme in ("light", "dark")
    }


def digests() -> dict[str, str]:
    """File name → digest of the Markdown that it shows."""
    return {name: hashlib.sha256(page.text.encode()).hexdigest() for name, page in pages().items()}


def _run(name: str) -> RunResult:
    return run_from_document(document(name))


def _comment(name: str) -> str:
    """As the action writes it. The first run's is a new comment, the second one's an update of it."""
    run, first = _run(name), _run("pass")
    before = None if name == "pass" else LastResult.of(first, first.git_sha or "")
    facts = CommentFacts(sha=run.git_sha or "", run_url=RUN_URL, before=before)
    return render_comment(run, Marker.of_key("readme"), facts)
