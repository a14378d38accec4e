"""The workflows that Markdown files show: their YAML blocks with `jobs:`, and blocks of steps, each put into a job.

Usage: python -m tools.readme_workflow FOLDER FILE...     writes each to FOLDER, named by its file and number
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

_AROUND_STEPS = """\
name: steps
on: push
permissions: {}
concurrency: {group: steps, cancel-in-progress: true}
jobs:
  steps:
    name: Steps
    runs-on: ubuntu-latest
    timeout-minutes: 5
    steps:
"""


def workflows(markdown: str) -> list[str]:
    """The whole ones, in order."""
    return [block for block in _blocks(markdown) if re.search(r"^jobs:", block, re.MULTILINE)]


def workflow(markdown: str) -> str:
    """The first one. Raises LookupError when there is none."""
    for block in workflows(markdown):
        return block
    raise LookupError("no YAML block with jobs")


def workflows_of_steps(markdown: str) -> list[str]:
    """One for each block of steps, in order."""
    used = re.compile(r"^(- | {2})uses: ", re.MULTILINE)
    found = [block for block in _blocks(markdown) if block.startswith("- ") and used.search(block)]
    return [_AROUND_STEPS + textwrap.indent(block, " " * 6) for block in found]


def _blocks(markdown: str) -> list[str]:
    return re.findall(r"^```ya?ml\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)


def main(folder: Path, files: list[Path]) -> None:
    for file in files:
        text = file.read_text("utf-8")
        for number, shown in enumerate(workflows(text) + workflows_of_steps(text), 1):
            (folder / f"{file.stem}-{number}.yml").write_text(shown, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
