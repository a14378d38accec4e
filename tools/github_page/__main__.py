"""Draws the pictures of the README anew: python -m tools.github_page

Each is of a golden file of the tests; docs/images/sources.json says which, and of which content.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tools.github_page import Page, draw

ROOT = Path(__file__).parent.parent.parent
IMAGES = ROOT / "docs" / "images"
GOLDEN = Path("tests/report/golden")
PICTURES = {
    f"{name}-{kind}.png": GOLDEN / sample / f"{kind}.md"
    for name, sample in (("pass", "pass"), ("fail", "gate_failure"))
    for kind in ("summary", "comment")
}


def digest(source: Path) -> str:
    """Of the text that a picture shows."""
    return hashlib.sha256((ROOT / source).read_bytes()).hexdigest()


def main() -> None:
    """Writes pictures and their sources."""
    IMAGES.mkdir(exist_ok=True)
    draw([Page((ROOT / source).read_text("utf-8"), picture=str(IMAGES / name)) for name, source in PICTURES.items()])
    sources = {name: {"source": source.as_posix(), "sha256": digest(source)} for name, source in PICTURES.items()}
    (IMAGES / "sources.json").write_text(json.dumps(sources, indent=2) + "\n")


if __name__ == "__main__":
    main()
