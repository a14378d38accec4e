"""Writes what is made from the options (`keystone_action/options/model.py`): `python -m tools.option_pages`.

That is the inputs of action.yml, the tables of docs/action.md, and the options of docs/command-line.md.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import yaml

from keystone_action.cli.arguments import COMMANDS
from keystone_action.options.model import Options
from keystone_action.options.option import Setting

ROOT = Path(__file__).parents[1]
ACTION = ROOT / "action.yml"
ACTION_PAGE = ROOT / "docs" / "action.md"
COMMANDS_PAGE = ROOT / "docs" / "command-line.md"
BEGIN = "<!-- Made by `python -m tools.option_pages` from the options: edit those, not this part. -->"
END = "<!-- The end of what is made. -->"
_WIDTH = 120


def made_texts() -> dict[Path, str]:
    """What each of these files should hold. Raises ValueError for one without a place for it."""
    action = _action(ACTION.read_text("utf-8"))
    return {
        ACTION: action,
        ACTION_PAGE: _rewritten(ACTION_PAGE, [*input_table(), "", *_output_table(action)]),
        COMMANDS_PAGE: _rewritten(COMMANDS_PAGE, list(_command_tables())),
    }


def inputs() -> tuple[Setting, ...]:
    """The options that are inputs of the action."""
    return tuple(one for one in Options.settings() if one.option.input)


def input_table(settings: tuple[Setting, ...] | None = None) -> list[str]:
    """The lines of the table of inputs. settings: None = all of them."""
    lines = ["## Inputs", "", "| input | default | meaning |", "|---|---|---|"]
    for one in inputs() if settings is None else settings:
        default = f"`{_cell(one.input_default)}`" if one.input_default else ""
        lines.append(f"| `{one.option.input}` | {default} | {_words(one.input_help)} |")
    return lines


def _output_table(action: str) -> Iterator[str]:
    yield from ("## Outputs", "", "Written on failure too. `passed`, `failed`, `errors` and `total` count cells.", "")
    yield from ("| output | meaning |", "|---|---|")
    for name, entry in yaml.safe_load(action)["outputs"].items():
        yield f"| `{name}` | {_words(' '.join(entry['description'].split()))} |"


def _command_tables() -> Iterator[str]:
    yield from ("| option | of | meaning |", "|---|---|---|")
    for one in Options.settings():
        if one.option.commands and not one.option.variable:
            yield f"| {_written(one)} | {', '.join(one.option.commands)} | {_words(one.help)} |"
    yield from (
        "",
        "The other commands have these of their own:",
        "",
        "| command | option | meaning |",
        "|---|---|---|",
    )
    for command in COMMANDS:
        for one in command.settings if command.arguments else ():
            yield f"| `{command.name}` | {_written(one)} | {_words(one.help)} |"


def _written(one: Setting) -> str:
    value = "" if one.type is bool else one.option.metavar or "\\|".join(one.choices)
    return f"`{' '.join(filter(None, (one.option.flag, value)))}`"


def _action(text: str) -> str:
    """action.yml with its inputs made anew."""
    head, begin, rest = text.partition("\ninputs:\n")
    _, end, tail = rest.partition("\noutputs:\n")
    if not (begin and end):
        raise ValueError("action.yml has no inputs before its outputs")
    lines = [line for one in inputs() for line in _entry(one)]
    return f"{head}{begin}{chr(10).join(lines)}\n{end}{tail}"


def _entry(one: Setting) -> Iterator[str]:
    yield f"  {one.option.input}:"
    line = f"    description: {one.input_help}"
    if len(line) <= _WIDTH and _is_plain(one.input_help):
        yield line
    else:
        yield "    description: >-"
        yield from textwrap.wrap(
            one.input_help, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_on_hyphens=False
        )
    if default := one.input_default:
        yield f"    default: {default if _is_plain(default) else json.dumps(default)}"


def _is_plain(text: str) -> bool:
    """Whether YAML reads it as this text without quotes."""
    try:
        return bool(yaml.safe_load(f"key: {text}") == {"key": text})
    except yaml.YAMLError:
        return False


def _rewritten(page: Path, lines: list[str]) -> str:
    head, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page.name} has no place between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{chr(10).join(lines)}\n\n{END}{tail}"


def _words(text: str) -> str:
    """What would be taken for HTML or for the next cell is neither."""
    return _cell(text).replace("<", "&lt;")


def _cell(text: str) -> str:
    """In a code span, too, a bar would end the cell."""
    return text.replace("|", "\\|")


def main() -> int:
    for path, text in made_texts().items():
        path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
