"""The workflows that Markdown files show: their YAML blocks with `jobs:`.

Usage: python -m tools.readme_workflow FOLDER FILE...     writes each to FOLDER, named by its file and number
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def workflows(markdown: str) -> list[str]:
    """The blocks, in order."""
    blocks = re.findall(r"^```ya?ml\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    return [str(block) for block in blocks if re.search(r"^jobs:", block, re.MULTILINE)]


def workflow(markdown: str) -> str:
    """The first one. Raises LookupError when there is none."""
    for block in workflows(markdown):
        return block
    raise LookupError("no YAML block with jobs")


def main(folder: Path, files: list[Path]) -> None:
    for file in files:
        for number, text in enumerate(workflows(file.read_text("utf-8")), 1):
            (folder / f"{file.stem}-{number}.yml").write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
