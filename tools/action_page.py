"""Writes the tables of inputs and outputs in docs/action.md from action.yml: `python -m tools.action_page`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "action.md"
BEGIN = "<!-- Made by `python -m tools.action_page` from action.yml: edit that, not this part. -->"
END = "<!-- The end of what is made. -->"


def tables(action: dict[str, Any]) -> str:
    """The generated part of the page, without its two comments."""
    lines = ["## Inputs", "", "| input | default | meaning |", "|---|---|---|"]
    for name, entry in action["inputs"].items():
        default = entry.get("default", "")
        lines.append(f"| `{name}` | {f'`{_escaped(default)}`' if default else ''} | {_cell(entry)} |")
    lines += ["", "## Outputs", "", "Written on failure too. `passed`, `failed`, `errors` and `total` count cells.", ""]
    lines += ["| output | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(entry)} |" for name, entry in action["outputs"].items()]
    return "\n".join(lines)


def rewritten(text: str, action: dict[str, Any]) -> str:
    """The page with its generated part made anew. Raises ValueError for a page without a place for it."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no place between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{tables(action)}\n\n{END}{tail}"


def _cell(entry: dict[str, Any]) -> str:
    """What would be taken for HTML or for the next cell is neither."""
    return _escaped(" ".join(str(entry["description"]).split())).replace("<", "&lt;")


def _escaped(text: str) -> str:
    """In a code span, too, a bar would end the cell."""
    return text.replace("|", "\\|")


def main() -> int:
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), action), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
