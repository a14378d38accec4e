"""The examples of docs/checks, taken from their pages and laid out as a reader would.

## Example                 any heading that begins so; what follows is for both variants
The spec, `keystone.yaml`:
```yaml …                  a block after a line that ends with a name in backticks and a colon is that file
### Passes                 `keystone run keystone.yaml` must exit with 0
### Fails                  … with 1; files of the same name replace the ones above
Its message:
```text …                  the message of the check; `…` stands for anything
The judge answers:
```json …                  what the scripted model server says
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from support.command_line import ROOT

PAGES = ROOT / "docs" / "checks"
VARIANTS = {"Passes": 0, "Fails": 1}
"""Heading → exit code."""
_BLOCK = re.compile(r"^([^\n]*\S)[ ]*\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([^`]+)`[^`]*:$")


@dataclass
class Variant:
    """What one run is made of. message, judge: None where the page shows none."""

    files: dict[str, str] = field(default_factory=dict)
    message: str | None = None
    judge: str | None = None

    def write(self, directory: Path) -> None:
        """Lay the files out."""
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def page(check_type: str) -> str:
    """The text of a page."""
    return (PAGES / f"{check_type}.md").read_text("utf-8")


def examples(text: str) -> dict[str, dict[str, Variant]]:
    """The examples of a page: heading → variant's heading → variant. Raises ValueError with a sentence."""
    found = {}
    for heading, body in sections(text, "## "):
        if heading.startswith("Example"):
            common, *parts = split(body, "### ")
            variants = {name: part for name, part in parts if name in VARIANTS}
            if list(variants) != list(VARIANTS):
                raise ValueError(f"{heading}: expected the headings {', '.join(VARIANTS)}, found {', '.join(variants)}")
            found[heading] = {name: _variant(common[1], part) for name, part in variants.items()}
    return found


def sections(text: str, marks: str) -> list[tuple[str, str]]:
    """Headings of one level with what follows them."""
    return split(text, marks)[1:]


def split(text: str, marks: str) -> list[tuple[str, str]]:
    """The same with what comes before the first heading, under the heading "". Blocks have no headings."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    fenced = False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith(marks) and not fenced:
            parts.append((line.removeprefix(marks).strip(), []))
        else:
            parts[-1][1].append(line)
    return [(heading, "".join(lines)) for heading, lines in parts]


def fits(shown: str, message: str) -> bool:
    """Whether a message is the one that a page shows."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, message.strip(), re.DOTALL) is not None


def _variant(*parts: str) -> Variant:
    variant = Variant()
    for part in parts:
        blocks = _BLOCK.findall(part)
        if 2 * len(blocks) != len(re.findall(r"^```", part, re.MULTILINE)):
            raise ValueError("a block without a line before it that says what it is")
        for caption, content in blocks:
            named = _FILE.search(caption)
            if caption.startswith("Its message"):
                variant.message = content
            elif caption.startswith("The judge answers"):
                variant.judge = content
            elif named:
                variant.files[named[1]] = content
            else:
                raise ValueError(f"{caption!r} does not say what the block after it is")
    return variant
