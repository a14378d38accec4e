"""Draws the pictures of the README anew: python -m tools.github_page

They show recorded runs (recorded.py) by the templates of today; docs/images/sources.json says of which text each is.
"""

from __future__ import annotations

import json
from dataclasses import replace

from tools.github_page import draw
from tools.github_page.pictures import IMAGES, SOURCES, digests, pages


def main() -> None:
    """Writes pictures and their sources, and removes those that are not made any more."""
    IMAGES.mkdir(exist_ok=True)
    made = pages()
    draw([replace(page, picture=str(IMAGES / name)) for name, page in made.items()])
    for old in IMAGES.glob("*.png"):
        if old.name not in made:
            old.unlink()
    SOURCES.write_text(json.dumps(digests(), indent=2) + "\n")


if __name__ == "__main__":
    main()
