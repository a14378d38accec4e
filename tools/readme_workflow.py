"""Prints the workflow that a Markdown file shows: its first YAML block with `jobs:`."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def workflow(markdown: str) -> str:
    """The block. Raises LookupError when there is none."""
    for block in re.findall(r"^```ya?ml\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL):
        if re.search(r"^jobs:", block, re.MULTILINE):
            return str(block)
    raise LookupError("no YAML block with jobs")


if __name__ == "__main__":
    sys.stdout.write(workflow(Path(sys.argv[1]).read_text("utf-8")))
